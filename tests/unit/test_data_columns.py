"""Parquet and saved datasets: columns of documents, and files that hold what their schema excludes."""

import os
import tracemalloc
from pathlib import Path

import pytest

from protocol.corpus import Packing
from protocol.errors import UsageError, VerificationError
from witness.data import columns, open_corpus, options

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
DOCUMENTS = Packing("documents")
TEXTS = ["one", "", "zw\u00f6lf", "\U0001f600" * 3, "one"]


def written(path: Path, values, kind=None, **named) -> Path:
    array = values if isinstance(values, pa.Array) else pa.array(values, kind)
    pq.write_table(pa.table({"id": pa.array(range(len(array))), "text": array}), path, **named)
    return path


def documents_of(path: Path, **named) -> list[bytes]:
    found = open_corpus(path, DOCUMENTS, **named)
    found.check()
    return found.samples(range(found.documents.samples))


def refusal(path: Path, **named) -> UsageError:
    with pytest.raises(UsageError) as caught:
        open_corpus(path, DOCUMENTS, **named)
    assert str(path) in str(caught.value)
    assert caught.value.next_action
    return caught.value


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.dictionary(pa.int32(), pa.string())]
)
@pytest.mark.parametrize("named", [{}, {"row_group_size": 2}, {"use_dictionary": False, "compression": "zstd"}])
def test_rows_are_documents(tmp_path: Path, kind, named: dict):
    values = pa.array([t.encode() for t in TEXTS], kind) if "binary" in str(kind) else pa.array(TEXTS).cast(kind)
    path = written(tmp_path / "a.parquet", values, **named)
    assert documents_of(path) == [text.encode() for text in TEXTS]


def test_bytes_need_not_be_utf8(tmp_path: Path):
    path = written(tmp_path / "a.parquet", [b"\xff\xfe", b""], pa.binary())
    assert documents_of(path) == [b"\xff\xfe", b""]


def test_the_column_is_chosen(tmp_path: Path):
    table = pa.table({"a.b": ["dotted"], "a": pa.array([{"b": "nested"}]), "n": [7]})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path)
    assert documents_of(path, column="a.b") == [b"dotted"]
    for column in ("text", "b", "a", "n", ""):
        error = refusal(path, column=column)
        assert error.code == "data-option"
    assert "'a.b'" in refusal(path).evidence["columns"]
    pq.write_table(pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["text", "text"]), path)
    assert refusal(path).code == "data-option"


def test_shards_and_their_order(tmp_path: Path):
    written(tmp_path / "b.parquet", ["3", "4"])
    written(tmp_path / "a.parquet", ["1", "2"])
    written(tmp_path / "c.parquet", pa.array([], pa.string()))
    assert documents_of(tmp_path) == [b"1", b"2", b"3", b"4"]


def test_a_row_without_a_value_is_named(tmp_path: Path):
    path = written(tmp_path / "a.parquet", ["x"] * 100 + [None] + ["x"])
    error = refusal(path)
    assert error.code == "data-file"
    assert error.evidence["row"] == 100


def test_a_row_that_is_not_utf8_is_named(tmp_path: Path):
    hidden = pa.array([b"good", b"\xff"], pa.binary()).view(pa.string())
    error = refusal(written(tmp_path / "a.parquet", hidden))
    assert error.code == "data-file"
    assert error.evidence["row"] == 1
    assert "UTF-8" in str(error)


