"""Text to tokens: the library's own answer, the file's digest in the claim, and files that are no tokenizers."""

import base64
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from protocol.corpus import Packing
from protocol.errors import UsageError
from witness.data import open_corpus, tokenizer
from witness.data.tokenizer import PATTERNS

DOCUMENTS = Packing("documents")
TEXTS = ["the cat sat", "", "on the m\u00e4t <s>", "the the the"]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def bpe(tmp_path: Path, **changes) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    made.enable_truncation(2)
    made.enable_padding(length=64)
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    document = json.loads(made.to_str())
    document["model"].update(changes)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document))
    return path


def tokens_of(found) -> list[list[int]]:
    dtype = "<u2" if found.claim().tokenizer.startswith("uint16") else "<u4"
    return [np.frombuffer(data, dtype).tolist() for data in found.samples(range(found.documents.samples))]


def test_tokens_of_a_tokenizers_file(tmp_path: Path, lines: Path):
    path = bpe(tmp_path)
    found = open_corpus(lines, DOCUMENTS, tokenizer=str(path))
    assert found.claim().tokenizer == "uint16:tokenizers:" + hashlib.sha256(path.read_bytes()).hexdigest()
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(path))
    shown = tokens_of(found)
    assert shown[1] == []
    assert [made.decode(tokens, skip_special_tokens=False) for tokens in shown] != TEXTS  # marks of the byte level
    special = made.token_to_id("<s>")
    assert all(special not in tokens for tokens in shown)  # neither added nor recognised
    decoder = {number: token for token, number in made.get_vocab().items()}
    assert ["".join(decoder[n] for n in tokens).replace("\u0120", " ") for tokens in shown[::3]] == TEXTS[::3]
    found.check()
    assert found.documents.tokens == sum(map(len, shown))
    windows = open_corpus(lines, Packing("windows", 4, 4), tokenizer=str(path))
    assert windows.sample(0) == np.concatenate(shown)[:4].astype("<u2").tobytes()


def ranks(tmp_path: Path, extra: tuple[bytes, ...] = (b"th", b"the", b" t", b" the"), first: int = 0) -> Path:
    tokens = [bytes([value]) for value in range(256)] + list(extra)
    path = tmp_path / "a.tiktoken"
    path.write_bytes(b"".join(base64.b64encode(t) + b" %d\n" % (first + i) for i, t in enumerate(tokens)))
    return path


def test_tokens_of_a_tiktoken_file(tmp_path: Path, lines: Path):
    pytest.importorskip("tiktoken")
    path = ranks(tmp_path)
    found = open_corpus(lines, DOCUMENTS, tokenizer=str(path), pattern="r50k_base")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert found.claim().tokenizer == f"uint16:tiktoken-r50k_base:{digest}"
    words = [b"the", b" the", b" the"]
    table = [bytes([value]) for value in range(256)] + [b"th", b"the", b" t", b" the"]
    assert [table[n] for n in tokens_of(found)[3]] == words
    assert [b"".join(table[n] for n in tokens) for tokens in tokens_of(found)] == [t.encode() for t in TEXTS]
    found.check()


def test_a_large_vocabulary_has_wide_tokens(tmp_path: Path, lines: Path):
    pytest.importorskip("tiktoken")
    found = open_corpus(lines, DOCUMENTS, tokenizer=str(ranks(tmp_path, first=65536)), pattern="o200k_base")
    assert found.claim().tokenizer.startswith("uint32:tiktoken-o200k_base:")
    assert found.documents.width == 4
    assert min(map(min, filter(None, tokens_of(found)))) >= 65536


@pytest.mark.parametrize(("at", "place"), [(None, 0), ("start", 0), ("end", -1)])
def test_a_delimiter_is_put_to_each_document(tmp_path: Path, lines: Path, at: str | None, place: int):
    pytest.importorskip("tiktoken")
    named = {"tokenizer": str(ranks(tmp_path)), "pattern": "r50k_base"}
    plain = tokens_of(open_corpus(lines, DOCUMENTS, **named))
    marked = tokens_of(open_corpus(lines, DOCUMENTS, delimiter=50256, delimiter_at=at, **named))
    assert [tokens.pop(place) for tokens in marked] == [50256] * len(TEXTS)
    assert marked == plain


