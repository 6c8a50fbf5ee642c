"""Recording the operations of real steps, and probing them: in one process."""

import pytest
import torch
from training_steps import GPTRun, MLPRun, recorded

from protocol.encoding import decode, encode
from protocol.operations import OperationProbe, OperationSpec, operation_differences, tensors, uncovered
from witness import operations, operators
from witness.operations import OperationRecorder, build_probe, first_difference, run_operation


@pytest.fixture(scope="module")
def recorder() -> OperationRecorder:
    return recorded()


@pytest.fixture(scope="module")
def probe(recorder: OperationRecorder) -> OperationProbe:
    return recorder.probe()


def state_bytes(run: GPTRun) -> list[bytes]:
    moments = [value for state in run.optimizer.state.values() for value in state.values()]
    return [tensor.detach().numpy().tobytes() for tensor in (*run.model.parameters(), *moments)]


def test_a_recorded_step_has_the_bits_of_an_unrecorded_one() -> None:
    plain, watched = GPTRun(), GPTRun()
    torch.manual_seed(5)
    losses = [plain.step(), plain.step()]
    torch.manual_seed(5)
    with OperationRecorder():
        again = [watched.step(), watched.step()]
    assert again == losses
    assert state_bytes(watched) == state_bytes(plain)


def test_the_operations_of_forward_backward_and_optimiser_are_there_once(recorder: OperationRecorder) -> None:
    names = [spec.operator for spec in recorder.specs]
    for name in (
        "addmm.default",
        "_scaled_dot_product_flash_attention_for_cpu_backward.default",
        "mm.default",
        "native_layer_norm_backward.default",
        "gelu_backward.default",
        "embedding_dense_backward.default",
        "_log_softmax.default",
        "nll_loss_backward.default",
        "bernoulli_.float",
        "_foreach_norm.Scalar",
        "addcdiv_.default",
        "native_batch_norm.default",
        "native_batch_norm_backward.default",
        "silu_backward.default",
    ):
        assert f"aten.{name}" in names
    assert not {"aten.view.default", "aten.t.default", "aten.clone.default", "aten.detach.default"} & set(names)
    assert len({encode(spec) for spec in recorder.specs}) == len(recorder.specs)
    assert recorder.left_out == ()


def test_two_probes_agree_and_travel(recorder: OperationRecorder, probe: OperationProbe) -> None:
    assert probe.unprobed == ()
    assert len(probe.operations) == len(recorder.specs)
    assert recorded().specs == probe.specs
    travelled = decode(encode(probe), OperationProbe, limit=1 << 20)
    assert travelled == probe
    assert build_probe(travelled.specs, repeats=1) == probe


def test_probing_leaves_random_numbers_and_settings_alone(probe: OperationProbe) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    build_probe(probe.specs[:30], repeats=1)
    assert torch.equal(torch.rand(3), expected)
    assert torch.is_grad_enabled()


def test_probing_is_not_affected_by_the_callers_random_state_or_autocast(probe: OperationProbe) -> None:
    torch.manual_seed(99)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert build_probe(probe.specs, repeats=1) == probe