def test_a_row_has_a_cap(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(columns, "MAX_RECORD", 1000)
    assert documents_of(written(tmp_path / "a.parquet", ["x" * 1000])) == [b"x" * 1000]
    assert refusal(written(tmp_path / "a.parquet", ["x" * 1001])).code == "data-file"


@pytest.mark.parametrize("how", ["empty", "text", "head", "half", "tail", "footer", "page"])
def test_damaged_files_are_named(tmp_path: Path, how: str):
    path = written(tmp_path / "a.parquet", [f"document {i}" for i in range(5000)])
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes(
        {
            "empty": b"",
            "text": b"words, not a table",
            "head": whole[4:],
            "half": whole[:middle],
            "tail": whole[:-1],
            "footer": whole[:-60] + bytes(40) + whole[-20:],
            "page": whole[: middle - 200] + os.urandom(400) + whole[middle + 200 :],
        }[how]
    )
    assert refusal(path).code == "data-file"


def test_a_bomb_costs_little(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(options, "FREE_EXPANSION", 8 << 20)
    # A dictionary makes two numbers of each of these rows.
    path = written(tmp_path / "a.parquet", pa.array(["x" * 100_000]).take(pa.array([0] * 1_000)).dictionary_encode())
    assert path.stat().st_size < 200_000
    tracemalloc.start()
    try:
        error = refusal(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error.code == "data-expands"
    assert peak < 60 << 20


def test_a_huge_row_group_is_read_in_small_parts(tmp_path: Path):
    path = tmp_path / "a.parquet"
    rows = 12_000
    with pq.ParquetWriter(path, pa.schema([("text", pa.string())]), use_dictionary=False) as writer:
        writer.write_table(pa.table({"text": [os.urandom(1500).hex() for _ in range(rows)]}), row_group_size=rows)
    assert path.stat().st_size > 30 << 20
    pool = pa.default_memory_pool()
    before, peak = pool.bytes_allocated(), 0

    def watch(done, total):
        nonlocal peak
        peak = max(peak, pool.bytes_allocated() - before)

    found = open_corpus(path, DOCUMENTS, watch)
    assert found.documents.samples == rows
    assert found.documents.size == 3000 * rows
    assert 0 < peak < 12 << 20


def test_progress_is_that_of_the_file(tmp_path: Path):
    path = written(tmp_path / "a.parquet", [os.urandom(500).hex() for _ in range(6000)])
    told = []
    open_corpus(path, DOCUMENTS, lambda *numbers: told.append(numbers))
    size = path.stat().st_size
    assert {total for _, total in told} == {size}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (size, size)
    assert len(told) > 3


def test_without_its_library_parquet_says_what_to_install(tmp_path: Path, monkeypatch):
    path = written(tmp_path / "a.parquet", ["x"])
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"training-witness\[data\]") as caught:
        open_corpus(path, DOCUMENTS)
    assert caught.value.code == "extra-missing"


def test_a_table_that_is_rewritten_while_it_is_read(tmp_path: Path):
    path = written(tmp_path / "a.parquet", [os.urandom(500).hex() for _ in range(6000)])

    def rewrite(done, total):
        with path.open("r+b") as file:
            file.seek(0, 2)
            file.write(b"more")

    with pytest.raises(VerificationError) as caught:
        open_corpus(path, DOCUMENTS, rewrite)
    assert caught.value.code == "corpus-changed"


# -- datasets ----------------------------------------------------------------------------------------------------


@pytest.fixture
def dataset_of():
    """Makes a dataset of columns; with a fingerprint, because the library cannot always make one of a table."""
    datasets = pytest.importorskip("datasets")
    return lambda **columns: datasets.Dataset(datasets.table.InMemoryTable(pa.table(columns)), fingerprint="made")


def test_a_saved_dataset(tmp_path: Path, dataset_of):
    saved = dataset_of(text=TEXTS, n=range(len(TEXTS)))
    saved.save_to_disk(tmp_path / "d", num_shards=2)
    assert documents_of(tmp_path / "d") == [text.encode() for text in TEXTS]
    assert refusal(tmp_path / "d", column="n").code == "data-option"
    dataset_of(body=TEXTS).select([4, 2]).save_to_disk(tmp_path / "picked")
    assert documents_of(tmp_path / "picked", column="body") == [b"one", "zw\u00f6lf".encode()]


def test_a_split_is_named(tmp_path: Path, dataset_of):
    datasets = pytest.importorskip("datasets")
    datasets.DatasetDict({name: dataset_of(text=[name]) for name in ("train", "test")}).save_to_disk(tmp_path / "d")
    assert documents_of(tmp_path / "d", split="test") == [b"test"]
    for named in ({}, {"split": "none"}, {"split": "."}, {"split": "../d"}):
        assert refusal(tmp_path / "d", **named).code == "data-option"


def test_a_damaged_dataset_is_named(tmp_path: Path, dataset_of):
    dataset_of(text=TEXTS).save_to_disk(tmp_path / "d")
    for path in (tmp_path / "d").glob("*.arrow"):
        path.write_bytes(path.read_bytes()[:100])
    assert refusal(tmp_path / "d").code == "data-file"
    (tmp_path / "d" / "state.json").write_text("{}")
    assert refusal(tmp_path / "d").code == "data-file"


def test_without_its_library_a_dataset_says_what_to_install(tmp_path: Path, monkeypatch):
    for name in ("state.json", "dataset_info.json"):
        (tmp_path / name).write_text("{}")
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(UsageError, match="datasets") as caught:
        open_corpus(tmp_path, DOCUMENTS)
    assert caught.value.code == "extra-missing"
