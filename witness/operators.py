"""Which operators the probe is about: those that compute. The recorder and the runner share this one decision.

So a stranger's list can hold nothing that a recorder would not have written: no operator that only moves values, none
with effects beyond its outputs, none outside torch's own namespace, none whose arguments have no words.
"""

import functools
import re
from typing import Any, Literal

import torch

from protocol.errors import ProtocolError

Kind = Literal["computes", "converts", "moves", "effect", "unsupported", "foreign"]

_MOVING = frozenset(
    (
        *("alias", "as_strided", "cat", "clone", "constant_pad_nd", "contiguous", "detach", "diag_embed", "embedding"),
        *("empty", "empty_like", "empty_permuted", "empty_strided", "eye", "fill", "flip", "full", "full_like"),
        *("gather", "index", "index_select", "lift", "lift_fresh", "masked_fill", "masked_select", "new_empty"),
        *("new_empty_strided", "new_full", "new_ones", "new_zeros", "nonzero", "one_hot", "ones", "ones_like"),
        *("pixel_shuffle", "pixel_unshuffle", "repeat", "repeat_interleave", "roll", "rot90", "scalar_tensor"),
        *("select_backward", "select_scatter", "slice_backward", "slice_scatter", "split_with_sizes_copy", "stack"),
        *("take", "tril", "triu", "unfold_backward", "where", "zero", "zeros", "zeros_like"),
        *("_foreach_clone", "_foreach_zero", "_reshape_alias", "_unsafe_view"),
    )
)
"""Operators that only place values: nothing is rounded, so no two machines differ. In-place variants count as well."""
_CONVERTING = frozenset(("_to_copy", "copy", "_foreach_copy"))
"""Operators that place values, unless they change the type."""
_EFFECT = re.compile(
    r"(sparse_)?resize(_as)?(_sparse)?|_resize.*|set|set_data|from_file|record_stream|_pin_memory|_?print|rename|"
    r"requires_grad|retain_grad|_fw_primal|_make_dual|_assert.*|_test.*|_debug.*|_validate.*|_?storage.*|sym_.*|"
    r"_cudnn_init_dropout_state|_cufft.*|_copy_from.*|_backward"
)
"""Operators with effects beyond their outputs."""
_UNSUPPORTED = re.compile(r"_?sparse_.*|_nested.*|_cslt.*|_efficientzerotensor|_?mkldnn_rnn.*|to_(sparse|mkldnn).*")
"""Operators on other layouts, or with hidden workspaces."""
_TYPES = frozenset(
    (
        *("Tensor", "Optional[Tensor]", "List[Tensor]", "List[Optional[Tensor]]", "bool", "Optional[bool]"),
        *("List[bool]", "int", "Optional[int]", "List[int]", "Optional[List[int]]", "float", "Optional[float]"),
        *("Optional[List[float]]", "number", "Optional[number]", "List[number]", "str", "Optional[str]", "Device"),
        *("Optional[Device]", "Optional[Generator]"),
    )
)
"""Argument types, as schemas name them, that `witness.arguments` has words for."""


@functools.cache
def kind_of(operator: Any) -> Kind | None:
    """What an operator does; None when no tensor comes out of it, so that it has no bits to compare."""
    if not isinstance(operator, torch._ops.OpOverload):  # noqa: SLF001 - the type has no public name
        return "foreign"
    schema = operator._schema  # noqa: SLF001 - nor has this
    returns = [str(returned.type) for returned in schema.returns]
    if not any("Tensor" in kind for kind in returns) and not any(is_written(argument) for argument in schema.arguments):
        return None
    namespace, _, name = schema.name.partition("::")
    if namespace != "aten":
        return "foreign"
    name = name.rstrip("_")
    aliases = [returned.alias_info for returned in schema.returns]
    if any(alias is not None and not alias.is_write for alias in aliases) or name in _MOVING:
        return "moves"
    if _EFFECT.fullmatch(name):
        return "effect"
    if _UNSUPPORTED.fullmatch(name) or not {str(argument.type) for argument in schema.arguments} <= _TYPES:
        return "unsupported"
    return "converts" if name in _CONVERTING else "computes"


def is_written(argument: Any) -> bool:
    """Whether an operator writes to this argument of its schema."""
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def find(name: str) -> Any | None:
    """The operator of a parsed `OperationSpec`; None where this torch does not have it.

    Raises:
        ProtocolError: `operation-refused`, for an operator that no recorder would have recorded.
    """
    _, base, overload = name.split(".")
    packet: Any = getattr(torch.ops.aten, base, None)
    overloads: Any = getattr(packet, "overloads", tuple)
    if not isinstance(packet, torch._ops.OpOverloadPacket) or overload not in overloads():  # noqa: SLF001
        return None
    operator = getattr(packet, overload)
    if kind_of(operator) not in ("computes", "converts"):
        raise ProtocolError("operation-refused", f"{name} is no operator that a recorder records")
    return operator
