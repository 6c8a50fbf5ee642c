"""The table in README.md is what the files declare, and what they declare is what their tests assert."""

import ast
from pathlib import Path

import pytest
from attacks.table import BEGIN, END, README, Row, files, rendered, rows_of

from protocol.errors import CODES

WANTED = [
    "A01",
    "A02",
    "A03",
    "A08",
    "A09",
    "A10",
    "A12",
    "A15",
    "A16",
    "A17",
    "A18",
    "A19",
    "A20",
    "A21",
    "A24",
    "A25",
    "A27",
    "A31",
    "A32",
    "A33",
    "A36",
    "A37",
    "A38",
]


def test_the_table_is_up_to_date() -> None:
    text = README.read_text()
    found = BEGIN + text.split(BEGIN)[1].split(END)[0] + END
    assert found == rendered(), "run `python -m attacks.table` in tests/"


def test_every_cheat_has_its_file() -> None:
    assert [f"A{path.name[6:8]}" for path in files()] == WANTED


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_rows_are_asserted_where_they_are_declared(path: Path) -> None:
    rows = rows_of(path)
    assert rows and {row.cheat for row in rows} == {f"A{path.name[6:8]}"}
    assert len({row.variant for row in rows}) == len(rows)
    tree = ast.parse(path.read_text())
    declared = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "Row"
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert len(declared) == len(rows)
    used = {
        name.id
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        for name in ast.walk(node)
        if isinstance(name, ast.Name)
    }
    for node in tree.body:  # a parametrised fixture may name the rows for its tests
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CASES":
            used |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    assert declared <= used


@pytest.mark.parametrize(
    "row", [row for path in files() for row in rows_of(path)], ids=lambda row: f"{row.cheat}-{row.code}"
)
def test_a_row_makes_sense(row: Row) -> None:
    assert row.code in CODES or row.code in ("incomplete", "diverged", "included", "absent")
    assert (row.detection < 1) == (row.by == "draw")
    assert (row.draws > 0) == (row.by in ("draw", "mandatory"))
