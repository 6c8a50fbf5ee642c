"""Where challenges come from: a nonce nobody can bend, a seed that binds every public input, a draw anyone can repeat.

A challenge that the trainer can predict, or choose among many, checks nothing. So the verifier commits to a nonce, the
trainer answers with a statement that binds a head, and only then is the nonce revealed: the trainer fixed its run
without knowing the draw, and the verifier can no longer choose it. The seed hashes everything that is public at that
moment. Leaving a part out is the weak Fiat-Shamir error: what is left out can still be chosen afterwards (Bernhard,
Pereira, Warinschi, "How not to prove yourself", ASIACRYPT 2012).

What this does not show to a third party: a verifier and a trainer who work together know the nonce all along and can
try many. A stranger who trusts neither must run a session of its own, or read the session's figures as those of a
self-derived seed (`protocol.soundness`, `grinding_bits`).

Library generators (`random`, numpy) are programs, not specifications, so the draw is specified here to the byte.

Specified in spec/challenge.md, sections 2 to 5.
"""

import hashlib
import struct

from protocol.encoding import tagged_hash
from protocol.errors import UsageError, VerificationError

NONCE_BYTES = 32
SEED_BYTES = 32
WORD_BYTES = 8
WORDS = 2**64
"""The number of values of one word of a `Stream`."""


def commit_nonce(nonce: bytes) -> bytes:
    """The 32-byte commitment a verifier publishes before it sees a head: `tagged_hash("nonce-commitment", nonce)`.

    It hides the nonce only because the nonce is 32 bytes of fresh randomness, used for one session.

    Raises:
        UsageError: `seed-input`, if the nonce is not 32 bytes.
    """
    if len(nonce) != NONCE_BYTES:
        raise UsageError("seed-input", f"a nonce is {NONCE_BYTES} bytes, not {len(nonce)}")
    return tagged_hash("nonce-commitment", nonce)


def check_nonce(nonce: bytes, commitment: bytes) -> None:
    """Checks that a revealed nonce is the one that was committed to.

    Raises:
        VerificationError: `nonce-mismatch`, also for a nonce of another length, which nobody can have committed to.
    """
    if len(nonce) != NONCE_BYTES:
        raise VerificationError("nonce-mismatch", f"the revealed nonce is {len(nonce)} bytes; a nonce is {NONCE_BYTES}")
    found = commit_nonce(nonce)
    if found != commitment:
        raise VerificationError(
            "nonce-mismatch",
            "the revealed nonce is not the one that was committed to before the head was bound",
            evidence={"commitment": commitment.hex(), "revealed nonce commits to": found.hex()},
        )


def session_seed(*, session: bytes, policy: bytes, commitment: bytes, head: bytes, nonce: bytes) -> bytes:
    """The 32-byte seed of an interactive session.

    It is `tagged_hash("session-seed", session, policy, commitment, head, nonce)`. There is no seed without a nonce that
    opens the commitment, so a caller cannot forget that check.

    Args:
        session: identifier of the session, as both sides sent it.
        policy: canonical bytes of the verifier's policy.
        commitment: what the verifier published before the trainer bound a head.
        head: body bytes of the head the trainer bound - not its signatures, which the trainer could make again, with
            other bytes, as often as it likes.
        nonce: 32 bytes, revealed after the head was bound.

    Raises:
        VerificationError: `nonce-mismatch`.
        UsageError: `seed-input`, if the session, the policy or the head is empty.
    """
    _refuse_empty(session=session, policy=policy, head=head)
    check_nonce(nonce, commitment)
    return tagged_hash("session-seed", session, policy, commitment, head, nonce)


