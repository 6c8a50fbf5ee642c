"""One pass over one run directory, in the order in which one part lets the next be checked.

The manifest names key, corpus and program; the corpus's leaves are needed to check the records
drawn, the signed heads to read the log, the log to know the root of each kept state, and the last
state to know the released weights. Where a part is damaged, what depends on it is checked as far as
the rest allows, and what is left is listed as unchecked.
"""

from __future__ import annotations

from pathlib import Path

from protocol import merkle
from protocol.corpus import Documents, token_bytes
from protocol.errors import ProtocolError, VerificationError, WitnessError
from protocol.manifest import Manifest, check_source, parse_manifest
from protocol.notes import Checkpoint
from protocol.statetree import Pieces, Table
from witness.fsck.corpus import check_corpus, check_ledgers, read_leaves
from witness.fsck.findings import Findings, Report
from witness.fsck.folder import list_program, list_run, stray
from witness.fsck.heads import HEAD, open_heads
from witness.fsck.meter import Meter, Progress
from witness.fsck.survey import Survey
from witness.hashing import hash_state
from witness.logreader import LogReader, Row, require_file
from witness.rundir import RunDir
from witness.statefile import read_state
from witness.weights import read_weights

_COPY = "restore the file from a copy of the run"
_KEY = "restore it from a copy; without it the run can be neither continued nor served"
_STATE = "restore it from a copy; a state that is not there is rebuilt from the one kept before, which takes longer"
_FIRST = "restore it from a copy; without it the first states cannot be rebuilt here"

_LOG = "restore log.sqlite from a copy, and do not resume before: the trainer would sign a second history"