def test_every_digest_depends_on_the_kernel_and_not_on_nothing(
    probe: OperationProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a kernel's last bit changes anywhere, its digest does: GELU's here, as another vector width would do."""
    find = operators.find

    def altered(name: str) -> object:
        operator = find(name)
        if name != "aten.gelu.default":
            return operator

        def gelu(x: torch.Tensor, **options: object) -> torch.Tensor:
            result = operator(x, **options)
            result.view(-1).view(torch.int32)[-1] += 1
            return result

        gelu._schema = operator._schema
        return gelu

    monkeypatch.setattr(operators, "find", altered)
    here = build_probe(probe.specs, repeats=1)
    differing = operation_differences(probe, here)
    assert [difference.operation.partition("(")[0] for difference in differing] == ["aten.gelu.default"]
    first = first_difference(probe, here)
    assert first is not None
    assert first.operation == "aten.gelu.default(float32[3,16,128])"


def test_in_place_operators_are_judged_by_what_they_wrote() -> None:
    lerp = OperationSpec(
        "aten.lerp_.Scalar", ("float32[40]{signed}", "float32[40]{signed}", "f64:3fb999999999999a"), {}
    )
    fused = OperationSpec(
        "aten._foreach_mul_.Scalar", (("float32[40]{signed}", "float32[3]{unit}"), "f64:3fe0000000000000"), {}
    )
    for spec in (lerp, fused):
        other = OperationSpec(spec.operator, (*spec.arguments[:-1], "f64:3fb9999a00000000"), {})
        assert run_operation(spec) == run_operation(spec) != run_operation(other)


def test_small_operations_meet_many_values() -> None:
    """One value in a thousand must not hide behind a tensor of two elements."""
    seen = []
    spec = OperationSpec("aten.exp.default", ("float32[16]{signed}",), {})
    find = operators.find

    def watching(name: str) -> object:
        operator = find(name)

        def exp(x: torch.Tensor) -> torch.Tensor:
            if x.device.type == "cpu":
                seen.append(x.clone())
            return operator(x)

        exp._schema = operator._schema
        return exp

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "find", watching)
        run_operation(spec)
    assert len(torch.cat(seen).unique()) >= 0.9 * 16 * operations.MAX_ROUNDS


def test_random_operators_are_probed_with_a_seed() -> None:
    normal = OperationSpec("aten.normal_.default", ("float32[100]{signed}",), {})
    with_generator = OperationSpec("aten.normal_.default", ("float32[100]{signed}",), {"generator": "generator:cpu"})
    assert run_operation(normal) == run_operation(normal)
    assert run_operation(with_generator) == run_operation(with_generator)


def test_strides_select_kernels_and_are_kept() -> None:
    weight = torch.randn(8, 6)
    with OperationRecorder() as recorder:
        torch.mm(torch.ones(4, 6), weight.t())
        torch.mm(torch.ones(4, 6), weight.t().contiguous())
    assert [spec.arguments[1] for spec in recorder.specs if spec.operator == "aten.mm.default"] == [
        "float32[6,8;1,6]{signed}",
        "float32[6,8]{signed}",
    ]


def test_domains_and_bounds_hold_every_use() -> None:
    with OperationRecorder() as recorder:
        torch.sqrt(torch.tensor([0.25, 1.0]))
        torch.sqrt(torch.tensor([0.25, 4.0]))
        grad = torch.ones(3, 2)
        torch.ops.aten.embedding_dense_backward(grad, torch.tensor([0, 1, 2]), 9, -1, False)
        torch.ops.aten.embedding_dense_backward(grad, torch.tensor([5, 8, -3]), 9, -1, False)
    words = [word for spec in recorder.specs for word in spec.arguments if isinstance(word, str)]
    assert words == ["float32[2]{positive}", "float32[3,2]{unit}", "int64[3]{0..8}"]


def test_conversions_count_only_when_the_type_changes() -> None:
    x = torch.randn(4)
    with OperationRecorder() as recorder:
        x.to(torch.bfloat16)
        x.to(torch.float32, copy=True)
        torch.empty(4).copy_(x)
        torch.empty(4, dtype=torch.float16).copy_(x)
    assert [spec.operator for spec in recorder.specs] == ["aten._to_copy.default", "aten.copy_.default"]


def test_what_has_no_words_is_listed_by_name() -> None:
    sparse = torch.eye(3).to_sparse()
    library = torch.library.Library("training_witness_test", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    with OperationRecorder() as recorder:
        torch.mm(sparse, torch.ones(3, 3))
        torch.ops.training_witness_test.twice(torch.ones(2))
        torch.mul(torch.ones(2), 1j)
    listed = {unprobed.operation: unprobed.reason for unprobed in recorder.left_out}
    assert listed["training_witness_test.twice.default"] == "foreign operator"
    assert "sparse" in " ".join(listed.values())
    assert listed["aten.mul.Tensor"] == "a complex as argument"
    assert recorder.probe().unprobed[: len(listed)] == recorder.left_out


def test_an_operation_that_is_not_the_same_twice_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = iter(f"{number:064x}" for number in range(100))
    monkeypatch.setattr(operations, "run_operation", lambda _: next(digests))
    built = build_probe([OperationSpec("aten.mm.default", ("float32[2,2]{signed}", "float32[2,2]{signed}"), {})])
    assert built.operations == ()
    assert built.unprobed[0].reason == "two runs on the same inputs differ"
    assert built.unprobed[0].operation == "aten.mm.default(float32[2,2], float32[2,2])"


def test_a_shorter_batch_is_not_covered_and_the_next_step_is(probe: OperationProbe) -> None:
    run = GPTRun()
    with OperationRecorder() as first:
        run.step()
    with OperationRecorder() as second:  # other bias corrections, other values
        run.step()
    with OperationRecorder() as shorter:
        run.step(length=9)
    assert uncovered(probe, first.specs) == []
    assert uncovered(probe, second.specs) == []
    missing = uncovered(probe, shorter.specs)
    assert any(tensor.shape == (3, 8, 32) for spec in missing for tensor in tensors(spec))


def test_batch_norm_with_bfloat16_autocast_can_be_probed() -> None:
    run = MLPRun()
    with OperationRecorder() as recorder, torch.autocast("cpu", dtype=torch.bfloat16):
        run.step()
    built = recorder.probe()
    assert built.unprobed == ()
    assert any(tensor.dtype == "bfloat16" for spec in built.specs for tensor in tensors(spec))
