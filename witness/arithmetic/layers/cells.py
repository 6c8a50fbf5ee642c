"""One step of recurrent layers, gate by gate, and its derivative.

`i` is what the input contributes to a gate and `s` what the state does; both already are products plus biases. Gates
stand in the order in which torch stores them. The derivatives take `g`, the gradient of the new state.
"""

from __future__ import annotations

from witness.arithmetic.elementary.activations import sigmoid_backward, tanh_backward
from witness.arithmetic.elementary.elements import Element, where
from witness.arithmetic.elementary.functions import ZERO, sigmoid, tanh


def tanh_step(i: Element, s: Element) -> Element:
    """`tanh(s + i)`: a step of an RNN, and the new part of an LSTM's cell."""
    return tanh(s + i)


def tanh_step_backward(g: Element, y: Element) -> Element:
    """The gradient of both terms."""
    return tanh_backward(g, y)


def gate(i: Element, s: Element) -> Element:
    """`sigmoid(s + i)`."""
    return sigmoid(s + i)


def relu_step(i: Element, s: Element) -> Element:
    """`s + i`, or 0 if that is negative."""
    y = s + i
    return where(y < ZERO, ZERO, y)


def relu_step_backward(g: Element, y: Element) -> Element:
    """The gradient of both terms."""
    return where(y <= ZERO, ZERO, g)


def gru_candidate(i: Element, s: Element, reset: Element) -> Element:
    """`tanh(i + s * reset)`."""
    return tanh(i + s * reset)


def gru_state(h: Element, new: Element, update: Element) -> Element:
    """`(h - new) * update + new`."""
    return (h - new) * update + new


def gru_step_backward(
    g: Element, reset: Element, update: Element, new: Element, s_new: Element, h: Element
) -> tuple[Element, Element, Element, Element, Element]:
    """Gradients of the arguments of reset, update and new gate, of `s_new`, and of `h` where it stands itself."""
    along = g * update
    by_new = tanh_backward(g - along, new)
    by_update = sigmoid_backward(g * (h - new), update)
    by_reset = sigmoid_backward(by_new * s_new, reset)
    return by_reset, by_update, by_new, by_new * reset, along


def lstm_cell(take: Element, keep: Element, new: Element, c: Element) -> Element:
    """`keep * c + take * new`."""
    return keep * c + take * new


def lstm_step_backward(
    g: Element,
    g_cell: Element,
    take: Element,
    keep: Element,
    new: Element,
    give: Element,
    c: Element,
    squashed: Element,
) -> tuple[Element, Element, Element, Element, Element]:
    """Gradients of the arguments of the four gates, and of the old cell; `g_cell` is that of the new cell."""
    by_cell = g_cell + tanh_backward(g * give, squashed)
    return (
        sigmoid_backward(by_cell * new, take),
        sigmoid_backward(by_cell * c, keep),
        tanh_backward(by_cell * take, new),
        sigmoid_backward(g * squashed, give),
        by_cell * keep,
    )
