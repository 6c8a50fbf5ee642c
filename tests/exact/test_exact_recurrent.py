"""Recurrent layers: every overload against float64, cells against layers, and training to the same bits."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import nn
from torch.nn.utils import rnn

from witness.arithmetic import compiled, registry
from witness.arithmetic.mode import activate

KINDS = {
    "gru": (nn.GRU, {}),
    "lstm": (nn.LSTM, {}),
    "projected": (nn.LSTM, {"proj_size": 3}),
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
}
CELLS = {
    "gru": (nn.GRUCell, {}),
    "lstm": (nn.LSTMCell, {}),
    "tanh": (nn.RNNCell, {}),
    "relu": (nn.RNNCell, {"nonlinearity": "relu"}),
}
LENGTHS = torch.tensor([4, 6, 1])


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    compiled.switch(True)


def made(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32))


def pair(make):
    """A module and the same in float64."""
    torch.manual_seed(5)
    module, wide = make(), make().double()
    wide.load_state_dict({k: v.double() for k, v in module.state_dict().items()})
    return module, wide


def flat(result):
    return [t for part in result for t in (part if isinstance(part, tuple) else (part,))]


def outcome(module, x, begin, packed, batch_first):
    """Outputs, final states, and the gradients of inputs, states and parameters."""
    x = x.clone().requires_grad_()
    begin = None if begin is None else tuple(b.clone().requires_grad_() for b in begin)
    given = rnn.pack_padded_sequence(x, LENGTHS, batch_first, enforce_sorted=False) if packed else x
    state = begin if begin is None or len(begin) > 1 else begin[0]
    output, final = module(given, state)
    if packed:
        output = rnn.pad_packed_sequence(output, batch_first)[0]
    results = flat((output, final))
    gradients = [made(20 + i, *r.shape).to(r.dtype) for i, r in enumerate(results)]
    torch.autograd.backward(results, gradients)
    leaves = (x, *(begin or ()), *module.parameters())
    return [*results, *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_layers_agree_with_float64(kind, packed, bidirectional):
    make, options = KINDS[kind]
    for layers, bias, batch_first, begun in itertools.product((1, 2), (True, False), (False, True), (False, True)):

        def build(layers=layers, bias=bias, batch_first=batch_first):
            return make(4, 5, layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional, **options)

        module, wide = pair(build)
        x = made(1, 3, 6, 4) if batch_first else made(1, 6, 3, 4)
        widths = [options.get("proj_size", 5), 5][: 2 if make is nn.LSTM else 1]
        begin = [made(2 + i, layers * (1 + bidirectional), 3, w) for i, w in enumerate(widths)] if begun else None
        expected = outcome(wide, x.double(), begin and [b.double() for b in begin], packed, batch_first)
        with activate("exact-18"):
            ours = outcome(module, x, begin, packed, batch_first)
        for mine, reference in zip(ours, expected, strict=True):
            assert mine.dtype == torch.float32
            assert mine.shape == reference.shape
            assert (mine - reference).abs().max() <= 3e-4 * reference.abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_one_sequence_without_a_batch(kind):
    make, options = KINDS[kind]
    torch.manual_seed(5)
    module, x = make(4, 5, 2, **options), made(1, 6, 4)
    with activate("exact-14"):
        alone = flat(module(x))
        batch = flat(module(torch.stack([x, 3 * x, -x], 1)))
    for one, many in zip(alone, batch, strict=True):
        assert torch.equal(one, many[:, 0])


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("bias", [True, False])
def test_cells_agree_with_float64_and_with_layers(kind, bias):
    (make, options), (layer, layer_options) = CELLS[kind], KINDS[kind]
    cell, wide = pair(lambda: make(4, 5, bias, **options))
    x = made(1, 6, 3, 4)

    def run(cell, x):
        state, outputs = None, []
        for step in x:
            state = cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        result = torch.stack(outputs)
        result.square().sum().backward()
        return [result.detach(), *(p.grad for p in cell.parameters())]

    expected = run(wide, x.double())
    with activate("exact-18"):
        ours = run(cell, x)
        whole = layer(4, 5, bias=bias, **layer_options)
        with torch.no_grad():
            for mine, theirs in zip(whole.parameters(), cell.parameters(), strict=True):
                mine.copy_(theirs)
        at_once = whole(x)[0]
        single = cell(x[0, 0])
    for mine, reference in zip(ours, expected, strict=True):
        assert (mine - reference).abs().max() <= 3e-5 * reference.abs().max()
    assert torch.equal(at_once, ours[0])
    assert torch.equal(single[0] if isinstance(single, tuple) else single, at_once[0, 0])


def test_a_packed_row_has_the_bits_of_its_sequence_alone():
    torch.manual_seed(5)
    module, x = nn.LSTM(4, 5, 2, bidirectional=True), made(1, 6, 3, 4)
    with activate("exact-14"):
        packed, (h, c) = module(rnn.pack_padded_sequence(x, LENGTHS, enforce_sorted=False))
        output = rnn.pad_packed_sequence(packed)[0]
        for row, length in enumerate(LENGTHS.tolist()):
            alone, (ha, ca) = module(x[:length, row : row + 1])
            assert torch.equal(output[:length, row], alone[:, 0])
            assert torch.equal(h[:, row], ha[:, 0])
            assert torch.equal(c[:, row], ca[:, 0])


def test_dropout_between_layers_is_the_profiles_own():
    """It is drawn by the definition of dropout, only between layers, only in training."""
    torch.manual_seed(5)
    module, x = nn.GRU(4, 5, 3, dropout=0.5), made(1, 6, 2, 4)
    seen = []

    def record(t, p, training):
        seen.append((t.shape, p, training))
        return t * 2

    usual = registry.FUNCTIONS.get(F.dropout)
    registry.FUNCTIONS[F.dropout] = record
    try:
        with activate("exact-14"):
            module(x)
            module.eval()
            module(x)
    finally:
        registry.FUNCTIONS[F.dropout] = usual
    assert seen == [((12, 5), 0.5, True)] * 2
    module.train()
    with activate("exact-14"):
        torch.manual_seed(1)
        first = module(x)[0]
        torch.manual_seed(1)
        assert torch.equal(first, module(x)[0])
        assert not torch.equal(first, module(x)[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("packed", [False, True])
def test_the_gradient_of_a_gradient(kind, packed):
    make, options = KINDS[kind]
    module, wide = pair(lambda: make(4, 5, bidirectional=True, **options))

    def second(module, x):
        x = x.clone().requires_grad_()
        leaves = (x, *module.parameters())
        given = rnn.pack_padded_sequence(x, LENGTHS, enforce_sorted=False) if packed else x
        results = flat(module(given)[1:])
        loss = sum(r.square().sum() for r in results)
        once = torch.autograd.grad(loss, leaves, retain_graph=True)
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        penalty = sum((f * f).sum() for f in first)
        return [*first, *torch.autograd.grad(penalty, leaves)], once

    x = made(1, 6, 3, 4)
    expected, _ = second(wide, x.double())
    with activate("exact-18"):
        ours, once = second(module, x)
    for mine, reference in zip(ours, expected, strict=True):
        assert (mine - reference).abs().max() <= 3e-4 * reference.abs().max()
    for mine, reference in zip(ours, once, strict=False):
        assert torch.allclose(mine, reference, rtol=1e-3, atol=1e-4)


def test_the_gradient_of_a_cells_gradient():
    module, wide = pair(lambda: nn.LSTMCell(3, 4))

    def second(module, x):
        state = None
        for step in x:
            state = module(step, state)
        first = torch.autograd.grad(state[0].square().sum(), tuple(module.parameters()), create_graph=True)
        return torch.autograd.grad(sum(f.square().sum() for f in first), tuple(module.parameters()))

    x = made(1, 4, 2, 3)
    with activate("exact-18"):
        ours = second(module, x)
    for mine, reference in zip(ours, second(wide, x.double()), strict=True):
        assert (mine - reference).abs().max() <= 1e-4 * reference.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_its_dtype(dtype):
    torch.manual_seed(5)
    module, x = nn.GRU(4, 5).to(dtype), made(1, 6, 2, 4).to(dtype)
    with activate("exact-14"):
        y, h = module(x)
        y.sum().backward()
    assert y.dtype == h.dtype == module.weight_hh_l0.grad.dtype == dtype
    assert (y.float() - module.float()(x.float())[0]).abs().max() < 0.05


def train(kind, arithmetic, steps=20):
    """Losses of a recurrent net that learns whether a sequence sums to more than zero, and its state at the end."""
    torch.manual_seed(7)
    make, options = KINDS[kind]
    net = make(4, 8, 2, batch_first=True, bidirectional=True, **options)
    head = nn.Linear(2 * options.get("proj_size", 8), 2)
    parameters = [*net.parameters(), *head.parameters()]
    x = made(3, 12, 4, 4)
    target = (x.sum((1, 2)) > 0).long()
    optimiser = torch.optim.SGD(parameters, lr=0.3, momentum=0.9)
    losses = []

    def go():
        for _ in range(steps):
            optimiser.zero_grad()
            loss = F.cross_entropy(head(net(x)[0][:, -1]), target)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())

    if arithmetic is None:
        go()
    else:
        with activate(arithmetic):
            go()
    return losses, torch.cat([p.detach().reshape(-1) for p in parameters])


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_training_reaches_the_same_bits_whatever_threads_and_kernels(kind):
    losses, state = train(kind, "exact-14")
    native, _ = train(kind, None)
    assert losses[-1] < 0.75 * losses[0]
    assert losses[0] == pytest.approx(native[0], rel=1e-3)
    assert losses[-1] == pytest.approx(native[-1], rel=0.1)
    torch.set_num_threads(2)
    compiled.switch(False)
    again, other = train(kind, "exact-14")
    assert again == losses
    assert torch.equal(state, other)
