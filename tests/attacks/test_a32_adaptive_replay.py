"""A32: see the challenge first, and prepare the answer to it.

The prover opens other things than it committed to, chosen to make the drawn step come out right: another state,
other bytes under the committed table, other records, another program. Each opened byte hashes to something that was
fixed before the draw, so that the choice is gone.
"""

from pathlib import Path

import msgspec
import pytest
from attacks import programs
from attacks.court import nonce_that, tampering, verify
from attacks.table import Row, caught
from attacks.trainers import Cheater, Surgeon, commit, entries_of, rewrite, state_of

from protocol import messages as m
from protocol.encoding import encode
from protocol.manifest import Manifest
from witness.hashing import hash_state

AT = Surgeon.at
STATE = Row("A32", "opens another state", "opening", "the state's root", "state-root", AT)
BYTES = Row(
    "A32", "opens other bytes under the committed table", "opening", "digest of the piece", "state-bytes", AT - 1
)
RECORDS = Row("A32", "opens other records", "opening", "root of the document's pieces", "record-bytes", AT)
SOURCE = Row("A32", "opens another program", "opening", "digest of the source file", "program-source")
MANIFEST = Row("A32", "shows one manifest, then another", "check", "manifest", "manifest")
ROWS = (STATE, BYTES, RECORDS, SOURCE, MANIFEST)


@pytest.fixture(scope="module")
def drawing(edited: Path) -> bytes:
    """A nonce that draws the bad step."""
    return nonce_that(edited, 3, hits=AT)


def test_another_state_is_not_the_committed_one(edited: Path, mlp: Path, drawing: bytes) -> None:
    """It opens the state before the step with the edit in it, so that an honest step would seem to lead to it."""
    entries, buffers = state_of(edited, AT)
    pieces = entries_of(mlp)[0].pieces  # type: ignore[union-attr]
    table = hash_state(entries, buffers.__getitem__, pieces).to_bytes()

    def change(request: m.Request, reply: bytes) -> bytes:
        if isinstance(request, m.OpenState) and request.step == AT - 1:
            return m.pack(m.Part(request.first, len(table)), table[request.first :])
        return reply

    seen = verify(edited, draws=3, nonce=drawing, wrap=tampering(change))
    caught(seen, STATE)
    assert {"committed", "opened"} <= seen.facts.keys()


def test_other_bytes_are_not_the_committed_ones(edited: Path, drawing: bytes) -> None:
    def change(request: m.Request, reply: bytes) -> bytes:
        if isinstance(request, m.ReadPieces) and request.step == AT - 1:
            return reply[:-1] + bytes([reply[-1] ^ 1])
        return reply

    seen = verify(edited, draws=3, nonce=drawing, wrap=tampering(change))
    caught(seen, BYTES)
    assert seen.found[0][0] == AT  # found in the challenge of the step after that state


def test_other_records_are_not_the_committed_ones(edited: Path, drawing: bytes) -> None:
    def change(request: m.Request, reply: bytes) -> bytes:
        if isinstance(request, m.OpenRecords) and request.step == AT:
            return reply[:-1] + bytes([reply[-1] ^ 1])
        return reply

    caught(verify(edited, draws=3, nonce=drawing, wrap=tampering(change)), RECORDS)


def test_another_program_is_not_the_committed_one(tmp_path: Path) -> None:
    run = commit(Cheater, tmp_path / "run", programs.stranger(tmp_path / "source", name="stranger_shown"))
    manifest = entries_of(run)[0]
    assert isinstance(manifest, Manifest)

    def change(request: m.Request, reply: bytes) -> bytes:
        if isinstance(request, m.GetSource):
            return m.pack(m.Part(0, 1), programs.STRANGER.replace("lr=0.1", "lr=0.2").encode())
        return reply

    trust = manifest.program.digest.hex()
    caught(verify(run, trust=trust, wrap=tampering(change)), SOURCE)
    assert verify(run, trust=trust).verdict == "reproduced"


def test_a_second_manifest_is_refused(mlp: Path, tmp_path: Path) -> None:
    """One manifest to read and consent to, another to run."""
    run = rewrite(
        mlp, tmp_path / "run", lambda entries: entries
    )  # with its last head alone: the first would contradict it
    manifest = entries_of(run)[0]
    shown = 0

    def change(request: m.Request, reply: bytes) -> bytes:
        nonlocal shown
        if not isinstance(request, m.GetLog) or request.first:
            return reply
        shown += 1
        if shown == 1:
            return reply
        header, payload = m.unpack_reply(reply, m.Part)
        assert isinstance(header, m.Part)
        other = encode(msgspec.structs.replace(manifest, package="9.9"))
        return m.pack(header, m.join_entries([other, *m.split_entries(payload)[1:]]))

    caught(verify(run, wrap=tampering(change)), MANIFEST)
    assert shown == 2
