"""`witness fsck`: a clean run has no findings, and no damage hides - nor does one damage hide another."""

import fcntl
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from recorded_run import EVERY, STEPS, TEXTS, editing, record_again, rows

import witness.fsck
from protocol import merkle
from protocol.errors import CODES, UsageError
from protocol.keys import SigningKey
from protocol.records import CheckpointEvent, FaultEvent, FinalEvent, ResumeEvent, StepRecord
from witness.cli.fsck import command
from witness.data import open_corpus, store
from witness.fsck import Report, fsck, open_run
from witness.logreader import LogReader
from witness.rundir import RunDir
from witness.statefile import read_state, write_state

HEAD = f"heads/{2 + EVERY + 1:012}.note"
STATE = f"checkpoints/{EVERY:010}.state"


def examine(run: RunDir) -> Report:
    report = fsck(run)
    assert all(finding.code in CODES and finding.next and finding.message for finding in report.findings)
    return report


def damage(report: Report) -> set[tuple[str, str]]:
    return {(finding.code, finding.file) for finding in report.findings if finding.kind == "damage"}


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def flip(path: Path, offset: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


# -- a whole run --------------------------------------------------------------------------------------


def test_a_clean_run_has_no_findings_and_is_not_touched(run):
    before = contents(run.path)
    report = examine(run)
    assert report.findings == ()
    assert report.unchecked == ()
    assert report.exit_status == 0
    assert contents(run.path) == before
    counts = report.counts
    assert counts.entries == 1 + 1 + STEPS + STEPS // EVERY + 1
    assert counts.unsigned_entries == 0
    assert counts.heads == len(run.head_sizes()) == 2 + STEPS // EVERY + 1
    assert counts.checkpoints == 1 + STEPS // EVERY
    assert counts.documents == len(TEXTS)
    assert counts.pieces > counts.checkpoints
    assert counts.program_files == len(list(run.program.glob("*.py")))
    assert counts.bytes >= sum(p.stat().st_size for p in run.checkpoints.iterdir()) + run.log_path.stat().st_size


def test_examining_needs_no_torch(recorded):
    code = (
        "import sys, pathlib\n"
        "from witness.fsck import fsck, open_run\n"
        "assert fsck(open_run(pathlib.Path(sys.argv[1]))).exit_status == 0\n"
        "sys.exit('torch' in sys.modules)"
    )
    root = Path(witness.fsck.__file__).parents[2]
    subprocess.run([sys.executable, "-c", code, str(recorded)], check=True, cwd=root)


def test_progress_reaches_its_end_and_never_goes_back(run):
    told = []
    fsck(run, lambda what, done, total: told.append((what, done, total)))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert all(done <= total for _, done, total in told)
    assert {"the log", "the kept states", "the corpus", "the released weights"} <= {what for what, _, _ in told}


# -- one damaged file ---------------------------------------------------------------------------------

FILES = {
    HEAD: {"note-malformed", "bad-signature", "note-unsigned", "head-malformed", "head-origin", "head-missing"},
    STATE: {"state-file", "state-table", "not-canonical", "checkpoint-root", "file-missing"},
    "checkpoints/0000000000.state": {"state-file", "state-table", "not-canonical", "checkpoint-root", "file-missing"},
    "corpus/leaves": {"corpus-leaves", "corpus-root", "file-missing"},
    "corpus/corpus.json": {"not-canonical", "corpus-root", "file-missing"},
    "corpus/t1-nfc-lf-strip-unicode14.places": {"places", "ledger-root", "ledger-documents", "file-missing"},
    "corpus/data": {"corpus-changed", "corpus-file", "file-missing"},
    "program/gpt.py": {"program-source", "file-missing"},
    "model.safetensors": {"state-file", "state-table", "released-weights", "file-missing"},
    "key": {"key-malformed", "wrong-key"},
}


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_bit_is_found_wherever_it_is(run, file):
    path = run.path / file
    original = path.read_bytes()
    draw = random.Random(file)
    offsets = {0, len(original) - 1, *(draw.randrange(len(original)) for _ in range(12))}
    for offset in sorted(offsets):
        flip(path, offset, draw.randrange(8))
        report = examine(run)
        if file == "corpus/corpus.json" and report.exit_status == 0:
            # Nothing but the claim in this file is committed to: a flip that points to other data must point nowhere.
            assert json.loads(path.read_bytes())["claim"] == json.loads(original)["claim"]
        elif not (file == "key" and offset == len(original) - 1):  # the line's end, which no key needs
            assert report.exit_status == 1, offset
            assert {f for _, f in damage(report)} <= {file, *(["corpus/data"] if file == "corpus/corpus.json" else [])}
            assert {code for code, f in damage(report) if f == file} <= FILES[file], offset
        path.write_bytes(original)


@pytest.mark.parametrize("file", FILES)
def test_a_truncated_file_is_found(run, file):
    path = run.path / file
    for length in (path.stat().st_size // 2, 0):
        os.truncate(path, length)
        report = examine(run)
        assert report.exit_status == 1
        found = damage(report)
        assert {f for _, f in found} == {file}
        assert {code for code, _ in found} <= FILES[file]


@pytest.mark.parametrize("file", [file for file in FILES if file != "key"])  # a run may have its key elsewhere
def test_a_deleted_file_is_found(run, file):
    (run.path / file).unlink()
    report = examine(run)
    assert report.exit_status == 1
    assert {f for _, f in damage(report)} == {file}
    if file in (HEAD, STATE):
        assert [finding.step for finding in report.findings] == [EVERY]


def test_a_deleted_log_leaves_the_rest_unchecked(run):
    run.log_path.unlink()
    report = examine(open_run(run.path))
    assert damage(report) == {("file-missing", "log.sqlite")}
    assert report.exit_status == 1
    assert report.run is None
    assert any("manifest" in line for line in report.unchecked)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError) as caught:
        open_run(tmp_path)
    assert caught.value.code == "run-missing"


def test_a_pipe_in_the_place_of_a_file_does_not_hang(run):
    for file in (STATE, HEAD, "corpus/leaves", "corpus/corpus.json", "model.safetensors", "program/gpt.py", "key"):
        (run.path / file).unlink()
        os.mkfifo(run.path / file)
    report = examine(run)
    assert damage(report) >= {("not-a-file", STATE), ("not-a-file", HEAD), ("not-a-file", "key")}
    run.log_path.unlink()
    os.mkfifo(run.log_path)
    assert ("not-a-file", "log.sqlite") in damage(examine(run))


def test_every_damage_is_listed_not_only_the_first(run):
    flip(run.path / HEAD, 100)
    flip(run.path / STATE, 5000)
    flip(run.corpus / "data", 10)
    flip(run.program / "mlp.py", 10)
    run.released.unlink()
    files = {HEAD, STATE, "corpus/data", "program/mlp.py", "model.safetensors"}
    assert {file for _, file in damage(examine(run))} == files


# -- the log ------------------------------------------------------------------------------------------


def offset_of(run: RunDir, needle: bytes) -> int:
    data = run.log_path.read_bytes()
    assert data.count(needle) == 1
    return data.index(needle)


def test_no_flipped_bit_changes_what_the_log_says_without_a_finding(run):
    original, before = run.log_path.read_bytes(), rows(run)
    draw = random.Random(7)
    harmless = 0
    for _ in range(150):
        flip(run.log_path, draw.randrange(len(original)), draw.randrange(8))
        report = examine(run)
        if report.exit_status == 0:
            harmless += 1
            assert rows(run) == before  # free space, counters
        else:
            assert "log.sqlite" in {file for _, file in damage(report)}
        run.log_path.write_bytes(original)
    assert harmless < 75


@pytest.mark.parametrize("part", [0.999, 0.7, 0.3, 0.01, 0])
def test_a_truncated_log_is_found(run, part):
    os.truncate(run.log_path, int(run.log_path.stat().st_size * part))
    report = examine(run)
    assert {file for _, file in damage(report)} == {"log.sqlite"}
    assert report.exit_status == 1


def test_a_flipped_bit_in_a_record_names_entry_and_step_and_nothing_else(run):
    for row in rows(run)[2:]:
        number = row.number
        record = msgspec.json.decode(row.entry)
        if record["type"] != "step":
            continue
        original = run.log_path.read_bytes()
        flip(run.log_path, offset_of(run, record["records"].encode()) + 5)
        report = examine(run)
        (finding,) = [f for f in report.findings if f.code == "log-entry"]
        assert (finding.entry, finding.file) == (number, "log.sqlite")
        assert "altered after it was signed" in finding.message
        assert damage(report) == {("log-entry", "log.sqlite")}
        assert report.counts.heads == len(run.head_sizes())
        assert report.counts.checkpoints == 1 + STEPS // EVERY
        run.log_path.write_bytes(original)


def test_a_flipped_bit_in_a_stored_hash_is_told_from_one_in_an_entry(run):
    row = rows(run)[4]
    flip(run.log_path, offset_of(run, row.stored_hash) + 3)
    (finding,) = examine(run).findings
    assert (finding.code, finding.entry) == ("log-entry", 4)
    assert "the stored hash was altered" in finding.message


def test_a_lost_entry_hides_nothing_behind_it(run):
    """Each entry in turn is made unreadable: that one is named, and all the others are still held to the manifest."""
    original = run.log_path.read_bytes()
    last = len(rows(run)) - 1
    for number in range(1, last + 1):
        with editing(run) as log:
            log.execute("UPDATE leaf SET entry = ? WHERE id = ?", (b"\xff garbage", number + 1))
        report = examine(run)
        assert [(f.code, f.entry) for f in report.findings] == [("log-entry", number)]
        assert not any("checks of entries" in line for line in report.unchecked)
        run.log_path.write_bytes(original)


def test_a_lost_row_is_named_and_damage_behind_it_is_still_found(run):
    original = run.log_path.read_bytes()
    with editing(run) as log:
        log.execute("DELETE FROM leaf WHERE id IN (4, 5)")
        ((entry,),) = log.execute("SELECT entry FROM leaf WHERE id = 10")
        wrong = msgspec.json.decode(entry, type=StepRecord)
        changed = msgspec.json.encode(msgspec.structs.replace(wrong, records="0" * 64), order="sorted")
        log.execute("UPDATE leaf SET entry = ?, hash = ? WHERE id = 10", (changed, merkle.leaf_hash(changed)))
    report = examine(run)
    assert [(f.code, f.entry, f.step) for f in report.findings] == [
        ("log-damaged", 3, None),
        ("records-digest", 9, wrong.step),
    ]
    run.log_path.write_bytes(original)
    assert examine(run).findings == ()


def test_two_lost_records_are_both_named(run):
    with editing(run) as log:
        for number in (4, 8):
            log.execute("UPDATE leaf SET entry = ? WHERE id = ?", (b"{}", number + 1))
    assert [(f.code, f.entry) for f in examine(run).findings] == [("log-entry", 4), ("log-entry", 8)]


def test_an_altered_root_does_not_accuse_the_kept_state(run):
    record = msgspec.json.decode(rows(run)[1 + EVERY].entry)
    assert record["step"] == EVERY
    with editing(run) as log:
        altered = msgspec.json.encode(record | {"state_root": "1" * 64}, order="sorted")
        log.execute("UPDATE leaf SET entry = ? WHERE id = ?", (altered, 2 + EVERY))
    report = examine(run)
    assert ("log-entry", "log.sqlite") in damage(report)
    assert {file for _, file in damage(report)} == {"log.sqlite"}
    assert report.counts.checkpoints == 1 + STEPS // EVERY


def test_an_altered_manifest_is_found_by_its_signed_hash(run):
    manifest = rows(run)[0].entry
    altered = manifest.replace(b'"batch_size":4', b'"batch_size":5')
    assert altered != manifest
    with editing(run) as log:
        log.execute("UPDATE leaf SET entry = ? WHERE id = 1", (altered,))
    report = examine(run)
    assert [(f.code, f.entry) for f in report.findings] == [("log-entry", 0)]
    assert report.counts.heads == len(run.head_sizes())


def test_a_cut_log_is_found_by_the_heads_beyond_it(run):
    total = len(rows(run))
    with editing(run) as log:
        log.execute("DELETE FROM leaf WHERE id > ?", (total - 3,))
    report = examine(run)
    beyond = [size for size in run.head_sizes() if size > total - 3]
    found = [f for f in report.findings if f.code == "log-truncated"]
    assert len(found) == len(beyond) > 0
    assert all(f.file == "log.sqlite" and "do not resume" in f.next for f in found)


def test_entries_rewritten_with_their_hashes_are_not_the_signed_ones(run):
    entry = rows(run)[3].entry
    record = msgspec.json.decode(entry, type=StepRecord)
    loss = msgspec.structs.replace(record.fingerprint, loss="f32:00000000")
    changed = msgspec.json.encode(msgspec.structs.replace(record, fingerprint=loss), order="sorted")
    with editing(run) as log:
        log.execute("UPDATE leaf SET entry = ?, hash = ? WHERE id = 4", (changed, merkle.leaf_hash(changed)))
    report = examine(run)
    assert damage(report) == {("head-root", "log.sqlite")}
    assert len(report.findings) == sum(size >= 4 for size in run.head_sizes())


def test_a_log_whose_last_entries_are_in_the_write_ahead_log_is_read_whole(run, tmp_path):
    record_again(run, lambda number, entry: entry if number < 4 else None)
    for size in run.head_sizes():
        if size > 4:
            (run.heads / f"{size:012}.note").unlink()
    with run.log() as log:
        log.append(msgspec.json.encode(FaultEvent(1, "a disk was hot"), order="sorted"))
        killed = RunDir(Path(shutil.copytree(run.path, tmp_path / "killed")))
    assert (killed.path / "log.sqlite-wal").stat().st_size > 0
    report = examine(killed)
    assert report.counts.entries == 5
    assert report.counts.unsigned_entries == 5 - max(killed.head_sizes())
    assert {finding.code for finding in report.findings} <= {"leftover", "unknown-file"}


def test_a_view_in_the_place_of_the_table_is_refused(run):
    with editing(run) as log:
        log.execute("ALTER TABLE leaf RENAME TO other")
        log.execute("CREATE VIEW leaf AS SELECT id, entry, hash FROM other")
    assert damage(examine(run)) == {("log-damaged", "log.sqlite")}


def test_rows_that_hold_text_are_damage(run):
    with editing(run) as log:
        log.execute("UPDATE leaf SET entry = CAST(entry AS TEXT) WHERE id = 5")
    (finding,) = examine(run).findings
    assert (finding.code, finding.entry) == ("log-damaged", 4)


def test_reading_on_after_a_gap_finds_the_next_row(run):
    with editing(run) as log:
        log.execute("DELETE FROM leaf WHERE id BETWEEN 3 AND 7")
    with LogReader(run.log_path) as log:
        found = list(log.rows())
    assert [getattr(row, "number", None) for row in found[:4]] == [0, 1, None, 7]
    assert (found[2].first, found[2].stop) == (2, 7)


# -- what a trainer signed that cannot be ---------------------------------------------------------------


def test_every_wrong_record_of_a_signed_log_is_found(run):
    def change(_, entry):
        wrong = isinstance(entry, StepRecord) and entry.step in (3, 6)
        return msgspec.structs.replace(entry, records="0" * 64) if wrong else entry

    record_again(run, change)
    report = examine(run)
    assert [(f.code, f.step) for f in report.findings] == [("records-digest", 3), ("records-digest", 6)]


def test_a_kept_state_that_is_another_is_found(run):
    pieces = run.manifest().pieces
    entries, buffers = read_state(run.path / STATE, pieces)
    name = next(e.name for e in entries if e.name.startswith("optimizer/") and e.dtype == "float32" and e.size > 4)
    buffers[name] = bytes([buffers[name][0] ^ 1]) + buffers[name][1:]
    write_state(run.path / STATE, entries, buffers.__getitem__)
    (finding,) = examine(run).findings
    assert (finding.code, finding.file, finding.step) == ("checkpoint-root", STATE, EVERY)


def test_weights_that_are_not_those_of_the_last_state_are_found_even_when_announced(run):
    """Surgery on the released weights (A10), announced and signed by the trainer."""
    from safetensors.numpy import load, save

    from witness.weights import read_weights

    tensors = load(run.released.read_bytes())
    name = min(tensors)
    tensors[name] = tensors[name] + 1
    run.released.write_bytes(save(tensors))
    released = read_weights(run.released, run.manifest().pieces).root.hex()
    assert [f.code for f in examine(run).findings] == ["released-weights"]
    record_again(run, lambda _, e: msgspec.structs.replace(e, released=released) if isinstance(e, FinalEvent) else e)
    (finding,) = examine(run).findings
    assert (finding.code, finding.file, finding.step) == ("released-weights", "log.sqlite", STEPS)


def test_a_promised_state_that_was_never_announced_is_found(run):
    record_again(run, lambda _, entry: None if isinstance(entry, CheckpointEvent) and entry.step == EVERY else entry)
    report = examine(run)
    assert ("checkpoint-event", "log.sqlite") in damage(report)
    assert [f.step for f in report.findings if f.code == "checkpoint-event"] == [EVERY]


def test_left_out_steps_are_found_and_what_cannot_be_checked_is_said(run):
    record_again(run, lambda _, entry: None if isinstance(entry, StepRecord) and entry.step in (2, 3) else entry)
    report = examine(run)
    assert ("step-order", "log.sqlite") in damage(report)
    assert any("checks of entries from 3 on" in line for line in report.unchecked)


def test_heads_of_another_run_or_size_or_key_are_found(run):
    manifest, key = run.manifest(), run.read_key()
    size = run.head_sizes()[2]
    path, other = run.heads / f"{size:012}.note", run.heads / f"{run.head_sizes()[1]:012}.note"
    original = path.read_bytes()
    path.write_bytes(other.read_bytes())
    assert ("head-name", HEAD) in damage(examine(run))
    from protocol.notes import Checkpoint, open_head, sign_head

    root = open_head(original, [key.public]).root
    path.write_bytes(sign_head(Checkpoint("training-witness/v1/" + "0" * 64, size, root), key))
    assert damage(examine(run)) == {("head-origin", HEAD)}
    path.write_bytes(sign_head(Checkpoint(manifest.origin, size, root), SigningKey(key.public.name, bytes(32))))
    assert damage(examine(run)) == {("note-unsigned", HEAD)}
    path.write_bytes(sign_head(Checkpoint(manifest.origin, size, hashlib.sha256(b"x").digest()), key))
    assert damage(examine(run)) == {("head-root", "log.sqlite")}


def test_a_head_that_a_killed_recorder_could_not_sign_is_not_missed(run):
    """Killed between the event of a kept state and its head, a run goes on without that head."""

    def change(number, entry):
        return ResumeEvent(EVERY, EVERY) if number == 2 + EVERY + 1 else entry

    old = rows(run)
    assert isinstance(msgspec.json.decode(old[2 + EVERY].entry, type=CheckpointEvent), CheckpointEvent)
    record_again(run, change)
    (run.path / HEAD).unlink()
    assert "head-missing" not in {f.code for f in examine(run).findings}


# -- the corpus ---------------------------------------------------------------------------------------


def test_data_outside_the_run_is_read_where_it_is_or_is_said_to_be(run, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for number, text in enumerate(TEXTS):
        (texts / f"{number}.txt").write_text(text)
    corpus = open_corpus(texts, run.manifest().corpus.packing)
    claim = msgspec.structs.replace(run.manifest().corpus, source=corpus.source)
    record_again(run, change_manifest=lambda manifest: msgspec.structs.replace(manifest, corpus=claim))
    for path in run.corpus.iterdir():
        if path.suffix != ".places":
            path.unlink()
    store(corpus, run.corpus, copy_limit=0)
    assert examine(run).findings == ()

    flip(texts / "2.txt", 3)
    assert damage(examine(run)) == {("corpus-changed", str(texts / "2.txt"))}
    flip(texts / "2.txt", 3)

    moved = texts.rename(tmp_path / "moved")
    assert {code for code, _ in damage(examine(run))} == {"corpus-missing"}
    assert fsck(run, data=moved).findings == ()


def test_every_altered_document_is_named(run):
    flip(run.corpus / "data", 0)
    flip(run.corpus / "data", len(TEXTS[0]) + 2)
    found = examine(run).findings
    assert [f.code for f in found] == ["corpus-changed"] * 2
    assert ["document 0" in found[0].message, "document 2" in found[1].message] == [True, True]


# -- what is no damage --------------------------------------------------------------------------------


def test_leftovers_and_strangers_are_notes(run):
    (run.checkpoints / ".0000000004.state.tmp").write_bytes(b"half")
    (run.path / "certificate.json").write_text("{}")
    (run.program / "__pycache__").mkdir()
    (run.checkpoints / "4.state").write_bytes(b"")
    report = examine(run)
    assert report.exit_status == 0
    assert {(f.kind, f.code, f.file) for f in report.findings} == {
        ("note", "leftover", "checkpoints/.0000000004.state.tmp"),
        ("note", "unknown-file", "certificate.json"),
        ("note", "unknown-file", "program/__pycache__"),
        ("note", "unknown-file", "checkpoints/4.state"),
    }


def test_the_files_of_a_writer_at_work_are_not_leftovers(run):
    (run.checkpoints / ".0000000004.state.tmp").write_bytes(b"half")
    with (run.path / "lock").open("r") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert examine(run).findings == ()
    assert [f.code for f in examine(run).findings] == ["leftover"]


def test_what_may_not_be_read_is_neither_clean_nor_damaged(run, monkeypatch):
    forbidden = {run.path / HEAD, run.path / STATE, run.program / "gpt.py", run.corpus / "leaves", run.released}
    opened = Path.open

    def guarded(path, *args, **kwargs):
        if path in forbidden:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", guarded)
    report = examine(run)
    assert {f.kind for f in report.findings} == {"unreadable"}
    assert {run.path / f.file for f in report.findings} == forbidden
    assert report.exit_status == 2
    forbidden.clear()
    forbidden.add(run.log_path)
    assert examine(run).exit_status == 2
    (run.released).unlink()
    forbidden.clear()
    forbidden.add(run.path / STATE)
    assert examine(run).exit_status == 1


def test_findings_of_one_code_are_capped_and_counted(run):
    for number in range(witness.fsck.findings.MAX_PER_CODE + 7):
        (run.path / f"stray-{number}").write_text("")
    report = examine(run)
    assert len(report.findings) == witness.fsck.findings.MAX_PER_CODE
    assert report.omitted == {"unknown-file": 7}


# -- the command --------------------------------------------------------------------------------------


def keys_of_the_table(docstring: str) -> set[str]:
    return set(re.findall(r"^\| `([a-z_.]+)`", docstring, re.MULTILINE))


def test_the_json_object_has_the_documented_keys(run):
    flip(run.path / STATE, 9)
    result = CliRunner().invoke(command, [str(run.path), "--json"])
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert set(document) == keys_of_the_table(witness.fsck.__doc__)
    assert result.stderr == ""
    (finding,) = document["findings"]
    assert set(finding) == {"kind", "code", "file", "message", "step", "entry", "next"}
    assert document["run"] == run.manifest().run_id.hex()


def test_the_listing_names_damage_and_what_to_do_and_commands_no_terminal(run):
    hostile = run.path / "evil\x1b]0;owned\x07\u202e.tmp"
    hostile.write_text("")
    (run.path / HEAD).unlink()
    result = CliRunner().invoke(command, [str(run.path)])
    assert result.exit_code == 1
    assert HEAD in result.stdout
    assert "head-missing" in result.stdout
    assert "next: " in result.stdout
    assert "DAMAGED" in result.stdout
    assert all(c.isprintable() or c == "\n" for c in result.stdout)


def test_the_listing_of_a_clean_run_says_so(run):
    result = CliRunner().invoke(command, [str(run.path)])
    assert result.exit_code == 0
    assert "CLEAN" in result.stdout
    assert run.manifest().run_id.hex() in result.stdout
