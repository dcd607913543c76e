"""``kvbench run``: decodes once and prints text, tokens/s, bandwidth and hashes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvbench.cli import main
from kvbench.decoder.model import open_model
from runner.once import read_settings
from tests.models.naive import NaiveDecoder

TINY = ["run", "--model", "synthetic:tiny,seed=4", "--generate", "6"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVBENCH_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text("A text of one's own, read again and again.\n")
    return text


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main([*TINY, *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_it_decodes_what_the_equations_say(
    capsys: pytest.CaptureFixture[str], own_cache: Path
) -> None:
    from kvbench.workloads import prompt_tokens

    status, out, _ = run(
        capsys, "--kind", str(own_cache), "--prompt-tokens", "40", "--set", "depth=1", "--json"
    )
    document = json.loads(out)
    prompt = prompt_tokens(own_cache, 40, tokenizer=None, vocab_size=512, seed=1, index=0)
    expected = NaiveDecoder(open_model("synthetic:tiny,seed=4")).greedy(prompt, 7)
    assert status == 0 and document["tokens"] == [expected]
    assert document["result"]["tokens"] == 6 and document["prompt_tokens"] == [40]


def test_depth_changes_no_hash(capsys: pytest.CaptureFixture[str], own_cache: Path) -> None:
    outputs = []
    for depth in (0, 1, 4):
        where = ["--kind", str(own_cache), "--prompt-tokens", "90", "--sequences", "3"]
        status, out, err = run(capsys, *where, "--set", f"depth={depth}")
        assert status == 0 and err == "" and "tokens/s" in out and "GB/s" in out
        hashes = [line for line in out.splitlines() if line.startswith(("logits:", "tokens:"))]
        assert len(hashes) == 2
        outputs.append(hashes)
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "dpth=1"], "dpth"),
        (["--set", "depth"], "NAME=VALUE"),
        (["--set", "depth=1", "--set", "depth=2"], "given twice"),
        (["--set", "depth=many"], "depth"),
        (["--prompt", "hello"], "no tokenizer"),
        (["--generate", "0"], "generate = 0"),
        (["--prompt-tokens", "0"], "n_tokens"),
        (["--prompt-tokens", "5000"], "context"),
        (["--kind", "/absent/file.txt"], "/absent/file.txt"),
        (["--model", "absent.gguf"], "absent.gguf"),
        (["--sequences", "0"], "sequences"),
    ],
)
def test_unkind_input(
    capsys: pytest.CaptureFixture[str], own_cache: Path, arguments: list[str], says: str
) -> None:
    kind = [] if "--kind" in arguments else ["--kind", str(own_cache)]
    status, out, err = run(capsys, *kind, *arguments)
    assert (status, out) == (2, "") and says in err and len(err.splitlines()) == 1


def test_settings_are_toml_values() -> None:
    pairs = ["depth=2", "tail=host", "graphs=true", 'ablate=["x"]', "link_gb_s=1.5"]
    expected = {"depth": 2, "tail": "host", "graphs": True, "ablate": ["x"], "link_gb_s": 1.5}
    assert read_settings(pairs) == expected


@pytest.mark.model
def test_real_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    status = main(["run", "--prompt", "The capital of France is", "--generate", "4"])
    out = capsys.readouterr().out
    assert status == 0 and out.startswith(" Paris")
