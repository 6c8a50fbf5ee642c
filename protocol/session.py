"""What both ends of a session derive alike: the statement that binds it, the challenges, and what a step reads.

    V -> P  Hello: policy, commitment to a nonce      P -> V  Welcome: a head, bound to session and commitment by signature
    V -> P  GetHeads, GetLog, GetLeaves, GetSource    (checks that need no gradient run here, on all steps)
    V -> P  Reveal: the nonce                         (now both know every challenge; neither could choose them)
    V -> P  OpenState, ReadPieces, OpenRecords        P -> V  bytes that hash to what was committed, or a refusal

The two ends are state machines, bytes in and bytes out: `protocol.proving` and `protocol.verifying`. Whoever moves the bytes
decides nothing. Calling a method out of order is the caller's bug and raises RuntimeError; bad bytes raise ProtocolError or
VerificationError.
"""

import hashlib
from dataclasses import dataclass

from protocol import checks, soundness
from protocol import messages as m
from protocol.encoding import encode
from protocol.errors import VerificationError
from protocol.keys import PublicKey
from protocol.manifest import Manifest
from protocol.notes import open_note
from protocol.randomness import draw
from protocol.schedule import probe_indices

STATEMENT = "training-witness/v1/session"


@dataclass(frozen=True, slots=True)
class Challenge:
    """One step to replay: from the state after `step - 1` to the state after `step` (0: the initial state from its seed).

    Attributes:
        step: number of the step.
        reason: `draw`, or why it is mandatory.
        order: place among the uniform draws, from 0; None for a mandatory one that was not drawn.
    """

    step: int
    reason: str
    order: int | None


def statement_text(session: str, policy: m.Policy, commitment: str, head: bytes) -> str:
    """What the prover signs before it knows the nonce: session, commitment, policy and head, one a line."""
    policy_digest = hashlib.sha256(encode(policy)).hexdigest()
    return f"{STATEMENT}\n{session}\n{commitment}\n{policy_digest}\n{hashlib.sha256(head).hexdigest()}\n"


def draw_count(policy: m.Policy, steps: int) -> int:
    """Uniform draws that a policy asks of a run of `steps` steps."""
    if steps == 0:
        return 0
    return (
        min(steps, policy.draws)
        if policy.draws
        else soundness.draws_needed(steps, policy.bad_fraction, policy.confidence)
    )


def challenges(audit: checks.LogAudit, policy: m.Policy, seed: bytes, draws: int) -> list[Challenge]:
    """Every challenge of a session: mandatory ones by step, then the uniform draws in the order drawn."""
    drawn = [i + 1 for i in draw(seed, audit.steps, draws)]
    order = {step: place for place, step in enumerate(drawn)}
    owed = checks.mandatory(audit, policy.outliers)
    names = dict(owed)
    first = [Challenge(step, reason, order.get(step)) for step, reason in owed]
    return first + [Challenge(step, "draw", place) for place, step in enumerate(drawn) if step not in names]


def check_statement(
    statement: str, key: PublicKey, session: str, policy: m.Policy, commitment: str, head: bytes
) -> None:
    """Checks that the trainer's key binds this session, policy, commitment and head.

    Raises:
        VerificationError: `statement`, or a signature's code.
    """
    note = open_note(statement.encode(), [key])
    if note.text != statement_text(session, policy, commitment, head):
        raise VerificationError("statement", "the signed statement binds another session, policy, nonce or head")


def segment(manifest: Manifest, step: int) -> tuple[int, int]:
    """The committed steps around `step`: a challenge replays from the state after the first to the state after the second.

    With `commit_every` 1 that is `(step - 1, step)`. Step 0 is its own segment: the initial state from its seed.
    """
    every = manifest.commit_every
    if step == 0:
        return 0, 0
    before = (step - 1) // every * every
    return before, min(before + every, max(step, manifest.steps))


def probe_of(audit: checks.LogAudit, step: int) -> list[int]:
    """Samples of the probe of `step`, drawn from the committed state before it; none where no root is committed there."""
    manifest = audit.manifest
    if not manifest.probe_samples:
        return []
    previous = audit.state_root(step - 1) if step == 1 or manifest.commits(step - 1) else bytes(32)
    seed = bytes.fromhex(manifest.seed.value)
    return probe_indices(seed, step, previous, audit.documents.samples, manifest.probe_samples)


def needed_pieces(audit: checks.LogAudit, step: int) -> list[tuple[int, int]]:
    """The `(document, piece)` pairs that `step` reads, for its batch and for its probe."""
    return audit.documents.pieces_of([*audit.indices(step), *probe_of(audit, step)])
