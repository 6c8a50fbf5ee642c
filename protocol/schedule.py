"""Which samples a step draws, and the seeds it starts from: pure functions of the manifest.

An epoch visits every sample once. Sample `i` of `n` gets the `i`-th 64-bit big-endian word of SHAKE-256 over
`H("schedule", seed, epoch)`, and the epoch's order is the samples sorted by `(word, i)`. Steps take `batch_size`
samples one after another; the last batch of an epoch is short when the sizes do not divide. No library generator, no
modulo bias, and a dozen lines in any language.

Every random stream of a step starts from `H("seed", seed, step, rank, purpose)`. So the generators are not part of the
state: a resume cannot lose them, and a step needs nothing but its number.

Specified in spec/schedule.md.
"""

import hashlib

import numpy as np

from protocol.encoding import tagged_hash
from protocol.errors import UsageError
from protocol.randomness import Stream

MAX_SAMPLES = 1 << 27
"""A leaf can claim any length, and an epoch's order costs 24 bytes a sample while it is made."""


def epoch_order(seed: bytes, epoch: int, samples: int) -> np.ndarray:
    """The order of one epoch: an int64 array of `samples` distinct indices.

    Args:
        seed: the run's 32-byte seed.
        epoch: counted from 0.
        samples: size of the corpus in samples; about 24 bytes of memory each while they are sorted, 8 afterwards.
    """
    key = tagged_hash("schedule", seed, epoch.to_bytes(8, "big"))
    words = np.frombuffer(hashlib.shake_256(key).digest(8 * samples), dtype=">u8").astype(np.uint64)
    return np.argsort(words, kind="stable")


class Schedule:
    """The samples of every step.

    Args:
        seed: the run's 32-byte seed.
        samples: number of samples in the corpus.
        batch_size: samples a step.

    Raises:
        UsageError: `empty-corpus`, when there is nothing to draw.
    """

    def __init__(self, seed: bytes, samples: int, batch_size: int) -> None:
        if samples < 1:
            raise UsageError("empty-corpus", "the corpus holds no sample")
        if samples > MAX_SAMPLES or batch_size < 1:
            raise UsageError("schedule", f"cannot schedule {samples} samples in batches of {batch_size}")
        self.seed, self.samples, self.batch_size = seed, samples, batch_size
        self.steps_per_epoch = -(-samples // batch_size)
        # One tuple, replaced whole: a loader's thread that is an epoch ahead cannot give this one its order.
        self._latest: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))

    def indices(self, step: int) -> list[int]:
        """Sample indices of `step` (counted from 1), in batch order.

        Raises:
            UsageError: `schedule`, for a step below 1.
        """
        if step < 1:
            raise UsageError("schedule", f"there is no step {step}: steps are counted from 1")
        epoch, place = divmod(step - 1, self.steps_per_epoch)
        known, order = self._latest
        if known != epoch:
            order = epoch_order(self.seed, epoch, self.samples)
            self._latest = (epoch, order)
        indices: list[int] = order[place * self.batch_size : (place + 1) * self.batch_size].tolist()
        return indices


def probe_indices(seed: bytes, step: int, previous_root: bytes, samples: int, count: int) -> list[int]:
    """Samples of the fingerprint's probe at `step`, drawn from a seed that holds the state root before the step."""
    stream = Stream(tagged_hash("probe", seed, step.to_bytes(8, "big"), previous_root))
    return [stream.below(samples) for _ in range(count)]


def stream_seed(seed: bytes, step: int, rank: int, purpose: str) -> bytes:
    """32 bytes that start one random stream of one step (step 0 is the initialisation)."""
    return tagged_hash("seed", seed, step.to_bytes(8, "big"), rank.to_bytes(8, "big"), purpose.encode("ascii"))
