"""The independent checker as a program: alone with Python, with the statuses of the texts, and as small as it says."""

import ast
import base64
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from protocol import PROTOCOL_VERSION, dsse
from protocol.certificate import CLAIMS, NOT_CLAIMED
from protocol.encoding import encode
from protocol.errors import CODES
from protocol.keys import SigningKey

SPEC = Path(__file__).parents[2] / "spec"
EXAMPLE = SPEC / "example"
CHECKER = SPEC / "checker.py"
VECTORS = sorted((SPEC / "vectors").glob("*.json"))


def _script(name: str) -> ModuleType:
    """A script of the specification."""
    if str(SPEC) not in sys.path:
        sys.path.insert(0, str(SPEC))
    spec = importlib.util.spec_from_file_location(name, SPEC / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


checker = _script("checker")


@pytest.fixture
def alone(tmp_path: Path) -> Any:
    """Runs a copy of the checker, and of nothing else, in an empty environment without any site folder."""
    copy = tmp_path / "alone" / "checker.py"
    copy.parent.mkdir()
    shutil.copyfile(CHECKER, copy)

    def run(*arguments: Any) -> tuple[int, list[str]]:
        command = [sys.executable, "-I", "-S", "-W", "error", str(copy), *map(str, arguments)]
        done = subprocess.run(command, env={}, cwd=copy.parent, capture_output=True, text=True, timeout=120)
        assert done.stderr == ""
        assert sorted(it.name for it in copy.parent.iterdir()) == ["checker.py"]
        return done.returncode, done.stdout.splitlines()

    return run


def _newest_head() -> Path:
    return max((EXAMPLE / "run/heads").iterdir())


def _predicate() -> dict[str, Any]:
    found = json.loads(base64.b64decode(json.loads((EXAMPLE / "certificate.json").read_bytes())["payload"]))
    return dict(found["predicate"])


# -- in an empty environment --------------------------------------------------------------------------


def test_it_needs_nothing_but_python() -> None:
    tree = ast.parse(CHECKER.read_text())
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} <= set(sys.stdlib_module_names)
    assert not {"subprocess", "socket", "urllib", "http", "pickle", "importlib", "ctypes"} & imported
    assert not re.search(r"\b(eval|exec|compile|__import__)\(", CHECKER.read_text().replace("re.compile(", ""))


def test_its_length_is_bounded() -> None:
    lines = CHECKER.read_text().splitlines()
    assert len(lines) <= 1100
    assert max(map(len, lines)) <= 120


def test_the_example_is_accepted_by_it_alone(alone: Any) -> None:
    predicate = _predicate()
    trainer, head = predicate["trainer"], _newest_head()
    status, lines = alone("run", EXAMPLE / "run", "--key", trainer)
    assert (status, len(lines)) == (0, 1) and f"run {predicate['run']}: 6 steps" in lines[0]
    status, lines = alone(
        "cert", EXAMPLE / "certificate.json", "--run", EXAMPLE / "run", "--key", predicate["verifier"]
    )
    assert (status, lines) == (0, ["ok: 1 certificate(s): reproduced, detection 0.933333"])
    assert alone("audit", EXAMPLE / "audit.json") == (0, ["ok: audit: complete"])
    status, lines = alone("answer", EXAMPLE / "answer.json", "--head", head)
    assert status == 0
    assert [re.search(r"result=(\w+)", line)[1] for line in lines] == ["included", "absent", "included", "absent"]
    status, lines = alone("note", head, "--key", trainer)
    assert status == 0 and "".join(line.removeprefix("ok: ") + "\n" for line in lines[1:]) in head.read_text()


def test_the_vectors_pass_by_it_alone(alone: Any) -> None:
    status, lines = alone("vectors", SPEC / "vectors", "--json")
    found = json.loads(lines[0])
    assert (status, found["wrong"]) == (0, [])
    assert set(found["cases"]) == {path.stem for path in VECTORS}
    assert sum(found["cases"].values()) >= 500


def test_a_wrong_vector_is_named(alone: Any, tmp_path: Path) -> None:
    found = json.loads((SPEC / "vectors" / "draws.json").read_bytes())
    (case,) = [it for it in found["cases"] if it["name"] == "6 of 6"]
    case["gives"] = case["gives"][::-1]
    (tmp_path / "draws.json").write_text(json.dumps(found))
    status, lines = alone("vectors", tmp_path)
    assert status == 1 and any(line.startswith("vector: draws: 6 of 6: ") for line in lines)


# -- statuses -----------------------------------------------------------------------------------------


def test_statuses_are_those_of_the_error_table() -> None:
    """Every code that the checker can say has the status of the table."""
    refusing = ("need", "Failure", "malformed", "base64_of", "climb")
    calls = [node for node in ast.walk(ast.parse(CHECKER.read_text())) if isinstance(node, ast.Call)]
    texts = [arg for call in calls if getattr(call.func, "id", "") in refusing for arg in call.args]
    said = {arg.value for arg in texts if isinstance(arg, ast.Constant) and arg.value}
    assert len(said) > 40 and said <= set(CODES)
    for code in said - checker.HARMLESS:
        status = 2 if code in checker.CANNOT_TELL else 64 if code in checker.USAGE else 1
        assert status == CODES[code].exit_status, code
    assert set(CODES) >= checker.USAGE
    assert set(CODES) >= checker.CANNOT_TELL - {"incomplete"}


