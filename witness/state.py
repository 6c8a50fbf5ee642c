"""The census of a training state: every tensor and scalar by name, and nothing left out silently.

The walk starts from the program and the components that `build` returned and goes through modules (parameters, buffers,
attributes), optimisers (state by parameter *name*, groups, defaults), and anything with `state_dict()`. What it meets
and cannot bind is refused by name: state outside the root is where a cheat hides (attack A11). Restoring assigns
tensors and values and never goes through `Optimizer.load_state_dict`, which casts moments to the parameter's dtype.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from protocol.encoding import encode
from protocol.errors import UsageError
from protocol.plain import settled, to_plain
from protocol.statetree import ITEM_BYTES, JSON, Entry
from witness.program import Program, State

Leaf = torch.Tensor | bytes
"""A tensor, or the canonical JSON of a scalar."""

MODULE_INTERNALS = frozenset(nn.Module().__dict__) - {"training"}


def unbound(path: str, value: Any, why: str = "") -> UsageError:
    """The error that names what the census cannot bind."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return UsageError(
        "unbound-state",
        f"{path} is a {kind}, which the state root cannot bind{': ' + why if why else ''}",
        evidence={"path": path, "type": kind},
        next_action="make it a registered buffer, plain data, or an object with state_dict() and load_state_dict()",
    )


def part(name: Any) -> str:
    """A path component: `/` and `%` escaped, so that a name with a slash cannot imitate a path."""
    return str(name).replace("%", "%25").replace("/", "%2F")


