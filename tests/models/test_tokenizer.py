"""The tokenizer comes from the file itself; nothing about text is guessed."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.decoder.gguf_tokenizer import TokenizerFiles, read_tokenizer
from kvbench.decoder.model import gguf_path, open_model
from kvbench.decoder.tokenizer_kinds import PRE_TOKENIZERS
from kvbench.errors import UsageError
from tests.models.gguf_files import SHAPE, byte_letters, learn_sentencepiece, write_gguf
from tests.peers.arms import NO_LLAMA


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


LEARNED_FROM = (
    "the theme of this thin thing is that the other thing is there; then 12 and 21.\n" * 3
)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file with a learned SentencePiece vocabulary."""
    vocabulary = learn_sentencepiece(LEARNED_FROM, joins=60)
    path = tmp_path_factory.mktemp("sentencepiece") / "m.gguf"
    config = replace(SHAPE, vocab_size=len(vocabulary[0]))
    write_gguf(path, config=config, sentencepiece=vocabulary)
    return path


@pytest.fixture(scope="module")
def pieces(sentencepiece: Path) -> TokenizerFiles:
    reader = gguf.GGUFReader(sentencepiece)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    target = sentencepiece.with_name("tokenizer.json")
    facts = read_tokenizer(fields, "m.gguf", target)
    assert facts is not None
    return TokenizerFiles(target, facts)


@given(text=st.text(alphabet=st.characters(exclude_characters="▁", exclude_categories=["Cs"])))
def test_every_text_survives_sentencepiece(pieces: TokenizerFiles, text: str) -> None:
    assert pieces.decode(pieces.encode(text)) == text


def test_sentencepiece_facts(pieces: TokenizerFiles) -> None:
    assert pieces.bos_id == 1 and pieces.eos_ids == {2}
    assert pieces.encode("</s>", special=True)[-1:] == [2]
    assert len(pieces.encode("é")) == 3, "a letter that is not there becomes its bytes"
    assert len(pieces.encode("the theme")) < len("the theme") / 2


UNKIND = [
    "",
    " ",
    "   three  spaces   ",
    "\n\n \t\r\n",
    "the\u00a0thing\u3000there\u200bthen",
    "1234567890 ٣٤٥ ½ Ⅷ 12,345.67e-8",
    "It's we'll I'D don't 'tis ''s",
    "naïve café Ünïcödé ﬁ ß ǅ",
    "日本語の文章。中文，한국어 ไทย हिन्दी",
    "👩‍👩‍👧‍👦 🇩🇪 e\u0301 \u202eabc\u202c",
    "<|im_start|>user <s></s> <0x41> ▁the",
    "def f(x):\n\treturn x**2  # end\n\n\n    pass",
    "\x00\x01\x7f\x80\ufffd\ufeff",
    "a" * 300 + "the" * 100,
    "!!!???...---===>>> ${x} \\\\ //",
]


@pytest.mark.peer
@pytest.mark.parametrize(
    "which", ["sentencepiece", pytest.param("smollm2", marks=pytest.mark.model)]
)
def test_unkind_texts_have_llamacpps_ids(which: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("xllamacpp", reason=NO_LLAMA)
    from gates.peer.llamacpp_server import LlamaCpp

    if which == "smollm2":
        path, tokenizer = gguf_path(which), open_model(which).tokenizer
    else:
        path = request.getfixturevalue("sentencepiece")
        tokenizer = request.getfixturevalue("pieces")
    assert tokenizer is not None
    drawn = random.Random(5)
    texts = [
        *UNKIND,
        LEARNED_FROM,
        *("".join(drawn.choices(LEARNED_FROM, k=200)) for _ in range(50)),
    ]
    with LlamaCpp(path, context=256, threads=1, timeout_s=120.0) as peer:
        theirs = peer.tokenize(texts)
    differing = [t for t, ids in zip(texts, theirs, strict=True) if tokenizer.encode(t) != ids]
    assert differing == []