def test_what_is_wrong_ends_in_1(alone: Any, tmp_path: Path) -> None:
    head = _newest_head()
    flipped = bytearray(head.read_bytes())
    flipped[70] ^= 1
    (tmp_path / "head").write_bytes(flipped)
    key = _predicate()["trainer"]
    assert alone("note", tmp_path / "head", "--key", key) == (1, [f"bad-signature: {tmp_path / 'head'}"])
    (tmp_path / "cut").write_bytes((EXAMPLE / "certificate.json").read_bytes()[:-1])
    assert alone("cert", tmp_path / "cut") == (1, [f"envelope-malformed: {tmp_path / 'cut'}"])
    other = _predicate()["verifier"]
    status, lines = alone("run", EXAMPLE / "run", "--key", other)
    assert (status, lines) == (1, ["wrong-key: log.sqlite"])
    run = Path(shutil.copytree(EXAMPLE / "run", tmp_path / "run"))
    (run / "model.safetensors").unlink()
    (run / "corpus" / "stray").write_text("")
    status, lines = alone("run", run)
    assert status == 1
    assert lines[1:] == ["unknown-file: corpus/stray", "file-missing: model.safetensors"]
    shutil.copyfile(EXAMPLE / "run/model.safetensors", run / "model.safetensors")
    assert alone("run", run)[0] == 0  # a stray file does no harm


def test_a_verdict_has_its_status(alone: Any, tmp_path: Path) -> None:
    cases = {it["name"]: it for it in json.loads((SPEC / "vectors" / "certificates.json").read_bytes())["cases"]}
    for name, verdict, due in (
        ("a certificate", "reproduced", 0),
        ("a step diverged", "diverged", 1),
        ("nothing done", "incomplete", 2),
    ):
        (tmp_path / verdict).write_text(cases[name]["given"][0].removeprefix("raw:"))
        status, lines = alone("cert", tmp_path / verdict)
        assert status == due and verdict in lines[0]
    assert alone("cert", tmp_path / "reproduced", tmp_path / "diverged")[0] == 1


def test_a_certificate_is_held_to_a_log(alone: Any, tmp_path: Path) -> None:
    cases = json.loads((SPEC / "vectors" / "certificates.json").read_bytes())["cases"]
    (tmp_path / "other").write_text(cases[0]["given"][0].removeprefix("raw:"))
    assert alone("cert", tmp_path / "other", "--run", EXAMPLE / "run") == (64, [f"other-run: {tmp_path / 'other'}"])
    key = SigningKey("verifier.example", sha256(b"training-witness example key verifier.example").digest())
    statement = json.loads(base64.b64decode(json.loads((EXAMPLE / "certificate.json").read_bytes())["payload"]))
    predicate = statement["predicate"]
    # Well-formed lies about the log, signed: a mandatory challenge less, and another final state.
    fewer = [it for it in predicate["mandatory"] if it[1] != "fault"]
    for change in ({"mandatory": fewer}, {"final_state_root": "11" * 32}):
        predicate = statement["predicate"] | change
        subject = [{**statement["subject"][0], "digest": {"sha256": predicate["final_state_root"]}}]
        lie = encode(statement | {"predicate": predicate, "subject": subject})
        (tmp_path / "lie").write_bytes(dsse.sign("application/vnd.in-toto+json", lie, [key]))
        assert alone("cert", tmp_path / "lie")[0] == 0
        assert alone("cert", tmp_path / "lie", "--run", EXAMPLE / "run") == (1, [f"certificate: {tmp_path / 'lie'}"])


def test_a_callers_mistake_ends_in_64(alone: Any, tmp_path: Path) -> None:
    assert alone("cert", tmp_path / "nothing") == (64, [f"file-unreadable: {tmp_path / 'nothing'}"])
    assert alone("run", tmp_path / "nothing")[0] == 64
    assert alone("answer", EXAMPLE / "answer.json")[0] == 64
    assert alone("note", EXAMPLE / "cosigned.note")[0] == 64
    assert alone("frobnicate", tmp_path)[0] == 64
    assert alone()[0] == 64


# -- what it knows by heart ---------------------------------------------------------------------------


def test_its_constants_are_those_of_the_package() -> None:
    assert checker.VERSION == PROTOCOL_VERSION
    assert sha256(encode([list(CLAIMS), list(NOT_CLAIMED)])).hexdigest() == checker.WORDS


def test_every_definition_says_what_it_implements() -> None:
    """What stands behind a `def` is a text of the specification and a section that it has."""
    cited = re.findall(r"(?:# |: )([a-z-]+) (\d+)(?:, (\d+))?", CHECKER.read_text())
    texts = {path.stem: path.read_text() for path in SPEC.glob("*.md")}
    checked = 0
    for name, *numbers in cited:
        if name in texts:
            for number in filter(None, numbers):
                assert f"\n## {number}. " in texts[name], (name, number)
                checked += 1
    assert checked > 60


# -- the vectors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_every_format_has_vectors_of_both_kinds(path: Path) -> None:
    found = json.loads(path.read_bytes())
    assert found["format"] == path.stem
    names = [(case["call"], case["name"]) for case in found["cases"]]
    assert len(set(names)) == len(names)
    assert all(set(case) - {"gives", "code"} == {"name", "call", "given"} for case in found["cases"])
    assert {"gives", "code"} <= {name for case in found["cases"] for name in case}
    assert {case["code"] for case in found["cases"] if "code" in case} <= set(CODES)


def test_every_call_has_vectors() -> None:
    called = {case["call"] for path in VECTORS for case in json.loads(path.read_bytes())["cases"]}
    assert called == set(checker.CALLS)


def test_the_vectors_are_those_of_the_package() -> None:
    made = _script("make_vectors")
    stale = [name for name in made.FILES if made.text_of(name) != (SPEC / "vectors" / f"{name}.json").read_text()]
    assert made.WRONG == []
    assert stale == []  # `python spec/make_vectors.py --write` brings them up to date
    assert {path.stem for path in VECTORS} == set(made.FILES)
