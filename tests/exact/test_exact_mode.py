"""The modes: nothing passes unclassified, an operation in every spelling is one definition, refusals say what to do."""

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import nn
from torch.utils.checkpoint import checkpoint

from protocol.errors import UsageError
from witness.arithmetic import mode, registry, table, variants
from witness.arithmetic.mode import activate, kind_of

KINDS = {"moves", "rounds", "replaced", "integers", "composite", "refused"}


def overloads():
    """Every aten overload that can reach a dispatch mode: all but those that torch takes apart before."""
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::"):
            continue
        full = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        try:
            if not torch._C._dispatch_has_kernel(full):
                continue
            op = getattr(getattr(torch.ops.aten, schema.name[6:]), schema.overload_name or "default")
        except (RuntimeError, AttributeError):
            continue
        yield op


def test_every_operator_of_torchs_registry_has_a_class():
    counts = dict.fromkeys(KINDS, 0)
    for op in overloads():
        counts[kind_of(op)] += 1
    assert sum(counts.values()) > 2000
    assert all(counts.values()), counts


def test_what_is_listed_nowhere_is_refused_and_not_run():
    listed = table.MOVES | table.ROUNDS | table.INTEGER | {n.partition(".")[0] for n in registry.OPERATORS}
    refused = 0
    for op in overloads():
        name = op._schema.name.partition("::")[2]
        if table.base(name) in listed or name in listed or name.startswith("_foreach_"):
            continue
        whole = variants.functional(op) or op
        if torch._C._dispatch_has_kernel_for_dispatch_key(whole.name(), "CompositeImplicitAutograd"):
            continue
        refused += 1
        with pytest.raises(UsageError) as error:
            mode._plan(op)()
        assert error.value.code == "exact-refused"
        assert name in str(error.value)
    assert refused > 300


