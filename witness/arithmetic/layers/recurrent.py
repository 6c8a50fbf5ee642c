"""Recurrent layers, above the point where every device takes another kernel for them.

torch runs `nn.GRU`, `nn.LSTM` and `nn.RNN` as single fused operators on some devices (cuDNN, MIOpen, oneDNN, fused
cells on CUDA) and as loops of small operators on others. Here a layer in one direction is one function with its own
derivative, the same on every device. A padded batch is taken as the packed sequence whose steps all have the same
number of rows.

- `i = x @ w_ih.T + b_ih` for all steps at once, `s = h @ w_hh.T + b_hh` for each: the product rounds, then the sum.
- Gates are those of `cells`; an LSTM's state is multiplied by `w_hr.T` where there is a projection.
- Backwards, from the last step to the first: the gradient of a step's output, plus what the step after it gave to the
  state; the derivative of the cell; times `w_hh`, one product a step, to which a GRU adds what went to the state
  directly.
- The gradient of each weight is one exact product over all rows of all steps, that of each bias `sums.total` over them.

Half precision is converted to float32 once, and results back. The cells (`nn.GRUCell` and the others) are the same
formulas in torch's own operations, which autograd differentiates; a layer gives the bits of its cell. Where a gradient
is to be differentiated again (`create_graph=True`), a layer's is that of its cells, whose products and sums are one for
each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch.nn.functional import dropout

from witness.arithmetic.generator.randomness import unwatched
from witness.arithmetic.layers import steps
from witness.arithmetic.layers.derivatives import cast, transformed, widened
from witness.arithmetic.layers.steps import Step
from witness.arithmetic.matrix.products import multiply, prepare
from witness.arithmetic.registry import FUNCTIONS, function, operator, product_bits
from witness.arithmetic.summation import sums

Optional = torch.Tensor | None


def _own(x: torch.Tensor) -> torch.Tensor:
    """A contiguous float32 copy."""
    return x.to(torch.float32, memory_format=torch.contiguous_format, copy=True)


class _Layer(torch.autograd.Function):
    """A layer in one direction.

    Only the rows of a step take part in it, and they are the first ones of the state. Those whose sequence has ended
    keep their state; those whose sequence has not begun, backwards in time, still have the first one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        step: Step,
        rows: Sequence[int],
        backwards: bool,
        x: torch.Tensor,
        begin: torch.Tensor,
        begin_cell: Optional,
        w_ih: torch.Tensor,
        w_hh: torch.Tensor,
        b_ih: Optional,
        b_hh: Optional,
        w_hr: Optional,
    ) -> tuple[torch.Tensor, torch.Tensor, Optional]:
        """The outputs of all steps below each other, the state of each row after its last step, and the cell."""
        bits = product_bits()
        with unwatched():
            width = w_hh.shape[0] // step.gates
            i = multiply(widened(x), widened(w_ih).t(), bits)
            if b_ih is not None:
                i += b_ih
            bias = None if b_hh is None else _own(b_hh)
            by_state = prepare(w_hh.t(), -2, bits)
            by_full = None if w_hr is None else prepare(w_hr.t(), -2, bits)
            h = _own(begin)
            c = h if begin_cell is None else _own(begin_cell)
            before, kept = i.new_empty(i.shape[0], h.shape[1]), i.new_empty(i.shape[0], step.kept * width)
            full = i.new_empty(i.shape[0], width)
            out = full if by_full is None else torch.empty_like(before)
            ctx.spans = _spans(rows, backwards)
            for first, last in ctx.spans:
                state, now = h[: last - first], slice(first, last)
                before[now] = state
                s = multiply(state, by_state, bits)
                step.forward(i[now], s, bias, c[: last - first], kept[now], full[now])
                if by_full is not None:
                    out[now] = multiply(full[now], by_full, bits)
                state.copy_(out[now])
            ctx.step, ctx.bits = step, bits
            inputs = (x, begin, begin_cell, w_ih, w_hh, b_ih, b_hh, w_hr)
            ctx.save_for_backward(*inputs, before, kept, full if w_hr is not None else None)
            cell = None if begin_cell is None else c.to(x.dtype)
            return out.to(x.dtype), h.to(x.dtype), cell

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, g_state: torch.Tensor, g_cell: Optional) -> tuple[Any, ...]:
        """Gradients of all that `forward` takes."""
        *inputs, before, kept, full = ctx.saved_tensors
        if torch.is_grad_enabled() or transformed(g, g_state, g_cell):
            return None, None, None, *_differentiable(ctx, inputs, (g, g_state, g_cell))
        x, _, _, w_ih, w_hh, _, _, w_hr = inputs
        step, bits = ctx.step, ctx.bits
        with unwatched():
            g, h = widened(g), _own(g_state)
            width = w_hh.shape[0] // step.gates
            by_i = h.new_empty(x.shape[0], w_hh.shape[0])
            by_s = torch.empty_like(by_i) if step is steps.GRU else by_i
            c = h.new_empty(h.shape[0], width) if g_cell is None else _own(g_cell)
            to_state = prepare(w_hh, -2, bits)
            to_full = None if w_hr is None else prepare(w_hr, -2, bits)
            projected = torch.empty_like(before)
            for first, last in reversed(ctx.spans):
                now = slice(first, last)
                state, carried = h[: last - first], c[: last - first]
                by = torch.add(g[now], state)
                if to_full is not None:
                    projected[now] = by
                    by = multiply(by, to_full, bits)
                step.backward(by.contiguous(), carried, kept[now], before[now], by_i[now], by_s[now])
                back = multiply(by_s[now], to_state, bits)
                state.copy_(carried + back if step is steps.GRU else back)
            need = ctx.needs_input_grad
            by_x = multiply(by_i, widened(w_ih), bits).to(x.dtype) if need[3] else None
            by_w_ih = multiply(by_i.t(), widened(x), bits).to(w_ih.dtype) if need[6] else None
            by_w_hh = multiply(by_s.t(), before, bits).to(w_hh.dtype) if need[7] else None
            by_b_ih = sums.total(by_i, 0).to(w_ih.dtype) if need[8] else None
            by_b_hh = sums.total(by_s, 0).to(w_hh.dtype) if need[9] else None
            by_w_hr = multiply(projected.t(), full, bits).to(w_hr.dtype) if need[10] else None
            by_cell = None if g_cell is None else c.to(x.dtype)
            return (None,) * 3 + (by_x, h.to(x.dtype), by_cell, by_w_ih, by_w_hh, by_b_ih, by_b_hh, by_w_hr)


