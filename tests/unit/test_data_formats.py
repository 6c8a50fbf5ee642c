"""Which format data is taken for, and what is refused rather than guessed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from protocol.corpus import Packing
from protocol.errors import UsageError
from witness.data import DataOptions, open_corpus
from witness.data.options import Allowance

DOCUMENTS = Packing("documents")
LINE = b'{"text": "one"}\n'


def code_of(data, **options) -> str:
    with pytest.raises(UsageError) as caught:
        open_corpus(data, DOCUMENTS, **options)
    assert caught.value.next_action
    return caught.value.code


@pytest.mark.parametrize(
    "name", ["data.csv", "data.pdf", "data.txt.gz", "data.parquet.gz", "data.json", "data.py", "a.gz"]
)
def test_an_unknown_suffix_names_what_is_accepted(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(LINE)
    with pytest.raises(UsageError, match=r"\.jsonl.*\.parquet.*\.bin.*\.npy.*\.safetensors") as caught:
        open_corpus(tmp_path / name, DOCUMENTS)
    assert caught.value.code == "data-format"
    assert "text" in caught.value.next_action
    assert open_corpus(tmp_path / name, DOCUMENTS, format="text").samples([0]) == [LINE]


@pytest.mark.parametrize("name", ["data", "data.txt", "DATA.TXT", "data.md", "data.html"])
def test_texts_are_taken_as_they_are(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(LINE)
    assert open_corpus(tmp_path / name, DOCUMENTS).samples([0]) == [LINE]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "A.JSONL"])
def test_lines_are_taken_apart(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(LINE * 2)
    assert open_corpus(tmp_path / name, DOCUMENTS).samples([0, 1]) == [b"one", b"one"]


@pytest.mark.parametrize(("given", "led"), [("a.jsonl", "5f2d"), ("5f2d", "a.jsonl"), ("a.txt", "b.jsonl")])
def test_the_name_of_a_link_counts_and_so_does_that_of_its_target(tmp_path: Path, given: str, led: str):
    (tmp_path / led).write_bytes(LINE)
    (tmp_path / given).symlink_to(tmp_path / led)
    assert open_corpus(tmp_path / given, DOCUMENTS).samples([0]) == [b"one"]


def test_a_format_that_is_named_is_believed(tmp_path: Path):
    (tmp_path / "lines.json").write_bytes(LINE)
    assert open_corpus(tmp_path / "lines.json", DOCUMENTS, format="jsonl").samples([0]) == [b"one"]
    assert open_corpus(tmp_path / "lines.json", DOCUMENTS, options=DataOptions("jsonl")).samples([0]) == [b"one"]
    (tmp_path / "odd").write_bytes(bytes(3))
    assert code_of(tmp_path / "odd", format="tokens") == "data-file"
    assert code_of(tmp_path / "lines.json", format="npy") == "corpus-data"
    assert code_of(tmp_path / "lines.json", format="safetensors") == "data-file"
    assert code_of(tmp_path / "lines.json", format="parquet") == "data-file"
    assert code_of(tmp_path / "lines.json", format="dataset") == "data-format"
    assert code_of(tmp_path / "lines.json", format="arrow") == "data-format"


def folder(tmp_path: Path, **files: bytes) -> Path:
    for name, data in files.items():
        (tmp_path / name.replace("_", ".")).write_bytes(data)
    return tmp_path


def test_a_folder_of_shards_is_read_in_the_order_of_names(tmp_path: Path):
    base = folder(tmp_path, b_jsonl=b'{"text":"3"}', a_ndjson=b'{"text":"1"}\n{"text":"2"}\n', c_jsonl=b"\n")
    assert open_corpus(base, DOCUMENTS).samples([0, 1, 2]) == [b"1", b"2", b"3"]


def test_a_folder_of_texts_may_hold_any_names(tmp_path: Path):
    base = folder(tmp_path, a_csv=b"1", b_py=b"2", c=b"3")
    assert open_corpus(base, DOCUMENTS).samples([0, 1, 2]) == [b"1", b"2", b"3"]


def test_a_mixture_is_not_guessed_at(tmp_path: Path):
    base = folder(tmp_path, README_md=b"words", a_jsonl=LINE, b_npy=b"not an array", c_json=LINE)
    with pytest.raises(UsageError, match="1 jsonl, 1 npy, 2 others") as caught:
        open_corpus(base, DOCUMENTS)
    assert caught.value.code == "data-format"
    assert open_corpus(base, DOCUMENTS, format="text").documents.samples == 4
    assert open_corpus(base, DOCUMENTS, format="jsonl").samples([0, 1]) == [b"one", b"one"]
    assert code_of(base, format="safetensors") == "data-format"


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("a.jsonl", {"column": "text"}),
        ("a.jsonl", {"tensor": "x"}),
        ("a.jsonl", {"tokens": "uint16"}),
        ("a.jsonl", {"delimiter": 3}),
        ("a.jsonl", {"pattern": "r50k_base"}),
        ("a.txt", {"field": "text"}),
        ("a.npy", {"field": "text"}),
        ("a.npy", {"tokenizer": "x.json"}),
        ("a.safetensors", {"delimiter": 3}),
        ("a.bin", {"tensor": "x"}),
        ("a.bin", {"tokenizer": "x.json"}),
        ("a.bin", {"delimiter_at": "end"}),
        ("a.bin", {"delimiter": 1 << 16}),
        ("a.bin", {"delimiter": -1}),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(tmp_path: Path, name: str, option: dict):
    path = tmp_path / name
    if name == "a.npy":
        np.save(path, np.zeros((2, 2), np.uint8))
    else:
        path.write_bytes(LINE)
    assert code_of(path, **option) == "data-option"


def test_options_are_for_paths():
    for data in ([b"text"], np.zeros((2, 2)), open_corpus([b"text"], DOCUMENTS)):
        assert code_of(data, field="text") == "data-option"


def test_an_unknown_option_is_a_mistake_of_the_caller():
    with pytest.raises(TypeError):
        open_corpus([b"text"], DOCUMENTS, feild="text")


def test_an_allowance_is_for_small_files_too():
    allowance = Allowance("small", 10)
    allowance.take(256 << 20)
    with pytest.raises(UsageError) as caught:
        allowance.take(1)
    assert caught.value.code == "data-expands"
    Allowance("large", 1 << 30).take(1 << 38)


@pytest.mark.parametrize("library", ["pyarrow", "zstandard", "datasets", "tokenizers", "tiktoken", "torch"])
def test_no_format_loads_the_library_of_another(library: str):
    code = f"import sys, witness.data, witness.cli.data; print({library!r} in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"
