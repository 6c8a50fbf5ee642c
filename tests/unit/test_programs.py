"""The reference programs: what they declare, what they compute, and that they learn."""

import math
from collections import Counter
from dataclasses import replace
from importlib import import_module

import pytest
import torch

from protocol.corpus import Packing
from protocol.errors import UsageError
from protocol.plain import to_plain
from protocol.schedule import Schedule
from witness.data import open_corpus
from witness.execute import build, run_step
from witness.program import Program, instantiate, plain_arguments
from witness.programs import REFERENCE, gpt, mlp
from witness.programs.gpt import GPT, GPTConfig
from witness.programs.mlp import MLP, BatchNorm, MLPConfig

SEED = bytes(range(32))
SMALL_GPT = GPTConfig(layers=2, heads=2, width=32, context=32, warmup=5, steps=80, batch_size=16, learning_rate=1e-2)
SMALL_MLP = MLPConfig(hidden=32, halve_every=5, batch_size=32)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train(program: Program, steps: int):
    corpus = program.default_data()
    schedule = Schedule(SEED, corpus.documents.samples, program.batch_size)
    state = build(program, SEED)
    losses = [
        run_step(program, state, step, SEED, corpus.samples(schedule.indices(step)), []).loss
        for step in range(1, steps + 1)
    ]
    return state, losses


def entropy(counts: Counter) -> float:
    total = sum(counts.values())
    return -sum(n / total * math.log(n / total) for n in counts.values())


def test_names_lead_to_programs_without_arguments():
    for entry in REFERENCE.values():
        module, _, name = entry.partition(":")
        program = getattr(import_module(module), name)()
        assert isinstance(program, Program)
        assert program.default_data().documents.samples >= program.batch_size
        assert program.has_probe()


def test_a_program_has_defaults_that_its_class_or_constructor_can_set():
    class Mine(Program):
        steps = 7

    assert Mine().packing() == Packing("documents")
    assert (Mine().batch_size, Mine().steps) == (16, 7)
    assert (GPT(replace(SMALL_GPT, batch_size=3)).batch_size, GPT(SMALL_GPT).steps) == (3, 80)
    assert (MLP().batch_size, MLP().steps) == (MLPConfig().batch_size, MLPConfig().steps)


@pytest.mark.parametrize(
    ("kind", "config", "module"), [(GPT, None, gpt), (GPT, SMALL_GPT, gpt), (MLP, None, mlp), (MLP, SMALL_MLP, mlp)]
)
def test_programs_are_made_again_from_the_manifest(kind, config, module):
    program = kind() if config is None else kind(config)
    again = instantiate(kind, vars(module), plain_arguments(program))
    assert again.config == program.config
    assert plain_arguments(again) == plain_arguments(program)


def test_the_default_gpt_has_about_a_million_parameters_and_one_tied_matrix():
    model = GPT().build()["model"]
    assert 0.9e6 < sum(p.numel() for p in model.parameters()) < 1.2e6
    assert model.head.weight is model.bytes.weight


def test_only_matrices_are_decayed():
    components = GPT(SMALL_GPT).build()
    decayed, free = components["optimizer"].param_groups
    assert {p.ndim for p in decayed["params"]} == {2}
    assert {p.ndim for p in free["params"]} == {1}
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    grouped = [p for group in (decayed, free) for p in group["params"]]
    assert {id(p) for p in grouped} == {id(p) for p in components["model"].parameters()}
    assert len(grouped) == len({id(p) for p in grouped})


def test_windows_overlap_by_the_byte_that_is_target_and_then_input():
    program = GPT(replace(SMALL_GPT, context=4))
    corpus = open_corpus([b"abcdefghi"], program.packing())
    assert corpus.samples(range(corpus.documents.samples)) == [b"abcde", b"efghi"]


def test_the_model_sees_no_byte_that_it_must_predict():
    model = GPT(SMALL_GPT).build()["model"].eval()
    tokens = torch.randint(256, (2, 32))
    with torch.no_grad():
        before = model(tokens)
        tokens[:, 20] += 1
        after = model(tokens % 256)
    assert torch.equal(before[:, :20], after[:, :20])
    assert not torch.equal(before[:, 20], after[:, 20])


def test_an_untrained_model_knows_nothing():
    state = build(GPT(SMALL_GPT), SEED)
    with torch.no_grad():
        logits = state.model.eval()(torch.randint(256, (4, 32)))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.randint(256, (128,)))
    assert abs(loss.item() - math.log(256)) < 0.05


