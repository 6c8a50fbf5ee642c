"""The prover's archive: a run directory that answers a session, rebuilding the states that were not kept.

States are rebuilt in the sandbox, like replays, from the nearest kept state before them: this process never imports the
program, so a stranger's run directory can be opened safely, and the numeric profile of the run is re-applied where it
must be, at the start of a process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from protocol.checks import LogAudit
from protocol.comparison import Comparison, require_attributable
from protocol.errors import CODES, ProtocolError, UsageError, VerificationError, WitnessError
from protocol.keys import SigningKey
from protocol.notes import open_head
from protocol.operations import OperationSpec
from protocol.places import Places
from protocol.proving import ProverSession, StatePending
from protocol.session import probe_of
from protocol.statetree import Entry, Table
from witness.data import open_stored
from witness.hashing import hash_state
from witness.layout import lay_out
from witness.ledgers import open_places
from witness.logreader import LogReader
from witness.replay import Input, Replayer
from witness.rundir import RunDir, trainer_key
from witness.statefile import naming, read_state, write_state

_LOADED = 2


class RunArchive:
    """Implements `protocol.proving.Archive` on a run directory; a context manager.

    Args:
        run: the directory.
        data: where the corpus lies now, if it moved.
        block: the verifier is in this process. It waits for a state that is being rebuilt, instead of being told
            `StatePending`, and it has compared this machine with the run's profile itself.

    Raises:
        ProtocolError, VerificationError: when the directory does not hold together.
    """

    def __init__(self, run: RunDir, *, data: Path | None = None, block: bool = False) -> None:
        self.run, self._block = run, block
        self.corpus = open_stored(run.corpus, data)
        self.audit = LogAudit(self.corpus.documents)
        self._work = TemporaryDirectory(prefix="witness-prover-", ignore_cleanup_errors=True)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="witness-rebuild")
        self._replayer: Replayer | None = None
        self._comparison: Comparison | None = None
        self._used: tuple[OperationSpec, ...] = ()
        self._wanted: set[int] = set()
        self._places: dict[str, Places] = {}
        self._futures: dict[int, Future[None]] = {}
        self._done: dict[int, tuple[int, int]] = {}
        self._intact: dict[int, bool] = {}
        self._loaded: dict[int, tuple[Table, dict[str, bytes]]] = {}
        self._lock = threading.Lock()
        self._read_log()

    def _read_log(self) -> None:
        self.head = self.run.latest_head()
        first = next(self.entries(0, 1), b"")
        self.audit.read(first)
        key, origin = trainer_key(self.audit.manifest), self.audit.manifest.origin
        with naming(self.run.heads / f"{self.run.head_sizes()[-1]:012}.note"):
            head = open_head(self.head, [key], origin)
        self.heads = [self.run.read_head(size) for size in self.run.head_sizes() if size <= head.size]
        for entry in self.entries(1, head.size):
            self.audit.read(entry)
        self.audit.finish(head)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops rebuilding and removes what was rebuilt."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._replayer is not None:
            self._replayer.__exit__(None, None, None)
        self._pool.shutdown(wait=True)
        self._work.cleanup()

    # -- what the session asks --------------------------------------------------------------------

    def entries(self, first: int, stop: int) -> Iterator[bytes]:
        """Log entries from `first` up to `stop`."""
        with LogReader(self.run.log_path) as log:
            yield from log.entries(first, stop)

    def places(self, tier: str) -> Places:
        """The list behind the ledger of a tier.

        Raises:
            ProtocolError: `places`.
        """
        claim = next((claim for claim in self.audit.manifest.ledgers if claim.tier == tier), None)
        if claim is None:
            raise ProtocolError("places", f"the run has no ledger {tier[:64]!r}")
        if tier not in self._places:
            self._places[tier] = open_places(self.run.corpus, claim, self.corpus.documents)
        return self._places[tier]

    def source(self, path: str) -> bytes:
        """A source file of the program.

        Raises:
            ProtocolError: `program-source`.
        """
        files = self.run.read_program(self.audit.manifest)
        if path not in files:
            raise ProtocolError("program-source", f"{path[:80]} is not a file of the program")
        return files[path]

    def expect(self, steps: list[int]) -> None:
        """Notes which states will be asked for, so that one pass rebuilds all that lie between two kept ones."""
        with self._lock:
            self._wanted.update(steps)

    def table(self, step: int) -> Table:
        """The table of the state after `step`.

        Raises:
            StatePending: it is being rebuilt.
            VerificationError: `rebuild-diverged`: it cannot be opened, because rebuilding gives another state.
            IncompleteError: it cannot be rebuilt on this machine.
        """
        return self._load(step)[0]

    def read(self, step: int, name: str) -> bytes:
        """The bytes of one entry of the state after `step`."""
        return self._load(step)[1][name]

    def piece(self, document: int, piece: int) -> tuple[bytes, list[bytes]]:
        """A piece of a document with its proof.

        Raises:
            UsageError, VerificationError: when the data is not there; a stranger is not told where it should be.
        """
        try:
            return self.corpus.piece(document, piece)
        except WitnessError as error:
            raise type(error)(error.code, f"document {document}: {CODES[error.code].meaning}") from error

    # -- states -----------------------------------------------------------------------------------

    def rebuilds(self) -> bool:
        """Whether states can be asked for that were not kept."""
        manifest, kept = self.audit.manifest, [0, *self.audit.checkpoints]
        steps = range(manifest.commit_every, self.audit.steps + 1, manifest.commit_every)
        return not set(steps) <= set(kept) or any(self._kept(step) is None for step in kept)

    def compare(self) -> Comparison:
        """Whether states can be rebuilt on this machine with the committed bits.

        Raises:
            IncompleteError: naming the line or operation in which it differs from the run's profile.
        """
        if self._comparison is None:
            replayer = self._sandboxed()
            self._comparison = replayer.compare()
            replayer.trace = bool(self._comparison.settled)
        return self._comparison

    def _load(self, step: int) -> tuple[Table, dict[str, bytes]]:
        with self._lock:
            if step in self._loaded:
                return self._loaded[step]
            kept = self._kept(step)
            loaded = self._read(kept, step) if kept is not None else None
            if loaded is None:
                loaded = self._rebuilt(step)
            while len(self._loaded) >= _LOADED:
                del self._loaded[next(iter(self._loaded))]
            self._loaded[step] = loaded
            return loaded

    def _kept(self, step: int) -> Path | None:
        path = self.run.checkpoint_path(step)
        return path if path.is_file() else None

    def _whole(self, step: int) -> bool:
        if step not in self._intact:
            path = self._kept(step)
            self._intact[step] = path is not None and self._read(path, step) is not None
        return self._intact[step]

    def _read(self, path: Path, step: int) -> tuple[Table, dict[str, bytes]] | None:
        """A state file, if it holds the committed state."""
        try:
            entries, buffers = read_state(path, self.audit.manifest.pieces)
        except ProtocolError:
            return None
        table = hash_state(entries, buffers.__getitem__, self.audit.manifest.pieces)
        return (table, buffers) if table.root == self.audit.state_root(step) else None

    def _rebuilt(self, step: int) -> tuple[Table, dict[str, bytes]]:
        path = Path(self._work.name) / f"{step}.state"
        if not path.exists():
            # A damaged file is no place to start from: an honest trainer would be accused of its disk's faults.
            start = next((s for s in reversed([0, *self.audit.checkpoints]) if s < step and self._whole(s)), -1)
            future = self._futures.get(start)
            if future is None or (future.done() and future.exception() is None):
                stop = min((s for s in self.audit.checkpoints if s > start and self._kept(s)), default=self.audit.steps)
                wanted = sorted({step, *(s for s in self._wanted if start < s <= stop and not self._kept(s))})
                future = self._futures[start] = self._pool.submit(self._rebuild, start, wanted)
                self._done[start] = (0, wanted[-1] - max(start, 0))
            if self._block:
                self._lock.release()
                try:
                    future.exception()
                finally:
                    self._lock.acquire()
            if not path.exists():
                if not future.done():
                    raise StatePending(*self._done[start])
                future.result()
        loaded = self._read(path, step)
        if loaded is None:
            other = VerificationError(
                "rebuild-diverged",
                f"the state after step {step}, rebuilt from a kept one, is not the committed one",
                evidence={"step": step},
            )
            if self._comparison is not None:
                require_attributable(self._comparison, self.audit.manifest.operations, self._used, other)
            raise other
        return loaded

    def _rebuild(self, start: int, wanted: list[int]) -> None:
        """Executes the steps from the state kept at `start` up to the last wanted one, keeping the wanted states."""
        if not self._block:
            self.compare()  # a machine that gives other bits must not look like a run that does
        replayer = self._sandboxed()
        folder = Path(self._work.name)
        if start < 0:
            made = replayer.init()
            if 0 in wanted:
                write_state(folder / "0.state", made.entries, made.buffers.__getitem__, durable=False)
            entries: list[Entry] = made.entries
            buffers = dict(made.buffers)
            start = 0
        else:
            entries, buffers = read_state(self.run.checkpoint_path(start), self.audit.manifest.pieces)
        last = wanted[-1]
        if last == start:
            return

        def progress(done: int) -> None:
            self._done[start] = (done, last - start)

        inputs = [self._input(step) for step in range(start + 1, last + 1)]
        made_again = replayer.steps(entries, buffers, start + 1, inputs, [s for s in wanted if s > start], progress)
        self._used = (*self._used, *replayer.traced)
        for replayed in made_again:
            if replayed.state is not None:
                state = replayed.state
                write_state(folder / f"{replayed.step}.state", state.entries, state.buffers.__getitem__, durable=False)

    def _input(self, step: int) -> Input:
        return Input(self.corpus.samples(self.audit.indices(step)), self.corpus.samples(probe_of(self.audit, step)))

    def _sandboxed(self) -> Replayer:
        if self._replayer is None:
            manifest = self.audit.manifest
            folder: Path | None = None
            if manifest.program.kind == "files":
                folder = Path(self._work.name) / "program"
                folder.mkdir()
                lay_out(manifest.program, self.run.read_program(manifest), folder)
            self._replayer = Replayer(manifest, folder).__enter__()
        return self._replayer


def local_transport(archive: RunArchive, session: bytes) -> Callable[[bytes], bytes]:
    """A prover in this process, for a run directory that the verifier holds: no statement is signed."""
    return ProverSession(archive, session, None).handle


def serving_session(archive: RunArchive, session: bytes, key: SigningKey) -> ProverSession:
    """A prover's end that binds itself with the trainer's key.

    Raises:
        UsageError: `other-key`, when it is not the key of the manifest.
    """
    if key.public.vkey != archive.audit.manifest.key:
        raise UsageError("other-key", f"the key {key.public.vkey} is not the one that signs this run")
    return ProverSession(archive, session, key)
