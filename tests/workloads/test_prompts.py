"""Real text at any exact length, and no two tasks that share a prefix."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.decoder.model import open_model
from kvbench.decoder.tokenizer import Tokenizer
from kvbench.errors import KvbenchError, UsageError
from kvbench.workloads import KINDS, prompt_text, prompt_tokens

VOCAB = 512
TEXT = "".join(f"Paragraph {i}: it says {i * i}, and no more.\n\n" for i in range(200))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    found = open_model("smollm2").tokenizer
    assert found is not None
    return found


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "own.txt"
    path.write_text(TEXT)
    return path


def hashed(path: Path, n: int, seed: int = 1, index: int = 0) -> list[int]:
    return prompt_tokens(path, n, tokenizer=None, vocab_size=VOCAB, seed=seed, index=index)


@pytest.mark.model
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_at_any_length(tokenizer: Tokenizer, kind: str) -> None:
    for n in (1, 2, 17, 128, 1023, 9000, 40_000):
        ids = prompt_tokens(kind, n, tokenizer=tokenizer, seed=3, index=5)
        assert len(ids) == n and all(0 <= i < tokenizer.vocab_size for i in ids)


@pytest.mark.model
def test_no_two_tasks_share_their_first_token(tokenizer: Tokenizer) -> None:
    """M-verdict 1 forbids a served prefix: over all kinds the very first token differs."""
    tasks = [
        prompt_tokens(kind, 40, tokenizer=tokenizer, seed=9, index=i)
        for kind in KINDS
        for i in range(200)
    ]
    assert len({task[0] for task in tasks}) == len(tasks)


@pytest.mark.model
def test_kinds_read_as_what_they_are(tokenizer: Tokenizer) -> None:
    def text(kind: str) -> str:
        return tokenizer.decode(prompt_tokens(kind, 2000, tokenizer=tokenizer, seed=1, index=1))

    assert "def " in text("code") and "return" in text("code")
    assert text("json").count('"') > 100
    assert text("dialogue").count("\nUser: ") > 10
    assert text("prose").count("\n") > 50 and "def " not in text("prose")


@pytest.mark.model
@settings(max_examples=15)
@given(
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 700),
    seed=st.integers(0, 99),
    index=st.integers(0, 99),
)
def test_text_form_has_the_exact_length(
    tokenizer: Tokenizer, kind: str, n: int, seed: int, index: int
) -> None:
    text = prompt_text(kind, n, tokenizer=tokenizer, seed=seed, index=index)
    assert len(tokenizer.encode(text)) == n
    ids = prompt_tokens(kind, n, tokenizer=tokenizer, seed=seed, index=index)
    kept = max(0, n - 64)
    assert tokenizer.encode(text)[:kept] == ids[:kept]


@pytest.mark.model
def test_another_process_makes_the_same_prompts(tokenizer: Tokenizer) -> None:
    code = (
        "from kvbench.decoder.model import open_model; from kvbench.workloads import *;"
        "t = open_model('smollm2').tokenizer;"
        "print([prompt_tokens(k, 300, tokenizer=t, seed=4, index=2) for k in KINDS])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    mine = [prompt_tokens(k, 300, tokenizer=tokenizer, seed=4, index=2) for k in KINDS]
    assert json.loads(out.stdout) == mine


@given(n=st.integers(1, 3000), seed=st.integers(0, 2**40), index=st.integers(0, 2**40))
def test_own_text_without_a_tokenizer(text_file: Path, n: int, seed: int, index: int) -> None:
    ids = hashed(text_file, n, seed, index)
    assert len(ids) == n and all(0 <= i < VOCAB for i in ids)
    assert ids == hashed(text_file, n, seed, index)


def test_hashed_ids_use_the_vocabulary(text_file: Path) -> None:
    assert len(set(hashed(text_file, 4000))) > VOCAB // 3


def test_hashed_tasks_share_no_first_token(text_file: Path) -> None:
    """Five kinds share the ids, so VOCAB // 5 tasks of one kind are told apart at once."""
    tasks = [hashed(text_file, 64, index=i) for i in range(VOCAB // 5)]
    assert all(a[0] != b[0] for a, b in combinations(tasks, 2))
    assert all(a[:16] != b[:16] for a, b in combinations(tasks, 2))


def test_length_and_seed_make_other_tasks(text_file: Path) -> None:
    base = hashed(text_file, 100)
    assert hashed(text_file, 100, seed=2)[:16] != base[:16]
    assert hashed(text_file, 101)[:16] != base[:16]


@pytest.mark.parametrize(
    "line",
    [
        '"plain"',
        '{"text": "plain"}',
        '{"prompt": "plain"}',
        '{"content": "plain", "id": 3}',
        '{"messages": [{"role": "user", "content": "plain"}]}',
    ],
)
def test_jsonl_documents(tmp_path: Path, line: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(f"{line}\n\n{line}\n")
    assert len(hashed(path, 77)) == 77


def test_a_moved_file_makes_the_same_tasks(tmp_path: Path, text_file: Path) -> None:
    moved = tmp_path / "moved.txt"
    moved.write_text(TEXT)
    assert hashed(moved, 500) == hashed(text_file, 500)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text("one thing\n")
    before = hashed(path, 50)
    path.write_text("quite another thing\n")
    assert hashed(path, 50) != before


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"", "holds no text"),
        ("a.txt", b" \n\n\t", "holds no text"),
        ("a.txt", b"ab\xff", "not UTF-8 at byte 2"),
        ("a.jsonl", b'{"text": "x"}\n{', "line 2: not JSON"),
        ("a.jsonl", b'{"words": "x"}', "line 1: needs a string"),
        ("a.jsonl", b"7", "line 1: needs a string"),
        ("a.jsonl", b'{"messages": [3]}', "line 1: each message"),
        ("a.jsonl", b"[" * 100_000, "line 1: not JSON"),
    ],
)
def test_unkind_files_get_one_line(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        hashed(path, 10)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_unkind_arguments(tmp_path: Path, text_file: Path) -> None:
    for bad in (tmp_path, tmp_path / "absent.txt", Path("/dev/null")):
        with pytest.raises(UsageError, match="workload"):
            hashed(bad, 10)
    with pytest.raises(UsageError, match="prose, code, json, dialogue"):
        prompt_tokens("poetry", 10, tokenizer=None, vocab_size=9, seed=1, index=0)
    for n, seed, index in ((0, 0, 0), (-1, 0, 0), (1, -1, 0), (1, 0, -1), (1 << 40, 0, 0)):
        with pytest.raises(KvbenchError, match="not allowed"):
            hashed(text_file, n, seed, index)
    with pytest.raises(KvbenchError, match="vocab_size"):
        prompt_tokens(text_file, 10, tokenizer=None, seed=1, index=0)
