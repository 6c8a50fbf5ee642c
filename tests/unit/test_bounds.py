"""What a manifest and a log may say at most, and names that mean the same to every version of Python."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from memory_run import MemoryRun

from protocol.checks import LogAudit
from protocol.encoding import encode
from protocol.errors import ProtocolError, UsageError, VerificationError
from protocol.manifest import Manifest, parse_manifest
from protocol.notes import Checkpoint
from protocol.soundness import MAX_STEPS
from witness import source
from witness.program import State


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return MemoryRun().manifest


def changed(manifest: Manifest, **changes: Any) -> bytes:
    return encode(msgspec.structs.replace(manifest, **changes))


@pytest.mark.parametrize("steps", [0, MAX_STEPS + 1, 1 << 40])
def test_a_run_is_as_long_as_its_draws_can_be_computed(manifest: Manifest, steps: int) -> None:
    assert parse_manifest(changed(manifest, steps=MAX_STEPS)).steps == MAX_STEPS
    with pytest.raises(ProtocolError) as refused:
        parse_manifest(changed(manifest, steps=steps))
    assert refused.value.code == "manifest"


NAMES = ["Gr\u00f6sse", "\u01c8", "\u1c89", "a\u0301", "", "9", "a-b", "a b", "a\n", "a."]
"""U+1C89 is a letter from Unicode 16 on: an identifier for Python 3.14, and none for Python 3.11."""


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_is_named_in_ascii(manifest: Manifest, name: str) -> None:
    for entry in (f"{name}:A", f"a:{name}", f"a.{name}:A", f"a:A.{name}", f"{name}.a:A"):
        program = msgspec.structs.replace(manifest.program, entry=entry)
        with pytest.raises(ProtocolError) as refused:
            parse_manifest(changed(manifest, program=program))
        assert refused.value.code == "manifest"
    for entry in ("a:A", "a.b_1.c:A.B", "_a:_9"):
        program = msgspec.structs.replace(manifest.program, entry=entry)
        assert parse_manifest(changed(manifest, program=program)).program.entry == entry


@pytest.mark.parametrize("name", NAMES)
def test_components_of_a_state_are_named_in_ascii(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        State({name: 1})
    assert refused.value.code == "program"
    assert list(State({"model_2": 1})) == ["model_2"]


@pytest.mark.parametrize(
    ("file", "kind"), [("gr\u00f6sse.py", "Small"), ("small-1.py", "Small"), ("small.py", "Gr\u00f6sse")]
)
def test_a_program_that_no_manifest_could_name_is_refused_when_it_is_recorded(
    tmp_path: Path, file: str, kind: str
) -> None:
    path = tmp_path / file
    path.write_text(f"from witness.program import Program\n\nclass {kind}(Program):\n    pass\n", encoding="utf-8")
    namespace = source.execute(path.stem, tmp_path)
    with pytest.raises(UsageError) as refused:
        source.collect(namespace[kind])
    assert refused.value.code == "program-source-missing"


def test_a_head_over_no_entry_is_compared_too(manifest: Manifest) -> None:
    """Its root is fixed before anything is recorded: another one under the trainer's key proves a second log."""
    audit = LogAudit()
    audit.watch([Checkpoint(manifest.origin, 0, hashlib.sha256(b"").digest())])
    with pytest.raises(VerificationError) as refused:
        audit.watch([Checkpoint(manifest.origin, 0, bytes(32))])
    assert refused.value.code == "head-root"
