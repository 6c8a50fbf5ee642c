"""Every operator that torch has samples for, under the exact profile: refused, or right and the same everywhere.

    python benchmarks/exact_sweep.py --json here.json              # run all; report what is far from native float64
    python benchmarks/exact_sweep.py --matrix                      # and in a process for each setting; compare bits

An operator is taken from torch's own list for testing (`common_methods_invocations.op_db`; `expecttest` must be
installed) with its sample inputs. For each the value, the gradients and the gradients of those are computed under the
profile: in the layout that the sample has, with every tensor strided or moved in memory, and into `out=` or in place
where torch has that spelling. All must agree in bits, and be near what stock torch gives in float64: what is printed
is for a reader to judge, since products keep 14 bits and some samples cancel all of them.
"""

import argparse
import collections
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

try:
    from torch.testing._internal.common_methods_invocations import op_db
except ImportError as missing:
    sys.exit(print(f"torch's list of operators cannot be read: {missing}"))
from torch.utils._pytree import tree_flatten, tree_map

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from protocol.errors import UsageError
from witness.arithmetic.matrix.scaling import canonical_nan
from witness.arithmetic.mode import activate

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
TOLERANCE = {"float32": 2e-4, "float64": 2e-4, "bfloat16": 3e-2, "float16": 5e-3}
SETTINGS = {
    "3 threads": {"OMP_NUM_THREADS": "3"},
    "default vectors": {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default"},
    "avx2": {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "old libraries": {"OMP_NUM_THREADS": "1", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "no kernels": {"OMP_NUM_THREADS": "1", "WITNESS_KERNELS": "off"},
}
LIBRARIES = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "WITNESS_KERNELS")

Tensors = list[torch.Tensor]


def digest(tensors: Tensors) -> str:
    """Of values, shapes and dtypes; NaN in its canonical pattern."""
    h = hashlib.sha256()
    for t in tensors:
        t = (t if t.layout == torch.strided else t.to_dense()).detach().resolve_conj().resolve_neg()
        t = torch.view_as_real(t) if t.is_complex() else t
        flat = canonical_nan(t).flatten().clone(memory_format=torch.contiguous_format)
        h.update(f"{t.dtype}{list(t.shape)}".encode() + flat.view(torch.uint8).numpy().tobytes())
    return h.hexdigest()[:16]


def tensors_of(value: Any) -> Tensors:
    return [t for t in tree_flatten(value)[0] if isinstance(t, torch.Tensor)]


def dense(value: Any) -> bool:
    return all(t.layout == torch.strided and not t.is_nested for t in tensors_of(value))


def fresh(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same structure, every tensor detached and changed; leaves require gradients where those did."""

    def one(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        return change(t.detach()).requires_grad_(t.requires_grad)

    return tree_map(one, value)


def to_double(t: torch.Tensor) -> torch.Tensor:
    return t.double() if t.is_floating_point() else t.clone()


def strided(t: torch.Tensor) -> torch.Tensor:
    """Every second element of memory that begins one element in, reversed where torch allows: same values."""
    if t.layout != torch.strided or t.numel() == 0 or t.dtype == torch.bool:
        return t.clone()
    base = torch.zeros((*t.shape, 2), dtype=t.dtype)
    view = base.flatten()[1::2].view(t.shape) if t.dim() == 0 else base[..., 1]
    view.copy_(t)
    return view


def shifted(t: torch.Tensor) -> torch.Tensor:
    """Contiguous, but one element into its memory."""
    if t.layout != torch.strided or t.numel() == 0:
        return t.clone()
    return torch.zeros(t.numel() + 1, dtype=t.dtype)[1:].view(t.shape).copy_(t)


def as_given(t: torch.Tensor) -> torch.Tensor:
    return t.clone()


def coarse(value: Any) -> Any:
    """Fewer digits: torch makes sample inputs with stock arithmetic, whose last bit follows the machine."""

    def one(t: Any) -> Any:
        if isinstance(t, float):
            return float(f"{t:.4g}")
        if not isinstance(t, torch.Tensor) or t.dtype not in (torch.float32, torch.float64):
            return t
        kind, low = (torch.int32, 12) if t.dtype == torch.float32 else (torch.int64, 41)
        bits = t.detach().clone().view(kind)
        finite = t.isfinite() & (t != 0)
        rounded = ((bits + (1 << (low - 1))) >> low << low).view(t.dtype)
        t.data.copy_(torch.where(finite, rounded, t.detach()))
        return t

    return tree_map(one, value)


def made_up(value: torch.Tensor, salt: int) -> torch.Tensor:
    """A gradient of a value that is the same on every machine."""
    i = torch.arange(1, value.numel() + 1) * 2654435761 + salt
    x = ((i >> 7) % 129 - 64).double() / 64 + 1 / 256
    return x.reshape(value.shape).to(value.dtype)


def run(op: Any, sample: Any, change: Callable[[torch.Tensor], torch.Tensor], orders: int) -> list[Tensors]:
    """Values, gradients and second gradients: up to `orders` lists."""
    torch.manual_seed(3)
    args = fresh((sample[0], sample[1], sample[2]), change)
    leaves = [t for t in tensors_of(args) if t.requires_grad]
    out = tensors_of(op(args[0], *args[1], **args[2]))
    found = [[t.detach().clone() for t in out]]
    for order in range(1, orders):
        out = [t for t in out if t.is_floating_point() and t.grad_fn is not None]
        if not out or not leaves:
            break
        up = [made_up(t, order) for t in out]
        out = list(torch.autograd.grad(out, leaves, up, create_graph=order + 1 < orders, allow_unused=True))
        out = [torch.zeros_like(x) if t is None else t for t, x in zip(out, leaves, strict=True)]
        found.append([t.detach().clone() for t in out])
    return found


def distance(found: Tensors, expected: Tensors) -> float:
    """The largest difference, as a part of the largest expected magnitude; infinite where NaN or shapes differ."""
    if len(found) != len(expected):
        return math.inf
    worst = 0.0
    for a, b in zip(found, expected, strict=True):
        if a.shape != b.shape:
            return math.inf
        if not a.numel() or a.is_complex() or b.is_complex():
            continue
        a, b = a.double(), b.double()
        if bool((a.isnan() != b.isnan()).any()):
            return math.inf
        usable = ~a.isnan()
        a, b = a[usable], b[usable]
        differs = (a != b) & (a.isinf() | b.isinf())
        if bool(differs.any()):
            worst = max(worst, 1e9 if bool(((a.abs() < 1e30) | (b.abs() < 1e30))[differs].any()) else 0.0)
        usable = ~(a.isinf() | b.isinf())
        a, b = a[usable], b[usable]
        if a.numel():
            worst = max(worst, ((a - b).abs().max() / (b.abs().max() + 1e-3)).item())
    return worst


def attempt(compute: Callable[[], Any]) -> Any:
    """The value, or a string that says why there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compute()
    except UsageError as e:
        return f"refused: {e}"
    except Exception as e:  # noqa: BLE001
        return f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"[:200]


def seeded(op: Any) -> bool:
    """Whether torch's list has it start the generator itself: a random operator."""
    names = getattr(getattr(op.op, "__code__", None), "co_names", ())
    return "wrapper_set_seed" in names or op.name in ("bernoulli", "multinomial", "uniform", "exponential", "cauchy")


def spellings(op: Any, sample: Any) -> dict[str, Callable[[], list[Tensors]]]:
    """Other ways to the value: in place, and into a tensor that is given."""
    ways: dict[str, Callable[[], list[Tensors]]] = {}
    if op.inplace_variant is not None:

        def in_place() -> list[Tensors]:
            with torch.no_grad():
                return run(lambda x, *a, **k: op.inplace_variant(x, *a, **k), sample, as_given, 1)

        ways["in place"] = in_place
    if op.supports_out:

        def into() -> list[Tensors]:
            with torch.no_grad():
                value = run(op, sample, as_given, 1)[0]
                outs = tuple(torch.empty_like(t) for t in value)
                target = outs[0] if len(outs) == 1 else outs
                run(lambda x, *a, **k: op(x, *a, out=target, **k), sample, as_given, 1)
                return [list(outs)]

        ways["out"] = into
    return ways


def examine(op: Any, sample: Any, orders: int) -> dict[str, Any]:
    """What became of one sample."""
    parts = coarse((sample.input, sample.args, sample.kwargs))
    row: dict[str, Any] = {"inputs": digest(tensors_of(parts))}

    def exactly(change: Callable[[torch.Tensor], torch.Tensor], orders: int = orders) -> Any:
        def compute() -> list[Tensors]:
            with activate("exact-14"):
                return run(op, parts, change, orders)

        return attempt(compute)

    found = None
    for order in range(orders, 0, -1):
        got = exactly(as_given, order)
        if not isinstance(got, str):
            found = got
            break
        if isinstance(attempt(lambda: run(op, parts, as_given, order)), str):
            continue  # nor does stock torch have it
        row["why"] = got
        row["lost"] = order  # this order of derivatives, or the value (1), is refused or fails
    if found is None:
        row["result"] = "native fails" if "why" not in row else row["why"].partition(":")[0]
        return row
    row["result"] = "runs"
    row["bits"] = [digest(tensors) for tensors in found]
    again = exactly(as_given, len(found))
    if isinstance(again, str) or [digest(t) for t in again] != row["bits"]:
        row["unstable"] = True
    for name, change in (("strided", strided), ("shifted", shifted)):
        other = exactly(change, len(found))
        if isinstance(other, str):
            row[name] = other
        else:
            wrong = [i for i, t in enumerate(other) if i < len(found) and digest(t) != row["bits"][i]]
            if wrong:
                row[name] = (
                    f"order {wrong} differs by {[distance(other[i], [t.double() for t in found[i]]) for i in wrong]}"
                )
    for name, way in ({} if seeded(op) else spellings(op, parts)).items():

        def compute(way: Any = way) -> list[Tensors]:
            with activate("exact-14"):
                return way()

        stock = attempt(way)
        if isinstance(stock, str):
            continue
        other = attempt(compute)
        if isinstance(other, str):
            row[name] = other
        elif digest([t.to(f.dtype) for t, f in zip(other[0], found[0], strict=False)]) != row["bits"][0]:
            row[name] = f"differs by {distance(other[0], [t.double() for t in found[0]])}"
    stock = attempt(lambda: run(op, parts, as_given, 1))
    if not isinstance(stock, str):
        if [t.dtype for t in stock[0]] != [t.dtype for t in found[0]]:
            row["dtype"] = f"{[str(t.dtype) for t in found[0]]} for {[str(t.dtype) for t in stock[0]]}"
        strides = [tuple(t.stride()) for t in stock[0]], [tuple(t.stride()) for t in found[0]]
        if strides[0] != strides[1] and all(t.numel() for t in stock[0]):
            row["strides"] = f"{strides[1]} for {strides[0]}"
    if seeded(op):  # other random numbers than torch's
        return row
    native = attempt(lambda: run(op, parts, to_double, len(found)))
    if isinstance(native, str):
        native = attempt(lambda: run(op, parts, as_given, len(found)))
    if isinstance(native, str):
        row["native"] = native
        return row
    row["far"] = [distance(a, b) for a, b in zip(found, native, strict=False)]
    stock = attempt(lambda: run(op, parts, as_given, len(found)))
    row["stock"] = (
        [math.inf] * len(found) if isinstance(stock, str) else [distance(*p) for p in zip(stock, native, strict=False)]
    )
    if len(native) != len(found):
        row["orders"] = f"{len(found)} for {len(native)}"
    return row


def sweep(dtypes: list[str], samples: int, orders: int, only: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows by `operator/dtype/sample`."""
    for op in op_db:
        if only and only not in op.name:
            continue
        for dtype in dtypes:
            kind = DTYPES[dtype]
            if kind not in op.supported_dtypes("cpu"):
                continue
            differentiable = op.supports_autograd and kind in op.supported_backward_dtypes("cpu")
            torch.manual_seed(1)

            def chosen() -> list[Any]:
                return list(islice(op.sample_inputs("cpu", kind, requires_grad=differentiable), 60))

            all_samples = attempt(chosen)
            if isinstance(all_samples, str):
                yield f"{op.name}.{op.variant_test_name}/{dtype}/0", {"result": "no samples", "why": all_samples}
                continue
            all_samples = [s for s in all_samples if dense((s.input, s.args, s.kwargs))]
            stride = max(1, len(all_samples) // samples)
            for i, sample in enumerate(all_samples[::stride][:samples]):
                yield (
                    f"{op.name}.{op.variant_test_name}/{dtype}/{i}",
                    examine(op, sample, orders if differentiable else 1),
                )


def report(rows: dict[str, dict[str, Any]]) -> None:
    """Prints what a reader should judge."""
    counts = collections.Counter(row["result"] for row in rows.values())
    names = collections.defaultdict(set)
    for key, row in rows.items():
        names[row["result"]].add(key.split("/")[0])
        dtype = key.split("/")[1]
        lines = [
            f"{k}: {row[k]}"
            for k in ("unstable", "strided", "shifted", "in place", "out", "dtype", "orders")
            if k in row
        ]
        if any(
            d > max(TOLERANCE[dtype], 4 * e) for d, e in zip(row.get("far", []), row.get("stock", []), strict=False)
        ):
            lines.append(f"far: {[f'{d:.2g}' for d in row['far']]}, stock torch {[f'{d:.2g}' for d in row['stock']]}")
        if row["result"] == "fails" or (
            row.get("lost") and row["result"] == "runs" and not row["why"].startswith("refused")
        ):
            lines.append(f"fails at order {row.get('lost')}: {row['why']}")
        for line in lines:
            print(f"{key:60} {line}")
    print(f"samples: {dict(counts)}; operators: { {k: len(v) for k, v in names.items()} }")


def elsewhere(setting: dict[str, str], arguments: list[str]) -> dict[str, dict[str, Any]]:
    """The rows of a process with these settings; samples are made from sets, so their order is fixed."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        environment = {k: v for k, v in os.environ.items() if k not in LIBRARIES} | {"PYTHONHASHSEED": "0"} | setting
        subprocess.run(
            [sys.executable, __file__, "--json", str(out), "--quiet", *arguments], env=environment, check=True
        )
        found: dict[str, dict[str, Any]] = json.loads(out.read_text())
    return found


def matrix(arguments: list[str], base: dict[str, dict[str, Any]]) -> int:
    """Runs every setting; the number of rows that differ."""
    wrong = 0
    for name, setting in SETTINGS.items():
        other = elsewhere(setting, arguments)
        compared = changed = 0
        for key, row in base.items():
            there = other.get(key, {})
            if row.get("inputs") != there.get("inputs"):
                changed += 1
            elif "bits" in row or "bits" in there:
                compared += 1
                if row.get("bits") != there.get("bits"):
                    wrong += 1
                    print(f"{key:60} differs with {name}: {there.get('why', '')}")
        print(f"{name}: {compared} compared, {changed} not (their inputs differ)")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="*", default=list(DTYPES), choices=list(DTYPES))
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--orders", type=int, default=3, help="1: values, 2: gradients, 3: gradients of gradients")
    parser.add_argument("--only", default="", help="a part of operators' names")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--matrix", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args()
    same = ["--dtypes", *options.dtypes, "--samples", str(options.samples), "--orders", str(options.orders)]
    same += ["--only", options.only]
    if options.matrix:
        rows = elsewhere({"OMP_NUM_THREADS": "1"}, same)
    else:
        rows = dict(sweep(options.dtypes, options.samples, options.orders, options.only))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=0))
    if not options.quiet:
        report(rows)
    sys.exit(options.matrix and matrix(same, rows) > 0)


if __name__ == "__main__":
    main()
