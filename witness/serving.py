"""What a server holds: the archive of a run, opened again when the run has grown a newer head."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from protocol.proving import ProverSession
from witness import keys
from witness.prover import RunArchive, serving_session
from witness.rundir import RunDir


class Serving:
    """Opens sessions over the newest head of a run; a context manager.

    Args:
        run: the directory; it may still be written by a trainer.
        key_file: the trainer's key; None for the one in the run's folder.
        data: where the corpus lies now, if it moved.

    Raises:
        VerificationError: `wrong-key`.
        ProtocolError, UsageError: when run or key cannot be read.
    """

    def __init__(self, run: RunDir, key_file: Path | None, data: Path | None = None) -> None:
        self._run, self._data = run, data
        self._key_file = key_file
        self._lock = threading.Lock()
        self._archives = [RunArchive(run, data=data)]
        self.key = keys.read_key(key_file) if key_file else run.read_key()
        serving_session(self._archives[0], bytes(16), self.key)  # refuses a wrong key before anybody asks

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
            return serving_session(self.archive, session, self.key)

    def describe(self) -> Mapping[str, Any]:
        """What anybody may know."""
        audit = self.archive.audit
        return {"run": audit.manifest.run_id.hex(), "steps": audit.steps, "head": audit.size, "key": audit.manifest.key}

    def head(self) -> bytes:
        """The newest signed head."""
        return self._run.latest_head()