def test_every_listed_name_is_an_operator():
    """A name in the table that torch does not have would be a misspelt permission."""
    known = {schema.name[6:] for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")}
    known |= {table.base(name) for name in known}
    for name in (*table.MOVES, *table.ROUNDS, *table.INTEGER):
        assert name in known, name
    later = {"_fused_rms_norm", "_fused_rms_norm_backward", "linalg__powsum"}  # not in every supported release
    for name in registry.OPERATORS:
        assert name.partition(".")[0] in known | later, name


def test_no_name_has_two_classes():
    assert not table.MOVES & table.ROUNDS
    assert not table.MOVES & table.INTEGER
    assert not table.ROUNDS & table.INTEGER
    replaced = {n for n in registry.OPERATORS if "." not in n}
    assert not replaced & table.MOVES, replaced & table.MOVES
    assert not replaced & table.ROUNDS, replaced & table.ROUNDS


def fused_adamw(x):
    optimizer = torch.optim.AdamW([x.requires_grad_()], fused=True)
    x.grad = torch.ones_like(x)
    optimizer.step()


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (torch.fft.fft, "product"),
        (torch.linalg.inv, "Newton-Schulz"),
        (torch.special.i0, "outside"),
        (lambda x: x.to_sparse(), "dense"),
        (fused_adamw, "fused=False"),
        (lambda x: F.interpolate(x[None, None], scale_factor=2.0, mode="bicubic"), "nearest"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_operator_and_what_to_use(call, advice):
    with pytest.raises(UsageError, match=advice) as error, activate("exact-14"):
        call(torch.eye(4))
    assert error.value.evidence["operator"].startswith("aten.")


def test_operators_of_other_libraries_are_refused():
    library = torch.library.Library("witness_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    with pytest.raises(UsageError, match="witness_test"), activate("exact-14"):
        torch.ops.witness_test.twice(torch.ones(2))


def test_unknown_names_of_arithmetic_are_refused():
    for name in ("exact", "exact-15", "native", "exact-14\n"):
        with pytest.raises(UsageError), activate(name):
            pass


def test_leaving_the_scope_restores_everything():
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    with activate("exact-14"):
        assert not torch.are_deterministic_algorithms_enabled()
    assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
    with pytest.raises(KeyError), activate("exact-18"):
        assert registry.product_bits() == 18
        raise KeyError
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert torch.fft.fft(torch.ones(4)) is not None
    with pytest.raises(IndexError):
        registry.product_bits()


X = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
Y = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "spell",
    [
        lambda: torch.add(X, Y, alpha=0.3),
        lambda: X.clone().add_(Y, alpha=0.3),
        lambda: torch.add(X, Y, alpha=0.3, out=torch.empty(0)),
        lambda: torch._foreach_add([X, Y], [Y, Y], alpha=0.3)[0],
        lambda: _in_place(torch._foreach_add_, [X.clone()], [Y], alpha=0.3),
        lambda: X + Y * 0.3,
        lambda: torch.add(X.t(), Y.t(), alpha=0.3).t(),
        lambda: torch.stack([torch.add(x, y, alpha=0.3) for x, y in zip(X, Y, strict=True)]),
    ],
)
def test_all_spellings_of_an_addition_are_one(spell):
    with activate("exact-14"):
        found = spell()
    assert torch.equal(found, X + Y * 0.3)


def _in_place(function, lists, *args, **kwargs):
    function(lists, *args, **kwargs)
    return lists[0]


def test_list_operators_are_the_sum_of_their_elements():
    with activate("exact-14"):
        for plural, single in (
            (torch._foreach_norm([X, Y]), [X.norm(), Y.norm()]),
            (torch._foreach_mul([X, Y], 0.7), [X * 0.7, Y * 0.7]),
            (torch._foreach_mul([X, Y], [0.7, 0.3]), [X * 0.7, Y * 0.3]),
            (torch._foreach_mul([X, Y], torch.tensor(0.7)), [X * 0.7, Y * 0.7]),
            (torch._foreach_addcdiv([X], [Y], [X], value=-0.1), [X.addcdiv(Y, X, value=-0.1)]),
            (torch._foreach_addcmul([X], [Y], [X], [0.1]), [X.addcmul(Y, X, value=0.1)]),
            (torch._foreach_lerp([X, Y], [Y, X], 0.2), [X.lerp(Y, 0.2), Y.lerp(X, 0.2)]),
            (torch._foreach_sqrt([X.abs()]), [X.abs().sqrt()]),
            (torch._foreach_maximum([X], [Y]), [torch.maximum(X, Y)]),
            (torch._foreach_max([X, Y]), [X.max(), Y.max()]),
        ):  # fmt: skip
            for a, b in zip(plural, single, strict=True):
                assert torch.equal(a, b)


def test_ties_of_zeros_and_nan_are_decided_the_same_for_every_shape():
    plus, minus, nan = torch.zeros(40), -torch.zeros(40), torch.full((40,), math.nan)
    with activate("exact-14"):
        assert not torch.maximum(plus, minus).signbit().any()
        assert torch.maximum(minus, plus).signbit().all()
        assert torch.maximum(nan, plus).isnan().all()
        assert torch.minimum(plus, nan).isnan().all()
        assert not torch.stack([minus, plus]).amax(0).signbit().any()
        assert not torch.stack([plus, minus]).amax(0).signbit().any()
        assert nan.clamp(0, 1).isnan().all()
        assert minus.clamp(min=0.0).signbit().all()
        values, indices = torch.tensor([1.0, 3.0, 3.0, 2.0, 3.0]).topk(2)
        assert (values.tolist(), indices.tolist()) == ([3.0, 3.0], [1, 2])
        assert torch.tensor([1.0, 3.0, 3.0]).max(0).indices.item() == 1
        assert torch.tensor([3.0, 1.0, 1.0, 0.0, 2.0]).median(0).values.item() == 1.0


def test_conversions_from_floats_to_integers_saturate():
    x = torch.tensor([math.nan, math.inf, -math.inf, 1e30, -1e30, 2.9, -2.9])
    with activate("exact-14"):
        assert x.int().tolist() == [0, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 2, -2]
        assert x.to(torch.uint8).tolist()[:4] == [0, 255, 0, 255]
        assert x.long().tolist()[0] == 0
        target = torch.zeros(7, dtype=torch.int16)
        assert target.copy_(x).tolist() == [0, 32767, -32768, 32767, -32768, 2, -2]


def test_integers_are_left_to_torch():
    with activate("exact-14"):
        i = torch.arange(12).reshape(3, 4)
        assert (i @ i.t()).tolist() == [[14, 38, 62], [38, 126, 214], [62, 214, 366]]
        assert i.sum().item() == 66
        assert i.cumsum(1)[2].tolist() == [8, 17, 27, 38]
        assert (i // 5).sum().item() == 9
        assert i.float().mean().item() == 5.5
        assert torch.equal(i**2.5, i.float() ** 2.5)
        assert torch.equal(i + 0.5, i.float() + 0.5)
        assert i.clamp(max=4).max().item() == 4


def test_half_precision_results_keep_their_type():
    a, b = X.bfloat16(), Y.bfloat16()
    with activate("exact-14"):
        assert (a @ b.t()).dtype == torch.bfloat16
        assert a.sum().dtype == torch.bfloat16
        assert a.sum(dtype=torch.float32).dtype == torch.float32
        assert torch.addcmul(a, b, b, value=0.1).dtype == torch.bfloat16
        assert torch.equal(torch.lerp(a, b, 0.1), (a.float() + (b.float() - a.float()) * 0.1).bfloat16())
        assert (a.float() @ b.t().float()).dtype == torch.float32


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_segments_run_forward_again_under_the_functions(reentrant):
    """Checkpointing runs the forward pass inside the backward pass: the function mode must still be there."""
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(7, 7), nn.Dropout(0.5), nn.Linear(7, 7))
    gradients = []
    for through in (False, True):
        layer.zero_grad()
        with activate("exact-14"):
            torch.manual_seed(5)
            x = X.clone().requires_grad_()
            out = checkpoint(layer, x, use_reentrant=reentrant) if through else layer(x)
            out.square().sum().backward()
        gradients.append([p.grad.clone() for p in layer.parameters()])
    for a, b in zip(*gradients, strict=True):
        assert torch.equal(a, b)


def test_variances_have_every_spelling():
    with activate("exact-14"):
        for found, expected in (
            (X.var(), torch.var(X.double())),
            (X.var(0), torch.var(X.double(), 0)),
            (X.var(1, unbiased=False), torch.var(X.double(), 1, correction=0)),
            (X.var(dim=(0, 1), correction=2, keepdim=True), torch.var(X.double(), (0, 1), correction=2, keepdim=True)),
            (X.std(False), torch.std(X.double(), False)),
            (torch.var_mean(X, 1)[1], X.double().mean(1)),
        ):
            assert found.shape == expected.shape
            assert torch.allclose(found.double(), expected, rtol=1e-5)


def test_ranges_of_floats_are_near_torchs():
    for make in (
        lambda: torch.arange(0, 1, 0.1),
        lambda: torch.arange(5.0),
        lambda: torch.linspace(-1, 1, 33),
        lambda: torch.linspace(0, 1, 1),
    ):
        with activate("exact-14"):
            exact = make()
        assert torch.allclose(exact, make(), atol=1e-6)
        assert exact.shape == make().shape


def test_a_nan_gets_one_pattern_before_it_is_committed_to():
    x = torch.tensor([1.0, 0.0, -math.nan, math.inf, -math.inf, -0.0])
    x.view(torch.int32)[1] = 0x7F812345  # a signalling NaN with a payload
    kept = x.clone()
    half = x.bfloat16()
    small = x.to(torch.float8_e5m2)
    small.view(torch.uint8)[1] = 0xFD
    with activate("exact-14") as exact:
        exact.settle([x, half, small, torch.arange(3)])
    assert small.view(torch.uint8).tolist()[:3] == [0x3C, 0x7E, 0x7E]
    assert x.view(torch.int32).tolist()[1:3] == [0x7FC00000, 0x7FC00000]
    assert half.view(torch.int16).tolist()[1:3] == [0x7FC0, 0x7FC0]
    assert torch.equal(x.view(torch.int32)[[0, 3, 4, 5]], kept.view(torch.int32)[[0, 3, 4, 5]])


def test_composites_are_taken_apart_where_autograd_is_left_out():
    layer = nn.Linear(7, 3)
    with activate("exact-14"):
        expected = layer(X).to(torch.bfloat16)
        with torch.inference_mode():
            found = layer(X).to(torch.bfloat16)
            assert torch.equal(torch.einsum("ij,kj->ik", X, Y), X @ Y.t())
    assert torch.equal(found, expected)
