"""How often the steps of a run read a document, and how much weight its tokens had.

The uses are derived from manifest, leaf and schedule (`protocol.uses`), here for many documents at once: an epoch's
order costs as much as the corpus has samples, and is made once for all of them.

Influence is reported as the log allows: the sum, over all uses, of the learning rate that the step recorded, times the
tokens of the document in the sample. The loss mask is not in the log: a masked token counts here as if it had been
learnt. A use at a learning rate of zero has no weight (attack A20).

Specified in spec/answer.md, sections 7 and 8.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from protocol.corpus import CorpusClaim, Document
from protocol.encoding import parse_float
from protocol.errors import ProtocolError
from protocol.manifest import Manifest
from protocol.records import StepRecord
from protocol.schedule import epoch_order
from protocol.uses import MAX_USES, Use, holding, sample_count

LEARNING_RATES: Final = ("learning_rate", "lr")
"""Names under which a program may record its learning rate; the first that a record has counts."""
MAX_ORDERED: Final = 1 << 27
"""Samples that are put in order, all epochs together: about 15 s and, where it is one epoch, 3 GB."""
MAX_EPOCHS: Final = 1 << 17
"""Epochs that are put in order: some seconds for the smallest."""


@dataclass(frozen=True, slots=True)
class Weight:
    """What the records say of a document's influence.

    Attributes:
        steps: distinct steps that read it.
        shown: of these, steps whose records say a learning rate.
        weight: over the steps shown; exact. None when not one is shown.
        without: of the steps shown, those at a learning rate of zero.
    """

    steps: int
    shown: int
    weight: Fraction | None
    without: int

    @property
    def influence(self) -> str:
        """In a word: `none` if every step that read it is shown, and had a learning rate of zero."""
        if self.steps == 0 or (self.shown == self.steps and self.without == self.steps):
            return "none"
        return "some" if self.shown > self.without else "not shown"


class Orders:
    """Where each sample is drawn, epoch by epoch: those asked for first are kept, for whoever asks about one run often.

    Args:
        room: bytes to keep.
    """

    def __init__(self, room: int = 0) -> None:
        self._room = room
        self._kept: dict[tuple[bytes, int, int], npt.NDArray[np.uint32]] = {}

    def places(self, seed: bytes, samples: int, epoch: int) -> npt.NDArray[np.uint32]:
        """For each sample its place in the order of an epoch (`protocol.schedule.epoch_order`)."""
        found = self._kept.get((seed, samples, epoch))
        if found is None:
            found = np.empty(samples, dtype=np.uint32)
            found[epoch_order(seed, epoch, samples)] = np.arange(samples, dtype=np.uint32)
            if found.nbytes <= self._room:
                self._room -= found.nbytes
                self._kept[seed, samples, epoch] = found
        return found


def usage(
    manifest: Manifest, steps: int, leaves: Sequence[Document], orders: Orders | None = None
) -> list[tuple[Use, ...] | None]:
    """The uses of each document among the first `steps` steps; None where they are too many to list.

    Documents are taken in order as long as their uses are no more than `protocol.uses.MAX_USES` together. Those that do
    not fit any more have none listed; nor has any document of a run whose order is too long to make again
    (`MAX_ORDERED`, `MAX_EPOCHS`).

    Args:
        manifest: of the run.
        steps: recorded.
        leaves: of the documents, verified.
        orders: kept between calls.
    """
    samples, batch = sample_count(manifest.corpus), manifest.batch_size
    if samples < 1 or steps < 1:
        return [()] * len(leaves)
    steps_per_epoch = -(-samples // batch)
    epochs = -(-steps // steps_per_epoch)
    if samples * epochs > MAX_ORDERED or epochs > MAX_EPOCHS:
        return [None] * len(leaves)
    wanted, tokens, owners = list[int](), list[int](), list[int]()
    found: list[list[Use] | None] = []
    for owner, leaf in enumerate(leaves):
        if (len(wanted) + _most_samples(manifest.corpus, leaf)) * epochs > MAX_USES:
            found.append(None)  # before its samples are listed: a hostile answer names such documents by the thousand
            continue
        held = holding(manifest.corpus, leaf)
        found.append([])
        wanted += [h.sample for h in held]
        tokens += [h.tokens for h in held]
        owners += [owner] * len(held)
    if wanted:
        chosen = np.array(wanted)
        seed, orders = bytes.fromhex(manifest.seed.value), orders or Orders()
        for epoch in range(epochs):
            places = orders.places(seed, samples, epoch)[chosen].tolist()
            for position, count, owner in zip(places, tokens, owners, strict=True):
                step = epoch * steps_per_epoch + position // batch + 1
                mine = found[owner]
                if step <= steps and mine is not None:
                    mine.append(Use(step, position % batch, count))
    return [None if mine is None else tuple(sorted(mine)) for mine in found]


def _most_samples(corpus: CorpusClaim, leaf: Document) -> int:
    """No fewer samples than hold a part of the document."""
    packing = corpus.packing
    if packing.kind == "documents":
        return 1
    return (leaf.token_length + packing.length) // packing.stride + 2


def steps_of(uses: Sequence[Use]) -> list[int]:
    """The distinct steps, ascending."""
    return sorted({use.step for use in uses})


def learning_rate(record: StepRecord) -> Fraction | None:
    """The learning rate that a step recorded; None where it recorded none that is a finite number."""
    for name in LEARNING_RATES:
        value = record.hyperparameters.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return Fraction(value)
        if isinstance(value, str):
            try:
                return Fraction(parse_float(value))
            except (ProtocolError, ValueError, OverflowError):
                return None
    return None


def weigh(uses: Sequence[Use], records: Mapping[int, StepRecord]) -> Weight:
    """The weight of a document from the records at hand.

    Args:
        uses: of the document.
        records: verified, by step; those that are missing are not shown.
    """
    distinct = steps_of(uses)
    rates = {step: rate for step in distinct if step in records and (rate := learning_rate(records[step])) is not None}
    total = sum((rates[use.step] * use.tokens for use in uses if use.step in rates), Fraction(0))
    without = sum(rate == 0 for rate in rates.values())
    return Weight(len(distinct), len(rates), total if rates else None, without)
