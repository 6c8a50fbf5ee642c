"""Reading certificates: who signed, what a log that fails at once leaves, and figures that are the same everywhere."""

import base64
import dataclasses
import json
import math
import random
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol import PROTOCOL_VERSION, dsse
from protocol.certificate import PAYLOAD_TYPE, Predicate, Statement, add, open_certificate, sign_certificate
from protocol.checks import total_norm
from protocol.encoding import decode
from protocol.errors import ProtocolError, UsageError, VerificationError, WitnessError
from protocol.keys import SigningKey
from protocol.notes import Checkpoint, sign_head
from protocol.required import CheckResult, Result
from protocol.soundness import MAX_DRAWS, MAX_STEPS

EXAMPLE = Path(__file__).parents[2] / "spec" / "example" / "certificate.json"
PAYLOAD = base64.b64decode(json.loads(EXAMPLE.read_bytes())["payload"])
VERIFIER = SigningKey("verifier.example", sha256(b"training-witness example key verifier.example").digest())
OTHER = SigningKey("other.example", bytes(range(32)))


def _predicate(**changes: Any) -> Predicate:
    statement = decode(PAYLOAD, Statement, limit=1 << 20)
    return msgspec.structs.replace(statement.predicate, **changes)


def test_one_accepted_verifier_cannot_sign_for_another() -> None:
    """Whoever accepts several verifiers would else read the one's certificate as the other's."""
    forged = dsse.sign(PAYLOAD_TYPE, PAYLOAD, [OTHER])
    with pytest.raises(VerificationError) as refused:
        open_certificate(forged, keys=[OTHER.public, VERIFIER.public])
    assert refused.value.code == "envelope-unsigned"
    both = dsse.sign(PAYLOAD_TYPE, PAYLOAD, [OTHER, VERIFIER])
    assert open_certificate(both, keys=[OTHER.public, VERIFIER.public]).verdict == "reproduced"


def test_a_run_that_fails_before_its_first_step_has_a_sum() -> None:
    failed = CheckResult("manifest", Result("diverged", "records-digest", "step 1 drew something else"))
    predicate = _predicate(
        steps=0, draws=0, checks=(failed,), challenges=(), mandatory=(), statement=None, verdict="diverged"
    )
    assert add([open_certificate(sign_certificate(predicate, VERIFIER))]).verdict == "diverged"


def test_certificates_about_different_heads_are_the_callers_mistake() -> None:
    one = open_certificate(EXAMPLE.read_bytes())
    other = dataclasses.replace(one, head=msgspec.structs.replace(one.head, size=one.head.size - 1))
    with pytest.raises(UsageError) as refused:
        add([one, other])
    assert refused.value.code == "other-head"


TRAINER = SigningKey("trainer.example", bytes(range(1, 33)))
NINES = "0." + "9" * 40


def _large(policy: dict[str, Any], steps: int = MAX_STEPS, draws: int = 0, promised: int | None = None) -> bytes:
    """A certificate of whoever signs trainer's head and certificate alike, over a run that nobody recorded."""
    predicate = _predicate()
    head = sign_head(Checkpoint(f"{PROTOCOL_VERSION}/{predicate.run}", 1 << 40, bytes(32)), TRAINER)
    predicate = msgspec.structs.replace(
        predicate,
        trainer=TRAINER.public.vkey,
        head=head.decode(),
        statement=None,
        steps=steps,
        promised=steps if promised is None else promised,
        draws=draws,
        challenges=(),
        mandatory=((0, "init"), (1, "first"), (steps, "last")),
        policy=msgspec.structs.replace(predicate.policy, **policy),
        verdict="incomplete",
    )
    return sign_certificate(predicate, VERIFIER)


@pytest.mark.parametrize(
    "policy",
    [
        {"bad_fraction": "x"},
        {"bad_fraction": "1/0"},
        {"confidence": "2"},
        {"confidence": ""},
        {"draws": MAX_DRAWS + 1},
        {"draws": 5 * 10**8},
        {"bad_fraction": "0"},  # a single bad step in a thousand million
        {"bad_fraction": "0.0003", "confidence": NINES},
    ],
)
def test_a_policy_that_means_nothing_or_too_much_is_malformed(policy: dict[str, Any]) -> None:
    """Text of a stranger: it must not look like a mistake of whoever reads the certificate."""
    began = time.process_time()
    with pytest.raises(ProtocolError) as refused:
        open_certificate(_large(policy))
    assert refused.value.code == "policy"
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"draws": 2 * 10**6}, "certificate"),
        ({"draws": 5 * 10**8}, "certificate"),
        ({"draws": MAX_DRAWS + 1}, "certificate"),
        ({"promised": MAX_STEPS + 1}, "certificate-malformed"),
        ({"steps": MAX_STEPS + 1}, "certificate-malformed"),
        ({"steps": 1 << 40}, "certificate-malformed"),
    ],
)
def test_more_than_a_session_can_hold_costs_its_reader_nothing(changes: dict[str, Any], code: str) -> None:
    began = time.process_time()
    with pytest.raises(WitnessError) as refused:
        open_certificate(_large({}, **changes))
    assert refused.value.code == code
    assert time.process_time() - began < 2


def test_as_much_as_a_session_can_hold_costs_its_reader_little() -> None:
    """Ten certificates with as many draws as there can be of a run as long as there can be."""
    began = time.process_time()
    predicates = [_large({"bad_fraction": "0.006", "confidence": NINES}, draws=MAX_DRAWS) for _ in range(10)]
    evidence = [dataclasses.replace(open_certificate(one), draws=MAX_DRAWS) for one in predicates]
    for number, one in enumerate(evidence):
        changed = msgspec.structs.replace(one.predicate, nonce=f"{number:064x}")
        evidence[number] = dataclasses.replace(one, predicate=changed)
    total = add(evidence)
    assert (total.sessions, total.verdict, total.miss.detection_down(6)) == (10, "reproduced", "0.999999")
    assert time.process_time() - began < 10


def test_an_envelope_is_utf8_also_where_it_is_ignored() -> None:
    data = EXAMPLE.read_bytes()
    with pytest.raises(ProtocolError) as refused:
        open_certificate(data[:-1] + b',"note":"\xff"}')
    assert refused.value.code == "envelope-malformed"
    assert open_certificate(data[:-1] + b',"note":"\xc3\xbf"}').verdict == "reproduced"


def test_the_norm_over_groups_is_a_plain_sum() -> None:
    """A compensated sum, as `sum` is from Python 3.12 on, keeps the small squares that a plain one drops."""
    assert total_norm([1.0, *[2.0**-27] * 16]) == 1.0
    assert math.sqrt(math.fsum([1.0, *[2.0**-54] * 16])) != 1.0
    assert total_norm([-3.0]) == -3.0
    assert total_norm([]) == 0.0
    assert math.isnan(total_norm([1.0, math.nan]))


def _rounded_root(value: float) -> float:
    """The float nearest to the root of a float from 1 to 4, from integers alone."""
    root = math.isqrt(int(value * 2.0**52) << 54)  # one bit more than a float has, and the rest cannot be a tie
    return ((root + 1) >> 1) * 2.0**-52


def test_the_norm_over_groups_is_correctly_rounded() -> None:
    """The root is IEEE 754's; a power, as libm has it, is off by one in one of a thousand."""
    made = random.Random(20261129)
    pairs = [(made.uniform(1, 1.2), made.uniform(0.1, 1.2)) for _ in range(8000)]
    for left, right in pairs:
        assert total_norm([left, right]) == _rounded_root(left * left + right * right)
