"""Random operations under the exact profile: one key from torch's generator, then a pure function of key and index.

Each random operation draws one 64-bit key: two words of the Mersenne Twister that is torch's CPU generator, the first
in the upper half, by `random_` over all of int64 (below 2^64 torch reduces words modulo the range, and whether it takes
one or two has depended on the release). Element `i` of the result, in row-major order of its shape, is then a function
of (key, i) alone: `generator.sampling`. So `manual_seed`, `get_rng_state`, `fork_rng` and a `generator=`
argument mean what they always do, while strides, threads and devices mean nothing: a CUDA tensor gets the numbers that
a CPU tensor would, from the CPU's generator.

An operation on an empty tensor draws its key too; one on the meta device does not, nor does dropout that drops nothing
or everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from protocol.errors import UsageError
from witness.arithmetic.generator import laws, sampling
from witness.arithmetic.generator.laws import Draw
from witness.arithmetic.registry import operator


def draw_key(generator: torch.Generator | None = None) -> int:
    """The next 64-bit key.

    Args:
        generator: of the CPU; torch's default one if None.

    Raises:
        UsageError: `exact-refused`, for a generator of another device: its stream exists on that device only.
    """
    chosen = torch.default_generator if generator is None else generator
    if chosen.device.type != "cpu":
        raise UsageError(
            "exact-refused",
            f"a generator of device {chosen.device} has no exact definition: pass torch.Generator() of the CPU, which "
            "the exact profile takes for tensors of any device",
        )
    with unwatched():
        word = torch.empty((), dtype=torch.int64).random_(-(1 << 63), None, generator=chosen)
        return int(word.item()) & ((1 << 64) - 1)


@contextmanager
def unwatched() -> Iterator[None]:
    """Runs torch's own operations as they are, whatever modes are on."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():  # noqa: SLF001
        yield


def _values(like: torch.Tensor, generator: torch.Generator | None, draw: Draw) -> torch.Tensor:
    """Values for all elements of `like`, in row-major order of its shape."""
    if like.device.type == "meta":
        return torch.empty(like.shape, dtype=like.dtype, device=like.device)
    return draw(draw_key(generator), like.numel(), like.dtype, like.device).reshape(like.shape).to(like.dtype)


def _made(like: torch.Tensor, generator: torch.Generator | None, draw: Draw) -> torch.Tensor:
    """A new tensor with the values, of the strides of `like`."""
    values = _values(like, generator, draw)
    return values if like.is_contiguous() else like.copy_(values)


def _factory(
    size: Any, default: torch.dtype, kwargs: dict[str, Any], generator: torch.Generator | None, draw: Draw
) -> torch.Tensor:
    """A new tensor as the keyword arguments of `torch.rand` and its kin describe it."""
    if kwargs.get("layout") not in (None, torch.strided) or kwargs.get("names") is not None:
        raise UsageError("exact-refused", "random tensors with a sparse layout or names have no exact definition")
    like = torch.empty(size, dtype=kwargs.get("dtype") or default, device=kwargs.get("device"))
    made = _made(like, generator, draw)
    return made.pin_memory() if kwargs.get("pin_memory") else made


def _filled(target: torch.Tensor, generator: torch.Generator | None, draw: Draw) -> torch.Tensor:
    """`target` with the values in it."""
    return target if target.device.type == "meta" else target.copy_(_values(target, generator, draw))


