"""Reading certificates: who signed, what a log that fails at once leaves, and figures that are the same everywhere."""

import base64
import dataclasses
import json
import math
import random
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol import dsse
from protocol.certificate import PAYLOAD_TYPE, Predicate, Statement, add, open_certificate, sign_certificate
from protocol.checks import total_norm
from protocol.encoding import decode
from protocol.errors import ProtocolError, UsageError, VerificationError
from protocol.keys import SigningKey
from protocol.required import CheckResult, Result

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
