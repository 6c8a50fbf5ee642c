"""From a document to the steps that read it: pure functions of the manifest, so that an answer needs no trust.

A document's place in the token stream (its leaf) and the packing say which samples hold it; the schedule says at which
step each sample is drawn. Both are derived again by whoever checks an answer.

Specified in spec/answer.md, section 7.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from protocol.corpus import CorpusClaim, Document
from protocol.errors import UsageError
from protocol.manifest import Manifest
from protocol.schedule import epoch_order

MAX_USES = 1 << 20
"""Uses that an answer lists; a document that fills more samples is described by its counts alone."""


class Held(NamedTuple):
    """A sample that holds a part of a document, and how many of the document's tokens are in it."""

    sample: int
    tokens: int


class Use(NamedTuple):
    """A step that read a part of a document: its sample's place in the batch, and how many of the document's tokens."""

    step: int
    place: int
    tokens: int


def sample_count(claim: CorpusClaim) -> int:
    """How many samples the claimed corpus is cut into."""
    if claim.packing.kind == "documents":
        return claim.documents
    return max(0, (claim.tokens - claim.packing.length) // claim.packing.stride + 1)


def holding(claim: CorpusClaim, leaf: Document) -> list[Held]:
    """The samples that hold tokens of a document, ascending.

    Raises:
        UsageError: `too-many-uses`, when they are more than `MAX_USES`.
    """
    packing = claim.packing
    if packing.kind == "documents":
        return [Held(leaf.index, leaf.token_length)]
    start, stop = leaf.token_start, leaf.token_start + leaf.token_length
    first = max(0, (start - packing.length) // packing.stride + 1)
    last = min(sample_count(claim) - 1, (stop - 1) // packing.stride)
    if last - first >= MAX_USES:
        raise UsageError("too-many-uses", f"document {leaf.index} fills {last - first + 1} samples")
    held = []
    for sample in range(first, last + 1):
        begin = sample * packing.stride
        tokens = min(stop, begin + packing.length) - max(start, begin)
        if tokens > 0:
            held.append(Held(sample, tokens))
    return held


def uses(manifest: Manifest, steps: int, held: Sequence[Held]) -> list[Use]:
    """The steps, among the first `steps`, that drew the given samples, ascending.

    Raises:
        UsageError: `too-many-uses`, when they are more than `MAX_USES`.
    """
    samples = sample_count(manifest.corpus)
    if not held or steps < 1 or samples < 1:
        return []
    seed, batch = bytes.fromhex(manifest.seed.value), manifest.batch_size
    steps_per_epoch = -(-samples // batch)
    epochs = -(-steps // steps_per_epoch)
    if epochs * len(held) > MAX_USES:
        raise UsageError("too-many-uses", f"{len(held)} samples over {epochs} epochs")
    wanted = np.array([h.sample for h in held])
    tokens = [h.tokens for h in held]
    found = []
    for epoch in range(epochs):
        place_of = np.empty(samples, dtype=np.int64)
        place_of[epoch_order(seed, epoch, samples)] = np.arange(samples)
        for position, count in zip(place_of[wanted].tolist(), tokens, strict=True):
            step = epoch * steps_per_epoch + position // batch + 1
            if step <= steps:
                found.append(Use(step, position % batch, count))
    return sorted(found)