def test_the_learning_rate_rises_falls_and_stays():
    program = GPT(GPTConfig(learning_rate=1.0, final_learning_rate=0.1, warmup=4, steps=20))
    rates = [program.learning_rate(step) for step in range(1, 31)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[3:20] == sorted(rates[3:20], reverse=True)
    assert rates[11] == pytest.approx(0.55)  # half of the cosine
    assert rates[19:] == [rates[19]] * 11
    assert rates[19] == pytest.approx(0.1)
    assert GPT(GPTConfig(warmup=0, steps=0)).learning_rate(1) > 0


@pytest.mark.parametrize("program", [GPT(SMALL_GPT), MLP(SMALL_MLP)], ids=["gpt", "mlp"])
def test_the_declared_learning_rate_is_the_one_in_use_to_the_bit(program: Program, monkeypatch):
    used = []
    kind = torch.optim.AdamW if isinstance(program, GPT) else torch.optim.SGD
    step = kind.step
    monkeypatch.setattr(
        kind, "step", lambda self, *a: (used.append([g["lr"] for g in self.param_groups]), step(self, *a))[1]
    )
    train(program, 12)
    declared = [program.hyperparameters(step)["learning_rate"] for step in range(1, 13)]
    assert [set(rates) for rates in used] == [{rate} for rate in declared]
    assert len(set(declared)) > 2


@pytest.mark.parametrize("program", [GPT(SMALL_GPT), MLP(SMALL_MLP)], ids=["gpt", "mlp"])
def test_hyperparameters_depend_on_the_step_alone(program: Program):
    before = [program.hyperparameters(step) for step in (1, 9, 200)]
    train(program, 3)
    assert [program.hyperparameters(step) for step in (1, 9, 200)] == before
    to_plain(before)


def test_the_loss_of_a_small_gpt_falls_on_the_embedded_text():
    _, losses = train(GPT(SMALL_GPT), 60)
    assert abs(losses[0] - math.log(256)) < 0.1
    assert sum(losses[-10:]) / 10 < losses[0] - 2


def test_a_small_gpt_learns_more_than_which_bytes_are_common():
    program = GPT(replace(SMALL_GPT, dropout=0.0))
    samples = program.default_data().samples(range(0, 160, 10))
    state = build(program, SEED)
    losses = [run_step(program, state, step, SEED, samples, []).loss for step in range(1, 81)]
    common = entropy(Counter(b"".join(sample[1:] for sample in samples)))  # no model without context can do better
    assert losses[-1] < common - 1


def test_dropout_is_active_and_seeded_by_the_step():
    program = GPT(SMALL_GPT)
    samples = program.default_data().samples(range(16))

    def loss(step):
        return run_step(program, build(program, SEED), step, SEED, samples, []).loss

    assert loss(1) == loss(1)
    assert loss(1) != loss(2)  # the same state and batch: only the dropout differs


def test_the_gradient_that_the_optimiser_sees_is_clipped():
    program = GPT(replace(SMALL_GPT, clip=1e-3))
    corpus = program.default_data()
    outcome = run_step(program, build(program, SEED), 1, SEED, corpus.samples(range(16)), [])
    norm = torch.tensor(int(outcome.fingerprint.gradient_norm[4:], 16), dtype=torch.int32).view(torch.float32).item()
    assert norm == pytest.approx(1e-3, rel=1e-2)


def test_an_mlp_learns_and_its_buffers_move():
    program = MLP(replace(SMALL_MLP, hidden=64, halve_every=30))
    state, losses = train(program, 80)
    assert sum(losses[-10:]) / 10 < losses[0] - 1.5
    norms = [module for module in state.model.modules() if isinstance(module, BatchNorm)]
    assert len(norms) == 2
    for norm in norms:
        assert norm.num_batches_tracked.item() == 80
        assert norm.running_mean.abs().max() > 0


def test_a_batch_of_one_row_trains_and_moves_no_statistics():
    program = MLP(SMALL_MLP)
    rows = program.default_data().samples(range(9))
    state = build(program, SEED)
    run_step(program, state, 1, SEED, rows[:8], [])
    buffers = {name: b.clone() for name, b in state.model.named_buffers()}
    weights = {name: p.clone() for name, p in state.model.named_parameters()}
    outcome = run_step(program, state, 2, SEED, rows[8:], [])
    assert math.isfinite(outcome.loss)
    assert all(torch.equal(b, buffers[name]) for name, b in state.model.named_buffers())
    assert all(not torch.equal(p, weights[name]) for name, p in state.model.named_parameters())
    # The scheduler has counted the step all the same.
    assert state.scheduler.last_epoch == 2
    again = run_step(program, build(program, SEED), 1, SEED, rows[:1], [])
    assert again == run_step(program, build(program, SEED), 1, SEED, rows[:1], [])


def test_larger_batches_go_through_the_plain_batchnorm():
    x = torch.randn(5, 3)
    ours, plain = BatchNorm(3), torch.nn.BatchNorm1d(3)
    assert torch.equal(ours(x), plain(x))
    assert torch.equal(ours.running_var, plain.running_var)
    ours.eval()
    plain.eval()
    assert torch.equal(ours(x[:1]), plain(x[:1]))


def test_rows_of_another_width_are_refused():
    corpus = open_corpus([b"twelve bytes"], Packing("documents"))
    with pytest.raises(UsageError, match="12 bytes where the program reads 17") as caught:
        MLP().collate(corpus.samples([0]))
    assert caught.value.code == "program"
