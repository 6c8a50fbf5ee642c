"""Putting committed bytes back into a freshly built state, by assignment.

The mirror image of the census: what `witness.state.Census` walks and reads, this walks and writes. Nothing is cast: a
tensor takes the committed dtype and shape, optimiser state is assigned per parameter, and values that are code
(functions, classes) must be what the program builds anyway. Whoever restores takes the census again afterwards and
compares roots.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from protocol.encoding import decode, encode
from protocol.errors import ProtocolError
from protocol.plain import from_plain, to_plain
from protocol.statetree import JSON, Entry
from witness.program import Program, State
from witness.state import holds_state, object_form, own_attributes, parameter_names, part

_CODE_TAGS = frozenset({"class", "method", "function", "partial", "enum", "object", "compiled"})


class CodeForm:
    """A value that is code: it cannot be sent, so it must already be there."""

    def __init__(self, tag: str, body: Any) -> None:
        self.form = (tag, body)


class Restorer:
    """Assigns leaves to a live state.

    Args:
        entries: of the state to restore.
        buffers: the bytes of each entry, by name.

    Raises:
        ProtocolError: `state-restore`, naming the leaf that does not fit the program.
    """

    def __init__(
        self, entries: list[Entry], buffers: Mapping[str, bytes | memoryview], names: Mapping[int, str]
    ) -> None:
        self.names = names
        self.leaves: dict[str, Any] = {}
        self.children: dict[str, list[str]] = {}
        self.used: set[str] = set()
        for entry in entries:
            value = _decode(entry, buffers[entry.name])
            for name in (entry.name, *entry.aliases):
                self.leaves[name] = value
                path = name
                while "/" in path:
                    parent, _, last = path.rpartition("/")
                    siblings = self.children.setdefault(parent, [])
                    if last in siblings:
                        break
                    siblings.append(last)
                    path = parent

    def restore(self, program: Program, state: State) -> None:
        """Assigns everything; leaves of the committed state that found no place are an error."""
        own = {k: v for k, v in vars(program).items() if k != "_arguments"}
        if "program" in self.leaves or "program" in self.children:
            vars(program).update(self.assign("program", own))
        for name, component in state.items():
            state._components[name] = self.assign(part(name), component)  # noqa: SLF001 - the one place that replaces components
        lost = sorted(set(self.leaves) - self.used)
        if lost:
            raise ProtocolError(
                "state-restore",
                f"the program builds nothing that could hold {lost[0]}",
                evidence={"unplaced": lost[:8]},
            )

    # -- assignment -------------------------------------------------------------------------------

    def assign(self, path: str, current: Any) -> Any:
        """The restored value for `path`, mutating `current` where it is an object with an identity."""
        if isinstance(current, weakref.ReferenceType):
            self._take_all(path)
            return current
        if isinstance(current, nn.Module):
            self._module(path, current)
            return current
        if isinstance(current, torch.optim.Optimizer):
            self._optimizer(path, current)
            return current
        if isinstance(current, torch.Generator):
            current.set_state(self._tensor(path))
            return current
        if isinstance(current, torch.Tensor):
            return _into(current, self._tensor(path))
        if isinstance(current, np.ndarray):
            return self._tensor(path).numpy().reshape(current.shape)
        if isinstance(current, Mapping) and holds_state(current):
            return self._mapping(path, current)
        if isinstance(current, list | tuple) and holds_state(current):
            return self._sequence(path, current)
        if holds_state(current) and callable(getattr(current, "load_state_dict", None)):
            current.load_state_dict(self.value(path, current.state_dict()))
            return current
        if is_dataclass(current) and not isinstance(current, type):
            self._fields(path, current, [f.name for f in fields(current)])
            return current
        if isinstance(current, types.SimpleNamespace):
            self._fields(path, current, list(vars(current)))
            return current
        return self.value(path, current)

    def value(self, path: str, current: Any = None) -> Any:
        """Plain data and tensors at `path`, made anew; `current` supplies values that are code."""
        if path in self.leaves:
            self.used.add(path)
            leaf = self.leaves[path]
            return leaf.clone() if isinstance(leaf, torch.Tensor) else _with_code(path, leaf, current)
        below = self.children.get(path)
        if below is None:
            raise ProtocolError("state-restore", f"the committed state has no {path}", evidence={"missing": path})
        if "@sequence" in below:
            kind, length = self.value(f"{path}/@sequence")
            items = [self.value(f"{path}/{i}") for i in range(length)]
            return tuple(items) if kind == "tuple" else items
        known = current if isinstance(current, Mapping) else {}
        return {_unpart(key): self.value(f"{path}/{key}", known.get(_unpart(key))) for key in below}

    def _tensor(self, path: str) -> torch.Tensor:
        leaf = self.leaves.get(path)
        if not isinstance(leaf, torch.Tensor):
            raise ProtocolError(
                "state-restore", f"the committed state has no tensor {path}", evidence={"missing": path}
            )
        self.used.add(path)
        return leaf

    def _take_all(self, path: str) -> None:
        self.used.update(name for name in self.leaves if name == path or name.startswith(path + "/"))

    def _mapping(self, path: str, current: Mapping[str, Any]) -> Mapping[str, Any]:
        below = {_unpart(key) for key in self.children.get(path, [])}
        if not below and path in self.leaves:
            items = dict(self.value(path, current))
        else:
            items = {
                **{k: self.assign(f"{path}/{part(k)}", v) for k, v in current.items() if k in below},
                **{k: self.value(f"{path}/{part(k)}") for k in sorted(below - current.keys())},
            }
        if not isinstance(current, dict):
            return items
        current.clear()
        current.update(items)
        return current

    def _sequence(self, path: str, current: list[Any] | tuple[Any, ...]) -> Any:
        if path in self.leaves:  # it holds no tensors any more
            items = list(self.value(path, current))
        else:
            kind, length = self.value(f"{path}/@sequence")
            if kind != type(current).__name__:
                raise ProtocolError(
                    "state-restore",
                    f"{path} is a {type(current).__name__}, committed as a {kind}",
                    evidence={"leaf": path},
                )
            items = [self.assign(f"{path}/{i}", item) for i, item in enumerate(current[:length])]
            items += [self.value(f"{path}/{i}") for i in range(len(items), length)]
        if isinstance(current, list):
            current[:] = items
            return current
        if len(items) == len(current) and all(new is old for new, old in zip(items, current, strict=True)):
            return current
        return type(current)(*items) if hasattr(current, "_fields") else type(current)(items)

    def _fields(self, path: str, current: Any, names: list[str]) -> None:
        for name in names:
            old = getattr(current, name)
            new = self.assign(f"{path}/{part(name)}", old)
            if new is not old and (holds_state(new) or not _same(path, new, old)):
                try:
                    setattr(current, name, new)
                except AttributeError:
                    raise ProtocolError(
                        "state-restore", f"{path}/{name} cannot be assigned", evidence={"leaf": f"{path}/{name}"}
                    ) from None

    def _module(self, path: str, module: nn.Module) -> None:
        own = {name: own_attributes(child) for name, child in module.named_modules()}
        attributes = self.value(f"{path}/@attributes", own)
        for name, child in module.named_modules():
            prefix = f"{name}." if name else ""
            for registry in (child._parameters, child._buffers):  # noqa: SLF001 - the registry is the truth
                for key, tensor in registry.items():
                    if tensor is not None:
                        registry[key] = _into(tensor, self._tensor(f"{path}/{part(prefix + key)}"))
            for key, value in own[name].items():
                if holds_state(value):
                    vars(child)[key] = self.assign(f"{path}/{part(prefix + key)}/@attribute", value)
            vars(child).update(attributes.get(name, {}))
            if type(child).get_extra_state is not nn.Module.get_extra_state:
                child.set_extra_state(self.value(f"{path}/{part(prefix)}@extra", child.get_extra_state()))

    def _optimizer(self, path: str, optimizer: torch.optim.Optimizer) -> None:
        names = {id(p): self.names[id(p)] for group in optimizer.param_groups for p in group["params"]}
        for group_index, group in enumerate(optimizer.param_groups):
            where = f"{path}/@groups/{group_index}"
            recorded = self.value(f"{where}/params")
            if recorded != [names[id(p)] for p in group["params"]]:
                raise ProtocolError(
                    "state-restore", f"{where} holds other parameters", evidence={"leaf": f"{where}/params"}
                )
            for key in [_unpart(k) for k in self.children.get(where, []) if k != "params"]:
                group[key] = self.assign(f"{where}/{part(key)}", group.get(key))
        for parameter in [p for group in optimizer.param_groups for p in group["params"]]:
            where = f"{path}/{part(names[id(parameter)])}"
            if where in self.children:
                optimizer.state[parameter] = self.value(where)
        for key in [_unpart(k) for k in self.children.get(f"{path}/@attributes", [])]:
            vars(optimizer)[key] = self.assign(f"{path}/@attributes/{part(key)}", vars(optimizer).get(key))


def restore(program: Program, state: State, entries: list[Entry], buffers: Mapping[str, bytes | memoryview]) -> None:
    """Assigns a committed state to a freshly built one.

    Args:
        program: made from the manifest's arguments.
        state: what its `build` returned.
        entries: of the committed state.
        buffers: little-endian bytes by entry name.

    Raises:
        ProtocolError: `state-restore`.
    """
    with torch.no_grad():
        Restorer(entries, buffers, parameter_names(state)).restore(program, state)


def _decode(entry: Entry, data: bytes | memoryview) -> Any:
    if entry.dtype == JSON:
        return from_plain(decode(bytes(data), Any, limit=len(data)), _decode_tag)
    dtype = getattr(torch, entry.dtype)
    if not entry.size:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).view(entry.shape)


def _decode_tag(tag: str, body: Any) -> Any:
    try:
        if tag == "size":
            return torch.Size(body)
        if tag == "torch":
            return torch.device(body) if not body.startswith("torch.") else getattr(torch, body.removeprefix("torch."))
        if tag == "numpy":
            return np.frombuffer(body[1], dtype=np.dtype(body[0]))[0]
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ProtocolError("not-canonical", f"no {tag} in a scalar: {error}") from None
    if tag in _CODE_TAGS:
        return CodeForm(tag, body)
    raise ProtocolError("not-canonical", f"unknown tag {tag!r} in a scalar")


def _with_code(path: str, value: Any, current: Any) -> Any:
    """Replaces code forms by the live code, which must have that very form."""
    if isinstance(value, CodeForm):
        live = object_form(path, current) if current is not None and not holds_state(current) else None
        committed = encode(to_plain([*value.form], _reform, path=path))
        if live is None or encode(to_plain([*live], lambda item: object_form(path, item), path=path)) != committed:
            raise ProtocolError(
                "state-restore",
                f"{path}: the program has other code here",
                evidence={"leaf": path, "committed": value.form[0]},
            )
        return current
    if isinstance(value, dict):
        known = current if isinstance(current, Mapping) else {}
        return {k: _with_code(f"{path}[{k!r}]", v, known.get(k)) for k, v in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        known_items = list(current) if isinstance(current, list | tuple) else []
        known_items += [None] * (len(value) - len(known_items))
        return type(value)(
            _with_code(f"{path}[{i}]", v, c) for i, (v, c) in enumerate(zip(value, known_items, strict=False))
        )
    return value


def _reform(value: Any) -> tuple[str, Any]:
    return value.form if isinstance(value, CodeForm) else object_form("code", value)


def _into(current: torch.Tensor, committed: torch.Tensor) -> torch.Tensor:
    """Assigns in place where dtype and shape agree, so that identities survive; else takes a new tensor.

    An expanded tensor, whose elements share their memory, cannot be assigned in place either.
    """
    expanded = any(stride == 0 and size > 1 for stride, size in zip(current.stride(), current.shape, strict=True))
    if current.dtype == committed.dtype and current.shape == committed.shape and not expanded:
        current.copy_(committed)
        return current
    if isinstance(current, nn.Parameter):
        raise ProtocolError(
            "state-restore",
            f"a parameter is {current.dtype}{list(current.shape)}, committed {committed.dtype}{list(committed.shape)}",
        )
    return committed.clone().to(current.device)


def _same(path: str, left: Any, right: Any) -> bool:
    def hook(item: Any) -> tuple[str, Any]:
        return object_form(path, item)

    return encode(to_plain(left, hook, path=path)) == encode(to_plain(right, hook, path=path))


def _unpart(text: str) -> str:
    return text.replace("%2F", "/").replace("%25", "%")