class Census:
    """One walk over a live state: leaves by name, and for each leaf how to assign it.

    Args:
        program: its own attributes belong to the state.
        state: live components.
    """

    def __init__(self, program: Program, state: State) -> None:
        self.leaves: dict[str, Leaf] = {}
        self.aliases: dict[str, list[str]] = {}
        self._storages: dict[tuple[Any, ...], str] = {}
        self._parameters = parameter_names(state)
        self._settles = state.settles
        attributes = {k: v for k, v in vars(program).items() if k != "_arguments"}
        try:
            if attributes:
                self.value("program", attributes)
            for name, component in state.items():
                self.value(part(name), component)
        except RecursionError:
            raise unbound("the state", state, "some part of it holds itself") from None

    # -- the walk ---------------------------------------------------------------------------------

    def value(self, path: str, value: Any) -> None:
        """Binds any value at `path`, or raises `UsageError` (`unbound-state`)."""
        if isinstance(value, torch.Tensor):
            self.tensor(path, value)
        elif isinstance(value, nn.Module):
            self.module(path, value)
        elif isinstance(value, torch.optim.Optimizer):
            self.optimizer(path, value)
        elif isinstance(value, torch.Generator):
            self.tensor(path, value.get_state())
        elif isinstance(value, weakref.ReferenceType):
            self.value(path, value())
        elif isinstance(value, np.ndarray):
            if value.dtype == object:
                raise unbound(path, value, "arrays of objects have no bytes")
            try:
                tensor = torch.from_numpy(value)
            except (TypeError, ValueError) as error:  # text, records, foreign byte order, negative strides
                raise unbound(path, value, str(error).partition(". ")[0]) from None
            self.tensor(path, tensor)
        elif not holds_state(value):
            self.scalar(path, value)
        elif isinstance(value, Mapping):
            self.mapping(path, value)
        elif isinstance(value, list | tuple):
            self.scalar(f"{path}/@sequence", [type(value).__name__, len(value)])
            for index, item in enumerate(value):
                self.value(f"{path}/{index}", item)
        elif callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            self.value(path, value.state_dict())
        elif is_dataclass(value) and not isinstance(value, type):
            self.mapping(path, {f.name: getattr(value, f.name) for f in fields(value)})
        elif isinstance(value, types.SimpleNamespace):
            self.mapping(path, vars(value))
        else:
            raise unbound(path, value)

    def tensor(self, path: str, tensor: torch.Tensor) -> None:
        """Binds one tensor, or an alias of one already bound (tied weights)."""
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta or tensor.is_nested:
            raise unbound(path, tensor, "only dense tensors have bytes of their own")
        if str(tensor.dtype).removeprefix("torch.") not in ITEM_BYTES:
            raise unbound(path, tensor, f"the format has no dtype {tensor.dtype}")
        key = (
            tensor.device,
            tensor.data_ptr(),
            tensor.storage_offset(),
            tuple(tensor.shape),
            tensor.stride(),
            tensor.dtype,
        )
        known = self._storages.setdefault(key, path) if tensor.numel() else path
        if known != path:
            self.aliases.setdefault(known, []).append(path)
            return
        self._add(path, tensor.detach())

    def scalar(self, path: str, value: Any) -> None:
        """Binds plain data as canonical JSON."""

        def hook(item: Any) -> tuple[str, Any]:
            if self._settles and isinstance(item, np.floating) and np.isnan(item):
                item = type(item)("nan")
            return object_form(path, item)

        form = to_plain(value, hook, path=path)
        self._add(path, encode(settled(form) if self._settles else form))

    def mapping(self, path: str, value: Mapping[Any, Any]) -> None:
        """Binds a mapping that holds tensors, key by key."""
        for key, item in value.items():
            if not isinstance(key, str) or key.startswith("@"):
                raise unbound(f"{path}/{key}", item, "keys of a mapping that holds tensors are names")
            self.value(f"{path}/{part(key)}", item)

    def module(self, path: str, module: nn.Module) -> None:
        """Binds parameters, all buffers (persistent or not), attributes and the training flag of a module tree."""
        attributes: dict[str, Any] = {}
        for name, child in module.named_modules():
            prefix = f"{name}." if name else ""
            for key, tensor in [*child._parameters.items(), *child._buffers.items()]:  # noqa: SLF001 - the registry is the truth
                if tensor is not None:
                    self.tensor(f"{path}/{part(prefix + key)}", tensor)
            own = own_attributes(child)
            for key in [k for k, v in own.items() if holds_state(v)]:
                self.value(f"{path}/{part(prefix + key)}/@attribute", own.pop(key))
            attributes[name] = dict(sorted(own.items()))
            if type(child).get_extra_state is not nn.Module.get_extra_state:
                self.value(f"{path}/{part(prefix)}@extra", child.get_extra_state())
        self.scalar(f"{path}/@attributes", attributes)

    def optimizer(self, path: str, optimizer: torch.optim.Optimizer) -> None:
        """Binds an optimiser's state by parameter name, its groups and its defaults."""

        def name(parameter: Any) -> str:
            found = self._parameters.get(id(parameter))
            if found is None:
                shape = list(getattr(parameter, "shape", ()))
                raise unbound(f"{path}: a parameter of shape {shape}", parameter, "no component of the state owns it")
            return found

        for parameter, entries in optimizer.state.items():
            if not isinstance(parameter, torch.Tensor):
                raise unbound(f"{path}/state", parameter, "optimiser state is keyed by parameters")
            for key, item in entries.items():
                self.value(f"{path}/{part(name(parameter))}/{part(key)}", item)
        for index, group in enumerate(optimizer.param_groups):
            for key, item in group.items():
                names = [name(p) for p in item] if key == "params" else item
                self.value(f"{path}/@groups/{index}/{part(key)}", names)
        own = {k: v for k, v in vars(optimizer).items() if not k.startswith("_") and k not in ("state", "param_groups")}
        own = {k: v for k, v in own.items() if not isinstance(v, types.MethodType) and k != "step"}
        for key, item in own.items():
            self.value(f"{path}/@attributes/{part(key)}", item)

    def _add(self, path: str, leaf: Leaf) -> None:
        if path in self.leaves:
            raise UsageError("unbound-state", f"two parts of the state are both named {path}", evidence={"path": path})
        self.leaves[path] = leaf

    # -- bytes ------------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """The entries of the state tree, in order."""
        return [self._entry(name) for name in sorted(self.leaves, key=str.encode)]

    def _entry(self, name: str) -> Entry:
        leaf = self.leaves[name]
        aliases = tuple(sorted(self.aliases.get(name, ())))
        if isinstance(leaf, bytes):
            return Entry(name, JSON, (len(leaf),), aliases)
        return Entry(name, str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape), aliases)

    def data(self, name: str) -> memoryview | bytes:
        """The little-endian bytes of one leaf; no copy where the tensor is contiguous and on the CPU."""
        leaf = self.leaves[name]
        return leaf if isinstance(leaf, bytes) else tensor_bytes(leaf)


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """What a module holds besides its registries.

    What `torch.compile` leaves in it is code made of the module's own, and the numeric profile's business.
    """
    if type(module).__name__ == "OptimizedModule" and type(module).__module__.startswith("torch."):
        return {"training": module.training}
    return {k: v for k, v in vars(module).items() if k not in MODULE_INTERNALS and k != "_compiled_call_impl"}


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The little-endian bytes of a tensor in row-major order."""
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def parameter_names(state: State) -> dict[int, str]:
    """The name of every tensor an optimiser may hold, by `id`: the path in its module, or the component's own name.

    Where the state has several modules the component's name goes before the path.
    """
    names: dict[int, str] = {}
    modules = [name for name, component in state.items() if isinstance(component, nn.Module)]
    for name, component in state.items():
        if isinstance(component, nn.Module):
            for path, parameter in component.named_parameters(remove_duplicate=False):
                names.setdefault(id(parameter), path if len(modules) == 1 else f"{name}.{path}")
        elif isinstance(component, torch.Tensor):
            names.setdefault(id(component), name)
    return names


def holds_state(value: Any, depth: int = 0) -> bool:
    """Whether a value holds tensors or stateful objects, so that it cannot be one JSON scalar."""
    if value is None or isinstance(
        value, bool | int | float | str | bytes | torch.dtype | torch.device | torch.Size | type
    ):
        return False
    if depth > 32:
        return True
    if isinstance(value, Mapping):
        return any(holds_state(item, depth + 1) for item in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return any(holds_state(item, depth + 1) for item in value)
    if isinstance(value, functools.partial):
        return holds_state([value.args, value.keywords], depth + 1)
    if isinstance(value, enum.Enum):
        return False
    return not isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.MethodType | np.generic)


def object_form(path: str, value: Any) -> tuple[str, Any]:
    """The plain form of scalars that are not JSON: dtypes, devices, sizes, numpy scalars, functions by name."""
    if isinstance(value, torch.Size):
        return "size", list(value)
    if isinstance(value, torch.dtype | torch.device):
        return "torch", str(value)
    if isinstance(value, np.generic):
        return "numpy", [str(value.dtype), value.tobytes()]
    if isinstance(value, enum.Enum):
        return "enum", f"{code_name(type(value))}.{value.name}"
    if isinstance(value, type):
        return "class", code_name(value)
    if isinstance(value, types.MethodType):
        return "method", code_name(value.__func__)
    if isinstance(value, functools.partial):
        return "partial", [value.func, list(value.args), value.keywords]
    compiled_from = getattr(value, "_torchdynamo_orig_callable", None)
    if isinstance(value, types.FunctionType) and compiled_from is not None:
        return "compiled", [compiled_from]
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType):
        cells = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        if any(holds_state(cell) for cell in cells):
            raise unbound(path, value, "its closure holds state")
        defaults = [getattr(value, "__defaults__", None), getattr(value, "__kwdefaults__", None)]
        return "function", [code_name(value), cells, defaults]
    if isinstance(
        value, int | float | str | bytes | list | tuple | dict
    ):  # subclasses: enums, defaultdict, namedtuple, OrderedDict
        base: Callable[[Any], Any] = next(
            k for k in (int, float, str, bytes, list, tuple, dict) if isinstance(value, k)
        )
        return "object", [code_name(type(value)), base(value)]
    raise unbound(path, value)


def code_name(value: Any) -> str:
    """`module:name` of a function or class; a script run as `__main__` goes by its file's name."""
    module = value.__module__
    if module == "__main__":
        module = Path(getattr(sys.modules["__main__"], "__file__", None) or "__main__").stem
    return f"{module}:{value.__qualname__}"
