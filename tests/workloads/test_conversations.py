"""The bundled conversations, users' files, SPEED-Bench's rows, and the chat template."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvbench import assets
from kvbench.errors import UsageError
from kvbench.workloads.chat import turn_tokens
from kvbench.workloads.conversations import PLACEHOLDER, Conversation, bundled, load

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>'"
    " + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class Letters:
    """A tokenizer of characters."""

    vocab_size = 1 << 16
    eos_ids = frozenset({0})

    def __init__(self, chat_template: str | None) -> None:
        self.chat_template = chat_template

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


def texts(conversation: Conversation, template: str | None) -> list[str]:
    tokenizer = Letters(template)
    return [tokenizer.decode(t) for t in turn_tokens(conversation, tokenizer=tokenizer)]


# ------------------------------------------------------------------------------- chat template
def test_a_later_turn_is_what_follows_the_answer() -> None:
    found = texts(Conversation("c", ("Hi", "More"), system="Be brief."), TEMPLATE)
    assert found == [
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n",
        "<|im_end|>\n<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n",
    ]


def test_without_a_template_speakers_are_named() -> None:
    assert texts(Conversation("c", ("Hi", "More")), None) == [
        "user: Hi\nassistant:",
        "\nuser: More\nassistant:",
    ]


def test_without_a_tokenizer_ids_stand_for_bytes() -> None:
    (ids,) = turn_tokens(Conversation("c", ("Hi",)), tokenizer=None, vocab_size=512)
    assert len(ids) == len("user: Hi\nassistant:") and all(0 <= i < 512 for i in ids)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('system first') }}", "system first"),
        ("{{ messages[9].content }}", "chat template"),
        ("{% for", "cannot be read"),
        (
            "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
            "leaves earlier answers out",
        ),
        ("{{ ().__class__.__mro__ }}", "chat template"),
    ],
)
def test_a_template_that_will_not_do_is_refused_in_one_line(template: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        texts(Conversation("c", ("Hi", "More")), template)
    assert "\n" not in str(refused.value)


# --------------------------------------------------------------------------------- users' files
def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_openai_messages_are_read_and_answers_counted(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.jsonl",
        {
            "messages": [
                {"role": "system", "content": "S"},
                {"role": "user", "content": "A"},
                {"role": "assistant", "content": "an answer"},
                {"role": "user", "content": "B"},
            ]
        },
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "C"}]}]},
    )
    first, second = load(path)
    assert (first.turns, first.system, first.dropped_answers) == (("A", "B"), "S", 1)
    assert (second.turns, second.dropped_answers) == (("C",), 0)


SPEED = {
    "question_id": "q7",
    "category": "coding",
    "sub_category": "python",
    "turns": ["one", "two"],
    "source": "somewhere",
    "src_id": "12",
    "difficulty": "easy",
    "multiturn": True,
}


def test_speed_bench_rows_are_read_unchanged(tmp_path: Path) -> None:
    (found,) = load(write(tmp_path / "s.jsonl", SPEED))
    assert found == Conversation("q7", ("one", "two"), category="coding")


def test_speed_bench_parquet_is_read_unchanged(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "s.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([SPEED, {**SPEED, "question_id": "q8"}]), path)
    assert [c.name for c in load(path)] == ["q7", "q8"]
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(UsageError, match="not a readable parquet file"):
        load(path)


def test_parquet_without_its_library_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "absent.parquet").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match=r"pip install 'kvbench\[parquet\]'; JSONL does not"):
        load(tmp_path / "absent.parquet")


def test_a_placeholder_is_refused_by_name(tmp_path: Path) -> None:
    row = {**SPEED, "turns": [f"{PLACEHOLDER} USING SPECDEC_BENCH"]}
    with pytest.raises(UsageError, match=r"line 2 \(q7\): holds a placeholder.*from somewhere"):
        load(write(tmp_path / "s.jsonl", SPEED, row))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no conversation"),
        ("{", "line 1: not JSON"),
        ('{"text": "a"}', "line 1: needs an object with 'messages' or 'turns'"),
        ("[1]", "needs an object"),
        ('{"messages": [{"role": "user"}]}', "message 1: needs a string 'content'"),
        ('{"messages": ["hi"]}', "message 1: needs a string 'content'"),
        ('{"messages": [{"role": "user", "content": []}]}', "or a list of text parts"),
        (
            '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
            "or a list of text parts",
        ),
        (
            '{"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}',
            "or a list of text parts",
        ),
        ('{"messages": [{"role": "tool", "content": "x"}]}', "role 'tool'; allowed are user"),
        ('{"messages": [{"role": "system", "content": "x"}]}', "no message has the role user"),
        ('{"turns": []}', "'turns' needs one string"),
        ('{"turns": ["a", 2]}', "'turns' needs one string"),
    ],
)
def test_other_lines_are_refused_by_number(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=words) as refused:
        load(path)
    assert "\n" not in str(refused.value)


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x")
    for name in ("a.csv", "absent.jsonl", "."):
        with pytest.raises(UsageError, match="workload"):
            load(tmp_path / name)
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        load(tmp_path / "b.jsonl")


# ------------------------------------------------------------------------------------- bundled
def test_the_bundled_set_is_80_conversations_in_89_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gzip

    problems = [{"task_id": f"T/{i}", "prompt": f"def f{i}():\n"} for i in range(164)]
    with gzip.open(tmp_path / "HumanEval.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(p) + "\n" for p in problems)
    monkeypatch.setattr(assets, "ensure", lambda _: tmp_path)
    found = bundled()
    assert (len(found), sum(len(c.turns) for c in found)) == (80, 89)
    assert sum(len(c.turns) for c in found[:8]) == 9, "the small size has a second turn too"
    assert len({c.turns[1] for c in found if len(c.turns) > 1}) == 9
    assert "def f0():" in found[0].turns[0]
    assert bundled(2)[0].name == "T/80"
