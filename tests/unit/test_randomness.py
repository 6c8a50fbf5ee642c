"""Nonces, seeds and draws against bytes made with OpenSSL and a shell, and against exhaustive enumeration."""

import itertools
import math
from collections import Counter

import pytest

from protocol import randomness
from protocol.errors import UsageError, VerificationError
from protocol.randomness import Stream, check_nonce, commit_nonce, draw, self_derived_seed, session_seed

NONCE = bytes(range(32))
POLICY = b'{"policy":1}'
HEAD = b"example.org/run\n7\nroot\n"
# Made with printf, xxd and `openssl dgst -sha256` / `-shake256 -xoflen 256` from the docstrings alone.
COMMITMENT = bytes.fromhex("8f9265d022e77e81ce11f502ce323c7d15acde23f33e441e077ab70d67129f4f")
SESSION_SEED = bytes.fromhex("1dc5d156b0ae9e590a08a327dbd93a9e2c7e2a925e9abc7263a8765de07d6b4d")
SELF_SEED = bytes.fromhex("40b43e5a825c696a767650defa32a3c807b05f62f56fd71e569ecd1d44291d5d")
STREAM = bytes.fromhex(
    "b421798dd1094c9b7c788c405692f1bc53bc6b23244a2668cdb5b4a5eee493d610168b51daba1e7b0658a954b65851839c7b9111d236562a"
    "9fed5790b84ae8dcad2c316e00c1d5e8486cf157257037074abe99cc0751d92b9b7eec76832904c8ee3d3309d19daa7e46f16888996d7d2e"
    "b96f6b6685ce5df581df11b2c70dc656ab1ee76008fcfe7b4824c69029307763be194cb30bc5a56a385a80b85ac23b15b0708862265eeb74"
    "d54d6b51dc3f43aff7f1c7a34fb4e97ed3a658823b25c5b59134c8612cd4124d1c9f47f819badb0a7bf5715ecbbf3feae1dbe0d67f011927"
    "ddf67ce6d5fc36bcc1bf163a5e960f039c50c8092c83cba8ea83cac3bb4ccb92"
)

SESSION_INPUTS = {
    "session": b"session-1",
    "policy": POLICY,
    "commitment": COMMITMENT,
    "head": HEAD,
    "nonce": NONCE,
}


def test_golden_bytes():
    assert commit_nonce(NONCE) == COMMITMENT
    assert session_seed(**SESSION_INPUTS) == SESSION_SEED
    assert self_derived_seed(policy=POLICY, head=HEAD) == SELF_SEED


def test_stream_words_are_the_shake_output_across_refills():
    stream = Stream(NONCE)
    assert b"".join(stream.word().to_bytes(8, "big") for _ in range(32)) == STREAM


def test_golden_draws():
    # By hand: the words above modulo 10, 9, ..., 1 (with bc) are 9 8 0 3 5 4 2 2 0 0: the exchanges are 0-9, 1-9, 2-2,
    # 3-6, 4-9, 5-9, 6-8, 7-9, 8-8, 9-9. Modulo 7, 6, 5: 5 2 0.
    assert draw(NONCE, 10, 10) == [9, 0, 2, 6, 1, 4, 8, 5, 3, 7]
    assert draw(NONCE, 7, 3) == [5, 3, 2]
    assert draw(NONCE, 10**9, 4) == [62877339, 835681958 + 1, 514119502 + 2, 799273849 + 3]


def test_below_drops_the_words_that_would_bias():
    n = 2**63 + 1  # only words up to 2**63 are kept
    words = [int.from_bytes(STREAM[i : i + 8], "big") for i in range(0, 256, 8)]
    kept = [word for word in words if word <= 2**63]
    assert 10 < len(kept) < 22
    stream = Stream(NONCE)
    assert [stream.below(n) for _ in kept] == kept


