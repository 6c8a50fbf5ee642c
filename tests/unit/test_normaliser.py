"""Normalisers to the byte: what is made alike, what is not, and what refuses to run."""

import hashlib
import re
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import IncompleteError
from protocol.ledger_claim import LedgerClaim
from protocol.normaliser import MAX_MARKS, NORMALISERS, document_digest, normalise

BY_VERSION = {normaliser.unicode: name for name, normaliser in NORMALISERS.items()}
if unicodedata.unidata_version not in BY_VERSION:
    pytest.skip("no normaliser is defined by this Python's Unicode data", allow_module_level=True)
NAME = BY_VERSION[unicodedata.unidata_version]
"""The normaliser that this Python can run."""


def alike(data):
    return normalise(NAME, data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", b""),
        (b"plain", b"plain"),
        (b"a\r\nb\rc\nd", b"a\nb\nc\nd"),
        (b"\r\r\n\n", b""),
        (b"a\n\rb", b"a\n\nb"),
        (b"a \t\nb\t \r\nc  ", b"a\nb\nc"),
        (b"a\n\n \n\t\n", b"a"),
        (b"\n\n a", b"\n\n a"),  # what stands before text stays
        (b"a  b\tc", b"a  b\tc"),
        (b"a\x0b\x0c", b"a\x0b\x0c"),  # only blank, tab and line ends are white space here
        ("a\u00a0".encode(), "a\u00a0".encode()),
        ("a\u2028b\u2029c\u0085".encode(), "a\u2028b\u2029c\u0085".encode()),
        ("e\u0301".encode(), "\u00e9".encode()),
        ("\u212b".encode(), "\u00c5".encode()),  # ANGSTROM SIGN is canonically A WITH RING
        ("q\u0323\u0307".encode(), "q\u0323\u0307".encode()),
        ("q\u0307\u0323".encode(), "q\u0323\u0307".encode()),  # marks are put in their order
        ("\ufb01\u00b2".encode(), "\ufb01\u00b2".encode()),  # no compatibility forms: fi ligature, superscript two
        (b"ABC", b"ABC"),
        ("\ufeffa".encode(), b"a"),
        ("\ufeff\ufeffa\ufeff".encode(), "a\ufeff".encode()),
        ("a\u200bb\u200d".encode(), "a\u200bb\u200d".encode()),  # zero-width characters are text
        ("\ufeff\r\ne\u0301 \r\n".encode(), "\n\u00e9".encode()),
        ("\U0001d15e".encode(), "\U0001d157\U0001d165".encode()),  # MUSICAL SYMBOL HALF NOTE is never composed
    ],
)
def test_the_rule_by_example(data, expected):
    assert alike(data) == expected
    assert alike(expected) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xfea\x00 \r\n",  # UTF-16
        b"caf\xe9 \r\n",  # Latin-1
        b"a\xc0\x80 \r\n",  # overlong zero
        b"\xed\xa0\x80 \r\n",  # a surrogate
        b"\xf4\x90\x80\x80 \r\n",  # above U+10FFFF
        b"good \r\n \xe2\x82",  # cut short
    ],
)
def test_what_is_not_utf8_stays_as_it_is(data):
    assert alike(data) == data


def test_long_runs_of_marks_stay_as_they_are_and_take_no_time():
    """To sort a run of n marks takes n^2 steps: this one would take an hour."""
    short = "a" + "\u0315\u0300" * (MAX_MARKS // 2) + " \r\n"
    assert alike(short.encode()) == unicodedata.normalize("NFC", short).rstrip().encode()
    for mark in ("\u0300", "\u0f73", "\U0001e94a"):  # U+0F73 is of class 0 and decomposes to marks
        longer = ("a" + mark * (MAX_MARKS + 1) + " \r\n").encode()
        assert alike(longer) == longer
    huge = ("a" + "\u0315\u0300" * 1_000_000).encode()
    start = time.process_time()
    assert alike(huge) == huge
    alike(b" " * 2_000_000 + b"x")
    alike((short * 50_000).encode())
    assert time.process_time() - start < 10


def test_marks_are_those_of_the_definition():
    marks = [
        chr(point)
        for point in range(0x110000)
        if not 0xD800 <= point < 0xE000 and unicodedata.combining(unicodedata.normalize("NFD", chr(point))[0])
    ]
    assert len(marks) > 900
    for mark in marks:
        run = (mark * (MAX_MARKS + 1) + " ").encode()
        assert alike(run) == run
    for other in "ab\u00e9\u0374\u00c5\uac00\u200d\u1160":
        run = (other * (MAX_MARKS + 1) + " ").encode()
        assert alike(run) != run


LETTERS = " \t\r\n\ufeffae\u0301\u0323\u030a\u1100\u1161\u11a8\u0f73\u212b"
text = st.text(st.one_of(st.sampled_from(LETTERS), st.characters()), max_size=MAX_MARKS)


@given(text)
def test_normal_forms_stay_and_have_one_digest(text):
    found = alike(text.encode("utf-8", "replace"))
    assert alike(found) == found
    shown = found.decode()
    assert "\r" not in shown and not re.search(r"[ \t](\n|\Z)|\n\Z|\A\ufeff", shown)


@given(text.map(lambda text: text.replace("\ufeff", "").encode("utf-8", "replace").decode()))
def test_what_editors_change_changes_nothing(text):
    expected = alike(text.encode())
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    decomposed = unicodedata.normalize("NFD", text)
    if len(decomposed) <= MAX_MARKS:
        assert alike(decomposed.encode()) == expected
    for changed in [
        "\ufeff" + text,
        text + "\n",
        text + " \t\r\n\n",
        lines,
        lines.replace("\n", "\r\n"),
        lines.replace("\n", "\r"),
        lines.replace("\n", " \n"),
    ]:
        assert alike(changed.encode()) == expected


def test_digests_by_tier():
    data = b"one line\r\n"
    assert document_digest("t0-sha256", data) == hashlib.sha256(data).digest()
    assert document_digest(f"t1-{NAME}", data) == hashlib.sha256(b"one line").digest()


@pytest.mark.parametrize("tier", ["t1-", "t1-nfkc-unicode14", "t2-winnow-bytes-k32-w19", "sha256", "", NAME])
def test_unknown_tiers_are_not_answered(tier):
    with pytest.raises(IncompleteError) as caught:
        document_digest(tier, b"data")
    assert caught.value.code == "normaliser-unknown"


def test_another_unicode_version_refuses(monkeypatch):
    """Also for text that no version would treat otherwise: an answer is exact or none."""
    for name, normaliser in NORMALISERS.items():
        if name != NAME:
            with pytest.raises(IncompleteError) as caught:
                normalise(name, b"plain")
            assert caught.value.code == "unicode-version"
            assert caught.value.evidence["needed"] == normaliser.unicode
    monkeypatch.setattr(unicodedata, "unidata_version", "13.0.0")
    with pytest.raises(IncompleteError) as caught:
        alike(b"plain")
    assert caught.value.code == "unicode-version"


def test_every_normaliser_names_its_version_and_can_be_claimed():
    for name, normaliser in NORMALISERS.items():
        assert name == normaliser.name and normaliser.tier == f"t1-{name}"
        version = name.rpartition("unicode")[2]
        assert (normaliser.unicode + ".").startswith(version + ".")
        LedgerClaim(normaliser.tier, "11" * 32, 1, 1)
