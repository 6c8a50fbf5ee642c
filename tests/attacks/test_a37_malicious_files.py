"""A37: files and frames that are meant to do something to whoever reads them.

Nothing is unpickled or evaluated; sizes are capped before anything is parsed; names cannot leave their folder;
links and pipes are not followed; a database is read by queries that end. A damaged kept state is no accusation: an
honest run whose state files were all spoilt still reproduces, because the prover rebuilds them.
"""

import hashlib
import json
import os
import pickle
import shutil
import sqlite3
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from attacks import programs
from attacks.court import audit_of, nonce_that, tampering, verify
from attacks.table import Row, caught
from attacks.trainers import Cheater, commit, entries_of, rewrite

from protocol import checks
from protocol import messages as m
from protocol.encoding import decode, encode
from protocol.errors import CODES, ProtocolError, VerificationError, WitnessError
from protocol.manifest import MAX_MANIFEST, Manifest, SourceFile, parse_manifest
from protocol.opening import expect
from protocol.records import MAX_ENTRY
from protocol.required import Result
from protocol.statetree import Entry, Pieces
from witness.holding import hold_weights
from witness.outcomes import result_of
from witness.prover import RunArchive
from witness.rundir import RunDir
from witness.statefile import read_state

STATE = Row(
    "A37",
    "a state file that is a pickle, a pipe, a link, larger than memory, or overlaps itself",
    "parser",
    "state files",
    "state-file",
)
WEIGHTS = Row("A37", "a weights file of these kinds", "parser", "weights files", "state-file")
LEAVES = Row("A37", "a state of 10^9 declared pieces", "parser", "state tables", "state-table", 7)
HUGE = Row("A37", "a state too large to replay", "opening", "size before bytes (incomplete)", "replay-stopped", 7)
PATHS = Row("A37", "source files that leave their folder", "parser", "manifest", "manifest")
DATABASE = Row("A37", "a log that is cut short, no database, or answers for ever", "parser", "log", "log-damaged")
SMALL = Row("A37", "a head or a source file that is a pipe or a link", "parser", "files of the run", "file-missing")
ENTRY = Row("A37", "a log entry above its cap", "parser", "log entries", "too-large")
NESTED = Row("A37", "a manifest nested without end", "parser", "canonical JSON", "not-canonical")
PROBE = Row("A37", "a probe batch of 2^50 samples", "parser", "manifest", "manifest")
FRAME = Row("A37", "a reply above its cap", "parser", "frames", "too-large")
HEADS = Row("A37", "signed heads without end", "parser", "heads", "too-large")
REPORT = Row("A37", "a replayed program reports what no certificate can hold", "parser", "its report", "not-canonical")
ROWS = (STATE, WEIGHTS, LEAVES, HUGE, PATHS, DATABASE, SMALL, ENTRY, NESTED, PROBE, FRAME, HEADS, REPORT)
AT = LEAVES.step or 0


class Bomb:
    """Would leave a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def container(header: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(Bomb(path.with_name("mark"))))


def write_overlap(path: Path) -> None:
    tensor = {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}
    path.write_bytes(container({"@entries": tensor, "model/w": tensor}, bytes(8)))


def write_huge_header(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 1 << 62) + b"{}")


def write_endless_tensor(path: Path) -> None:
    path.write_bytes(container({"@entries": {"dtype": "U8", "shape": [1 << 50], "data_offsets": [0, 1 << 50]}}, b""))


def write_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def write_pipe(path: Path) -> None:
    os.mkfifo(path)


def write_folder(path: Path) -> None:
    path.mkdir()


def write_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 43)


def write_cut(path: Path) -> None:
    path.write_bytes(container({"@entries": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}, bytes(3)))


def write_nothing(path: Path) -> None:
    path.write_bytes(b"")


SPOILT = [
    write_pickle,
    write_overlap,
    write_huge_header,
    write_endless_tensor,
    write_link,
    write_pipe,
    write_folder,
    write_sparse,
    write_cut,
    write_nothing,
]


@pytest.fixture(autouse=True)
def _prompt() -> Any:
    """Whatever a file holds, nobody waits for it."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("write", SPOILT)
