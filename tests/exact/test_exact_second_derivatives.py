"""Gradients of gradients: functions that bring their own derivative have a second one as well."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from exact.two_forms import distance

from witness.arithmetic.mode import activate


def numbers(*shape: int, salt: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(salt))


ALLOWED = numbers(6, 5, salt=3) > -0.3
ALLOWED[2] = False
CASES = {
    "cross entropy": (lambda x: F.cross_entropy(x, torch.tensor([0, 2, -100, 1])), numbers(4, 3)),
    "rms norm": (lambda x, w: F.rms_norm(x, (7,), w).pow(3).sum(), numbers(4, 7), numbers(7)),
    "layer norm": (lambda x, w: F.layer_norm(x, (7,), w).pow(3).sum(), numbers(4, 7), numbers(7)),
    "attention, causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True).pow(2).sum(),
        numbers(2, 6, 4), numbers(2, 5, 4, salt=1), numbers(2, 5, 4, salt=2)),
    "attention, allowed": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, ALLOWED).pow(2).sum(),
        numbers(2, 6, 4), numbers(2, 5, 4, salt=1), numbers(2, 5, 4, salt=2)),
    "attention, bias": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m).pow(2).sum(),
        numbers(2, 6, 4), numbers(2, 5, 4, salt=1), numbers(2, 5, 4, salt=2), numbers(6, 5, salt=3)),
}  # fmt: skip


def twice(function, *operands):
    """First gradients, and the gradients of a sum of their squares."""
    leaves = [t.clone().requires_grad_() for t in operands]
    first = torch.autograd.grad(function(*leaves), leaves, create_graph=True)
    second = torch.autograd.grad(sum((g * g).sum() for g in first), leaves)
    once = torch.autograd.grad(function(*leaves), leaves)
    return list(first), list(second), list(once)


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_are_near_float64(name):
    function, *operands = CASES[name]
    with activate("exact-18"):
        found = twice(function, *operands)
    expected = twice(function, *(t.double() for t in operands))
    for a, b in zip(found, expected, strict=True):
        assert all(distance(x, y) < 2e-4 for x, y in zip(a, b, strict=True))


def test_the_second_derivative_drops_what_the_first_one_dropped():
    operands = numbers(2, 6, 4), numbers(2, 5, 4, salt=1), numbers(2, 5, 4, salt=2)

    def function(*leaves):
        torch.manual_seed(4)
        return F.scaled_dot_product_attention(*leaves, dropout_p=0.5).pow(2).sum()

    with activate("exact-18"):
        first, _, once = twice(function, *operands)
    assert all(distance(a, b.double()) < 1e-5 for a, b in zip(first, once, strict=True))
