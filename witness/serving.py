"""What a server holds: the archive of a run, opened again when the run has grown a newer head."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from protocol.encoding import encode
from protocol.errors import WitnessError
from protocol.proving import ProverSession
from witness import keys
from witness.prover import RunArchive, serving_session
from witness.query import Answerer
from witness.rundir import RunDir
from witness.visits import Tell, Visit

ANSWER_ROOM = 1 << 22
"""Bytes of replies and records in one answer to a stranger, who asks again for the rest."""


class Serving:
    """Opens sessions over the newest head of a run; a context manager.

    Args:
        run: the directory; it may still be written by a trainer.
        key_file: the trainer's key; None for the one in the run's folder.
        data: where the corpus lies now, if it moved.
        tell: called with a line about each session's beginning, challenges and end.

    Raises:
        UsageError: `other-key`, `not-a-key`.
        ProtocolError, UsageError: when run or key cannot be read.
        IncompleteError: states would have to be rebuilt, and this machine cannot give their bits.
    """

    def __init__(self, run: RunDir, key_file: Path | None, data: Path | None = None, tell: Tell | None = None) -> None:
        self._run, self._data, self._tell = run, data, tell
        self._key_file = key_file
        self._lock = threading.Lock()
        self._answering = threading.Lock()
        self._answerer: Answerer | None = None
        self._archives = [RunArchive(run, data=data)]
        self.key = keys.named_key(key_file) if key_file else run.read_key()
        serving_session(self._archives[0], bytes(16), self.key)  # refuses a wrong key before anybody asks
        self.warnings = self._compared()
        """What whoever serves the run here should know."""

    def _compared(self) -> list[str]:
        """Compares the machine before anybody asks: a state that it cannot rebuild would count as refused."""
        if not self.archive.rebuilds():
            return []
        try:
            comparison = self.archive.compare()
        except WitnessError as error:
            self.archive.close()
            error.next_action = "serve the run where it was recorded, or on a machine that the recorded profile allows"
            raise
        return [
            f"{line.text()}: states that are rebuilt here may not be the committed ones, and count as refused then"
            for line in comparison.outside
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for archive in self._archives:
            archive.close()

    @property
    def archive(self) -> RunArchive:
        """The newest archive."""
        return self._archives[-1]

    def open_session(self, session: bytes) -> ProverSession:
        """A prover's end over the newest head."""
        with self._lock:
            if self._run.latest_head() != self.archive.head:
                self._archives.append(RunArchive(self._run, data=self._data))
            if self._tell is not None:
                return Visit(self.archive, session, self.key, self._tell)
            return serving_session(self.archive, session, self.key)

    def describe(self) -> Mapping[str, Any]:
        """What anybody may know."""
        audit = self.archive.audit
        return {"run": audit.manifest.run_id.hex(), "steps": audit.steps, "head": audit.size, "key": audit.manifest.key}

    def head(self) -> bytes:
        """The newest signed head."""
        return self._run.latest_head()

    def ledgers(self) -> bytes:
        """The claims of the run's ledgers, as canonical JSON."""
        manifest = self.archive.audit.manifest
        return encode({"run": manifest.run_id.hex(), "ledgers": manifest.ledgers})

    def answer(self, tier: str, digests: Sequence[bytes]) -> bytes:
        """The proven answer about digests, under the newest head (`protocol.answer`), or about the first of them.

        Raises:
            UsageError: `ledger-tier`.
            ProtocolError, VerificationError: when the run's ledgers are damaged.
        """
        with self._answering:  # the first question opens the ledgers, and the others wait for them
            known = self._answerer
            if known is None or known.head != self._run.latest_head():
                books = None if known is None else known.books
                self._answerer = known = Answerer(self._run, data=self._data, books=books)
        return known.digests([(tier, digest) for digest in digests], room=ANSWER_ROOM).to_bytes()
