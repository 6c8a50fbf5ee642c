"""One step of a recurrent layer over many rows, by compiled loops or by tensors: the definitions of `cells`, laid out.

All tensors are float32 and contiguous, (rows, numbers). `i` and `s` hold the gates one after the other, `kept` what the
way back needs, and `carried` the state that a step reads besides its products: the cell of an LSTM, the state of a GRU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from witness.arithmetic import compiled
from witness.arithmetic.elementary.functions import tanh
from witness.arithmetic.kernels import cells as kernels
from witness.arithmetic.kernels.rows import ABSENT
from witness.arithmetic.layers import cells
from witness.arithmetic.layers.derivatives import array

Kernel = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Step:
    """A kind of step.

    Attributes:
        gates: numbers that products give for each number of the state.
        kept: numbers that the way back needs for each number of the state.
        tensors: the step and its derivative on tensors.
        kernels: the same on arrays.
    """

    gates: int
    kept: int
    tensors: tuple[Callable[..., Any], Callable[..., Any]]
    kernels: tuple[Kernel, Kernel] | None = None

    def forward(
        self,
        i: torch.Tensor,
        s: torch.Tensor,
        bias: torch.Tensor | None,
        carried: torch.Tensor,
        kept: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """One step.

        Args:
            i: the input's contribution to the gates.
            s: the state's, to which `bias` is added.
            bias: one row, or None.
            carried: an LSTM's cell is replaced by the new one.
            kept: filled.
            out: filled with the new state.
        """
        if self.kernels and compiled.usable(i, s, carried, kept, out):
            b = s.new_full((s.shape[1],), float(ABSENT)) if bias is None else bias
            arrays = map(array, (i, s, b, carried, kept, out))
            compiled.run(self.kernels[0], s.shape[0], out.shape[1], *arrays, weight=8 * s.shape[1])
            return
        keep, new, onward = self.tensors[0](i, s if bias is None else s + bias, carried)
        kept.copy_(keep)
        out.copy_(new)
        if onward is not None:
            carried.copy_(onward)

    def backward(
        self,
        g: torch.Tensor,
        carried: torch.Tensor,
        kept: torch.Tensor,
        before: torch.Tensor,
        by_i: torch.Tensor,
        by_s: torch.Tensor,
    ) -> None:
        """Its derivative.

        Args:
            g: the gradient of the new state.
            carried: for an LSTM the gradient of the new cell, which is replaced by that of the old one; for a GRU
                filled with what goes to the old state directly.
            kept: as `forward` filled it.
            before: the old state.
            by_i: filled with the gradient of `i`.
            by_s: filled with that of `s`; may be `by_i` but for a GRU.
        """
        if self.kernels and compiled.usable(g, carried, kept, before, by_i, by_s):
            arrays = map(array, (g, carried, kept, before, by_i, by_s))
            compiled.run(self.kernels[1], g.shape[0], g.shape[1], *arrays, weight=8 * by_i.shape[1])
            return
        first, second, onward = self.tensors[1](g, carried, kept.chunk(self.kept, 1), before)
        by_i.copy_(first)
        by_s.copy_(second)
        if onward is not None:
            carried.copy_(onward)


Kept = tuple[torch.Tensor, ...]
Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def _rnn(step: Callable[..., torch.Tensor], i: torch.Tensor, s: torch.Tensor, carried: torch.Tensor) -> Parts:
    del carried
    y = step(i, s)
    return y, y, None


def _rnn_backward(
    step: Callable[..., torch.Tensor], g: torch.Tensor, carried: torch.Tensor, kept: Kept, before: torch.Tensor
) -> Parts:
    del carried, before
    by = step(g, *kept)
    return by, by, None


def _gru(i: torch.Tensor, s: torch.Tensor, carried: torch.Tensor) -> Parts:
    (i_reset, i_update, i_new), (s_reset, s_update, s_new) = i.chunk(3, 1), s.chunk(3, 1)
    reset, update = cells.gate(i_reset, s_reset), cells.gate(i_update, s_update)
    new = cells.gru_candidate(i_new, s_new, reset)
    return torch.cat([reset, update, new, s_new], 1), cells.gru_state(carried, new, update), None


def _gru_backward(g: torch.Tensor, carried: torch.Tensor, kept: Kept, before: torch.Tensor) -> Parts:
    del carried
    reset, update, new, inner = kept
    by_reset, by_update, by_new, by_inner, along = cells.gru_step_backward(g, reset, update, new, inner, before)
    return torch.cat([by_reset, by_update, by_new], 1), torch.cat([by_reset, by_update, by_inner], 1), along


def _lstm(i: torch.Tensor, s: torch.Tensor, carried: torch.Tensor) -> Parts:
    parts = zip(i.chunk(4, 1), s.chunk(4, 1), strict=True)
    kinds = (cells.gate, cells.gate, cells.tanh_step, cells.gate)
    take, keep, new, give = (kind(*part) for kind, part in zip(kinds, parts, strict=True))
    cell = cells.lstm_cell(take, keep, new, carried)
    squashed = tanh(cell)
    return torch.cat([take, keep, new, give, carried, squashed], 1), give * squashed, cell


def _lstm_backward(g: torch.Tensor, carried: torch.Tensor, kept: Kept, before: torch.Tensor) -> Parts:
    del before
    *gates, by_cell = cells.lstm_step_backward(g, carried, *kept)
    by = torch.cat(gates, 1)
    return by, by, by_cell


GRU = Step(3, 4, (_gru, _gru_backward), (kernels.grus, kernels.grus_backward))
LSTM = Step(4, 6, (_lstm, _lstm_backward), (kernels.lstms, kernels.lstms_backward))
TANH = Step(
    1,
    1,
    (partial(_rnn, cells.tanh_step), partial(_rnn_backward, cells.tanh_step_backward)),
    (kernels.tanhs, kernels.tanhs_backward),
)
RELU = Step(1, 1, (partial(_rnn, cells.relu_step), partial(_rnn_backward, cells.relu_step_backward)))
