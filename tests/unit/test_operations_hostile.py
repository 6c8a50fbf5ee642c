"""A probe from a stranger's manifest: nothing outside the recorder's own list is run, nothing huge is allocated."""

import resource

import pytest
import torch

from protocol.encoding import decode, encode
from protocol.errors import ProtocolError
from protocol.operations import OperationProbe, OperationSpec, parse_tensor
from witness import operators
from witness.operations import Unprobable, build_probe, run_operation

X = "float32[4,4]{signed}"
ZERO = "0" * 64


def parsed(operator: str, *arguments: object, **keywords: object) -> OperationSpec:
    data = encode(
        {
            "operations": [
                {"digest": ZERO, "spec": {"operator": operator, "arguments": arguments, "keywords": keywords}}
            ],
            "unprobed": [],
        }
    )
    return decode(data, OperationProbe, limit=1 << 16).specs[0]


@pytest.mark.parametrize(
    "operator",
    [
        "aten.mm",
        "aten.mm.default.more",
        "aten.__class__.default",
        "aten.mm.__class__",
        "aten.mm.default\n",
        "os.system.default",
        "prims.add.default",
        "c10d.allreduce_.default",
        "aten.MM.default",
        "",
    ],
)
def test_names_outside_the_pattern_or_the_namespace(operator: str) -> None:
    with pytest.raises((ProtocolError, Unprobable)) as caught:
        run_operation(parsed(operator, X, X))
    assert isinstance(caught.value, ProtocolError) or str(caught.value) == "this torch has no such operator"


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        ("aten.resize_.default", (X, (1024, 1024))),
        ("aten.resize_as_.default", (X, X)),
        ("aten.set_.source_Tensor", (X, X)),
        ("aten.from_file.default", ("text:none", True, 100)),
        ("aten.record_stream.default", (X, 0)),
        ("aten._print.default", ("text:none",)),
        ("aten.empty.memory_format", ((4,),)),
        ("aten.detach.default", (X,)),
        ("aten.view.default", (X, (16,))),
        ("aten.as_strided.default", (X, (1 << 20,), (1,))),
        ("aten._local_scalar_dense.default", ("float32[]{unit}",)),
        ("aten.requires_grad_.default", (X, True)),
        ("aten.to_sparse.default", (X,)),
        ("aten._assert_async.default", ("float32[]{unit}",)),
        ("aten.equal.default", (X, X)),
    ],
)
def test_operators_that_no_recorder_records(operator: str, arguments: tuple[object, ...]) -> None:
    spec = parsed(operator, *arguments)
    with pytest.raises(ProtocolError) as caught:
        build_probe([spec])
    assert caught.value.code == "operation-refused"


def test_no_operator_of_this_torch_with_a_known_effect_would_be_run() -> None:
    """Over the whole registry: what would be run takes values and gives tensors."""
    run, effects = (
        set(),
        ("resize", "set_", "from_file", "storage", "record_stream", "pin_memory", "print", "save", "load", "file"),
    )
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::"):
            base, _, overload = name.removeprefix("aten::").partition(".")
            operator = getattr(getattr(torch.ops.aten, base), overload or "default")
            if operators.kind_of(operator) in ("computes", "converts"):
                run.add(base)
                kinds = {str(argument.type) for argument in operator._schema.arguments}
                assert not {"Storage", "Stream"} & kinds
    assert {"mm", "addmm", "native_layer_norm_backward", "_fused_adamw_", "convolution_backward"} <= run
    found = {base for base in run if any(word in base for word in effects)}
    assert not found


def test_every_operator_said_to_move_values_exists() -> None:
    """A misspelt name would be probed for nothing."""
    for name in operators._MOVING | operators._CONVERTING:
        assert hasattr(torch.ops.aten, name) or hasattr(torch.ops.aten, name + "_"), name