def _composed(step: Step, spans: Sequence[tuple[int, int]], inputs: Sequence[Optional]) -> list[Optional]:
    """A layer as its cells, which autograd and its transforms know: what `_Layer.forward` returns.

    Args:
        step: the kind of cell.
        spans: first row and the one after the last of each step, in the order of the steps.
        inputs: the tensors of `_Layer.forward`.
    """
    x, h, c, w_ih, w_hh, b_ih, b_hh, w_hr = (None if t is None else widened(t) for t in inputs)
    state: list[Any] = [h] if c is None else [h, c]
    outputs = {}
    for first, last in spans:
        n = last - first
        moved = cell(step, x[first:last], [s[:n] for s in state], w_ih, w_hh, b_ih, b_hh)  # type: ignore[index, arg-type]
        new, *rest = moved
        new = new if w_hr is None else torch.mm(new, w_hr.t())
        state = [torch.cat([a, b[n:]]) for a, b in zip((new, *rest), state, strict=True)]
        outputs[first] = new
    dtype = inputs[0].dtype  # type: ignore[union-attr] # the input is never None
    results = [t.to(dtype) for t in (torch.cat([outputs[first] for first in sorted(outputs)]), *state)]
    return [*results, *[None] * (c is None)]


def _differentiable(ctx: Any, inputs: Sequence[Optional], gradients: Sequence[Optional]) -> list[Optional]:
    """What a layer's backward pass gives, as a function that can be differentiated again."""
    with torch.enable_grad():
        results = [t for t in _composed(ctx.step, ctx.spans, inputs) if t is not None]
    wanted = [t for t in inputs if t is not None and t.requires_grad]
    found = iter(torch.autograd.grad(results, wanted, gradients[: len(results)], create_graph=True, allow_unused=True))
    return [next(found) if t is not None and t.requires_grad else None for t in inputs]


def _spans(rows: Sequence[int], backwards: bool) -> list[tuple[int, int]]:
    """The rows of each step, in the order of the steps."""
    spans = [(end - n, end) for n, end in zip(rows, accumulate(rows), strict=True)]
    return spans[::-1] if backwards else spans