def _like(x: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
    """An empty tensor as a `*_like` function's arguments describe it."""
    if kwargs.get("layout") not in (None, torch.strided):
        raise UsageError("exact-refused", "random tensors with a sparse layout have no exact definition")
    return torch.empty_like(
        x,
        dtype=kwargs.get("dtype"),
        device=kwargs.get("device"),
        memory_format=kwargs.get("memory_format") or torch.preserve_format,
    )


def _enter(name: str, law: Callable[..., Draw], *defaults: Any) -> None:
    """Enters `name_`, which fills a tensor, and the functional form, which makes one like it."""

    def in_place(x: torch.Tensor, *args: Any, generator: torch.Generator | None = None) -> torch.Tensor:
        return _filled(x, generator, law(*args, *defaults[len(args) :]))

    def functional(x: torch.Tensor, *args: Any, generator: torch.Generator | None = None) -> torch.Tensor:
        return _made(torch.empty_like(x), generator, law(*args, *defaults[len(args) :]))

    operator(f"{name}_", halves=True, in_place=True)(in_place)
    operator(*(("normal.default", "normal_functional") if name == "normal" else (name,)), halves=True)(functional)


_enter("uniform", laws.uniform, 0.0, 1.0)
_enter("normal", laws.normal, 0.0, 1.0)
_enter("exponential", laws.exponential, 1.0)
_enter("log_normal", laws.log_normal, 1.0, 2.0)
_enter("geometric", laws.geometric)
_enter("cauchy", laws.cauchy, 0.0, 1.0)


@operator("rand", halves=True)
def rand(size: Any, *, generator: torch.Generator | None = None, **kwargs: Any) -> torch.Tensor:
    """Uniform in [0, 1)."""
    return _factory(size, torch.get_default_dtype(), kwargs, generator, laws.uniform(0.0, 1.0))


@operator("randn", halves=True)
def randn(size: Any, *, generator: torch.Generator | None = None, **kwargs: Any) -> torch.Tensor:
    """Standard normal."""
    return _factory(size, torch.get_default_dtype(), kwargs, generator, laws.normal(0.0, 1.0))


@operator("rand_like", halves=True)
def rand_like(x: torch.Tensor, *, generator: torch.Generator | None = None, **kwargs: Any) -> torch.Tensor:
    """Uniform in [0, 1)."""
    return _made(_like(x, kwargs), generator, laws.uniform(0.0, 1.0))


@operator("randn_like", halves=True)
def randn_like(x: torch.Tensor, *, generator: torch.Generator | None = None, **kwargs: Any) -> torch.Tensor:
    """Standard normal."""
    return _made(_like(x, kwargs), generator, laws.normal(0.0, 1.0))


@operator("randint", halves=True)
def randint(*args: Any, generator: torch.Generator | None = None, **kwargs: Any) -> torch.Tensor:
    """Integers: `(high, size)` or `(low, high, size)`."""
    *bounds, size = args
    return _factory(size, torch.int64, kwargs, generator, laws.integers(*_ends(bounds)))


@operator("randint_like", halves=True)
def randint_like(x: torch.Tensor, *args: Any, generator: torch.Generator | None = None, **kwargs: Any) -> torch.Tensor:
    """Integers: `(x, high)` or `(x, low, high)`."""
    return _made(_like(x, kwargs), generator, laws.integers(*_ends(args)))


def _ends(bounds: Sequence[Any]) -> tuple[int, int]:
    """The lowest integer, and the one after the highest."""
    return (0, int(bounds[0])) if len(bounds) == 1 else (int(bounds[0]), int(bounds[1]))


@operator("random_", halves=True, in_place=True)
def random_(x: torch.Tensor, *args: Any, generator: torch.Generator | None = None) -> torch.Tensor:
    """Integers: `()` over all that the type holds from 0, `(high)`, or `(low, high)`, where high may be None."""
    return _filled(x, generator, laws.integers(*_range(x, args)))


@operator("random", halves=True)
def random(x: torch.Tensor, *args: Any, generator: torch.Generator | None = None) -> torch.Tensor:
    """As `random_`, in a new tensor."""
    return _made(torch.empty_like(x), generator, laws.integers(*_range(x, args)))


def _range(x: torch.Tensor, args: Sequence[Any]) -> tuple[int, int]:
    if args and args[-1] is not None:
        return _ends(args)
    return int(args[0]) if args else 0, laws.bounds(x.dtype)[1] + 1


@operator("randperm", halves=True)
def randperm(n: int, *, generator: torch.Generator | None = None, **kwargs: Any) -> torch.Tensor:
    """A permutation of 0 to n - 1."""
    draw: Draw = lambda key, count, _, device: sampling.permutation(key, count, device)  # noqa: E731
    return _factory([n], torch.int64, kwargs, generator, draw)


@operator("bernoulli", halves=True)
def bernoulli(
    x: torch.Tensor, p: float | torch.Tensor | None = None, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Ones with probability `p`, or with the probabilities that `x` holds."""
    return _made(torch.empty_like(x), generator, laws.coins(x if p is None else p, x.shape))


@operator("bernoulli_", halves=True, in_place=True)
def bernoulli_(
    x: torch.Tensor, p: float | torch.Tensor = 0.5, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Ones with probability `p`."""
    return _filled(x, generator, laws.coins(p, x.shape))


@operator("normal.float_float", halves=True)
def normal_of_size(
    mean: float, std: float, size: Any, *, generator: torch.Generator | None = None, **kwargs: Any
) -> torch.Tensor:
    """Normal numbers of one mean and standard deviation."""
    return _factory(size, torch.get_default_dtype(), kwargs, generator, laws.normal(mean, std))


@operator("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", halves=True)
def normal_each(
    mean: float | torch.Tensor, std: float | torch.Tensor = 1.0, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Normal numbers, each of its own mean or standard deviation: `z * std + mean` in float64, then rounded."""
    tensors = [t for t in (mean, std) if isinstance(t, torch.Tensor)]
    if bool((std < 0).any() if isinstance(std, torch.Tensor) else std < 0):
        raise RuntimeError("normal expects all elements of std >= 0.0")
    like = torch.empty_like(torch.broadcast_tensors(*tensors)[0], memory_format=torch.contiguous_format)  # type: ignore[no-untyped-call]

    def draw(key: int, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        z = sampling.standard(key, count, dtype, device).reshape(like.shape)
        m, s = (v.to(torch.float64) if isinstance(v, torch.Tensor) else v for v in (mean, std))
        return sampling.rounded(z * s + m, dtype)

    return _values(like, generator, draw)


@operator("multinomial", halves=True)
def multinomial(
    weights: torch.Tensor, count: int, replacement: bool = False, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Categories in proportion to weights: `sampling.choices` with replacement and for one draw, else `race`."""
    if weights.dim() not in (1, 2) or count <= 0:
        raise RuntimeError("multinomial expects one or two dimensions of weights and a positive number of samples")
    rows = weights.reshape(-1, weights.shape[-1]).to(torch.float64)
    if not replacement and count > rows.shape[1]:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    if not bool(((rows >= 0) & (rows < torch.inf)).all()):
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    if not bool((rows > 0).any(1).all()):
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    key = draw_key(generator)
    drawn = sampling.choices(key, rows, count) if replacement or count == 1 else sampling.race(key, rows, count)
    return drawn.reshape(*weights.shape[:-1], count)