def self_derived_seed(*, policy: bytes, head: bytes) -> bytes:
    """The 32-byte seed of a draw nobody else took part in: `tagged_hash("self-derived-seed", policy, head)`.

    WEAKER than `session_seed`: the trainer can commit to many runs that differ in one bad step, compute this seed for
    each and publish the luckiest, at the price of a few hashes a try. Choose the number of draws with
    `protocol.soundness.grinding_draws_needed`, and say so on the certificate (`protocol.soundness.say`).

    Args:
        policy: canonical bytes of a policy that the trainer did not choose: a free field in it is a free try.
        head: body bytes of the head, without its signatures.

    Raises:
        UsageError: `seed-input`, if the policy or the head is empty.
    """
    _refuse_empty(policy=policy, head=head)
    return tagged_hash("self-derived-seed", policy, head)


def _refuse_empty(**inputs: bytes) -> None:
    for name, value in inputs.items():
        if not value:
            raise UsageError("seed-input", f"the {name} is empty: a seed that does not bind it could be ground")


class Stream:
    """An unbounded stream of 64-bit words from a seed.

    To the byte: let `key = tagged_hash("stream", seed)` (32 bytes) and `X` the output of SHAKE-256 (FIPS 202) on `key`.
    Word number `i`, counted from zero, is `X[8*i : 8*i + 8]` read as an unsigned big-endian integer.

    Args:
        seed: 32 bytes.

    Raises:
        UsageError: `seed-input`, if the seed is not 32 bytes.
    """

    __slots__ = ("_next", "_shake", "_words")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise UsageError("seed-input", f"a seed is {SEED_BYTES} bytes, not {len(seed)}")
        self._shake = hashlib.shake_256(tagged_hash("stream", seed))
        self._words: tuple[int, ...] = ()
        self._next = 0

    def word(self) -> int:
        """The next word, 0 to 2**64 - 1."""
        if self._next == len(self._words):
            # hashlib only gives output of a fixed length, from its start: doubling keeps the total work linear.
            count = 2 * len(self._words) or 16
            self._words = struct.unpack(f">{count}Q", self._shake.digest(count * WORD_BYTES))
        self._next += 1
        return self._words[self._next - 1]

    def below(self, n: int) -> int:
        """A uniform integer from 0 to n - 1.

        To the byte: take the next word `w` until `w < 2**64 - (2**64 mod n)`; the answer is `w mod n`. Words that are
        not below that limit are consumed and dropped, because keeping them would favour small answers. `below(1)`
        consumes a word like any other.

        Raises:
            UsageError: `impossible-count`, if n is not between 1 and 2**64.
        """
        if not 1 <= n <= WORDS:
            raise UsageError("impossible-count", f"no uniform integer below {n}: from 1 to 2^64 is possible")
        limit = WORDS - WORDS % n
        while (word := self.word()) >= limit:
            pass
        return word % n


def draw(seed: bytes, population: int, count: int) -> list[int]:
    """Draws distinct numbers from 0 to population - 1, uniformly, in the order they are drawn.

    To the byte, a Fisher-Yates shuffle of `a = [0, 1, ..., population - 1]` that stops early: for `i = 0, ..., k - 1`
    with `k = min(count, population)`, let `j = i + stream.below(population - i)`, exchange `a[i]` and `a[j]`, and
    output `a[i]`; `stream` is `Stream(seed)` from its first word. The count enters nowhere else, so a shorter draw is a
    prefix of a longer one, and a session can go on drawing. Time and memory grow with the count, not the population.

    Args:
        seed: 32 bytes, from `session_seed` or `self_derived_seed`.
        population: how many there are to draw from, 0 to 2**64.
        count: how many to draw; more than there are means all of them.

    Raises:
        UsageError: `impossible-count` or `seed-input`.
    """
    if not 0 <= population <= WORDS or count < 0:
        raise UsageError("impossible-count", f"cannot draw {count} from a population of {population}")
    stream = Stream(seed)
    moved: dict[int, int] = {}  # positions of `a` that no longer hold their own number
    drawn: list[int] = []
    for i in range(min(count, population)):
        j = i + stream.below(population - i)
        here = moved.pop(i, i)  # position i is never read again
        if j == i:
            drawn.append(here)
        else:
            drawn.append(moved.get(j, j))
            moved[j] = here
    return drawn