def test_patterns_are_those_of_the_library(monkeypatch):
    pytest.importorskip("tiktoken")
    from tiktoken_ext import openai_public

    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: {})
    for name, pattern in PATTERNS.items():
        assert getattr(openai_public, name)()["pat_str"] == pattern


def test_other_formats_of_text_are_tokenised_too(tmp_path: Path):
    pytest.importorskip("tiktoken")
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    named = {"tokenizer": str(ranks(tmp_path)), "pattern": "cl100k_base"}
    base = tmp_path / "texts"
    base.mkdir()
    (base / "a").write_text("the")
    (base / "b").write_text("mat")
    pq.write_table(pa.table({"text": ["the", "mat"]}), tmp_path / "a.parquet")
    for data in (base, tmp_path / "a.parquet"):
        assert tokens_of(open_corpus(data, DOCUMENTS, **named)) == [[257], [109, 97, 116]]
    (base / "c").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not UTF-8") as caught:
        open_corpus(base, DOCUMENTS, **named)
    assert caught.value.code == "data-file"


def test_a_text_has_a_cap(tmp_path: Path, monkeypatch):
    pytest.importorskip("tiktoken")
    monkeypatch.setattr(tokenizer, "MAX_RECORD", 10)
    (tmp_path / "a.txt").write_text("the " * 3)
    with pytest.raises(UsageError, match="in one go") as caught:
        open_corpus(tmp_path / "a.txt", DOCUMENTS, tokenizer=str(ranks(tmp_path)), pattern="r50k_base")
    assert caught.value.code == "data-file"


@pytest.mark.parametrize(
    ("name", "data", "pattern", "code"),
    [
        ("a.json", b"{}", None, "data-file"),
        ("a.json", b"\xff", None, "data-file"),
        ("a.json", b'{"model": {"type": "BPE"}}', None, "data-file"),
        ("a.json", b'{"model": null}', None, "data-file"),
        ("a.json", b"{}", "r50k_base", "data-option"),
        ("a.tiktoken", b"YQ== 0\n", None, "data-option"),
        ("a.tiktoken", b"YQ== 0\n", "r50k_base", "data-file"),
        ("a.tiktoken", b"words\n", "r50k_base", "data-file"),
        ("a.tiktoken", b"!! 0\n", "r50k_base", "data-file"),
        ("a.tiktoken", b"", "r50k_base", "data-file"),
    ],
)
def test_files_that_are_no_tokenizers(
    tmp_path: Path, lines: Path, name: str, data: bytes, pattern: str | None, code: str
):
    pytest.importorskip("tiktoken")
    pytest.importorskip("tokenizers")
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError) as caught:
        open_corpus(lines, DOCUMENTS, tokenizer=str(tmp_path / name), pattern=pattern)
    assert caught.value.code == code


def test_ranks_that_would_crash_the_library(tmp_path: Path, lines: Path):
    pytest.importorskip("tiktoken")
    whole = ranks(tmp_path).read_bytes()
    for damaged in (
        whole.replace(b"\n", b" 7\n", 1),
        whole + b"YWI= 3\n",
        whole.replace(b" 255\n", b" -1\n"),
        whole[20:],
    ):
        (tmp_path / "a.tiktoken").write_bytes(damaged)
        with pytest.raises(UsageError) as caught:
            open_corpus(lines, DOCUMENTS, tokenizer=str(tmp_path / "a.tiktoken"), pattern="r50k_base")
        assert caught.value.code == "data-file"


def test_a_random_tokenizer_is_refused(tmp_path: Path, lines: Path):
    with pytest.raises(UsageError, match="dropout") as caught:
        open_corpus(lines, DOCUMENTS, tokenizer=str(bpe(tmp_path, dropout=0.1)))
    assert caught.value.code == "data-option"


def test_a_tokenizer_that_is_not_there(tmp_path: Path, lines: Path):
    with pytest.raises(UsageError) as caught:
        open_corpus(lines, DOCUMENTS, tokenizer=str(tmp_path / "absent.json"))
    assert caught.value.code == "corpus-missing"