def test_a_spoilt_state_file_is_refused(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = tmp_path / "1.state"
    write(path)
    with pytest.raises(ProtocolError) as refused:
        read_state(path, Pieces())
    assert refused.value.code == STATE.code
    assert not (tmp_path / "mark").exists()


def test_a_link_is_not_followed_whatever_is_behind_it(mlp: Path, tmp_path: Path) -> None:
    path = tmp_path / "1.state"
    path.symlink_to(RunDir(mlp).checkpoint_path(1))
    with pytest.raises(ProtocolError) as refused:
        read_state(path, Pieces())
    assert refused.value.code == STATE.code


@pytest.mark.parametrize("write", SPOILT)
def test_a_spoilt_weights_file_is_refused(mlp: Path, tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = tmp_path / "model.safetensors"
    write(path)
    with pytest.raises(ProtocolError) as refused:
        hold_weights(path, mlp)
    assert refused.value.code == WEIGHTS.code
    assert not (tmp_path / "mark").exists()


def test_an_honest_run_with_spoilt_state_files_reproduces(mlp: Path, tmp_path: Path) -> None:
    """A false accusation until it was tried: a rebuild that began from a damaged file gave another state."""
    run = tmp_path / "run"
    shutil.copytree(mlp, run)
    for step, write in enumerate(SPOILT, start=1):
        path = RunDir(run).checkpoint_path(step)
        path.unlink()
        write(path)
    bitten = RunDir(run).checkpoint_path(11)  # well formed, one bit off: only its root tells
    data = bytearray(bitten.read_bytes())
    data[-1] ^= 1
    bitten.write_bytes(data)
    seen = verify(run, draws=programs.STEPS)
    assert seen.verdict == "reproduced", seen.found
    assert not list(run.rglob("mark"))


# -- states over the wire --------------------------------------------------------------------------


def declaring(entries: list[Entry]) -> Callable[[m.Request, bytes], bytes]:
    text = encode(tuple(entries))
    table = len(text).to_bytes(4, "big") + text

    def change(request: m.Request, reply: bytes) -> bytes:
        if isinstance(request, m.OpenState) and request.step == AT - 1:
            return m.pack(m.Part(0, len(table)), table)
        return reply

    return change


@pytest.mark.parametrize(
    "entries",
    [
        [Entry("model/w", "uint8", (10**9 * 65536,))],
        [Entry("model/w", "uint8", (1 << 20, 1 << 20, 1 << 20))],
        [Entry("model/w", "pickle", (8,))],
        [Entry("model/w", "uint8", (8,)), Entry("model/w", "uint8", (8,))],
        [Entry("model/w", "uint8", (8,))],
    ],
)
def test_a_table_is_checked_before_it_is_believed(mlp: Path, entries: list[Entry]) -> None:
    assert AT not in dict(
        checks.mandatory(audit_of(mlp), 2)
    )  # or the challenge before it would ask for that state first
    seen = verify(mlp, nonce=nonce_that(mlp, 1, hits=AT), wrap=tampering(declaring(entries)))
    caught(seen, LEAVES)


def test_a_state_is_measured_before_it_is_fetched(mlp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gigabytes that no replay here could read would otherwise be collected first."""
    from witness.replay import Replayer

    monkeypatch.setattr(Replayer, "largest_state", 1000)
    asked: list[m.Request] = []

    def change(request: m.Request, reply: bytes) -> bytes:
        asked.append(request)
        return reply

    seen = verify(mlp, nonce=nonce_that(mlp, 1, hits=AT), wrap=tampering(change), keep_going=True)
    assert seen.verdict == "incomplete"
    assert (HUGE.code, HUGE.step) in [(result.code, step) for step, result in seen.found]
    assert not any(isinstance(request, m.ReadPieces) for request in asked)


def test_frames_are_capped() -> None:
    with pytest.raises(ProtocolError) as refused:
        expect(m.pack(m.Part(0, 1), bytes(m.MAX_REPLY + m.MAX_HEADER)), m.Part)
    assert refused.value.code == FRAME.code
    with pytest.raises(ProtocolError) as refused:
        expect(b"\xff\xff\xff\xff" + bytes(100), m.Part)
    assert refused.value.code == "frame"


def test_heads_are_capped_together(mlp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from protocol import verifying

    monkeypatch.setattr(verifying, "MAX_HEAD_BYTES", 1 << 16)
    note = RunDir.open(mlp).latest_head().decode()

    def change(request: m.Request, reply: bytes) -> bytes:
        if isinstance(request, m.GetHeads):
            return m.pack(m.Heads(request.first, 1 << 20, (note,) * 100))
        return reply

    caught(verify(mlp, wrap=tampering(change)), HEADS)


# -- what a run directory holds --------------------------------------------------------------------


def manifest_of(run: Path) -> Manifest:
    manifest = entries_of(run)[0]
    assert isinstance(manifest, Manifest)
    return manifest


def sources(manifest: Manifest, *paths: str) -> Manifest:
    files = tuple(SourceFile(path, hashlib.sha256(b"").hexdigest(), 0) for path in paths)
    program = msgspec.structs.replace(manifest.program, kind="files", entry="stranger:Stranger", files=files)
    return msgspec.structs.replace(manifest, program=program)


PATHS_OUT = ["../s.py", "/tmp/s.py", "a/../../s.py", "a//s.py", "./s.py", "a/", "a\\..\\s.py"]
CLASHING = [["b.py", "a.py"], ["a.py", "a.py"], ["a", "a/b.py"], ["a.py", "a.py/b/c.py"]]
ODD = [[], [""], ["s.py\0"], ["\u202eyp.s"], ["x" * 256]]


@pytest.mark.parametrize("paths", [[path] for path in PATHS_OUT] + CLASHING + ODD)
def test_source_files_stay_in_their_folder(mlp: Path, tmp_path: Path, paths: list[str]) -> None:
    manifest = sources(manifest_of(mlp), *paths)
    with pytest.raises(ProtocolError) as refused:
        parse_manifest(encode(manifest))
    assert refused.value.code == PATHS.code
    run = rewrite(mlp, tmp_path / "run", lambda entries: [manifest, *entries[1:]])
    with pytest.raises(WitnessError) as refused_too:
        verify(run, trust=manifest.program.digest.hex())
    assert refused_too.value.code == PATHS.code


def write_log_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def write_log_garbage(path: Path) -> None:
    path.write_bytes(b"not a database " * 1000)


def write_log_view(path: Path) -> None:
    path.unlink()
    endless = (
        "CREATE VIEW leaf AS WITH RECURSIVE c(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM c) "
        "SELECT id, x'00' AS entry, x'00' AS hash FROM c"
    )
    with sqlite3.connect(path) as connection:
        connection.execute(endless)
        connection.execute("CREATE TRIGGER leaf_no_delete INSTEAD OF DELETE ON leaf BEGIN SELECT 1; END")
        connection.execute("CREATE TRIGGER leaf_no_update INSTEAD OF UPDATE ON leaf BEGIN SELECT 1; END")


def write_log_hole(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TRIGGER leaf_no_delete")
        connection.execute("DELETE FROM leaf WHERE id = 7")


def write_log_types(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TRIGGER leaf_no_update")
        connection.execute("UPDATE leaf SET entry = 'text' WHERE id = 7")


def write_log_gigantic(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TRIGGER leaf_no_update")
        connection.execute("UPDATE leaf SET entry = zeroblob(50000000) WHERE id = 7")


LOGS = [write_log_cut, write_log_garbage, write_log_view, write_log_hole, write_log_types, write_log_gigantic]


@pytest.mark.parametrize("write", LOGS)
@pytest.mark.parametrize("whole", [False, True])
def test_a_spoilt_log_is_refused(mlp: Path, tmp_path: Path, write: Callable[[Path], None], whole: bool) -> None:
    """A hang until it was tried: a view in place of the table of entries answered the first question for ever."""
    run = tmp_path / "run"
    shutil.copytree(mlp, run)
    write(RunDir(run).log_path)
    refused: list[str] = []

    def look() -> None:
        try:
            RunArchive(RunDir.open(run)) if whole else RunDir.open(run).log()
        except WitnessError as error:
            refused.append(error.code)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it still reads"
    if whole or write in (write_log_cut, write_log_garbage, write_log_view, write_log_hole, write_log_types):
        assert refused == [DATABASE.code]


@pytest.mark.parametrize("place", ["heads", "program"])
@pytest.mark.parametrize("write", [write_pipe, write_folder, write_link])
def test_nothing_else_can_take_a_small_files_place(
    mlp: Path, tmp_path: Path, place: str, write: Callable[[Path], None]
) -> None:
    """A hang until it was tried: a pipe in the place of a head or a source file waits for somebody to write."""
    run = tmp_path / "run"
    shutil.copytree(mlp, run)
    path = max((run / place).iterdir())
    path.unlink()
    write(path)
    refused: list[str] = []

    def look() -> None:
        try:
            with RunArchive(RunDir.open(run)) as archive:
                archive.source(path.name)
        except WitnessError as error:
            refused.append(error.code)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits"
    assert refused == [SMALL.code]


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_no_link_makes_a_reader_write_elsewhere(mlp: Path, tmp_path: Path, suffix: str) -> None:
    """A write elsewhere until it was tried: opening a log that links to another database made a table in that one."""
    victim = tmp_path / "victim"
    with sqlite3.connect(victim) as connection:
        connection.execute("CREATE TABLE mine (x)")
    before = victim.read_bytes()
    run = tmp_path / "run"
    shutil.copytree(mlp, run)
    path = RunDir(run).log_path
    link = path.with_name(path.name + suffix)
    link.unlink(missing_ok=True)
    link.symlink_to(victim)
    for act in (lambda: RunArchive(RunDir.open(run)).close(), lambda: RunDir.open(run).log().close()):
        try:
            act()
        except WitnessError as error:
            assert error.code in CODES
    assert victim.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "victim"]


@pytest.mark.parametrize("size", [MAX_ENTRY + 1, 1 << 21])
def test_an_entry_above_its_cap_is_refused(mlp: Path, tmp_path: Path, size: int) -> None:
    run = rewrite(mlp, tmp_path / "run", lambda entries: [encode(e) for e in entries[:5]] + [b"x" * size])
    with pytest.raises(ProtocolError) as refused:
        verify(run)
    assert refused.value.code == ENTRY.code


def test_a_manifest_is_capped_and_shallow(mlp: Path) -> None:
    with pytest.raises(ProtocolError) as refused:
        parse_manifest(b" " * (MAX_MANIFEST + 1))
    assert refused.value.code == "too-large"
    text = encode(manifest_of(mlp))
    arguments = encode(manifest_of(mlp).program.arguments)
    for depth in (1_000_000, 300):
        deep = text.replace(b'"arguments":' + arguments, b'"arguments":' + b"[" * depth + b"]" * depth)
        assert deep != text
        with pytest.raises(ProtocolError) as refused:
            parse_manifest(deep)
        assert refused.value.code == NESTED.code
    for odd in (b"1.5", b"18014398509481984", b'{"\xc3\xa9":1}'):
        with pytest.raises(ProtocolError) as refused:
            parse_manifest(text.replace(b'"arguments":' + arguments, b'"arguments":' + odd))
        assert refused.value.code in ("manifest", NESTED.code)


def test_a_probe_batch_is_capped(mlp: Path) -> None:
    """Sample numbers are drawn before anything is opened: 2^53 of them would be drawn for ever."""
    with pytest.raises(ProtocolError) as refused:
        parse_manifest(encode(msgspec.structs.replace(manifest_of(mlp), probe_samples=1 << 50)))
    assert refused.value.code == PROBE.code


# -- what a replayed program does ------------------------------------------------------------------

REPORTING = programs.STRANGER.replace(
    "    def build(self):\n",
    """    def build(self):
        if Path("job").exists():
            import json, os
            evidence = {"\\u00e9": 1, "big": 2**60, "real": 0.5, "deep": [[[]]], "\\x1b[2J": "\\x1b[2J"}
            report = {"code": "replay-failed", "evidence": evidence, "message": "\\x1b[2J"}
            text = json.dumps(report, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            Path("error").write_bytes(text.encode())
            os._exit(0)
""",
)


def test_a_report_from_the_sandbox_cannot_stop_the_verifier(tmp_path: Path) -> None:
    """No certificate at all until it was tried: an integer of 2^60 in the report could not be signed."""
    program = programs.stranger(tmp_path / "own", source=REPORTING, name="stranger_reports")
    run = commit(Cheater, tmp_path / "run", program)
    caught(verify(run, trust=manifest_of(run).program.digest.hex()), REPORT)


def test_whatever_an_error_holds_can_be_signed() -> None:
    evidence = {"\u00e9": 1, "big": 2**60, "real": 0.5, "deep": [{"\x1b": [2**70]}], "\x1b[2J": "\x1b[2J"}
    result = result_of(VerificationError("replay-failed", "x" * 10_000, evidence=evidence))
    assert decode(encode(result), Result, limit=1 << 20) == result
