"""The tokenizer comes from the file itself; nothing about text is guessed."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.decoder.gguf_tokenizer import PRE_TOKENIZERS, TokenizerFiles, read_tokenizer
from kvbench.decoder.model import open_model
from kvbench.errors import UsageError
from tests.models.gguf_files import byte_letters, write_gguf


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> TokenizerFiles:
    """All bytes, 60 control tokens <|0|>... from id 256, and th, the, Ġthe, in."""
    directory = tmp_path_factory.mktemp("tokenizer")
    write_gguf(directory / "m.gguf")
    reader = gguf.GGUFReader(directory / "m.gguf")
    fields = {name: field.contents() for name, field in reader.fields.items()}
    facts = read_tokenizer(fields, "m.gguf", directory / "tokenizer.json")
    assert facts is not None
    return TokenizerFiles(directory / "tokenizer.json", facts)


@given(text=st.text())
def test_every_text_survives(small: TokenizerFiles, text: str) -> None:
    text = text.encode(errors="ignore").decode()
    assert small.decode(small.encode(text)) == text


def test_merges_and_cuts(small: TokenizerFiles) -> None:
    byte = {chr(i): i for i in range(256)}
    assert small.encode("the") == [317]
    assert small.encode(" the") == [318]
    assert small.encode("thin") == [316, 319]
    assert small.encode("12") == [byte["1"], byte["2"]]


def test_control_tokens_are_text_unless_asked_for(small: TokenizerFiles) -> None:
    assert small.encode("<|7|>", special=True) == [263]
    assert small.encode("<|7|>") == [ord(c) for c in "<|7|>"]
    assert small.decode([263, 317]) == "<|7|>the"
    assert small.encode("a<|7|>the", special=True) == [ord("a"), 263, 317]


def test_bytes_that_are_no_text_become_replacement_characters(small: TokenizerFiles) -> None:
    assert small.decode([0xFF, ord("a")]) == "\ufffda"


def test_facts(small: TokenizerFiles) -> None:
    assert small.vocab_size == 320 and small.eos_ids == {257}
    assert small.bos_id is None and small.chat_template is None


def test_a_file_without_a_tokenizer_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVBENCH_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "m.gguf", tokenizer=False)
    assert open_model(str(tmp_path / "m.gguf")).tokenizer is None


FIELDS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": [*byte_letters(), "th"],
    "tokenizer.ggml.token_type": [1] * 257,
    "tokenizer.ggml.merges": ["t h"],
}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tokenizer.ggml.model": "bert"}, "tokenizer 'bert' is not supported"),
        ({"tokenizer.ggml.pre": "elvish"}, "pre-tokenizer 'elvish' is not supported"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "twice"),
        ({"tokenizer.ggml.token_type": [1]}, "token_type"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["th"]}, "merge 'th'"),
        ({"tokenizer.ggml.merges": ["t x"]}, "merge 't x'"),
    ],
)
def test_unkind_tokenizers(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_tokenizer(FIELDS | changes, "m.gguf", tmp_path / "t.json")
    assert says in str(caught.value) and "m.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pre", list(PRE_TOKENIZERS))
def test_every_pre_tokenizer_can_be_built(tmp_path: Path, pre: str) -> None:
    facts = read_tokenizer(FIELDS | {"tokenizer.ggml.pre": pre}, "m", tmp_path / "t.json")
    assert facts is not None
    tokenizer = TokenizerFiles(tmp_path / "t.json", facts)
    text = "It's 2024: naïve 日本語 text,\r\n\r\n   with 12345 digits!!\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.model
def test_smollm2() -> None:
    tokenizer = open_model("smollm2").tokenizer
    assert tokenizer is not None
    assert tokenizer.encode("<|im_start|>", special=True) == [1]
    assert len(tokenizer.encode("<|im_start|>")) > 1
    assert tokenizer.eos_ids == {0, 2} and tokenizer.vocab_size == 49152
    assert "<|im_start|>" in (tokenizer.chat_template or "")