def _layers(
    step: Step,
    x: torch.Tensor,
    rows: Sequence[int],
    begin: Sequence[torch.Tensor],
    parameters: Sequence[torch.Tensor],
    biased: bool,
    layers: int,
    drop: float,
    train: bool,
    bidirectional: bool,
) -> tuple[torch.Tensor, ...]:
    """All layers, over steps that lie below each other; states are (layers * directions, rows, features)."""
    directions = 2 if bidirectional else 1
    each = len(parameters) // (layers * directions)
    x, *parameters = cast(x.device.type, x, *parameters)
    final: list[tuple[torch.Tensor, ...]] = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            w_ih, w_hh, *rest = parameters[place * each : (place + 1) * each]
            biases, projection = (rest[:2], rest[2:]) if biased else ((None, None), rest)
            h, c = begin[0][place], begin[1][place] if len(begin) > 1 else None
            inputs = [x, h, c, w_ih, w_hh, *biases, *(projection or [None])]
            results: Any
            if transformed():
                results = _composed(step, _spans(rows, direction == 1), inputs)
            else:
                results = _Layer.apply(step, rows, direction == 1, *inputs)  # type: ignore[no-untyped-call]
            y, *state = results
            outputs.append(y)
            final.append(tuple(state[: len(begin)]))
        x = torch.cat(outputs, 1) if bidirectional else outputs[0]
        if drop and train and layer < layers - 1:
            x = FUNCTIONS.get(dropout, dropout)(x, drop, True)
    return x, *(torch.stack(parts) for parts in zip(*final, strict=True))


def network(step: Step, *args: Any) -> tuple[torch.Tensor, ...]:
    """Either overload that torch has for `gru`, `lstm`, `rnn_tanh` and `rnn_relu`.

    Args:
        step: the kind of cell.
        args: `(input, state, parameters, has_biases, layers, dropout, train, bidirectional, batch_first)`, with `input`
            (steps, rows, features) or, batch first, (rows, steps, features); or
            `(data, batch_sizes, state, parameters, has_biases, layers, dropout, train, bidirectional)`, packed.
            `state` is a tensor, or the two of an LSTM.

    Returns:
        Outputs, laid out as the inputs were; and the final state or states.
    """
    if isinstance(args[3], bool):
        x, state, parameters, *options, batch_first = args
        x = x.transpose(0, 1) if batch_first else x
        length, rows = x.shape[:2]
        y, *final = _layers(step, x.reshape(length * rows, -1), [rows] * length, _listed(state), parameters, *options)
        y = y.reshape(length, rows, -1)
        return (y.transpose(0, 1) if batch_first else y), *final
    data, sizes, state, parameters, *options = args
    return _layers(step, data, sizes.tolist(), _listed(state), parameters, *options)


def _listed(state: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [state] if isinstance(state, torch.Tensor) else list(state)


def _affine(x: torch.Tensor, weight: torch.Tensor, bias: Optional) -> torch.Tensor:
    product = torch.mm(x, weight.t())
    return product if bias is None else product + bias


def cell(
    step: Step,
    x: torch.Tensor,
    state: torch.Tensor | Sequence[torch.Tensor],
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: Optional = None,
    b_hh: Optional = None,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """`gru_cell`, `lstm_cell`, `rnn_tanh_cell` and `rnn_relu_cell`: one step, in operations that autograd knows.

    Args:
        step: the kind of cell.
        x: (rows, features), or one row.
        state: (rows, hidden), or the two of an LSTM.
        w_ih: (gates * hidden, features).
        w_hh: (gates * hidden, hidden).
        b_ih: (gates * hidden,).
        b_hh: alike.

    Returns:
        The new state, or the two of an LSTM.
    """
    if x.dim() == 1:
        single = cell(step, x[None], [s[None] for s in _listed(state)], w_ih, w_hh, b_ih, b_hh)
        rows = tuple(s[0] for s in single)
        return rows[0] if isinstance(state, torch.Tensor) else rows
    h, *rest = _listed(state)
    i, s = _affine(x, w_ih, b_ih), _affine(h, w_hh, b_hh)
    if step is steps.LSTM:
        take, keep, new, give = (s + i).chunk(4, 1)
        c = torch.sigmoid(keep) * rest[0] + torch.sigmoid(take) * torch.tanh(new)
        return torch.sigmoid(give) * torch.tanh(c), c
    if step is steps.GRU:
        (i_reset, i_update, i_new), (s_reset, s_update, s_new) = i.chunk(3, 1), s.chunk(3, 1)
        reset, update = torch.sigmoid(s_reset + i_reset), torch.sigmoid(s_update + i_update)
        candidate = torch.tanh(i_new + s_new * reset)
        y = (h - candidate) * update + candidate
    else:
        y = torch.tanh(s + i) if step is steps.TANH else torch.relu(s + i)
    return y if isinstance(state, torch.Tensor) else (y,)


_vf: Any = torch._VF  # noqa: SLF001 - what torch.nn.RNNBase calls
for _name, _step in (("gru", steps.GRU), ("lstm", steps.LSTM), ("rnn_tanh", steps.TANH), ("rnn_relu", steps.RELU)):
    function(getattr(_vf, _name))(partial(network, _step))
    function(getattr(_vf, f"{_name}_cell"))(partial(cell, _step))


@operator("_use_cudnn_rnn_flatten_weight")
def use_cudnn_rnn_flatten_weight() -> bool:
    """No: weights stay as the program laid them out, as cuDNN will not read them."""
    return False
