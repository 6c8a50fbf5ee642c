"""Rules that a reader relies on: verifiers start without torch, one error table, a true architecture."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.errors import (
    CODES,
    EXIT_DIVERGED,
    EXIT_INCOMPLETE,
    EXIT_USAGE,
    IncompleteError,
    ProtocolError,
    UsageError,
    VerificationError,
    WitnessError,
)

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "protocol").rglob("*.py"), *(ROOT / "witness").rglob("*.py")])
LIGHT = [
    "witness.cli.keygen",
    "witness.cli.check",
    "witness.cli.verify",
    "witness.cli.serve",
    "witness.cli.inspect",
    "witness.cli.fsck",
    "witness.cli.query",
    "witness.cli.data_audit",
    "witness.query",
    "witness.auditing",
    "witness.http.keeper",
    "witness.verifier",
    "witness.prover",
    "witness.holding",
    "witness.serving",
    "witness.http.client",
    "witness.http.server",
    "protocol.verifying",
    "protocol.proving",
    "protocol.certificate",
    "protocol.answering",
]


@pytest.mark.parametrize("module", LIGHT)
def test_verifiers_never_import_torch(module: str) -> None:
    code = f"import sys, {module}; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


def test_certificates_need_neither_numpy_nor_pymerkle() -> None:
    code = (
        "import sys, witness.cli.check; print({'numpy', 'torch', 'pymerkle', 'httpx2', 'sqlite3'} & set(sys.modules))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "set()"
    )


FAMILIES = {kind.__name__: kind.family for kind in (ProtocolError, VerificationError, IncompleteError, UsageError)}


def raised() -> Iterator[tuple[str, str, str]]:
    """Where each error with a constant code is made, its class and the code."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args:
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                first = node.args[0]
                if name in {"WitnessError", *FAMILIES} and isinstance(first, ast.Constant):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", name, first.value


def test_every_code_that_is_raised_is_in_the_table() -> None:
    assert {code for _, _, code in raised()} <= CODES.keys()


def test_every_error_is_of_its_codes_family() -> None:
    """The class decides the verdict of a session, the table a command's exit status: they must say the same."""
    assert set(FAMILIES.values()) == {row.family for row in CODES.values()}
    wrong = [
        f"{place}: {name} of {code}, which is {CODES[code].family}"
        for place, name, code in raised()
        if CODES[code].family != FAMILIES.get(name)
    ]
    assert wrong == []
    assert len(list(raised())) > 400


@pytest.mark.parametrize("kind", [ProtocolError, VerificationError, IncompleteError, UsageError])
def test_an_error_of_another_family_cannot_be_raised(kind: type[WitnessError]) -> None:
    for code, row in CODES.items():
        if row.family == kind.family:
            assert kind(code, "message").exit_status == row.exit_status
        else:
            with pytest.raises(KeyError):
                kind(code, "message")


def test_every_code_in_the_table_is_used() -> None:
    text = "\n".join(path.read_text() for path in SOURCES if path.name != "errors.py")
    assert [code for code in CODES if f'"{code}"' not in text] == []


@pytest.mark.parametrize("code", sorted(CODES))
def test_rows_are_whole(code: str) -> None:
    row = CODES[code]
    exits = {
        "malformed": EXIT_DIVERGED,
        "wrong": EXIT_DIVERGED,
        "cannot tell": EXIT_INCOMPLETE,
        "usage": EXIT_USAGE,
    }
    assert row.exit_status == exits[row.family]
    assert re.fullmatch(r"[a-z][a-z0-9-]*", code)
    assert 400 <= row.http_status < 600
    assert row.meaning
    assert row.next_action


@pytest.mark.parametrize("kind", [ProtocolError, VerificationError, IncompleteError, UsageError])
def test_an_unknown_code_cannot_be_raised(kind: type[Exception]) -> None:
    with pytest.raises(KeyError):
        kind("no-such-code", "message")


def test_architecture_names_every_module() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for path in SOURCES:
        relative = path.relative_to(ROOT)
        named = str(relative) in text or any(
            f"{parent}/ " in text or f"{parent}/`" in text or f"| {parent}/ |" in text or f"{parent}/," in text
            for parent in relative.parents
        )
        assert named or path.name in ("__init__.py", "__main__.py"), relative


def test_only_the_log_store_imports_pymerkle() -> None:
    importers = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        if re.search(r"^\s*(from|import) pymerkle", path.read_text(), re.MULTILINE)
    }
    assert importers == {"witness/logstore.py"}


def test_no_pickle_and_no_eval() -> None:
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not {"pickle", "marshal", "shelve", "dill"} & {name.split(".")[0] for name in names}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "eval", path
                if node.func.id == "exec":
                    assert path.name == "source.py", path
