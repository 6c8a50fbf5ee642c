"""A process that takes in runs of files: `python -m witness.data.worker`, started by `witness.data.workers`."""

from __future__ import annotations

import signal
import sys
from typing import BinaryIO

from protocol.encoding import decode, encode
from protocol.errors import VerificationError, WitnessError
from witness.data.intake import Intake
from witness.data.source import Source, find
from witness.data.workers import MAX_MESSAGE, Failure, Job, Report, part_names
from witness.statefile import disk_error


class _Totals:
    """How many documents and bytes there were with each file."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []

    def passed(self, index: int, documents: int, size: int) -> None:
        """A file is done."""
        del index
        self.found.append((documents, size))


def serve(asked: BinaryIO, told: BinaryIO) -> None:
    """Answers jobs until there are no more."""
    found: tuple[Job, Source] | None = None
    while line := asked.readline(MAX_MESSAGE):
        job = decode(line.rstrip(b"\n"), Job, limit=MAX_MESSAGE)
        try:
            if found is None or (found[0].path, found[0].options) != (job.path, job.options):
                found = job, find(job.path, job.options)
            reply: Report | Failure = take_in(job, found[1])
        except WitnessError as error:
            reply = Failure(error.code, str(error), isinstance(error, VerificationError), error.next_action)
        told.write(encode(reply) + b"\n")
        told.flush()


def take_in(job: Job, source: Source) -> Report:
    """Takes in the files of a job; leaves the parts in their files.

    Raises:
        What `Intake.run` raises.
    """
    leaves, lines, data = part_names(job.part)
    files = source.files[job.first : job.stop]
    totals = _Totals()
    try:
        with data.open("wb") as spool:
            intake = Intake(source._replace(files=files), None if source.location else spool)
            intake.run(totals)
        leaves.write_bytes(intake.leaves)
        lines.write_bytes(intake.places)
    except OSError as error:
        raise disk_error(data, error) from error
    stamps = [(file.stamp.length, str(file.stamp.modified)) for file in files]
    return Report(tuple((*stamp, *total) for stamp, total in zip(stamps, totals.found, strict=True)))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started this; the end of the pipe ends it
    serve(sys.stdin.buffer, sys.stdout.buffer)
