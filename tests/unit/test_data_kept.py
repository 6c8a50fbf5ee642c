"""Corpora of every format as a run keeps them: they come back, also moved, and no damage or lie passes."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from protocol.corpus import Packing, check_piece
from protocol.encoding import decode, encode
from protocol.errors import ProtocolError, UsageError, VerificationError, WitnessError
from witness.data import commit_folder, open_corpus, open_stored, store
from witness.data.files import DataFile, FileCorpus
from witness.data.lines import PLACE
from witness.data.options import DataOptions
from witness.data.stored import MAX_INDEX, StoredCorpus

WINDOWS = Packing("windows", length=7, stride=3)
TEXTS = ["the first document", "", "x" * 9000, "and the last"]
LINES = [json.dumps({"body": text, "text": "other"}).encode() for text in TEXTS]
TOKENS = (np.arange(60, dtype="<u2") % 11) + 250


def make(base: Path, kind: str) -> tuple[Path, dict]:
    """Data of a kind, and its options."""
    base.mkdir()
    if kind == "jsonl":
        (base / "a.jsonl").write_bytes(b"\n".join(LINES))
        return base / "a.jsonl", {"field": "body"}
    if kind == "jsonl folder":
        (base / "1.jsonl").write_bytes(b"\n".join(LINES[:2]))
        (base / "2.ndjson").write_bytes(b"\n")
        (base / "3.jsonl").write_bytes(b"\n".join(LINES[2:]))
        return base, {"field": "body"}
    if kind == "tokens":
        (base / "a.bin").write_bytes(TOKENS.tobytes())
        return base / "a.bin", {"delimiter": 255}
    if kind == "tokens folder":
        for number, part in enumerate(np.split(TOKENS, 3)):
            head = np.zeros(256, "<i4")
            head[:3] = 20240520, 1, len(part)
            (base / f"{number}.bin").write_bytes(head.tobytes() + part.tobytes())
        return base, {"delimiter": 255}
    if kind == "tensor":
        save_file({"x": TOKENS.reshape(6, 10), "y": TOKENS}, base / "a.safetensors")
        return base / "a.safetensors", {"tensor": "x", "tokens": "uint16"}
    if kind == "arrays":
        for number in range(3):
            np.save(base / f"{number}.npy", TOKENS.reshape(6, 10)[2 * number : 2 * number + 2])
        return base, {}
    raise ValueError(kind)


KINDS = ["jsonl", "jsonl folder", "tokens", "tokens folder", "tensor", "arrays"]


def seen(corpus):
    """Everything that a corpus promises and shows, while it can."""
    return corpus.claim(), corpus.documents.leaves, corpus.samples(range(corpus.documents.samples))


def require_same(found, expected):
    assert seen(found) == expected
    for leaf in expected[1]:
        check_piece(leaf, 0, *found.piece(leaf.index, 0))
    found.check()


@pytest.mark.parametrize("kind", KINDS)
def test_data_that_stays_where_it_is(tmp_path: Path, kind: str):
    path, named = make(tmp_path / "data", kind)
    corpus = open_corpus(path, WINDOWS, **named)
    expected = seen(corpus)
    assert len(expected[1]) > 3
    store(corpus, tmp_path / "run", copy_limit=0)
    assert not (tmp_path / "run" / "data").exists()
    require_same(open_stored(tmp_path / "run"), expected)
    # It can be stored again from what was stored; and copied, after which the data is not needed.
    store(open_stored(tmp_path / "run"), tmp_path / "again", copy_limit=0)
    require_same(open_stored(tmp_path / "again"), expected)
    store(open_stored(tmp_path / "run"), tmp_path / "copy")
    path.rename(tmp_path / "moved")
    require_same(open_stored(tmp_path / "copy"), expected)
    with pytest.raises(UsageError) as caught:
        open_stored(tmp_path / "run")
    assert caught.value.code == "corpus-missing"
    require_same(open_stored(tmp_path / "run", tmp_path / "moved"), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["longer", "shorter", "flipped", "empty"])
def test_data_that_changed_never_passes(tmp_path: Path, kind: str, how: str):
    path, named = make(tmp_path / "data", kind)
    store(open_corpus(path, WINDOWS, **named), tmp_path / "run", copy_limit=0)
    victim = path if path.is_file() else max(path.iterdir())
    whole = victim.read_bytes()
    at = whole.index(b"last") if b"last" in whole else len(whole) - 6
    flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    victim.write_bytes({"longer": whole + b"\n\n", "shorter": whole[:-2], "flipped": flipped, "empty": b""}[how])
    if how == "longer" and kind.startswith("jsonl"):
        open_stored(tmp_path / "run").check()  # every document is as it was
        return
    if how == "flipped" and kind == "tensor":  # the other tensor
        open_stored(tmp_path / "run").check()
        return
    with pytest.raises(WitnessError) as caught:
        open_stored(tmp_path / "run").check()
    assert caught.value.code in ("corpus-changed", "data-file", "corpus-data")


@pytest.mark.parametrize("kind", ["jsonl", "jsonl folder"])
def test_places_that_lie(tmp_path: Path, kind: str):
    path, named = make(tmp_path / "data", kind)
    corpus = open_corpus(path, WINDOWS, **named)
    store(corpus, tmp_path / "run", copy_limit=0)
    whole = (tmp_path / "run" / "lines").read_bytes()
    good = np.frombuffer(whole, PLACE)
    for change in (
        {"offset": 1},
        {"offset": 1 << 62},
        {"offset": (1 << 64) - 4},
        {"length": 5},
        {"length": (1 << 32) - 1},
        {"file": 1},
        {"file": 7},
        {"file": (1 << 32) - 1},
    ):
        bad = good.copy()
        for name, value in change.items():
            bad[-1][name] = value
        if bad.tobytes() == whole:
            continue
        (tmp_path / "run" / "lines").write_bytes(bad.tobytes())
        with pytest.raises(WitnessError) as caught:
            open_stored(tmp_path / "run").check()
        assert caught.value.code == "corpus-changed"
    for damaged, code in ((whole[:-1], "corpus-file"), (whole[:-16], "corpus-changed"), (whole * 2, "corpus-changed")):
        (tmp_path / "run" / "lines").write_bytes(damaged)
        with pytest.raises(WitnessError) as caught:
            open_stored(tmp_path / "run")
        assert caught.value.code == code
    (tmp_path / "run" / "lines").write_bytes(good[::-1].tobytes())
    with pytest.raises(VerificationError):
        open_stored(tmp_path / "run").check()
    (tmp_path / "run" / "lines").unlink()
    with pytest.raises(ProtocolError) as missing:
        open_stored(tmp_path / "run")
    assert missing.value.code == "corpus-file"


def test_an_index_that_lies_about_tokens_is_refused(tmp_path: Path):
    path, named = make(tmp_path / "tokens", "tokens")
    corpus = open_corpus(path, WINDOWS, **named)
    store(corpus, tmp_path)
    index = decode((tmp_path / "corpus.json").read_bytes(), StoredCorpus, limit=MAX_INDEX)
    for tokenizer in ("bytes", "uint32"):
        claim = type(index.claim)(**{**_fields(index.claim), "tokenizer": tokenizer})
        (tmp_path / "corpus.json").write_bytes(encode(StoredCorpus(claim, "copy", None)))
        with pytest.raises(ProtocolError) as caught:
            open_stored(tmp_path)
        assert caught.value.code == "corpus-leaves"
    for tokenizer in ("uint8", "uint16:", "uint16:tokenizers:" + "0" * 63, "bytes:tokenizers:" + "0" * 64, "uint16\n"):
        claim = type(index.claim)(**{**_fields(index.claim), "tokenizer": tokenizer})
        (tmp_path / "corpus.json").write_bytes(encode(StoredCorpus(claim, "copy", None)))
        with pytest.raises(ProtocolError) as caught:
            open_stored(tmp_path)
        assert caught.value.code == "not-canonical"


def _fields(claim) -> dict:
    return {name: getattr(claim, name) for name in claim.__struct_fields__}


def test_a_run_of_the_first_format_still_opens(tmp_path: Path):
    """Bytes as version 0.1.0 wrote them: an index without the fields that came later."""
    corpus = open_corpus([b"one", b"two"], Packing("documents"))
    store(corpus, tmp_path)
    root = corpus.claim().root
    (tmp_path / "corpus.json").write_bytes(
        b'{"claim":{"digest":"sha256-pieces-4096","documents":2,"packing":{"kind":"documents","length":0,"stride":0},'
        b'"root":"' + root.encode() + b'","source":"memory","tokenizer":"bytes","tokens":6},"kind":"copy","path":null}'
    )
    assert open_stored(tmp_path).samples([0, 1]) == [b"one", b"two"]


def test_made_documents_are_copied_whatever_their_size(tmp_path: Path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"\n".join(LINES)))
    corpus = open_corpus(tmp_path / "a.jsonl.gz", WINDOWS, field="body")
    expected = seen(corpus)
    store(corpus, tmp_path / "run", copy_limit=0)
    (tmp_path / "a.jsonl.gz").unlink()
    require_same(corpus, expected)  # its own file has no name that could go away
    require_same(open_stored(tmp_path / "run"), expected)
    assert (tmp_path / "run" / "data").read_bytes() == "".join(TEXTS).encode()


def test_a_committed_folder_is_referred_to_and_may_be_moved(tmp_path: Path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"\n".join(LINES)))
    commit_folder(tmp_path / "a.jsonl.gz", tmp_path / "kept", WINDOWS, DataOptions(field="body"))
    corpus = open_corpus(tmp_path / "kept", WINDOWS)
    expected = seen(corpus)
    store(corpus, tmp_path / "run", copy_limit=0)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["corpus.json", "leaves"]
    require_same(open_stored(tmp_path / "run"), expected)
    (tmp_path / "kept").rename(tmp_path / "moved")
    for where in (tmp_path / "moved", tmp_path / "moved" / "data"):
        require_same(open_stored(tmp_path / "run", where), expected)
    (tmp_path / "moved" / "data").write_bytes(b"short")
    with pytest.raises(VerificationError) as caught:
        open_stored(tmp_path / "run", tmp_path / "moved")
    assert caught.value.evidence["committed"] == sum(map(len, TEXTS))


def test_what_one_file_for_each_document_means(tmp_path: Path):
    """`offset` is how `witness fsck` finds the file of a document."""
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode())
    apart = open_corpus(tmp_path, Packing("documents"))
    assert isinstance(apart, FileCorpus)
    assert apart.offset is None
    assert apart.file_of(1).path == bytes(tmp_path / "b")
    path, named = make(tmp_path / "data", "tokens folder")
    together = open_corpus(path, WINDOWS, **named)
    assert isinstance(together, FileCorpus)
    assert together.offset is not None
    assert isinstance(together.file_of(len(together.documents.leaves) - 1), DataFile)
    assert str(together.file_of(len(together.documents.leaves) - 1)) == str(path / "2.bin")
