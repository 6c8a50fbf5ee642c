"""Tensors as words: one spelling each, and seeded values that are what the word says."""

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.encoding import f64
from protocol.errors import ProtocolError
from protocol.operations import (
    OperationProbe,
    OperationSpec,
    ProbedOperation,
    TensorSpec,
    contiguous,
    parse_tensor,
    uncovered,
)
from witness.arguments import blank, describe, realise, widen, words

FLOATS = st.sampled_from(["float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
BOUNDS = {
    "bool": (0, 1),
    "uint8": (0, 255),
    "int8": (-128, 127),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}


@st.composite
def specs(draw: st.DrawFn) -> TensorSpec:
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    stride = contiguous(shape) if draw(st.booleans()) else tuple(draw(st.integers(0, 30)) for _ in shape)
    if draw(st.booleans()):
        return TensorSpec(draw(FLOATS), shape, stride, "cpu", draw(st.sampled_from(["unit", "positive", "signed"])))
    dtype = draw(st.sampled_from(sorted(BOUNDS)))
    low, high = sorted(draw(st.tuples(*[st.integers(*BOUNDS[dtype])] * 2)))
    return TensorSpec(dtype, shape, stride, "cpu", (low, high))


@given(specs())
def test_a_word_says_all_of_it(spec: TensorSpec) -> None:
    assert parse_tensor(spec.text()) == spec


@given(specs(), st.data())
def test_no_second_spelling(spec: TensorSpec, data: st.DataObject) -> None:
    word = spec.text()
    place = data.draw(st.integers(0, len(word)))
    other = (
        word[:place]
        + data.draw(st.sampled_from(["0", ",", ";", " ", "-", "\n", "]", ""]))
        + word[place + data.draw(st.integers(0, 1)) :]
    )
    try:
        parsed = parse_tensor(other)
    except ProtocolError:
        return
    assert parsed is not None
    assert (parsed == spec) == (other == word)


@given(specs(), st.integers(0, 10**6))
@settings(deadline=None)
def test_seeded_values_are_finite_in_their_domain_and_reproducible(spec: TensorSpec, ordinal: int) -> None:
    tensor, again = (realise(spec.text(), itertools.count(ordinal)) for _ in range(2))
    assert (tensor.shape, tensor.stride(), str(tensor.dtype)) == (spec.shape, spec.stride, f"torch.{spec.dtype}")
    values, same = tensor.double().flatten(), again.double().flatten()
    assert torch.equal(values, same)
    if isinstance(spec.values, str):
        assert bool((values.abs() >= 2.0**-6).all() and (values.abs() < 8).all())
        assert spec.values == "signed" or bool((values > 0).all())
        assert spec.values != "unit" or bool((values <= 1).all())
    else:
        found = [int(value) for value in tensor.flatten()]
        assert all(spec.values[0] <= value <= spec.values[1] for value in found)


@given(st.lists(specs().filter(lambda spec: isinstance(spec.values, str)), min_size=2, max_size=2))
@settings(deadline=None)
def test_the_widest_domain_wins(pair: list[TensorSpec]) -> None:
    left, right = (describe(realise(spec.text(), itertools.count(1))) for spec in pair)
    same = describe(realise(pair[0].text(), itertools.count(50)))
    assert blank(left) == blank(same)
    joined = widen(left, same)
    assert widen(joined, left) == joined == widen(same, left)
    assert (blank(left) == blank(right)) == (words(left).partition("{")[0] == words(right).partition("{")[0])


@given(specs(), specs())
def test_covering_ignores_values_and_nothing_else(known: TensorSpec, used: TensorSpec) -> None:
    first, second = (OperationSpec("aten.relu.default", (spec.text(),), {}) for spec in (known, used))
    probe = OperationProbe((ProbedOperation(first, "0" * 64),))
    alike = (known.dtype, known.shape, known.stride) == (used.dtype, used.shape, used.stride)
    assert (uncovered(probe, [second]) == []) == alike
    assert uncovered(probe, [first]) == []


@given(st.floats(), st.floats())
def test_covering_keeps_special_scalars_apart(left: float, right: float) -> None:
    def power(exponent: float) -> OperationSpec:
        return OperationSpec("aten.pow.Tensor_Scalar", ("float32[4]{unit}", f64(exponent)), {})

    def special(value: float) -> bool:
        return (
            value in (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, -0.5, -1.0, -1.5, -2.0)
            or value != value
            or abs(value) == float("inf")
        )

    def scaled(factor: float) -> OperationSpec:
        return OperationSpec("aten.mul_.Tensor", ("float32[4]{unit}", f64(factor)), {})

    assert not uncovered(OperationProbe((ProbedOperation(scaled(left), "0" * 64),)), [scaled(right)])
    probe = OperationProbe((ProbedOperation(power(left), "0" * 64),))
    if special(left) != special(right):
        assert uncovered(probe, [power(right)])
