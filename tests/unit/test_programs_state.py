"""The whole state of the reference programs is under the root, and a step is a function of it."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from protocol.statetree import JSON, Pieces, Table, first_difference
from witness.data import Corpus
from witness.execute import build, run_step
from witness.hashing import hash_state
from witness.program import Program, State
from witness.programs.gpt import GPT, GPTConfig
from witness.programs.mlp import MLP, MLPConfig
from witness.restore import restore
from witness.state import Census

SEED = bytes(range(32))
PIECES = Pieces(size=4096)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(name: str) -> Program:
    if name == "gpt":
        return GPT(GPTConfig(layers=2, heads=2, width=32, context=16, batch_size=4, warmup=2))
    return MLP(MLPConfig(hidden=32, batch_size=8, halve_every=2))


@pytest.fixture(params=["gpt", "mlp"])
def name(request) -> str:
    return request.param


def table(program: Program, state: State) -> Table:
    census = Census(program, state)
    return hash_state(census.entries(), census.data, PIECES)


def snapshot(program: Program, state: State):
    census = Census(program, state)
    entries = census.entries()
    return entries, {entry.name: bytes(census.data(entry.name)) for entry in entries}


def advance(program: Program, state: State, corpus: Corpus, steps, probe=()):
    outcomes = []
    for step in steps:
        samples = corpus.samples(range(step * program.batch_size, (step + 1) * program.batch_size))
        outcomes.append(run_step(program, state, step, SEED, samples, probe))
    return outcomes


def after(name: str, steps: int):
    program = make(name)
    corpus = program.default_data()
    state = build(program, SEED)
    advance(program, state, corpus, range(1, steps + 1))
    return program, state, corpus


def test_every_tensor_of_the_state_is_in_the_census(name: str):
    program, state, _ = after(name, 2)
    census = Census(program, state)
    bound = set(census.leaves) | {alias for aliases in census.aliases.values() for alias in aliases}
    model = state.model
    for path, _ in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        assert f"model/{path}" in bound
    names = {id(p): path for path, p in model.named_parameters()}
    moments = {"gpt": {"exp_avg", "exp_avg_sq", "step"}, "mlp": {"momentum_buffer"}}[name]
    assert {names[id(p)] for p in state.optimizer.state} == set(dict(model.named_parameters()))
    for parameter, kept in state.optimizer.state.items():
        assert set(kept) == moments
        for key in kept:
            assert f"optimizer/{names[id(parameter)]}/{key}" in bound
    for index, group in enumerate(state.optimizer.param_groups):
        assert {f"optimizer/@groups/{index}/{key}" for key in group} <= bound
    # Nothing hides in a leaf's name: as many tensors as the state has, by count of bytes.
    tensors = {t.data_ptr(): t.nbytes for t in [*model.parameters(), *model.buffers()] if t.numel()}
    tensors |= {t.data_ptr(): t.nbytes for kept in state.optimizer.state.values() for t in kept.values()}
    leaves = [entry for entry in census.entries() if entry.dtype != JSON]
    assert sum(entry.size for entry in leaves) == sum(tensors.values())
    assert len(leaves) == len(tensors)


def test_what_each_program_is_there_for_is_bound():
    gpt, mlp = (Census(*after(name, 2)[:2]) for name in ("gpt", "mlp"))
    assert gpt.aliases == {"model/bytes.weight": ["model/head.weight"]}
    assert mlp.leaves["model/0.1.num_batches_tracked"].item() == 2
    assert b'["s:last_epoch",2]' in mlp.leaves["scheduler"]


def test_a_flipped_bit_of_any_leaf_moves_the_root(name: str):
    entries, buffers = snapshot(*after(name, 2)[:2])
    root = hash_state(entries, buffers.__getitem__, PIECES).root
    chance = random.Random(0)
    flips = 0
    for entry in entries:
        assert entry.size > 0
        places = {0, 8 * entry.size - 1, chance.randrange(8 * entry.size)}
        for at in places:
            changed = bytearray(buffers[entry.name])
            changed[at // 8] ^= 1 << at % 8
            found = hash_state(entries, {**buffers, entry.name: changed}.__getitem__, PIECES)
            assert found.root != root, f"bit {at} of {entry.name}"
            flips += 1
    assert flips > 2 * len(entries)


def test_a_flipped_bit_of_any_live_tensor_moves_the_root_and_is_named(name: str):
    program, state, _ = after(name, 2)
    before = table(program, state)
    entries, buffers = snapshot(program, state)
    census = Census(program, state)
    tensors = [name for name, leaf in census.leaves.items() if isinstance(leaf, torch.Tensor)]
    for leaf in tensors:
        raw = census.leaves[leaf].view(-1)[-1:].view(torch.uint8)  # shares its memory with the state
        raw[0] ^= 1
        found = table(program, state)
        assert found.root != before.root
        assert first_difference(before, found)[0] == leaf
        raw[0] ^= 1
    assert table(program, state).root == before.root
    assert snapshot(program, state) == (entries, buffers)


def nudge_the_learning_rate(program, state):
    group = state.optimizer.param_groups[0]
    group["lr"] = float(np.nextafter(group["lr"], 1))


def untie_the_head(program, state):
    state.model.head.weight = torch.nn.Parameter(state.model.head.weight.detach().clone())


def change_the_configuration(program, state):
    program.config = replace(program.config, dropout=0.2)


LIVE = {
    "gpt": {
        "one ulp of the learning rate": nudge_the_learning_rate,
        "one ulp of a beta": lambda _, s: s.optimizer.param_groups[1].update(betas=(0.9, 0.95 + 2**-53)),
        "order of parameters": lambda _, s: s.optimizer.param_groups[0]["params"].reverse(),
        "dropout": lambda _, s: setattr(s.model.blocks[1].dropout, "p", 0.2),
        "dropout of attention": lambda _, s: setattr(s.model.blocks[1].attention, "dropout", 0.0),
        "training flag": lambda _, s: s.model.blocks[0].eval(),
        "untied head": untie_the_head,
        "configuration": change_the_configuration,
        "new attribute": lambda p, _: setattr(p, "secret", 1),
    },
    "mlp": {
        "steps that the scheduler counted": lambda _, s: setattr(s.scheduler, "last_epoch", 3),
        "base of the scheduler": lambda _, s: s.scheduler.base_lrs.__setitem__(0, 0.2),
        "momentum": lambda _, s: s.optimizer.param_groups[0].update(momentum=0.8),
        "nesterov": lambda _, s: s.optimizer.param_groups[0].update(nesterov=False),
        "momentum of statistics": lambda _, s: setattr(s.model[0][1], "momentum", 0.2),
        "training flag": lambda _, s: s.model[0][1].eval(),
        "lost moment": lambda _, s: s.optimizer.state.pop(s.model[0][0].weight),
        "hidden buffer": lambda _, s: s.model.register_buffer("extra", torch.zeros(1), persistent=False),
        "hidden tensor": lambda _, s: setattr(s.model[1], "extra", torch.zeros(1)),
    },
}


@pytest.mark.parametrize(("name", "change"), [(name, change) for name, every in LIVE.items() for change in every])
def test_a_changed_scalar_moves_the_root(name: str, change: str):
    program, state, _ = after(name, 2)
    before = table(program, state).root
    LIVE[name][change](program, state)
    assert table(program, state).root != before


def test_a_step_from_a_restored_state_leaves_the_same_bits(name: str):
    program, state, corpus = after(name, 3)
    entries, buffers = snapshot(program, state)
    expected = advance(program, state, corpus, range(4, 7), corpus.samples([1]))

    again = make(name)
    fresh = build(again, bytes(32))  # another seed: whatever is not restored would show
    assert table(again, fresh).root != hash_state(entries, buffers.__getitem__, PIECES).root
    restore(again, fresh, entries, buffers)
    assert snapshot(again, fresh) == (entries, buffers)
    assert advance(again, fresh, corpus, range(4, 7), corpus.samples([1])) == expected
    assert snapshot(again, fresh) == snapshot(program, state)


def test_a_restored_initial_state_is_the_initial_state(name: str):
    program, state, corpus = after(name, 0)
    entries, buffers = snapshot(program, state)
    again = make(name)
    fresh = build(again, bytes(32))
    restore(again, fresh, entries, buffers)
    assert advance(again, fresh, corpus, [1, 2, 3]) == advance(program, state, corpus, [1, 2, 3])
    assert snapshot(again, fresh) == snapshot(program, state)


def test_a_restored_step_does_not_depend_on_the_generators(name: str):
    program, state, corpus = after(name, 1)
    entries, buffers = snapshot(program, state)
    advance(program, state, corpus, [2])
    again = make(name)
    fresh = build(again, SEED)
    restore(again, fresh, entries, buffers)
    torch.manual_seed(99)
    np.random.seed(99)
    random.seed(99)
    advance(again, fresh, corpus, [2])
    assert snapshot(again, fresh) == snapshot(program, state)


def test_the_probe_leaves_state_and_generators_as_they_are(name: str):
    def run(probe):
        program, state, corpus = after(name, 1)
        (outcome,) = advance(program, state, corpus, [2], corpus.samples(probe))
        generators = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()
        gradients = [p.grad.clone() for p in state.model.parameters()]
        return outcome, snapshot(program, state), generators, gradients

    without, with_one, with_another = run([]), run([5]), run([6])
    assert without[0].fingerprint.probe is None
    assert with_one[0].fingerprint.probe != with_another[0].fingerprint.probe
    assert without[1:3] == with_one[1:3] == with_another[1:3]
    assert all(torch.equal(a, b) for a, b in zip(without[3], with_one[3], strict=True))


def test_the_probe_sees_the_weights(name: str):
    program, state, corpus = after(name, 2)
    one = advance(program, state, corpus, [3], corpus.samples([5]))[0].fingerprint.probe
    other = advance(program, state, corpus, [4], corpus.samples([5]))[0].fingerprint.probe
    assert one != other