class Examination:
    """Examines one directory once.

    Args:
        run: the directory.
        progress: told as bytes are read.
        data: where the corpus lies now, if it was moved.
    """

    def __init__(self, run: RunDir, progress: Progress | None, data: Path | None) -> None:
        self._run, self._data = run, data
        self._findings = Findings(run.path)
        self._files = list_run(run, self._findings)
        self._manifest, self._altered = self._read_manifest()
        total = self._files.bytes
        if self._manifest is not None and not (run.corpus / "data").is_file():
            claim = self._manifest.corpus
            total += claim.tokens * token_bytes(claim.tokenizer)
        self._meter = Meter(total, progress)
        self._last: tuple[int, Table] | None = None

    def report(self) -> Report:
        """Reads everything."""
        heads = self._open_heads()
        documents = None
        if self._manifest is not None:
            documents = read_leaves(self._run, self._manifest.corpus, self._findings)
        survey = self._read_log(documents, heads)

        self._check_states(survey)
        self._check_weights(survey)
        if self._manifest is not None:
            check_corpus(self._run, self._manifest.corpus, documents, self._data, self._findings, self._meter)
            check_ledgers(self._run, self._manifest.ledgers, documents, self._findings)
            self._check_program(self._manifest)
        else:
            self._findings.unchecked.append("states, corpus, program and weights: the manifest says what they must be")

        self._check_key()
        if not self._files.written:  # a writer's files come and go
            for path in self._files.others:
                self._findings.add(stray(path), path, note=True)
        self._findings.run = self._manifest.run_id.hex() if self._manifest is not None else None
        self._findings.counts.bytes = self._meter.done
        return self._findings.report()

    # -- log and heads ----------------------------------------------------------------------------

    def _read_manifest(self) -> tuple[Manifest | None, bool]:
        """The manifest, and whether its stored hash is another's. What is wrong with it, the survey says."""
        try:
            with LogReader(self._run.log_path) as log:
                row = next(log.rows(), None)
            if not isinstance(row, Row) or row.number != 0:
                return None, False
            return parse_manifest(row.entry), merkle.leaf_hash(row.entry) != row.stored_hash
        except WitnessError:
            return None, False

    def _open_heads(self) -> dict[int, Checkpoint]:
        """The heads that the trainer signed, by size; an altered manifest is put aside."""
        if self._manifest is None:
            if self._files.heads:
                self._findings.unchecked.append("the signatures of the heads: the key stands in the manifest")
            return {}
        heads, genuine = open_heads(self._run, self._files.heads, self._manifest, self._altered, self._findings)
        if not genuine:
            self._manifest = None
        return heads

    def _read_log(self, documents: Documents | None, heads: dict[int, Checkpoint]) -> Survey:
        path, findings, counts = self._run.log_path, self._findings, self._findings.counts

        def report(error: WitnessError, entry: int | None, action: str | None) -> None:
            findings.add(error, path, entry=entry, action=action)

        survey = Survey(documents, heads, report, held=self._manifest is not None)
        try:
            size = require_file(path)
            with self._meter.part("the log", size), LogReader(path) as log:
                for problem in log.problems():
                    report(ProtocolError("log-damaged", f"its structure is damaged: {problem}"), None, _LOG)
                for row in log.rows():
                    survey.read(row)
                    self._meter.advance(len(row.entry) if isinstance(row, Row) else 0)
        except WitnessError as error:
            findings.add(error, path, action=_LOG)
            findings.unchecked.append("everything that the log says: it cannot be read")
            return survey
        survey.finish()
        for head, step in survey.owed:
            missing = self._run.heads / f"{head:012}.note"
            if not missing.exists():
                gone = ProtocolError("head-missing", f"the head over {head} entries is not there")
                findings.add(gone, missing, step=step, action=HEAD)
        counts.entries, counts.heads = survey.size, len(survey.confirmed)
        counts.unsigned_entries = survey.size - max(survey.confirmed, default=0)
        if survey.unheld is not None and survey.unheld < survey.size:
            findings.unchecked.append(f"the checks of entries from {survey.unheld} on: they build on what is damaged")
        if documents is None and self._manifest is not None:
            findings.unchecked.append("the records drawn at each step: the corpus's leaves are damaged")
        return survey

    # -- states and weights -----------------------------------------------------------------------

    def _check_states(self, survey: Survey) -> None:
        owed = {0} if survey.audit.init_root else set()
        owed.update(survey.audit.checkpoints)
        for step in sorted(owed | set(self._files.states)):
            path = self._run.checkpoint_path(step)
            table = self._read_table(path, step)
            if table is None:
                continue
            root = survey.root_of(step)
            if root is None and self._manifest is None:
                continue
            if root is None:
                self._findings.unchecked.append(f"{self._findings.name(path)}: the log does not say its root")
            elif table.root.hex() != root:
                self._findings.add(
                    VerificationError(
                        "checkpoint-root", f"the kept state has the root {table.root.hex()}, the log says {root}"
                    ),
                    path,
                    step=step,
                    action=_STATE if step else _FIRST,
                )
            else:
                self._findings.counts.checkpoints += 1
                self._findings.counts.pieces += len(table.digests)
                self._last = step, table

    def _read_table(self, path: Path, step: int) -> Table | None:
        pieces = self._manifest.pieces if self._manifest is not None else Pieces()
        try:
            with self._meter.part("the kept states", require_file(path)):
                entries, buffers = read_state(path, pieces)
                return hash_state(entries, buffers.__getitem__, pieces)
        except MemoryError:
            error: WitnessError = ProtocolError("too-large", f"{path.name} does not fit into memory")
            self._findings.add(error, path, step=step, action="look at it on a machine with more memory")
        except WitnessError as found:
            self._findings.add(found, path, step=step, action=_STATE if step else _FIRST)
        return None

    def _check_weights(self, survey: Survey) -> None:
        path, manifest = self._run.released, self._manifest
        if survey.final is None or manifest is None:
            if path.exists() and manifest is not None:
                self._findings.unchecked.append(f"{path.name}: the log does not announce the end of the run")
            return
        try:
            with self._meter.part("the released weights", require_file(path)):
                table = read_weights(path, manifest.pieces)
            if survey.released is None:
                self._findings.unchecked.append(f"{path.name}: the log does not say its root")
                return
            if table.root.hex() != survey.released:
                raise VerificationError("released-weights", f"{path.name} does not hold the announced weights")
        except WitnessError as error:
            self._findings.add(error, path, step=survey.final.steps, action=_COPY)
            return
        if self._last is not None and self._last[0] == survey.final.steps:
            names = [entry.name for entry in table.entries]
            if self._last[1].subset(names).root != table.root:
                self._findings.add(
                    VerificationError("released-weights", "the announced weights are not those of the last state"),
                    self._run.log_path,
                    step=survey.final.steps,
                    action="treat the weights as another model's: nothing in the run led to them",
                )

    # -- program and key --------------------------------------------------------------------------

    def _check_program(self, manifest: Manifest) -> None:
        for listed in manifest.program.files:
            path = self._run.program / listed.path
            try:
                require_file(path)
                with path.open("rb") as file:
                    check_source(manifest.program, listed.path, file.read(listed.length + 1))
            except WitnessError as error:
                self._findings.add(error, path, action=_COPY)
            else:
                self._findings.counts.program_files += 1
        self._files.others += list_program(self._run, [f.path for f in manifest.program.files], self._findings)

    def _check_key(self) -> None:
        path = self._run.key
        if not path.exists():
            return
        try:
            require_file(path)
            key = self._run.read_key()
            if self._manifest is not None and key.public.vkey != self._manifest.key:
                raise VerificationError("wrong-key", "the key is not the one that signs this run")
        except WitnessError as error:
            self._findings.add(error, path, action=_KEY)