@pytest.mark.parametrize("n", range(1, 17))
def test_below_is_exactly_uniform_on_a_small_word(monkeypatch, n):
    # The same code with 4-bit words: over all words, every answer is given equally often.
    monkeypatch.setattr(randomness, "WORDS", 16)

    class Counting(Stream):
        def __init__(self):
            super().__init__(NONCE)
            self.words = iter(range(15, -1, -1))  # those to be dropped come first

        def word(self):
            return next(self.words)

    stream, answers = Counting(), Counter()
    for _ in range(16 // n * n):
        answers[stream.below(n)] += 1
    assert answers == dict.fromkeys(range(n), 16 // n)
    assert list(stream.words) == []


@pytest.mark.parametrize(("population", "count"), [(n, k) for n in range(1, 7) for k in range(1, n + 1)])
def test_uniform_choices_give_every_ordered_sample_exactly_once(monkeypatch, population, count):
    choices = iter(())

    class Scripted:
        def __init__(self, seed):
            self.sizes = iter(range(population, 0, -1))

        def below(self, n):
            assert n == next(self.sizes)
            return next(choices)

    monkeypatch.setattr(randomness, "Stream", Scripted)
    seen = Counter()
    for script in itertools.product(*(range(population - i) for i in range(count))):
        choices = iter(script)
        seen[tuple(draw(NONCE, population, count))] += 1
    assert seen == dict.fromkeys(itertools.permutations(range(population), count), 1)


def test_each_position_of_the_draw_is_uniform_over_seeds():
    # 4,000 fixed seeds, 20 numbers, 3 positions: every count within 5 standard deviations of its mean. With random
    # seeds, one of the 60 counts would leave that interval with probability below 1e-4.
    seeds, population = 4000, 20
    samples = [draw(commit_nonce(i.to_bytes(32, "big")), population, 3) for i in range(seeds)]
    mean = seeds / population
    deviation = math.sqrt(mean * (1 - 1 / population))
    for position in range(3):
        counts = Counter(sample[position] for sample in samples)
        assert set(counts) == set(range(population))
        assert all(abs(count - mean) < 5 * deviation for count in counts.values())


def test_a_huge_population_costs_nothing():
    sample = draw(NONCE, 2**64, 1000)
    assert len(set(sample)) == 1000
    # 1,000 uniform 64-bit numbers that all have the top bit clear, or set, would be a miracle
    assert 400 < sum(number >= 2**63 for number in sample) < 600


def test_count_is_capped_and_nothing_can_be_drawn_from_nothing():
    assert draw(NONCE, 5, 99) == draw(NONCE, 5, 5)
    assert draw(NONCE, 0, 3) == []
    assert draw(NONCE, 3, 0) == []


@pytest.mark.parametrize(("population", "count"), [(-1, 1), (2**64 + 1, 1), (5, -1)])
def test_impossible_draws(population, count):
    with pytest.raises(UsageError) as caught:
        draw(NONCE, population, count)
    assert caught.value.code == "impossible-count"


@pytest.mark.parametrize("n", [0, -1, 2**64 + 1])
def test_impossible_limits(n):
    with pytest.raises(UsageError) as caught:
        Stream(NONCE).below(n)
    assert caught.value.code == "impossible-count"


def test_the_largest_limit_is_the_word_itself():
    assert Stream(NONCE).below(2**64) == int.from_bytes(STREAM[:8], "big")


def test_the_right_nonce_opens_its_commitment_and_no_other_does():
    check_nonce(NONCE, COMMITMENT)
    for wrong in (NONCE[::-1], NONCE[:-1], NONCE + b"\0", b""):
        with pytest.raises(VerificationError) as caught:
            check_nonce(wrong, COMMITMENT)
        assert caught.value.code == "nonce-mismatch"
    for commitment in (NONCE, COMMITMENT[:-1], b""):
        with pytest.raises(VerificationError, match="committed to"):
            check_nonce(NONCE, commitment)


def test_no_seed_from_a_nonce_that_was_not_committed_to():
    with pytest.raises(VerificationError) as caught:
        session_seed(**{**SESSION_INPUTS, "nonce": NONCE[::-1]})
    assert caught.value.code == "nonce-mismatch"
    assert caught.value.evidence["commitment"] == COMMITMENT.hex()


def test_every_public_input_changes_the_seed():
    other_nonce = {"nonce": NONCE[::-1], "commitment": commit_nonce(NONCE[::-1])}
    changed = [{"session": b"session-2"}, {"policy": b'{"policy":2}'}, {"head": HEAD[:-1]}, other_nonce]
    seeds = {session_seed(**SESSION_INPUTS)} | {session_seed(**{**SESSION_INPUTS, **change}) for change in changed}
    assert len(seeds) == 1 + len(changed)
    assert self_derived_seed(policy=POLICY, head=HEAD[:-1]) != SELF_SEED
    assert self_derived_seed(policy=POLICY[:-1], head=HEAD) != SELF_SEED


def test_bytes_cannot_move_between_inputs():
    moved = {**SESSION_INPUTS, "session": b"session-1{", "policy": POLICY[1:]}
    assert moved["session"] + moved["policy"] == SESSION_INPUTS["session"] + SESSION_INPUTS["policy"]
    assert session_seed(**moved) != SESSION_SEED
    assert self_derived_seed(policy=POLICY + HEAD[:1], head=HEAD[1:]) != SELF_SEED


@pytest.mark.parametrize("name", ["session", "policy", "head"])
def test_a_seed_binds_something_of_everything(name):
    with pytest.raises(UsageError) as caught:
        session_seed(**{**SESSION_INPUTS, name: b""})
    assert caught.value.code == "seed-input"
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["policy", "head"])
def test_a_self_derived_seed_binds_something_of_everything(name):
    with pytest.raises(UsageError, match=name):
        self_derived_seed(**{"policy": POLICY, "head": HEAD, name: b""})


@pytest.mark.parametrize("length", [0, 31, 33])
def test_lengths_of_our_own_inputs(length):
    for call in (lambda: commit_nonce(bytes(length)), lambda: Stream(bytes(length)), lambda: draw(bytes(length), 3, 1)):
        with pytest.raises(UsageError) as caught:
            call()
        assert caught.value.code == "seed-input"