@pytest.mark.parametrize(
    "word",
    [
        "float32[4",
        "float32[04]{unit}",
        "float32[4;1]{unit}",
        "float32[4,4;1]{unit}",
        "float32[-4]{unit}",
        "float32[4]",
        "float32[4]{wide}",
        "float32[4]{unit}\n",
        "float32[4]@mps{unit}",
        "int64[4]{5..2}",
        "int64[4]{05..9}",
        "int64[4]{0..9223372036854775808}",
        "float32[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]{unit}",
        "float32[9999999999999999]{unit}",
        "text:/etc/passwd",
        "text:PASSWD",
        "f64:3ff",
        "file:none",
        "hello",
        "",
    ],
)
def test_words_that_no_recorder_writes(word: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_tensor(word)
    assert caught.value.code == "operation-refused"
    with pytest.raises(ProtocolError):
        build_probe([parsed("aten.relu.default", word)])


@pytest.mark.parametrize(
    "word",
    [
        "text:passwd",
        "dtype:load",
        "memory:cuda",
        "dtype:nn",
        "device:cpu\n",
        "float32[4]{0..1}",
        "int64[4]{unit}",
        "load[4]{unit}",
    ],
)
def test_words_that_are_spelt_well_and_mean_nothing(word: str) -> None:
    with pytest.raises(ProtocolError):
        build_probe([parsed("aten.gelu.default", X, approximate=word)])


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        ("aten.relu.default", ("float32[1048576,1048576]{unit}",)),
        ("aten.relu.default", ("float32[1048576,1048576;0,0]{unit}",)),
        ("aten.relu.default", ("float32[2,2;1,999999999999999]{unit}",)),
        ("aten.mm.default", ("float32[131072,1]{unit}", "float32[1,131072]{unit}")),
        ("aten.rand.default", ((1 << 40,),)),
        ("aten.linspace.default", (0, 1, 1 << 40)),
        ("aten._foreach_abs.default", (("float32[1048576]{unit}",) * 1024,)),
    ],
)
def test_nothing_huge_is_allocated(operator: str, arguments: tuple[object, ...]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    built = build_probe([parsed(operator, *arguments)])
    assert built.operations == ()
    assert "bytes" in built.unprobed[0].reason
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10  # KiB


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        ("aten.mm.default", (X, "float32[5,5]{signed}")),
        ("aten.mm.default", (X,)),
        ("aten.mm.default", (X, X, X, X)),
        ("aten.mm.default", (X, "text:none")),
        ("aten.mm.default", ((X, X), X)),
        ("aten.mm.default", (X, True)),
        ("aten.no_such_operator.default", (X,)),
        ("aten.mm.no_such_overload", (X, X)),
        ("aten.relu_.default", ("float32[4,4;0,1]{signed}",)),
    ],
)
def test_what_torch_refuses_is_listed_with_the_reason(operator: str, arguments: tuple[object, ...]) -> None:
    with pytest.raises(Unprobable):
        run_operation(parsed(operator, *arguments))
    built = build_probe([parsed(operator, *arguments)])
    assert built.operations == ()
    assert built.unprobed[0].operation.startswith(operator)
    assert built.unprobed[0].reason


@pytest.mark.parametrize(
    "mutation",
    [
        (b'"keywords":{}', b'"keywords":{"A-B":1}'),
        (b'"keywords":{}', b'"keywords":{"a":1.5}'),
        (b'"keywords":{}', b'"keywords":{"a":[[1]]}'),
        (b'"keywords":{}', b'"keywords":{"a":9007199254740993}'),
        (b'"keywords":{}', b'"keywords":{"a":{}}'),
        (b'"digest":"0', b'"digest":"X'),
        (b'"arguments":[', b'"arguments":[' + b"0," * 64),
        (b'"unprobed":[]', b'"unprobed":[{"operation":"a","reason":"b\\u0000"}]'),
    ],
)
def test_hostile_bytes_are_refused(mutation: tuple[bytes, bytes]) -> None:
    data = encode(
        {
            "operations": [
                {"digest": ZERO, "spec": {"operator": "aten.relu.default", "arguments": [X], "keywords": {}}}
            ],
            "unprobed": [],
        }
    )
    decode(data, OperationProbe, limit=1 << 16)
    assert mutation[0] in data
    with pytest.raises(ProtocolError):
        decode(data.replace(*mutation, 1), OperationProbe, limit=1 << 16)


def test_too_many_operations_are_refused() -> None:
    one = {"digest": ZERO, "spec": {"operator": "aten.relu.default", "arguments": [X], "keywords": {}}}
    with pytest.raises(ProtocolError):
        decode(encode({"operations": [one] * 513, "unprobed": []}), OperationProbe, limit=1 << 20)
