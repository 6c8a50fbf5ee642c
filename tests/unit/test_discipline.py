"""Rules that a reader relies on: verifiers start without torch, one error table, a true architecture."""

import ast
import re
import subprocess
import sys
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


def raised_codes() -> set[str]:
    names = {"WitnessError", "ProtocolError", "VerificationError", "UsageError", "IncompleteError"}
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    found.add(first.value)
    return found


def test_every_code_that_is_raised_is_in_the_table() -> None:
    assert raised_codes() <= CODES.keys()


def test_every_code_in_the_table_is_used() -> None:
    text = "\n".join(path.read_text() for path in SOURCES if path.name != "errors.py")
    assert [code for code in CODES if f'"{code}"' not in text] == []


@pytest.mark.parametrize("code", sorted(CODES))
def test_rows_are_whole(code: str) -> None:
    row = CODES[code]
    assert re.fullmatch(r"[a-z][a-z0-9-]*", code)
    assert row.exit_status in {EXIT_DIVERGED, EXIT_INCOMPLETE, EXIT_USAGE}
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
