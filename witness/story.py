"""A run's log in columns: one figure a step, one list an event.

What shows a run needs all losses, then all norms, not one record after another. The log is parsed
strictly, but not held to its manifest beyond the order of steps: showing is not checking.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from protocol.encoding import float_of
from protocol.errors import ProtocolError, VerificationError
from protocol.manifest import Manifest, parse_manifest
from protocol.records import (
    AfterManifest,
    CheckpointEvent,
    FaultEvent,
    FinalEvent,
    InitRecord,
    ResumeEvent,
    StepRecord,
    parse_entry,
)
from witness.logreader import LogReader
from witness.rundir import RunDir

Progress = Callable[[int, int], None]
"""Called with entries read and entries in all."""
_TELL_ENTRIES = 4096


@dataclass(slots=True)
class Story:
    """What the log holds.

    Attributes:
        manifest: entry 0.
        entries: of the log.
        init: root of the initial state, hex; empty before it is recorded.
        final: the end, once it is announced.
        roots: steps with a state root.
        losses: one a step.
        gradients: gradient norm, one a step.
        updates: for each parameter group the norm of the update, one a step.
        hyperparameters: for each name the plain form, one a step.
        states: step and root of each announced state, the initial one included.
        resumes: in order.
        faults: in order.
    """

    manifest: Manifest
    entries: int = 1
    init: str = ""
    final: FinalEvent | None = None
    roots: int = 0
    losses: array[float] = field(default_factory=lambda: array("d"))
    gradients: array[float] = field(default_factory=lambda: array("d"))
    updates: list[array[float]] = field(default_factory=list)
    hyperparameters: dict[str, list[Any]] = field(default_factory=dict)
    states: list[tuple[int, str]] = field(default_factory=list)
    resumes: list[ResumeEvent] = field(default_factory=list)
    faults: list[FaultEvent] = field(default_factory=list)


def read_story(run: RunDir, progress: Progress | None = None) -> Story:
    """Reads the whole log.

    Raises:
        ProtocolError: `log-empty`, `log-damaged`, or whatever is wrong with the first damaged entry.
        VerificationError: `step-order`, `fingerprint-shape`.
    """
    with LogReader(run.log_path) as log:
        total, entries = log.size(), log.entries()
        first = next(entries, None)
        if first is None:
            raise ProtocolError("log-empty", f"{run.log_path} holds no manifest")
        story = Story(parse_manifest(first))
        for entry in entries:
            _take(story, parse_entry(entry))
            story.entries += 1
            if progress is not None and story.entries % _TELL_ENTRIES == 0:
                progress(story.entries, max(total, story.entries))
    return story


def _take(story: Story, record: AfterManifest) -> None:
    if isinstance(record, StepRecord):
        _take_step(story, record)
    elif isinstance(record, InitRecord):
        story.init = record.state_root
        story.states.append((0, record.state_root))
    elif isinstance(record, CheckpointEvent):
        story.states.append((record.step, record.state_root))
    elif isinstance(record, ResumeEvent):
        story.resumes.append(record)
    elif isinstance(record, FaultEvent):
        story.faults.append(record)
    else:
        story.final = record


def _take_step(story: Story, record: StepRecord) -> None:
    step = len(story.losses) + 1
    if record.step != step:
        raise VerificationError("step-order", f"step {record.step} is recorded where step {step} is due")
    fingerprint = record.fingerprint
    if step == 1:
        story.updates = [array("d") for _ in fingerprint.update_norms]
        story.hyperparameters = {name: [] for name in record.hyperparameters}
    if len(fingerprint.update_norms) != len(story.updates):
        raise VerificationError("fingerprint-shape", f"the fingerprint of step {step} has another shape")
    story.losses.append(float_of(fingerprint.loss))
    story.gradients.append(float_of(fingerprint.gradient_norm))
    for column, bits in zip(story.updates, fingerprint.update_norms, strict=True):
        column.append(float_of(bits))
    story.roots += record.state_root is not None
    for name in record.hyperparameters.keys() | story.hyperparameters.keys():
        values = story.hyperparameters.get(name)
        if values is None:
            values = story.hyperparameters[name] = [None] * (step - 1)

        value = record.hyperparameters.get(name)
        values.append(values[-1] if values and same(values[-1], value) else value)  # one object for equal values


def same(left: Any, right: Any) -> bool:
    """Whether two hyperparameters are equal in value and type: `1` is not `true`."""
    return type(left) is type(right) and bool(left == right)
