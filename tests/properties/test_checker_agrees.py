"""Two implementations, one answer: the package and `spec/checker.py` on every artefact, and on what became of them.

`python spec/agree.py --count 20000` is the long form of this.
"""

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import agree
import checker
import package_calls
import pytest

from protocol.notes import parse_signing_key
from witness.fsck import fsck, open_run

SPEC = Path(checker.__file__).parent
ALTERATIONS = 2000


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, recorded: Path) -> list[agree.Case]:
    key = parse_signing_key((recorded / "key").read_text().strip())
    agree.KEYS[key.public.vkey] = key
    made = agree.made_cases(tmp_path_factory.mktemp("made"))
    return [*agree.vector_cases(), *agree.example_cases(), *made, *agree.folder_cases(recorded)]


def test_both_give_what_the_vectors_say() -> None:
    counts: Counter[str] = Counter()
    for path in sorted((SPEC / "vectors").glob("*.json")):
        for case in json.loads(path.read_bytes())["cases"]:
            due = {name: case[name] for name in ("gives", "code") if name in case}
            assert len(due) == 1, case["name"]
            for side in (checker, package_calls):
                assert side.outcome(case["call"], case["given"]) == due, f"{path.stem}: {case['name']}"
            counts[path.stem] += 1
    assert sum(counts.values()) >= 500


def test_both_say_the_same_of_every_artefact(cases: list[agree.Case]) -> None:
    for case in cases:
        left, right = agree.compared(case)
        assert agree.agree(case[0], left, right), (case[0], left, right)
    accepted = {case[0] for case in cases if "gives" in agree.compared(case)[0]}
    assert accepted == {case[0] for case in cases}  # nothing is only ever refused


def test_both_say_the_same_of_altered_artefacts(cases: list[agree.Case]) -> None:
    differing: list[Any] = []
    seen = agree.run(ALTERATIONS, 20261201, cases, lambda case, left, right: differing.append((case[0], left, right)))
    assert differing == []
    assert sum(seen.values()) == ALTERATIONS
    codes = {name.split(": ")[1] for name in seen} - {"accepted"}
    accepted = sum(n for name, n in seen.items() if name.endswith(": accepted"))
    # What this is worth: many ways to be wrong were met, and neither side simply refuses whatever is altered.
    assert len(codes) >= 40, sorted(codes)
    assert ALTERATIONS / 10 < accepted < ALTERATIONS / 2


def test_an_answer_of_one_side_alone_is_reported(cases: list[agree.Case], monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison itself: a checker that forgets one check is found out."""
    monkeypatch.setitem(checker.CALLS, "inclusion", lambda *_: None)
    differing: list[Any] = []
    inclusions = [case for case in cases if case[0] == "inclusion"]
    agree.run(50, 1, inclusions, lambda *given: differing.append(given))
    assert differing


# -- folders ------------------------------------------------------------------------------------------


def damages(run: Path, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Damages one file after another, and mends it."""
    for path in sorted(it for it in run.rglob("*") if it.is_file()):
        data, name = path.read_bytes(), path.relative_to(run).as_posix()
        for kind in ("flipped", "cut", "longer", "gone", "moved", "folder"):
            if kind == "flipped" and data:
                at = rng.randrange(len(data))
                path.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
            elif kind == "cut":
                os.truncate(path, rng.randrange(len(data) + 1))
            elif kind == "longer":
                path.write_bytes(data + b"\n")
            elif kind == "moved":
                path.rename(path.with_name(path.name + "x"))
            elif kind != "flipped":
                path.unlink()
                if kind == "folder":
                    path.mkdir()
            yield name, kind
            if path.is_dir():
                path.rmdir()
            path.with_name(path.name + "x").unlink(missing_ok=True)
            path.write_bytes(data)


def test_both_find_the_same_damage_in_a_folder(recorded: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(recorded, tmp_path / "run"))
    assert checker.check_folder(run)[1] == []
    found = 0
    for name, kind in damages(run, random.Random(20261202)):
        package = {(it.code, it.file) for it in fsck(open_run(run)).findings if it.kind == "damage"}
        package = {it for it in package if it[1] != "key"}  # the checker reads no secret
        alone = {it for it in checker.check_folder(run)[1] if it[0] not in checker.HARMLESS}
        if name == "log.sqlite":  # of which the package reads on behind the damage
            assert alone <= package and bool(alone) == bool(package), (name, kind)
        else:
            assert alone == package, (name, kind)
        found += bool(alone)
    assert checker.check_folder(run)[1] == []
    assert found > 60
