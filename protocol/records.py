"""The entries of a run's log: the manifest, then the initial state, steps and events in order.

Entry 0 is the manifest, entry 1 the initial state (`init`), then for each step one `step` record, with events between
them: `checkpoint` (a state is kept), `resume` (the run stopped and went on), `fault` (the trainer declares something
broken, before any draw) and, last, `final`. Each entry is canonical JSON; the log's leaf is those bytes.

Specified in spec/log.md, section 2, and spec/step-record.md.
"""

from typing import Annotated

import msgspec

from protocol.encoding import MAX_INTEGER, Count, Hex32, Struct, decode, is_float
from protocol.errors import ProtocolError
from protocol.manifest import Manifest

MAX_ENTRY = 1 << 16
Digest = Annotated[str, msgspec.Meta(min_length=64, max_length=64)]
FloatBits = Annotated[str, msgspec.Meta(min_length=12, max_length=20)]
"""The bits of a float: see `protocol.encoding.f32`."""
# A million step records are read in one go: their digits are looked at once a record, in `parse_entry`, because a
# pattern on each of ten fields costs more than everything else in decoding.
Key = Annotated[str, msgspec.Meta(pattern=r"\A[ -~]{1,128}\Z")]
Integer = Annotated[int, msgspec.Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]


class Fingerprint(Struct, frozen=True):
    """The cheap behavioural trace of a step: for localising a divergence, for stopping early and for plots.

    It does not replace the state root: a change of one ulp in one optimiser moment is invisible to it, in that step and
    in the next, and any fixed probe has a null space (attacks A09, A13).

    Attributes:
        loss: bits of the loss that the step returned.
        gradient_norm: bits of the global 2-norm of the gradients the optimiser used.
        update_norms: bits of the 2-norm of the parameter change, for each optimiser's parameter groups in order.
        probe: SHA-256 of the outputs on the probe batch; null when the program defines no probe.
    """

    loss: FloatBits
    gradient_norm: FloatBits
    update_norms: tuple[FloatBits, ...]
    probe: Digest | None


class InitRecord(Struct, frozen=True, tag="init", tag_field="type"):
    """The state before step 1, as `build` makes it from the seed."""

    state_root: Hex32


class StepRecord(Struct, frozen=True, tag="step", tag_field="type"):
    """What one step consumed and left; every field is computed again at replay.

    Attributes:
        step: counted from 1.
        records: digest of the corpus records drawn (`protocol.corpus.Documents.records_digest`).
        batch: root over the tensors handed to the step, after collation and augmentation.
        hyperparameters: what the program declares for this step, name to plain form.
        fingerprint: the step's trace.
        state_root: root of the whole state after the step; null at steps that `commit_every` skips.
    """

    step: Count
    records: Digest
    batch: Digest
    hyperparameters: dict[Key, str | Integer | bool | None]
    fingerprint: Fingerprint
    state_root: Digest | None


class CheckpointEvent(Struct, frozen=True, tag="checkpoint", tag_field="type"):
    """The state after `step` is kept."""

    step: Count
    state_root: Hex32


class ResumeEvent(Struct, frozen=True, tag="resume", tag_field="type"):
    """The run stopped after `step` was recorded and went on from the checkpoint at `checkpoint`."""

    step: Count
    checkpoint: Count


class FaultEvent(Struct, frozen=True, tag="fault", tag_field="type"):
    """The trainer declares that the transition to `step` may be wrong; it is challenged, always."""

    step: Count
    note: Annotated[str, msgspec.Meta(max_length=256)]


class FinalEvent(Struct, frozen=True, tag="final", tag_field="type"):
    """The end of the run.

    Attributes:
        steps: number of steps recorded.
        state_root: root of the whole state after the last one.
        released: root over the entries of the published weights alone, so that a weights file can be checked by itself.
    """

    steps: Count
    state_root: Hex32
    released: Hex32


LogEntry = Manifest | InitRecord | StepRecord | CheckpointEvent | ResumeEvent | FaultEvent | FinalEvent
"""Anything that stands in the log."""
AfterManifest = InitRecord | StepRecord | CheckpointEvent | ResumeEvent | FaultEvent | FinalEvent


def parse_entry(data: bytes) -> AfterManifest:
    """The entry in the bytes of a log leaf, any but the first.

    Raises:
        ProtocolError: `too-large`, `not-canonical`.
    """
    entry: AfterManifest = decode(data, AfterManifest, limit=MAX_ENTRY, closed=True)  # type: ignore[arg-type]
    if type(entry) is StepRecord:
        shown = entry.fingerprint
        digits = entry.records + entry.batch + (entry.state_root or "") + (shown.probe or "")
        spelled = is_float(shown.loss) and is_float(shown.gradient_norm)
        digits += shown.loss[4:] + shown.gradient_norm[4:]
        for bits in shown.update_norms:
            digits += bits[4:]
            spelled = spelled and is_float(bits)
        if digits.strip("0123456789abcdef") or not spelled:
            raise ProtocolError("not-canonical", f"step {entry.step} holds a digest or float in another spelling")
    return entry
