"""Attention: the definition read by hand, every mask, both forms, and what a query may not see it does not notice."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from exact import reference_rows as reference
from exact.two_forms import bits, both, distance, gradients, same, tensors_only
from torch import nn
from torch.nn.attention.bias import causal_lower_right

from witness.arithmetic.generator import dropout
from witness.arithmetic.layers import attention as definitions
from witness.arithmetic.mode import activate

attend = F.scaled_dot_product_attention
INF, NAN = math.inf, math.nan


def tensor(rows) -> torch.Tensor:
    return torch.tensor(np.array(rows, np.float32))


def table(x: torch.Tensor):
    return [[np.float32(v) for v in row] for row in x.tolist()]


def numbers(*shape: int, salt: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(salt))


Q, K, V = numbers(2, 4, 6, 8), numbers(2, 4, 5, 8, salt=1), numbers(2, 4, 5, 7, salt=2)
ALLOWED = numbers(6, 5, salt=3) > -0.3
ALLOWED[2] = False  # a query that may attend to nothing
BY_KEY = numbers(2, 1, 1, 5, salt=4) > -0.7


@pytest.mark.parametrize("bits_of_products", [14, 18])
@pytest.mark.parametrize("kind", ["plain", "causal", "allowed", "bias", "noise"])
def test_one_head_is_the_definition_read_by_hand(kind, bits_of_products):
    q, k, v, g = numbers(6, 3), numbers(5, 3, salt=1), numbers(5, 2, salt=2), numbers(6, 2, salt=3)
    bias = numbers(6, 5, salt=4)
    more = {
        "plain": {},
        "causal": {"causal": True},
        "allowed": {"allowed": ALLOWED.tolist()},
        "bias": {"bias": table(bias)},
        "noise": {},
    }[kind]
    masks = {"causal": {"is_causal": True}, "allowed": {"attn_mask": ALLOWED}, "bias": {"attn_mask": bias}}
    options = masks.get(kind, {"dropout_p": 0.4} if kind == "noise" else {})

    def run():
        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        torch.manual_seed(5)
        out = attend(*leaves, scale=0.7, **options)
        return [out.detach(), *torch.autograd.grad(out, leaves, g)]

    with activate(f"exact-{bits_of_products}"):
        found = both(run)
        if kind == "noise":
            torch.manual_seed(5)
            _, kept = dropout.native_dropout(torch.ones(6, 5), 0.4, True)
            factor = np.float32(1) / np.float32(0.6)
            more = {"noise": [[factor if c else np.float32(0) for c in row] for row in kept.tolist()]}
    with np.errstate(all="ignore"):
        tables = table(q), table(k), table(v)
        out, weights = reference.attention(*tables, 0.7, bits_of_products, **more)
        rest = {name: value for name, value in more.items() if name in ("causal", "noise")}
        dq, dk, dv, _ = reference.attention_backward(table(g), *tables, weights, 0.7, bits_of_products, **rest)
    for name, a, b in zip(["out", "q", "k", "v"], found, (out, dq, dk, dv), strict=True):
        assert bits(a) == bits(tensor(b)), name


CASES = {
    "plain": (lambda q, k, v: attend(q, k, v), Q, K, V),
    "causal": (lambda q, k, v: attend(q, k, v, is_causal=True), Q, K, V),
    "causal, more keys": (lambda q, k, v: attend(q, k, v, is_causal=True), Q, numbers(2, 4, 9, 8), numbers(2, 4, 9, 7)),
    "causal, long": (lambda q, k, v: attend(q, k, v, is_causal=True), *numbers(3, 2, 2, 150, 8, salt=6)),
    "scale": (lambda q, k, v: attend(q, k, v, scale=0.3), Q, K, V),
    "allowed": (lambda q, k, v: attend(q, k, v, ALLOWED), Q, K, V),
    "allowed by key": (lambda q, k, v: attend(q, k, v, BY_KEY), Q, K, V),
    "bias": (lambda q, k, v, m: attend(q, k, v, m), Q, K, V, numbers(2, 4, 6, 5, salt=7)),
    "bias, broadcast": (lambda q, k, v, m: attend(q, k, v, m), Q, K, V, numbers(2, 1, 6, 5, salt=7)),
    "bias by query": (lambda q, k, v, m: attend(q, k, v, m.expand(6, 5) * 2), Q, K, V, numbers(1, 5, salt=7)),
    "grouped": (lambda q, k, v: attend(q, k, v, is_causal=True, enable_gqa=True), Q, K[:, :2], V[:, :2]),
    "grouped, allowed": (lambda q, k, v: attend(q, k, v, ALLOWED, enable_gqa=True), Q, K[:, :1], V[:, :1]),
    "grouped, bias": (
        lambda q, k, v, m: attend(q, k, v, m, enable_gqa=True), Q, K[:, :2], V[:, :2], numbers(1, 4, 6, 5, salt=8)),
    "broadcast": (lambda q, k, v: attend(q, k, v), Q, K[:1], V[:, :1]),
    "two dimensions": (lambda q, k, v: attend(q, k, v), Q[0, 0], K[0, 0], V[0, 0]),
    "three dimensions": (lambda q, k, v: attend(q, k, v), Q[0], K[0], V[0]),
    "five dimensions": (lambda q, k, v: attend(q, k, v), Q[None], K[None], V[None]),
    "not contiguous": (
        lambda *t: attend(*(x.transpose(1, 2) for x in t), is_causal=True), *numbers(3, 2, 6, 4, 8, salt=9)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_attention_is_near_float64_and_its_forms_agree(name):
    function, *operands = CASES[name]
    with activate("exact-18"):
        found = both(lambda: gradients(function, *operands))
    expected = gradients(function, *(t.double() for t in operands))
    assert all(a.shape == b.shape and distance(a, b) < 1e-4 for a, b in zip(found, expected, strict=True))


def composed(q, k, v, mask=None, p=0.0):
    """The same from the operations that it is made of."""
    scores = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(q.shape[-1]))
    scores = scores if mask is None else scores + mask
    return F.dropout(scores.softmax(-1), p, True) @ v


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_attention_has_the_bits_of_its_parts(p):
    bias = numbers(6, 5, salt=3)

    def seeded(function):
        def run(*operands):
            torch.manual_seed(11)
            return function(*operands)

        return run

    with activate("exact-14"):
        whole = gradients(seeded(lambda q, k, v, m: attend(q, k, v, m, p)), Q, K, V, bias)
        parts = gradients(seeded(lambda q, k, v, m: composed(q, k, v, m, p)), Q, K, V, bias)
    assert same(whole[:4], parts[:4])
    assert distance(whole[4], parts[4].double()) < 1e-6  # torch sums a broadcast's gradient in its own order of dims


def test_dropout_draws_once_a_call_and_drops_all_at_one():
    with activate("exact-14"):
        torch.manual_seed(1)
        first = attend(Q, K, V, dropout_p=0.5)
        after = torch.get_rng_state()
        second = attend(Q, K, V, dropout_p=0.5)
        assert not torch.equal(first, second)
        torch.manual_seed(1)
        dropout.draw_key()
        assert torch.equal(after, torch.get_rng_state())
        assert attend(Q, K, V, dropout_p=1.0).abs().max() == 0
        before = torch.get_rng_state()
        attend(Q, K, V)
        assert torch.equal(before, torch.get_rng_state())


def test_a_head_does_not_notice_the_others():
    with activate("exact-14"):
        whole = gradients(lambda q, k, v: attend(q, k, v, is_causal=True), Q, K, V)
        grouped = attend(Q, K[:, :2], V[:, :2], enable_gqa=True)
        for i in range(2):
            for j in range(4):
                part = (slice(i, i + 1), slice(j, j + 1))
                assert torch.equal(whole[0][part], attend(Q[part], K[part], V[part], is_causal=True))
                theirs = (slice(i, i + 1), slice(j // 2, j // 2 + 1))
                assert torch.equal(grouped[part], attend(Q[part], K[theirs], V[theirs]))


def test_what_a_query_may_not_see_it_does_not_notice():
    k = K.clone()
    k[:, :, 3:] = 7.0
    with activate("exact-14"):
        full, other = (attend(Q, x, V, is_causal=True) for x in (K, k))
        assert torch.equal(full[:, :, :3], other[:, :, :3])
        assert not torch.equal(full[:, :, 3:], other[:, :, 3:])
        k[:, :, 3:] = NAN
        assert torch.equal(full[:, :, :3], attend(Q, k, V, is_causal=True)[:, :, :3])
        both(lambda: [attend(Q, k, V, is_causal=True)])
        hidden = torch.arange(5) < 3
        assert torch.equal(attend(Q, K, V, hidden), attend(Q, torch.where(hidden[:, None], K, 9.0), V, hidden))


def test_a_query_without_keys_gets_zeros_and_gives_no_gradient():
    with activate("exact-14"):
        out, dq, *_ = gradients(lambda q, k, v: attend(q, k, v, ALLOWED), Q, K, V)
        bias = torch.zeros(6, 5).masked_fill(~ALLOWED, -INF)
        assert same([out, dq], gradients(lambda q, k, v: attend(q, k, v, bias), Q, K, V)[:2])
    for t in (out, dq):
        assert (t[:, :, 2] == 0).all()
        assert (t[:, :, :2] != 0).any()


@pytest.mark.parametrize("causal", [False, True])
def test_special_scores_agree_in_both_forms(causal):
    rows = torch.tensor(
        [
            [NAN, 1, 2, 3],
            [INF, 1, 2, 3],
            [-INF] * 4,
            [-INF, NAN, 0, 0],
            [INF, -INF, 0, 0],
            [1, 2, 3, NAN],
            [3e38, -3e38, 0, 1],
        ]
    )
    negative = torch.where(rows.isnan(), torch.tensor(-0x400000, dtype=torch.int32).view(torch.float32), rows)
    scores = definitions._Scores(torch.Size((1, 7, 4)), causal, 1.0)
    for x in (rows, negative):
        (weights,) = both(lambda x=x: [scores.weights(x.clone()[None], None)])
        both(lambda w=weights: [scores.backward(numbers(1, 7, 4), w.clone(), None, 0.0, 0.5)])
    if causal:
        assert weights[0, 0].isnan().tolist() == [True, False, False, False]
    else:
        assert weights[0].isnan().any(1).tolist() == [True, True, False, True, True, True, False]


def test_a_shape_that_stands_for_a_mask_is_made_into_one():
    shape = causal_lower_right(6, 5)
    with activate("exact-14"):
        lower = torch.ones(6, 5, dtype=torch.bool).tril(-1)
        assert torch.equal(attend(Q, K, V, shape), attend(Q, K, V, lower))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_converted_once_each_way(dtype):
    halves = [t.to(dtype) for t in (Q, K, V)]
    with activate("exact-14"):
        found = gradients(lambda q, k, v: attend(q, k, v, is_causal=True), *halves)
        assert [t.dtype for t in found] == [dtype] * 4
        assert torch.equal(found[0], attend(*(t.float() for t in halves), is_causal=True).to(dtype))
        assert attend(*halves, numbers(6, 5).to(dtype)).dtype == dtype


def test_autocast_casts_operands_and_bias():
    bias = numbers(6, 5, salt=3)
    with activate("exact-14"):
        with torch.autocast("cpu", torch.bfloat16):
            found = gradients(lambda q, k, v, m: attend(q, k, v, m), Q, K, V, bias)
        assert found[0].dtype == torch.bfloat16
        assert [t.dtype for t in found[1:]] == [torch.float32] * 4
        assert torch.equal(found[0], attend(*(t.bfloat16() for t in (Q, K, V, bias))))


def test_a_gradient_may_be_taken_when_the_profile_is_no_longer_active():
    leaves = [t.clone().requires_grad_() for t in (Q, K, V)]
    with activate("exact-14"):
        inside = torch.autograd.grad(attend(*leaves), leaves, torch.ones(2, 4, 6, 7))
        out = attend(*leaves)
    assert same(inside, torch.autograd.grad(out, leaves, torch.ones(2, 4, 6, 7)))


def test_mistakes_are_reported():
    with activate("exact-14"):
        with pytest.raises(RuntimeError, match="is_causal"):
            attend(Q, K, V, ALLOWED, is_causal=True)
        with pytest.raises(RuntimeError, match="shapes"):
            attend(Q, V, V)
        with pytest.raises(RuntimeError, match="one dtype"):
            attend(Q, K.bfloat16(), V)
        with pytest.raises(RuntimeError, match="mask"):
            attend(Q, K, V, torch.ones(6, 5, dtype=torch.int64))
        with pytest.raises(RuntimeError, match="heads"):
            attend(Q, K[:, :3], V[:, :3], enable_gqa=True)


X, Y = numbers(5, 3, 8), numbers(7, 3, 8, salt=1)
PADDING = numbers(3, 7, salt=2) > 0.5
PADDING[:, 0] = False
LATER = torch.ones(5, 5, dtype=torch.bool).triu(1)
MODULES = {
    "self": (lambda: nn.MultiheadAttention(8, 2), (X, X, X), {}),
    "cross, padding": (lambda: nn.MultiheadAttention(8, 2), (X, Y, Y), {"key_padding_mask": PADDING}),
    "causal": (lambda: nn.MultiheadAttention(8, 2), (X, X, X), {"attn_mask": LATER, "is_causal": True}),
    "causal, padding": (
        lambda: nn.MultiheadAttention(8, 2), (X, X, X),
        {"attn_mask": LATER, "is_causal": True, "key_padding_mask": PADDING[:, :5]}),
    "bias by head": (
        lambda: nn.MultiheadAttention(8, 2), (X, Y, Y),
        {"attn_mask": numbers(6, 5, 7, salt=3), "average_attn_weights": False}),
    "more keys": (
        lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True, batch_first=True), (X, X, X),
        {"attn_mask": torch.zeros(3, 3), "key_padding_mask": torch.zeros(5, 3, dtype=torch.bool)}),
    "other widths": (
        lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=4, bias=False),
        (X, numbers(7, 3, 6, salt=4), numbers(7, 3, 4, salt=5)), {}),
    "no batch": (lambda: nn.MultiheadAttention(8, 2), (X[:, 0], X[:, 0], X[:, 0]), {}),
}  # fmt: skip


def attended(module: nn.Module, operands, options, need_weights: bool) -> list[torch.Tensor | None]:
    dtype = next(module.parameters()).dtype
    to = lambda t: t.to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t  # noqa: E731
    same_operand = {id(t): to(t) for t in operands}
    inputs = [same_operand[id(t)] for t in operands]
    torch.manual_seed(7)
    out, weights = module(*inputs, need_weights=need_weights, **{n: to(v) for n, v in options.items()})
    loss = (out * torch.sin(torch.arange(out.numel(), dtype=torch.float64)).to(dtype).view(out.shape)).sum()
    if weights is not None:
        loss = (
            loss
            + (
                weights * torch.cos(torch.arange(weights.numel(), dtype=torch.float64)).to(dtype).view(weights.shape)
            ).sum()
        )
    given = [out.detach(), *([] if weights is None else [weights.detach()])]
    return given + list(torch.autograd.grad(loss, list(module.parameters()), allow_unused=True))


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_the_module_is_near_float64_and_its_forms_agree(name, need_weights):
    make, operands, options = MODULES[name]
    torch.manual_seed(0)
    module = make()
    with activate("exact-18"):
        found = both(lambda: attended(module, operands, options, need_weights))
        outputs = [attended(module, operands, options, w)[0] for w in (False, True)]
        evaluated = module.eval()(*operands, need_weights=need_weights, **options)[0]
    assert torch.equal(*outputs)  # asking for weights changes nothing
    assert torch.equal(evaluated, found[0])
    expected = attended(copy.deepcopy(module).double(), operands, options, need_weights)
    assert all(a is b is None or distance(a, b) < 1e-4 for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("need_weights", [False, True])
def test_the_module_drops_weights_in_training_only(need_weights):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, dropout=0.5)
    with activate("exact-14"):
        first, second = (attended(module, (X, X, X), {}, need_weights) for _ in range(2))
        assert same(first, second)
        with tensors_only():
            assert same(first, attended(module, (X, X, X), {}, need_weights))
        trained = module(X, X, X, need_weights=need_weights)[0]
        plain = module.eval()(X, X, X, need_weights=need_weights)[0]
    assert not torch.equal(trained, first[0])
    assert not torch.equal(plain, first[0])


def test_transformer_layers_run_alike_in_training_and_evaluation():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)
    padding = torch.zeros(5, 3, dtype=torch.bool)
    padding[1, 2] = True
    with activate("exact-18"):
        trained = model(X, src_key_padding_mask=padding)
        with torch.no_grad():
            evaluated = model.eval()(X, src_key_padding_mask=padding)
    assert torch.equal(trained, evaluated)
    expected = model.double().train()(X.double(), src_key_padding_mask=padding)
    assert distance(trained, expected) < 1e-4


def test_threads_do_not_matter():
    q, k, v = numbers(3, 4, 4, 160, 16)
    threads = torch.get_num_threads()
    with activate("exact-14"):
        try:
            torch.set_num_threads(1)
            one = gradients(lambda *t: attend(*t, is_causal=True), q, k, v)
            torch.set_num_threads(3)
            assert same(one, gradients(lambda *t: attend(*t, is_causal=True), q, k, v))
        finally:
            torch.set_num_threads(threads)
