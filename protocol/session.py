"""What both ends of a session derive alike: the challenges, and what a step reads.

    V -> P  Hello: policy, commitment to a nonce      P -> V  Welcome: a head, bound to the session by signature
    V -> P  GetHeads, GetLog, GetLeaves, GetSource    (checks that need no gradient run here, on all steps)
    V -> P  Reveal: the nonce                         (now both know every challenge; neither could choose them)
    V -> P  OpenState, ReadPieces, OpenRecords        P -> V  bytes that hash to what was committed, or a refusal

The two ends are state machines, bytes in and bytes out: `protocol.proving` and `protocol.verifying`. Whoever moves the
bytes decides nothing. Calling a method out of order is the caller's bug and raises RuntimeError; bad bytes raise
ProtocolError or VerificationError.

Specified in spec/challenge.md, sections 8 and 9, and spec/openings.md, section 3.
"""

from dataclasses import dataclass

from protocol import checks
from protocol import messages as m
from protocol.leaves import piece_count
from protocol.manifest import Manifest
from protocol.randomness import draw
from protocol.schedule import probe_indices

MAX_WHOLE = 1 << 24
"""Bytes of whole documents that are opened for one step."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """One step to replay, from the state before it to the state after it (0: the initial state from its seed).

    Attributes:
        step: number of the step.
        reason: `draw`, or why it is mandatory.
        order: place among the uniform draws, from 0; None for a mandatory one that was not drawn.
    """

    step: int
    reason: str
    order: int | None


def challenges(audit: checks.LogAudit, policy: m.Policy, seed: bytes, draws: int) -> list[Challenge]:
    """Every challenge of a session: mandatory ones by step, then the uniform draws in the order drawn."""
    drawn = [i + 1 for i in draw(seed, audit.steps, draws)]
    order = {step: place for place, step in enumerate(drawn)}
    owed = checks.mandatory(audit, policy.outliers)
    names = dict(owed)
    first = [Challenge(step, reason, order.get(step)) for step, reason in owed]
    return first + [Challenge(step, "draw", place) for place, step in enumerate(drawn) if step not in names]


def segment(manifest: Manifest, step: int) -> tuple[int, int]:
    """The committed steps around `step`: a challenge replays from the state after one to the state after the other.

    With `commit_every` 1 that is `(step - 1, step)`. Step 0 is its own segment: the initial state from its seed.
    """
    every = manifest.commit_every
    if step == 0:
        return 0, 0
    before = (step - 1) // every * every
    return before, min(before + every, max(step, manifest.steps))


def probe_of(audit: checks.LogAudit, step: int) -> list[int]:
    """Samples of the probe of `step`, drawn by a seed that holds the root before it (zeros where none is committed)."""
    manifest = audit.manifest
    if not manifest.probe_samples:
        return []
    previous = audit.state_root(step - 1) if step == 1 or manifest.commits(step - 1) else bytes(32)
    seed = bytes.fromhex(manifest.seed.value)
    return probe_indices(seed, step, previous, audit.documents.samples, manifest.probe_samples)


def needed_pieces(audit: checks.LogAudit, step: int) -> list[tuple[int, int]]:
    """The `(document, piece)` pairs to open for `step`: what its batch and probe read, and its whole documents."""
    read = audit.documents.pieces_of([*audit.indices(step), *probe_of(audit, step)])
    leaves = audit.documents.leaves
    whole = [(d, piece) for d in whole_documents(audit, step) for piece in range(piece_count(leaves[d]))]
    return sorted({*read, *whole})


def whole_documents(audit: checks.LogAudit, step: int) -> list[int]:
    """The documents of the batch of `step` that are opened from end to end, so that their digests can be checked.

    Only where the run has ledgers; in order, as long as they are no longer than `MAX_WHOLE` bytes together.
    """
    if not audit.manifest.ledgers:
        return []
    chosen, size = [], 0
    for document in touched_documents(audit, step):
        size += audit.documents.leaves[document].length
        if size > MAX_WHOLE:
            break
        chosen.append(document)
    return chosen


def touched_documents(audit: checks.LogAudit, step: int) -> list[int]:
    """The documents that the batch of `step` reads, ascending."""
    return sorted({span.document for sample in audit.indices(step) for span in audit.documents.spans(sample)})
