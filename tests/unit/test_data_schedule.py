"""The order of samples, against bytes made with OpenSSL and a shell and against a few lines of the standard library."""

import hashlib
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from protocol import schedule
from protocol.errors import UsageError
from protocol.schedule import MAX_SAMPLES, Schedule, epoch_order, probe_indices, stream_seed

SEED = bytes(range(32))
# With printf, `openssl dgst -sha256 -binary | openssl dgst -shake256 -xoflen 80`, fold -w16 and sort.
FIRST_EPOCH = [5, 1, 3, 2, 9, 0, 7, 4, 8, 6]


def tagged(domain, *parts):
    """`protocol.encoding.tagged_hash`, from its docstring."""
    every = (b"training-witness/v1/" + domain, *parts)
    return hashlib.sha256(b"".join(struct.pack(">Q", len(part)) + part for part in every)).digest()


def order(seed, epoch, samples):
    """`epoch_order`, from the module's docstring."""
    key = tagged(b"schedule", seed, struct.pack(">Q", epoch))
    words = struct.unpack(f">{samples}Q", hashlib.shake_256(key).digest(8 * samples))
    return sorted(range(samples), key=lambda i: (words[i], i))


def test_golden_epochs():
    assert epoch_order(SEED, 0, 10).tolist() == FIRST_EPOCH == order(SEED, 0, 10)
    assert epoch_order(SEED, 1, 10).tolist() == [7, 9, 2, 4, 6, 0, 1, 8, 5, 3] == order(SEED, 1, 10)


@pytest.mark.parametrize("samples", [1, 2, 17, 1000, 4099])
def test_orders_are_those_of_the_standard_library(samples):
    for epoch in (0, 1, 2**40):
        assert epoch_order(SEED, epoch, samples).tolist() == order(SEED, epoch, samples)


def test_equal_words_keep_the_order_of_their_indices(monkeypatch):
    class Words:
        def __init__(self, key):
            pass

        def digest(self, length):
            return b"".join(struct.pack(">Q", 2**63 if i % 3 else 2**63 - 1) for i in range(length // 8))

    monkeypatch.setattr(schedule.hashlib, "shake_256", Words)
    assert epoch_order(SEED, 0, 100).tolist() == [*range(0, 100, 3), *(i for i in range(100) if i % 3)]


@pytest.mark.parametrize(("samples", "batch_size"), [(10, 3), (10, 5), (10, 1), (7, 7), (3, 8), (1, 1), (1, 5)])
def test_every_epoch_visits_every_sample_once(samples, batch_size):
    plan = Schedule(SEED, samples, batch_size)
    step = 1
    for epoch in range(3):
        batches = []
        while sum(map(len, batches)) < samples:
            batches.append(plan.indices(step))
            step += 1
        assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
        assert 1 <= len(batches[-1]) <= batch_size  # the last batch of an epoch is short, never filled from the next
        assert [i for batch in batches for i in batch] == order(SEED, epoch, samples)


def test_steps_can_be_asked_for_in_any_order_and_by_several_threads():
    expected = [Schedule(SEED, 10, 3).indices(step) for step in range(1, 41)]
    assert expected[:4] == [FIRST_EPOCH[:3], FIRST_EPOCH[3:6], FIRST_EPOCH[6:9], FIRST_EPOCH[9:]]
    plan = Schedule(SEED, 10, 3)
    assert [plan.indices(step) for step in range(40, 0, -1)] == expected[::-1]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(plan.indices, list(range(1, 41)) * 20)) == expected * 20


def test_indices_are_python_integers():
    assert {type(i) for i in Schedule(SEED, 5, 5).indices(1)} == {int}


def test_another_seed_or_epoch_is_another_order():
    orders = [epoch_order(seed, epoch, 50).tolist() for seed in (SEED, bytes(32)) for epoch in (0, 1)]
    assert len({tuple(found) for found in orders}) == 4


@pytest.mark.parametrize(
    ("samples", "batch_size", "code"),
    [(0, 4, "empty-corpus"), (-1, 4, "empty-corpus"), (5, 0, "schedule"), (MAX_SAMPLES + 1, 4, "schedule")],
)
def test_impossible_schedules(samples, batch_size, code):
    with pytest.raises(UsageError) as caught:
        Schedule(SEED, samples, batch_size)
    assert caught.value.code == code


@pytest.mark.parametrize("step", [0, -1, -100])
def test_there_is_no_step_before_the_first(step):
    with pytest.raises(UsageError) as caught:
        Schedule(SEED, 10, 3).indices(step)
    assert caught.value.code == "schedule"


def test_stream_seeds_by_hand():
    expected = tagged(b"seed", SEED, struct.pack(">Q", 7), struct.pack(">Q", 1), b"step")
    assert stream_seed(SEED, 7, 1, "step") == expected
    assert expected.hex() == "dbfab5e319c10a2daf6943193e3cca21a6713bde5a9575bfe591d12c7046dcc8"
    others = [stream_seed(SEED, 8, 1, "step"), stream_seed(SEED, 7, 0, "step"), stream_seed(SEED, 7, 1, "batch")]
    assert len({expected, *others}) == 4


def test_probe_samples_by_hand():
    root = b"\x11" * 32
    key = tagged(b"stream", tagged(b"probe", SEED, struct.pack(">Q", 3), root))
    words = struct.unpack(">4Q", hashlib.shake_256(key).digest(32))
    assert max(words) < 2**64 - 2**64 % 10  # so that none of these is dropped
    assert probe_indices(SEED, 3, root, 10, 4) == [word % 10 for word in words] == [5, 7, 2, 6]
    assert probe_indices(SEED, 3, b"\x12" * 32, 10**9, 4) != probe_indices(SEED, 3, root, 10**9, 4)
    assert probe_indices(SEED, 3, root, 10, 0) == []


def test_neither_data_nor_schedule_imports_torch():
    code = "import protocol.schedule, witness.data, witness.programs, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(filter(None, sys.path))})
