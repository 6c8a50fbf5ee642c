"""Keys: weak ones against plain curve arithmetic, texts against single-character edits, and secrets against print."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import ed25519
from protocol.errors import ProtocolError, UsageError
from protocol.keys import COSIGNATURE, NOTE, PublicKey, SigningKey, is_name, parse_signing_key, parse_vkey

SEEDS = st.binary(min_size=32, max_size=32)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="+"), min_size=1, max_size=20).filter(is_name)
KEY = SigningKey("example.com/log", bytes(range(32)))

# Affine arithmetic on the curve, by the addition law of RFC 8032 5.1.4: slow, and nothing like the shortcut under test.
P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
SQRT_MINUS_1 = pow(2, (P - 1) // 4, P)
IDENTITY = (0, 1)


def add(a, b):
    (x1, y1), (x2, y2) = a, b
    t = D * x1 * x2 * y1 * y2
    return (x1 * y2 + x2 * y1) * pow(1 + t, -1, P) % P, (y1 * y2 + x1 * x2) * pow(1 - t, -1, P) % P


def times8(point):
    for _ in range(3):
        point = add(point, point)
    return point


def encoded(point):
    x, y = point
    return (y | (x & 1) << 255).to_bytes(32, "little")


def points(y):
    """The points of the curve with this y: two, one or none."""
    xx = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(xx, (P + 3) // 8, P)
    roots = [r for r in (x, x * SQRT_MINUS_1 % P) if r * r % P == xx]
    return {(r, y % P) for root in roots for r in (root, P - root if root else 0)}


def torsion():
    """All points whose order divides 8: the multiples of one of order 8, found by clearing the prime part of others."""
    order = 2**252 + 27742317777372353535851937790883648493
    for y in range(2, 50):
        for point in points(y):
            cleared = IDENTITY
            for bit in f"{order:b}":
                cleared = add(cleared, cleared)
                cleared = add(cleared, point) if bit == "1" else cleared
            multiples = [IDENTITY]
            while (following := add(multiples[-1], cleared)) != IDENTITY:
                multiples.append(following)
            if len(multiples) == 8:
                return multiples
    raise AssertionError("no point of order 8 below y = 50")


def code_of(call, *arguments):
    with pytest.raises(ProtocolError) as caught:
        call(*arguments)
    return caught.value.code


def test_every_point_of_low_order_is_refused_and_so_is_no_sum_with_a_good_one():
    """The eight come from arithmetic, not from a list. A good key plus one of them has large order, and is accepted."""
    eight = torsion()
    assert len(set(eight)) == 8
    mine = points(int.from_bytes(KEY.public.raw, "little") % 2**255)
    good = next(point for point in mine if encoded(point) == KEY.public.raw)
    for point in eight:
        assert times8(point) == IDENTITY
        assert code_of(ed25519.refuse_weak, encoded(point)) == "weak-key"
        ed25519.refuse_weak(encoded(add(good, point)))


def test_every_non_canonical_encoding_is_refused():
    """y from p to 2^255 - 1, and x = -0: 40 spellings. A list of known bad keys has six of them."""
    spellings = [y | sign << 255 for y in range(P, 2**255) for sign in (0, 1)]
    spellings += [1 | 1 << 255, (P - 1) | 1 << 255]
    assert len(spellings) == 40
    for spelling in spellings:
        assert code_of(ed25519.refuse_weak, spelling.to_bytes(32, "little")) == "weak-key"


@given(st.integers(2, P - 2), st.booleans())
def test_other_encodings_are_points_of_large_order_or_none(y, sign):
    raw = (y | sign << 255).to_bytes(32, "little")
    found = points(y)
    if found:
        ed25519.refuse_weak(raw)
        assert all(times8(point) != IDENTITY for point in found)
    else:
        assert code_of(ed25519.refuse_weak, raw) == "key-malformed"


@given(NAMES, SEEDS)
def test_texts_round_trip(name, seed):
    key = SigningKey(name, seed)
    for public in (key.public, key.cosigner):
        assert parse_vkey(public.vkey) == public
    assert (key.public.kind, key.cosigner.kind) == (NOTE, COSIGNATURE)
    assert key.public.key_id != key.cosigner.key_id
    again = parse_signing_key(key.secret_text)
    assert again.public == key.public
    again.public.verify(key.sign(b"message"), b"message")


@pytest.mark.parametrize("kind", ["public", "cosigner", "secret"])
@given(data=st.data())
def test_a_text_with_one_character_edited_is_no_key(kind, data):
    parse = parse_signing_key if kind == "secret" else parse_vkey
    text = KEY.secret_text if kind == "secret" else getattr(KEY, kind).vkey
    at = data.draw(st.integers(0, len(text)))
    rest = data.draw(st.sampled_from([text[at:], text[at + 1 :]]))
    edited = text[:at] + data.draw(st.text(max_size=1)) + rest
    if edited != text:
        assert code_of(parse, edited) == "key-malformed"


@pytest.mark.parametrize(
    "name", ["", "a b", "a+b", "a\tb", "a\nb", "a\u00a0b", "a\u3000b", "a\u2028b", "a\x00b", "\ud800"]
)
def test_names_that_cannot_name_a_key(name):
    assert code_of(PublicKey, name, KEY.public.raw) == "key-malformed"
    assert code_of(SigningKey, name, bytes(32)) == "key-malformed"


def test_keys_of_no_known_kind_or_length():
    assert code_of(PublicKey, "k", KEY.public.raw, 2) == "key-malformed"
    assert code_of(PublicKey, "k", KEY.public.raw[:-1]) == "key-malformed"
    for length in (0, 31, 33, 64):
        with pytest.raises(UsageError) as caught:
            SigningKey("k", bytes(length))
        assert caught.value.code == "signing-key"


def test_upper_case_and_padded_spellings_are_refused():
    name, key_id, material = KEY.public.vkey.split("+", 2)
    assert key_id != key_id.upper()
    for edited in (
        f"{name}+{key_id.upper()}+{material}",
        f"{name}+{key_id}+{material}=",
        f"{name}+{key_id}+{material}\n",
    ):
        assert code_of(parse_vkey, edited) == "key-malformed"


def test_a_secret_does_not_show():
    """Neither in a repr, nor in the error about its text, nor when it is taken for a public key, nor in a pickle."""
    secret = KEY.secret_text.rpartition("+")[2]
    shown = [repr(KEY), str(KEY), f"{KEY!r:.200}"]
    for parse, text in (
        (parse_vkey, KEY.secret_text),
        (parse_signing_key, KEY.secret_text.replace("example", "exmaple")),
        (parse_signing_key, KEY.secret_text + "!"),
        (parse_signing_key, "PRIVATE+KEY+" + secret),
        (parse_vkey, "PRIVATE+KEY+" + secret),
    ):
        with pytest.raises(ProtocolError) as caught:
            parse(text)
        shown.append(caught.value.diagnostics())
    for text in shown:
        assert not any(secret[at : at + 6] in text for at in range(len(secret) - 5))
    with pytest.raises(TypeError):
        pickle.dumps(KEY)
