"""Polling an answer that is Pending, with time that passes when told to."""

import itertools

import pytest
from http_support import DONE, Clock

from protocol import messages as m
from protocol.errors import VerificationError
from protocol.opening import expect
from witness.asking import LAST_CALL, LONGEST_PAUSE, Ask, ask
from witness.asking import Clock as Times

PENDING = [m.pack(m.Pending(done, 9)) for done in range(10)]


def take(reply: bytes) -> m.Done:
    return expect(reply, m.Done)[0]


def test_the_same_frame_is_sent_until_the_answer_is_there():
    clock, sent, seen = Clock(), [], []
    replies = [PENDING[1], PENDING[4], DONE]

    def transport(frame: bytes) -> bytes:
        sent.append(frame)
        return replies.pop(0)

    answer = ask(
        transport,
        b"question",
        take,
        deadline=clock.now + 100,
        clock=clock,
        sleep=clock.sleep,
        progress=lambda *step: seen.append(step),
    )
    assert answer == m.Done()
    assert sent == [b"question"] * 3
    assert seen == [(1, 9), (4, 9)]


def test_pauses_grow_to_a_limit_and_end_at_the_deadline():
    clock, asked = Clock(), []
    begin = clock.now

    def transport(_: bytes) -> bytes:
        asked.append(clock.now - begin)
        return PENDING[3]

    with pytest.raises(VerificationError) as caught:
        ask(transport, b"", take, deadline=begin + 60, clock=clock, sleep=clock.sleep)
    assert caught.value.code == "unanswered"
    assert caught.value.evidence == {"seconds": 60.0, "rebuilt": 3, "owed": 9}
    pauses = [round(b - a, 6) for a, b in itertools.pairwise(asked)]
    assert asked[-1] == pytest.approx(60)  # the last question is asked when the time is over, not before
    assert pauses[:-1] == sorted(pauses[:-1])
    assert max(pauses) == LONGEST_PAUSE


def test_an_answer_that_is_there_at_the_deadline_counts():
    clock = Clock()
    deadline = clock.now + 5
    answer = ask(
        lambda _: DONE if clock.now >= deadline else PENDING[0],
        b"",
        take,
        deadline=deadline,
        clock=clock,
        sleep=clock.sleep,
    )
    assert answer == m.Done()


def test_a_refusal_ends_the_polling_at_once():
    clock = Clock()
    with pytest.raises(VerificationError) as caught:
        ask(
            lambda _: m.pack(m.Refusal("disk", "no")), b"", take, deadline=clock.now + 9, clock=clock, sleep=clock.sleep
        )
    assert caught.value.code == "refused"
    assert clock.now == 1000


class Timed:
    """A transport that takes all the time it is given, or answers Pending first."""

    def __init__(self, clock: Clock, replies: list[bytes]) -> None:
        self._clock, self._replies = clock, replies
        self.given: list[float] = []

    def within(self, frame: bytes, seconds: float) -> bytes:
        self.given.append(seconds)
        if self._replies:
            return self._replies.pop(0)
        self._clock.sleep(seconds)
        raise VerificationError("unanswered", "silence", evidence={"seconds": seconds})


def test_a_transport_is_held_to_what_is_left_and_the_evidence_counts_from_the_first_question():
    clock = Clock()
    transport = Timed(clock, [PENDING[0]])
    with pytest.raises(VerificationError) as caught:
        ask(transport, b"", take, deadline=clock.now + 30, clock=clock, sleep=clock.sleep)
    assert transport.given[0] == 30
    assert 29 < transport.given[1] < 30
    assert caught.value.evidence["seconds"] == 30.0


def test_the_last_exchange_gets_some_seconds_however_late_it_begins():
    clock = Clock()
    transport = Timed(clock, [PENDING[0]])
    with pytest.raises(VerificationError):
        ask(transport, b"", take, deadline=clock.now + 0.1, clock=clock, sleep=clock.sleep)
    assert transport.given == [LAST_CALL, LAST_CALL]


POLICY = m.Policy("0.9", "0.5", answer_seconds=10, session_seconds=60)


def asker(transport, clock: Clock, policy: m.Policy = POLICY) -> Ask:
    return Ask(transport, policy, Times(clock, clock.sleep))


def test_all_answers_together_have_a_time_too():
    """Every single one is in time."""
    clock = Clock()
    asked = asker(lambda _: clock.sleep(9) or DONE, clock)
    answers = 0
    with pytest.raises(VerificationError) as caught:
        while True:
            asked(b"", take)
            answers += 1
    assert caught.value.code == "unanswered"
    assert answers == 7
    assert caught.value.evidence == {"seconds": 63, "session_seconds": 60}


def test_pauses_between_pending_answers_count():
    clock = Clock()
    replies = itertools.cycle([PENDING[1], PENDING[2], PENDING[3], DONE])
    asked, answers = asker(lambda _: next(replies), clock), 0
    with pytest.raises(VerificationError):
        while True:
            asked(b"", take)
            answers += 1
            clock.now += 1  # our own
    assert (answers, asked.waited) == (43, pytest.approx(60))  # of 1.4 seconds each, the last one cut short


def test_an_answer_has_no_more_time_than_is_left_to_all():
    clock = Clock()
    transport = Timed(clock, [PENDING[0]] * 4 + [DONE])
    asked = asker(transport, clock, m.Policy("0.9", "0.5", answer_seconds=50, session_seconds=12))
    asked(b"", take)
    waited = asked.waited
    assert 0 < waited < 10
    with pytest.raises(VerificationError):
        asked(b"", take)
    assert transport.given[-1] == pytest.approx(max(12 - waited, LAST_CALL))


def test_what_the_verifier_does_with_answers_takes_none_of_their_time():
    clock = Clock()

    def slowly(reply: bytes) -> m.Done:
        clock.sleep(1000)
        return take(reply)

    asked = asker(lambda _: DONE, clock)
    for _ in range(5):
        assert asked(b"", slowly) == m.Done()
    assert asked.waited == 0
