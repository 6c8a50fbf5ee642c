"""Optimisers: updates in place, out of place and compiled are one definition; torch's optimisers come near native."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import UsageError
from witness.arithmetic import compiled
from witness.arithmetic.mode import activate

FLOATS = st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, -0.0, 1e-45, float("inf")])
NUMBERS = st.floats(-4, 4, allow_nan=False) | st.integers(-3, 3)


def bits(x):
    return torch.where(x.isnan(), torch.zeros_like(x), x).view(torch.int32).tolist(), x.isnan().tolist()


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(FLOATS, FLOATS, FLOATS), min_size=1, max_size=20), NUMBERS)
def test_in_place_updates_have_the_bits_of_their_formulas(rows, a):
    x, y, z = torch.tensor(rows, dtype=torch.float32).t().contiguous()
    with activate("exact-14"):
        for name, args, kwargs in (
            ("add", (y,), {"alpha": a}),
            ("sub", (y,), {"alpha": a}),
            ("lerp", (y, float(a)), {}),
            ("addcmul", (y, z), {"value": a}),
            ("addcdiv", (y, z), {"value": a}),
        ):
            expected = getattr(x, name)(*args, **kwargs)
            strided = torch.stack([x, x], 1)[:, 0]
            assert bits(getattr(x.clone(), f"{name}_")(*args, **kwargs)) == bits(expected), name
            assert bits(getattr(strided, f"{name}_")(*args, **kwargs)) == bits(expected), name
            compiled.switch(False)
            try:
                assert bits(getattr(x.clone(), f"{name}_")(*args, **kwargs)) == bits(expected), name
            finally:
                compiled.switch(True)
            half = x.bfloat16()
            wide = getattr(half.float(), name)(
                *(v.bfloat16().float() if isinstance(v, torch.Tensor) else v for v in args), **kwargs
            )
            found = getattr(half, f"{name}_")(
                *(v.bfloat16() if isinstance(v, torch.Tensor) else v for v in args), **kwargs
            )
            assert bits(found.float()) == bits(wide.bfloat16().float()), name


KINDS = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.AdamW, {}),
    (torch.optim.Adagrad, {}),
    (torch.optim.RMSprop, {"centered": True, "momentum": 0.3}),
    (torch.optim.Adadelta, {}),
    (torch.optim.Adamax, {}),
    (torch.optim.NAdam, {}),
    (torch.optim.RAdam, {}),
    (torch.optim.ASGD, {}),
    (torch.optim.Rprop, {}),
]


@pytest.mark.parametrize(("kind", "options"), KINDS, ids=lambda v: getattr(v, "__name__", ""))
def test_loop_and_lists_agree_and_are_near_native(kind, options):
    def run(foreach, scope):
        g = torch.Generator().manual_seed(1)
        params = [torch.randn(5, 3, generator=g).requires_grad_(), torch.randn(7, generator=g).requires_grad_()]
        optimizer = kind(params, foreach=foreach, **options)
        for _ in range(7):
            for p in params:
                p.grad = torch.randn(p.shape, generator=g)
            with scope():
                optimizer.step()
        return torch.cat([p.detach().reshape(-1) for p in params])

    exact = lambda: activate("exact-14")  # noqa: E731
    loop, lists, native = run(False, exact), run(True, exact), run(False, torch.no_grad)
    if kind is torch.optim.ASGD:  # torch writes its two forms with different formulas
        assert torch.allclose(loop, lists, atol=1e-5)
    else:
        assert torch.equal(loop, lists)
    assert torch.allclose(loop, native, atol=1e-5)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_fused_optimisers_are_refused_with_advice(kind):
    p = torch.randn(3).requires_grad_()
    p.grad = torch.ones(3)
    optimizer = kind([p], fused=True)
    with pytest.raises(UsageError, match="fused=False"), activate("exact-14"):
        optimizer.step()
