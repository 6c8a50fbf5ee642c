"""Makes the test vectors in `spec/vectors` from the package.

    python spec/make_vectors.py            # names every file that is not up to date
    python spec/make_vectors.py --write    # brings them up to date

A file is `{"format": text, "cases": [case, ...]}`. A case is a name, a `call` with what it is `given`, and what comes
of it: a value (`gives`; null where there is none to show) or the `code` of the refusal. Bytes are `hex:` and digits, or
`raw:` and text. The code of every refusal is said here by hand; the package computes the values, and `spec/checker.py`
must find the same. Keys and nonces are known to everybody. Needs no torch.
"""

import base64
import json
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SPEC = Path(__file__).resolve().parent
sys.path[:0] = [str(SPEC), str(SPEC.parent), str(SPEC.parent / "tests")]

import msgspec
from agree import IN_TOTO, envelope_of, heads_again, key_named, log_case, payload_of, raw, spelt
from checker import VERSION, canonical, origin_of, tagged
from made_run import KEY, made_run
from package_calls import outcome

from protocol import merkle
from protocol.binding import statement_text
from protocol.certificate import CLAIMS, NOT_CLAIMED, DataReport, Predicate, sign_certificate
from protocol.checks import LogAudit, mandatory
from protocol.corpus import Documents, Packing, parse_leaves
from protocol.data_audit import DataAudit, sign_audit
from protocol.encoding import encode
from protocol.keys import SigningKey
from protocol.ledger import build
from protocol.ledger_claim import Occurrences, document_key
from protocol.messages import Policy
from protocol.notes import Checkpoint, cosign, open_head, parse_note, sign_head, sign_note
from protocol.places import Places
from protocol.randomness import commit_nonce, draw, session_seed
from protocol.required import ChallengeResult, CheckResult, Result, draws_asked
from protocol.statetree import Entry, Pieces, Table, digest_pieces
from witness.query import Answerer

VECTORS = SPEC / "vectors"
VERIFIER, AUDITOR, COSIGNER = (key_named(f"{role}.example") for role in ("verifier", "auditor", "cosigner"))
TRAINER = KEY.public.vkey
SPANS = "t2-winnow-bytes-k4-w3"
TEXTS = [b"it was a dark and stormy night\n", b"", b"the rain fell in torrents", b"it was a dark and stormy night\n"]
Cases = Iterator[dict[str, Any]]


WRONG: list[str] = []


def case(name: str, call: str, *given: Any, code: str | None = None) -> dict[str, Any]:
    """A case; the package must come to the code that is said, or to a value."""
    found = outcome(call, list(given))
    if found.get("code") != code:
        WRONG.append(f"{call}: {name}: {json.dumps(found)[:200]} instead of {code}")
    return {"name": name, "call": call, "given": list(given), **found}


# -- encoding -----------------------------------------------------------------------------------------


def encoding() -> Cases:
    """Canonical JSON, tagged hashes, floats."""
    deep = b"[" * 256 + b"]" * 256
    good = {
        "an object": b'{"":0,"a":[null,true,false,-1,"x"],"b":{}}',
        "escapes": '{"a":"\\"\\\\\\b\\t\\n\\f\\r\\u0001\x7f/\u00e9\U0001f600"}'.encode(),
        "the largest integer": b"9007199254740991",
        "256 levels": deep,
    }
    bad = {
        "white space": b'{"a": 0}',
        "members out of order": b'{"b":0,"a":0}',
        "a member twice": b'{"a":0,"a":0}',
        "a fraction": b'{"a":1.0}',
        "an exponent": b"1e2",
        "minus zero": b"-0",
        "a leading zero": b"01",
        "beyond 2^53 - 1": b"9007199254740992",
        "an escaped slash": b'"\\/"',
        "an escape in upper case": b'"\\u001F"',
        "an escaped letter": b'"\\u0061"',
        "a lone surrogate": b'"\\ud800"',
        "a raw surrogate": b'"\xed\xa0\x80"',
        "an overlong form": b'"\xc0\xaf"',
        "a key outside of ASCII": '{"\u00e9":0}'.encode(),
        "a byte order mark": b"\xef\xbb\xbf0",
        "something behind": b"0\n",
        "nothing": b"",
        "cut short": b'{"a":',
        "NaN": b"NaN",
    }
    yield from (case(name, "decode", spelt(data), 4096) for name, data in good.items())
    yield from (case(name, "decode", spelt(data), 4096, code="not-canonical") for name, data in bad.items())
    yield case("257 levels", "decode", spelt(b"[" * 257 + b"]" * 257), 4096, code="not-canonical")
    yield case("longer than the cap", "decode", spelt(b'{"a":0}'), 6, code="too-large")
    yield case("longer than the cap, and not JSON", "decode", spelt(b"{{{{{{{"), 6, code="too-large")
    yield case("a tagged hash", "tagged-hash", "nonce-commitment", [spelt(bytes(32))])
    yield case("no part", "tagged-hash", "run", [])
    yield case("parts are kept apart", "tagged-hash", "run", [spelt(b"ab"), spelt(b"c")])
    yield case("and so", "tagged-hash", "run", [spelt(b"a"), spelt(b"bc")])


# -- keys, notes, heads, envelopes --------------------------------------------------------------------


def altered(data: bytes, at: int) -> bytes:
    """With another bit there."""
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def vkey(name: str, data: bytes, identity: str | None = None) -> str:
    """The text of a key, whatever it is."""
    found = sha256(name.encode() + b"\n" + data).hexdigest()[:8]
    return f"{name}+{identity or found}+{base64.b64encode(data).decode()}"


def keys() -> Cases:
    """Public keys and signatures."""
    public = KEY.public.raw
    p = 2**255 - 19
    trainer, identity, spelling = TRAINER.split("+", 2)
    yield case("a key", "vkey", TRAINER)
    yield case("a cosigner's key", "vkey", COSIGNER.cosigner.vkey)
    yield case("a name beyond ASCII", "vkey", vkey("\u00fc.example", b"\1" + public))
    for name, text, code in (
        ("another key ID", vkey("k", b"\1" + public, "00000000"), "key-malformed"),
        ("a key ID in upper case", f"{trainer}+{identity.upper()}+{spelling}", "key-malformed"),
        ("no name", vkey("", b"\1" + public), "key-malformed"),
        ("a space in the name", vkey("a b", b"\1" + public), "key-malformed"),
        ("white space beyond ASCII in the name", vkey("a\u2003b", b"\1" + public), "key-malformed"),
        ("another type", vkey("k", b"\2" + public), "key-malformed"),
        ("31 bytes", vkey("k", b"\1" + public[:31]), "key-malformed"),
        ("two parts", "k+00000000", "key-malformed"),
        ("no point of the curve", vkey("k", b"\1" + (2).to_bytes(32, "little")), "key-malformed"),
        ("the identity", vkey("k", b"\1" + (1).to_bytes(32, "little")), "weak-key"),
        ("order 2", vkey("k", b"\1" + (p - 1).to_bytes(32, "little")), "weak-key"),
        ("order 4", vkey("k", b"\1" + bytes(32)), "weak-key"),
        ("order 4, the other sign", vkey("k", b"\1" + (1 << 255).to_bytes(32, "little")), "weak-key"),
        ("order 8", vkey("k", b"\1" + bytes.fromhex(ORDER_8)), "weak-key"),
        ("y is p + 1", vkey("k", b"\1" + (p + 1).to_bytes(32, "little")), "weak-key"),
        (
            "y is p + 2, a point with y = 2 does not exist",
            vkey("k", b"\1" + (p + 2).to_bytes(32, "little")),
            "weak-key",
        ),
        ("weak, and of another key ID", vkey("k", b"\1" + bytes(32), "00000000"), "weak-key"),
    ):
        yield case(name, "vkey", text, code=code)
    message, signature = b"a message", KEY.sign(b"a message")
    order = 2**252 + 27742317777372353535851937790883648493
    s = int.from_bytes(signature[32:], "little")
    yield case("a signature", "signature", spelt(public), spelt(signature), spelt(message))
    yield case("of no message", "signature", spelt(public), spelt(KEY.sign(b"")), spelt(b""))
    for name, found, text in (
        ("another message", signature, b"a massage"),
        ("another R", altered(signature, 0), message),
        ("another S", altered(signature, 40), message),
        ("S + L", signature[:32] + (s + order).to_bytes(32, "little"), message),
        ("63 bytes", signature[:63], message),
        ("65 bytes", signature + b"\0", message),
        ("none", b"", message),
    ):
        yield case(name, "signature", spelt(public), spelt(found), spelt(text), code="bad-signature")
    yield case("under a weak key", "signature", spelt(bytes(32)), spelt(bytes(64)), spelt(message), code="weak-key")
    yield case(
        "under 31 bytes", "signature", spelt(public[:31]), spelt(signature), spelt(message), code="key-malformed"
    )


ORDER_8 = "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"


def notes() -> Cases:
    """Signed notes."""
    good = sign_note("one line\n", KEY)
    text, _, lines = good.rpartition(b"\n\n")
    known = [TRAINER]
    other = SigningKey("other.example", bytes(32))
    line = sign_note("one line\n", other).rpartition(b"\n\n")[2]
    yield case("a note", "note", spelt(good), known)
    yield case("a text with an empty line", "note", spelt(sign_note("a\n\nb\n", KEY)), known)
    yield case("another signer beside", "note", spelt(good + line), known)
    yield case("two known signers", "note", spelt(good + line), [TRAINER, other.public.vkey])
    for name, data, code in (
        ("nobody known", text + b"\n\n" + line, "note-unsigned"),
        ("another text", b"two" + good[3:], "bad-signature"),
        ("a known key's bad line beside its good one", good + lines.replace(lines[30:34], b"AAAA"), "bad-signature"),
        ("no signature", text + b"\n\n", "note-malformed"),
        ("no empty line", text + b"\n" + lines, "note-malformed"),
        ("no last new line", good[:-1], "note-malformed"),
        ("a line behind", good + b"\n", "note-malformed"),
        ("a hyphen for the dash", good.replace("\u2014".encode(), b"-"), "note-malformed"),
        ("two spaces", good.replace(b" trainer", b"  trainer"), "note-malformed"),
        ("a control character", b"\t" + good, "note-malformed"),
        ("a carriage return", good.replace(b"one line\n", b"one line\r\n"), "note-malformed"),
        ("not UTF-8", b"\xff" + good, "note-malformed"),
        ("101 signatures", good + line * 100, "note-malformed"),
        ("a signature of four bytes", good + "\u2014 x AAAAAA==\n".encode(), "note-malformed"),
        ("base64 with other unused bits", good + "\u2014 x AAAAAAB=\n".encode(), "note-malformed"),
    ):
        yield case(name, "note", spelt(data), known, code=code)
    head = heads_again([b"{}"], [1], KEY)[0]
    cosigned = cosign(head, COSIGNER, 1_700_000_000)
    yield case("a cosigned head, both known", "note", spelt(cosigned), [TRAINER, COSIGNER.cosigner.vkey])
    yield case(
        "the cosigner's other key is another one", "note", spelt(cosigned), [COSIGNER.public.vkey], code="note-unsigned"
    )
    body, late = head.rpartition(b"\n\n")[0] + b"\n", (1 << 63).to_bytes(8, "big")
    cosigner = COSIGNER.cosigner
    signature = COSIGNER.sign(b"cosignature/v1\ntime 9223372036854775808\n" + body)
    line = f"\u2014 {cosigner.name} {base64.b64encode(cosigner.key_id + late + signature).decode()}\n".encode()
    yield case("a time of 2^63", "note", spelt(head + line), [cosigner.vkey], code="bad-signature")


def heads() -> Cases:
    """Log heads."""
    root = base64.b64encode(bytes(range(32))).decode()
    known = [TRAINER]

    def head(text: str) -> str:
        return spelt(sign_note(text, KEY))

    yield case("a head", "head", head(f"log\n7\n{root}\n"), known, "log")
    yield case("of no entry", "head", head(f"log\n0\n{root}\n"), known, None)
    yield case("of the largest size", "head", head(f"log\n{2**63 - 1}\n{root}\n"), known, None)
    for name, text, origin, code in (
        ("another log's", f"log\n7\n{root}\n", "log2", "head-origin"),
        ("of size 2^63", f"log\n{2**63}\n{root}\n", None, "head-malformed"),
        ("a leading zero", f"log\n07\n{root}\n", None, "head-malformed"),
        ("a sign", f"log\n+7\n{root}\n", None, "head-malformed"),
        ("digits of another script", f"log\n\u0667\n{root}\n", None, "head-malformed"),
        ("no origin", f"\n7\n{root}\n", None, "head-malformed"),
        ("an extension line", f"log\n7\n{root}\nmore\n", None, "head-malformed"),
        ("two lines", "log\n7\n", None, "head-malformed"),
        ("a root of 31 bytes", f"log\n7\n{base64.b64encode(bytes(31)).decode()}\n", None, "head-malformed"),
        ("a root without padding", f"log\n7\n{root[:-1]}\n", None, "head-malformed"),
    ):
        yield case(name, "head", head(text), known, origin, code=code)
    note = cosign(sign_note(f"log\n7\n{root}\n", KEY), COSIGNER, 5)
    yield case("only the cosigner known", "head", spelt(note), [COSIGNER.cosigner.vkey], None, code="note-unsigned")
    yield case("cosigned", "head", spelt(note), [TRAINER, COSIGNER.cosigner.vkey], "log")


def envelopes() -> Cases:
    """DSSE envelopes."""
    payload = b'{"a":0}'
    good = json.loads(envelope_of(payload, [KEY]))
    other = SigningKey("other.example", bytes(32))
    both = json.loads(envelope_of(payload, [KEY, other]))
    cap, known = 1 << 14, [TRAINER]

    def envelope(name: str, value: Any, code: str | None = None, keys: list[str] = known, threshold: int = 1) -> Any:
        data = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()
        return case(name, "envelope", spelt(data), keys, cap, threshold, IN_TOTO, code=code)

    first = good["signatures"][0]
    yield envelope("an envelope", good)
    yield envelope(
        "with white space and members in another order", json.dumps(dict(reversed(good.items())), indent=2).encode()
    )
    yield envelope("unknown members", good | {"more": [1.5e300, {"x": None}], "signatures": [first | {"cert": "y"}]})
    yield envelope("another keyid", good | {"signatures": [first | {"keyid": "nobody"}]})
    yield envelope("no keyid", good | {"signatures": [{"sig": first["sig"]}]})
    yield envelope("url-safe base64", good | {"payload": base64.urlsafe_b64encode(payload).decode()})
    yield envelope("a number of 5000 digits, unknown", json.dumps(good)[:-1].encode() + b',"n":' + b"1" * 2000 + b"}")
    yield envelope("a member twice: the last one counts", b'{"payload":"AAAA",' + json.dumps(good)[1:].encode())
    yield envelope("two signers of two", both, keys=[TRAINER, other.public.vkey], threshold=2)
    yield envelope("one key twice is one signer", both, "envelope-unsigned", [TRAINER, COSIGNER.public.vkey], 2)
    yield envelope("more signers than there are keys", both, "threshold", known, 2)
    yield envelope("no signer at all", both, "threshold", known, 0)
    yield envelope("a key of a cosigner", good, "key-kind", [COSIGNER.cosigner.vkey])
    yield envelope("no known signer", good, "envelope-unsigned", [other.public.vkey])
    yield envelope("no signature", good | {"signatures": []}, "envelope-unsigned")
    yield envelope("another payload", good | {"payload": base64.b64encode(b'{"a":1}').decode()}, "envelope-unsigned")
    yield envelope(
        "a signature of 63 bytes",
        good | {"signatures": [{"sig": base64.b64encode(bytes(63)).decode()}]},
        "envelope-unsigned",
    )
    yield envelope("another type", good | {"payloadType": "text/plain"}, "payload-type")
    for name, value in (
        ("a payload that is no text", good | {"payload": 7}),
        ("no payload", {k: v for k, v in good.items() if k != "payload"}),
        ("signatures that are no array", good | {"signatures": {"0": first}}),
        ("a signature that is no object", good | {"signatures": [first["sig"]]}),
        ("101 signatures", good | {"signatures": [first] * 101}),
        ("base64 without padding", good | {"payload": good["payload"].rstrip("=")}),
        ("both alphabets at once", good | {"payload": "+_AA"}),
        ("unused bits that are not zero", good | {"payload": "AAB="}),
        ("an array", [good]),
        ("a byte order mark", b"\xef\xbb\xbf" + json.dumps(good).encode()),
        ("NaN", json.dumps(good)[:-1].encode() + b',"x":NaN}'),
        ("half a surrogate pair, in what is ignored", json.dumps(good)[:-1].encode() + b',"x":"\\ud800"}'),
        ("half a pair in what another member covers", b'{"x":"\\udc00","x":"",' + json.dumps(good)[1:].encode()),
        ("a backslash before what looks like half a pair is none", None),
        ("cut short", json.dumps(good)[:-1].encode()),
        ("something behind", json.dumps(good).encode() + b"x"),
        ("bytes that are not UTF-8", json.dumps(good)[:-1].encode() + b',"x":"\xff"}'),
    ):
        if value is None:
            yield envelope(name, json.dumps(good)[:-1].encode() + b',"x":"\\\\ud800"}')
        else:
            yield envelope(name, value, "envelope-malformed")
    yield envelope("longer than the cap", json.dumps(good).encode() + b" " * (1 << 14), "too-large")


# -- trees, states, ledgers ---------------------------------------------------------------------------


def trees() -> Cases:
    """RFC 9162: roots and proofs."""
    leaves = [b"leaf %d" % i for i in range(13)]
    hashes = [merkle.leaf_hash(leaf) for leaf in leaves]
    tree = merkle.Tree(hashes)
    for size in (0, 1, 2, 3, 7, 8, 13):
        yield case(f"{size} leaves", "merkle-root", [spelt(leaf) for leaf in leaves[:size]])

    def inclusion(
        name: str, index: int, size: int, proof: list[bytes], leaf: bytes, root: bytes, code: str | None = None
    ) -> Any:
        return case(name, "inclusion", spelt(leaf), index, size, [spelt(it) for it in proof], spelt(root), code=code)

    for index, size in ((0, 1), (0, 8), (5, 8), (12, 13), (8, 13)):
        proof = tree.inclusion_proof(index, size)
        yield inclusion(f"leaf {index} in {size}", index, size, proof, hashes[index], tree.root(size))
    proof, root = tree.inclusion_proof(5), tree.root(13)
    for name, given, code in (
        ("another index", (4, 13, proof, hashes[5], root), "inclusion-proof"),
        ("another size", (5, 7, proof, hashes[5], root), "inclusion-proof"),
        ("another leaf", (5, 13, proof, hashes[4], root), "inclusion-proof"),
        ("another root", (5, 13, proof, hashes[5], tree.root(12)), "inclusion-proof"),
        ("a hash too many", (5, 13, [*proof, bytes(32)], hashes[5], root), "inclusion-proof"),
        ("a hash missing", (5, 13, proof[:-1], hashes[5], root), "inclusion-proof"),
        ("an empty tree", (0, 0, [], hashes[5], root), "proof-malformed"),
        ("beyond the tree", (13, 13, proof, hashes[5], root), "proof-malformed"),
        ("a hash of 31 bytes", (5, 13, [*proof[:-1], proof[-1][:31]], hashes[5], root), "proof-malformed"),
        ("65 hashes", (5, 13, [bytes(32)] * 65, hashes[5], root), "proof-malformed"),
    ):
        yield inclusion(name, *given, code=code)

    def consistency(
        name: str, size1: int, size2: int, roots: tuple[bytes, bytes], proof: list[bytes], code: str | None = None
    ) -> Any:
        return case(name, "consistency", size1, size2, *map(spelt, roots), [spelt(it) for it in proof], code=code)

    def roots(size1: int, size2: int) -> tuple[bytes, bytes]:
        return tree.root(size1), tree.root(size2)

    for size1 in (1, 2, 6, 8, 12, 13):
        yield consistency(f"from {size1} to 13", size1, 13, roots(size1, 13), tree.consistency_proof(size1))
    six = tree.consistency_proof(6)
    yield consistency("another earlier root", 6, 13, roots(5, 13), six, "consistency-proof")
    yield consistency("another later root", 6, 13, roots(6, 12), six, "consistency-proof")
    yield consistency("another size", 5, 13, roots(6, 13), six, "consistency-proof")
    yield consistency("equal sizes, other roots", 13, 13, roots(12, 13), [], "consistency-proof")
    yield consistency("equal sizes, a hash", 13, 13, roots(13, 13), [bytes(32)], "consistency-proof")
    yield consistency("no proof", 6, 13, roots(6, 13), [], "consistency-proof")
    cut = [six[0][:31], *six[1:]]
    yield consistency("a hash of 31 bytes", 6, 13, roots(6, 13), cut, "proof-malformed")
    yield consistency("65 hashes", 6, 13, roots(6, 13), [bytes(32)] * 65, "proof-malformed")
    yield consistency("from size 0", 0, 13, (merkle.EMPTY_ROOT, root), [], "proof-malformed")
    yield consistency("backwards", 13, 6, roots(13, 6), six, "proof-malformed")


def states() -> Cases:
    """State roots and tables."""
    entries = [
        {"aliases": [], "dtype": "json", "name": "model/@attributes", "shape": [4]},
        {"aliases": ["model/tied"], "dtype": "float32", "name": "model/weight", "shape": [3, 700]},
        {"aliases": [], "dtype": "bool", "name": "model/x", "shape": []},
        {"aliases": [], "dtype": "complex128", "name": "o", "shape": [0, 5]},
    ]
    data = [b"null", bytes(range(256)) * 32 + bytes(208), b"\1", b""]
    pieces = {"shards": 1, "size": 4096}
    shown = [spelt(it) for it in data]
    yield case("a state", "state-root", entries, shown, pieces)
    yield case("the same, of two shards", "state-root", entries, shown, {"shards": 2, "size": 4096})
    yield case("the same, of larger pieces", "state-root", entries, shown, {"shards": 1, "size": 8192})
    yield case("no entry", "state-root", [], [], pieces)
    longer = [spelt(it) for it in (data[0] + b" ", *data[1:])]
    yield case("bytes that are too long", "state-root", entries, longer, pieces, code="state-bytes")
    yield case("a piece of no power of two", "state-root", [], [], {"shards": 1, "size": 5000}, code="not-canonical")

    def table(
        name: str, change: Any = lambda entries, digests: (entries, digests), code: str | None = None, tail: bytes = b""
    ) -> Any:
        kinds = msgspec.convert(entries, tuple[Entry, ...])
        cut = [digest for kind, it in zip(kinds, data, strict=True) for digest in digest_pieces(kind, Pieces(4096), it)]
        root = Table(kinds, cut, Pieces(4096)).root
        new, digests = change(entries, cut)
        head = canonical(new)
        found = len(head).to_bytes(4, "big") + head + b"".join(digests) + tail
        return case(name, "table", spelt(found), spelt(root), pieces, code=code)

    def entry(i: int, **changes: Any) -> Any:
        return lambda entries, digests: ([*entries[:i], entries[i] | changes, *entries[i + 1 :]], digests)

    yield table("a table")
    yield table("another digest", lambda it, digests: (it, [bytes(32), *digests[1:]]), "state-root")
    yield table("another dtype of one width", entry(1, dtype="int32"), "state-root")
    yield table("another name", entry(1, name="model/weighu"), "state-root")
    yield table("no alias", entry(1, aliases=[]), "state-root")
    yield table("an alias that is a name", entry(1, aliases=["o"]), "state-table")
    yield table("aliases out of order", entry(1, aliases=["b", "a"]), "state-table")
    yield table("names out of order", lambda it, digests: (it[::-1], digests), "state-table")
    yield table("a digest too many", lambda it, digests: (it, [*digests, bytes(32)]), "state-table")
    yield table("a digest missing", lambda it, digests: (it, digests[:-1]), "state-table")
    yield table("half a digest", tail=bytes(16), code="state-table")
    yield table("an unknown dtype", entry(1, dtype="float33"), "state-table")
    yield table("no name", entry(1, name=""), "state-table")
    yield table("17 dimensions", entry(1, shape=[1] * 17), "state-table")
    yield table("2^48 bytes", entry(1, shape=[1 << 46]), "state-table")
    yield table("a field too many", entry(1, strides=[1]), "not-canonical")
    yield case("cut short", "table", spelt(b"\0\0\0\5[]"), spelt(bytes(32)), pieces, code="state-table")


def ledgers() -> Cases:
    """Prefix trees: occurrences, proofs, lists and claims."""
    for count, documents in ((1, [0]), (2, [300, 305]), (131, [5, 300])):
        yield case(f"the value of {count} in {documents}", "ledger-value", count, documents)
        yield case(
            f"{count} in {documents}, read", "occurrences", spelt(Occurrences(count, tuple(documents)).to_bytes())
        )
    for name, digits in (
        ("no document", "0100"),
        ("nothing", ""),
        ("fewer places than documents", "01020500"),
        ("a document missing", "020205"),
        ("a number behind", "01010500"),
        ("a byte more than needed", "01018500"),
        ("cut short within a number", "010185"),
        ("document 2^24", "010180808008"),
        ("2^53 places", "80808080808080100105"),
        ("ten bytes a number", "80808080808080808001" + "0105"),
    ):
        yield case(name, "occurrences", "hex:" + digits, code="not-canonical")
    yield case("a key", "ledger-key", "t0-sha256", spelt(bytes(32)))
    items = [(sha256(b"%d" % i).digest(), sha256(b"value %d" % i).digest()) for i in range(9)]
    tree = build(items)
    root = spelt(tree.root)

    def proof(
        name: str, key: bytes, value: bytes | None, data: bytes, code: str | None = None, under: str = root
    ) -> Any:
        return case(name, "ledger-proof", under, spelt(key), value and spelt(value), spelt(data), code=code)

    key, value = items[4]
    found = tree.prove(key).to_bytes()
    others = {tree.prove(sha256(b"other %d" % i).digest()).kind: sha256(b"other %d" % i).digest() for i in range(60)}
    yield proof("a key that is there", key, value, found)
    yield proof(
        "the only key", key, value, build(items[4:5]).prove(key).to_bytes(), under=spelt(build(items[4:5]).root)
    )
    yield proof("in an empty ledger", key, None, bytes([3, 0, 0]), under=spelt(bytes(32)))
    for kind, asked in others.items():
        absence = tree.prove(asked).to_bytes()
        yield proof(f"absent: {kind}", asked, None, absence)
        yield proof(f"absent: {kind}, shown as there", asked, value, absence, "ledger-inclusion")
        yield proof(f"absent: {kind}, of another key", key, None, absence, "ledger-absence")
    leaf = tree.prove(others["other-leaf"]).to_bytes()
    yield proof("there, shown as absent", key, None, found, "ledger-absence")
    yield proof("the key itself as the other leaf", leaf[-64:-32], None, leaf, "ledger-absence")
    yield proof("another value", key, bytes(32), found, "ledger-inclusion")
    yield proof("another key", items[5][0], value, found, "ledger-inclusion")
    yield proof("another root", key, value, found, "ledger-inclusion", spelt(bytes(32)))
    for name, data in (
        ("nothing", b""),
        ("kind 4", b"\4" + found[1:]),
        ("cut short", found[:-1]),
        ("a byte behind", found + b"\0"),
        ("a sibling of zeros", bytes([1, 0, 1, 0x80]) + bytes(32)),
        ("a sibling of zeros above another", bytes([1, 0, 2, 0xC0]) + bytes(32) + b"\1" * 32),
        ("padding that is not zero", bytes([1, 0, 1, 0xC0]) + bytes([1]) * 64),
        ("the last sibling empty", bytes([1, 0, 1, 0])),
        ("257 levels", bytes([1, 1, 1]) + b"\xff" * 32 + b"\x80" + b"\1" * 32 * 257),
        ("256 levels to an empty slot", bytes([3, 1, 0]) + bytes(31) + b"\1" + b"\1" * 32),
    ):
        yield proof(name, key, value, data, "too-large" if len(data) > 8259 else "ledger-proof-malformed")
    keys = sorted((document_key("t0-sha256", sha256(text).digest()), i) for i, text in enumerate(TEXTS))
    places = Places.of(keys)
    true = json.loads(encode(places.claim("t0-sha256", 4)))
    rows = [key + i.to_bytes(4, "big") for key, i in keys]

    def listed(name: str, data: bytes, claim: Any = true, code: str | None = None) -> Any:
        return case(name, "places", spelt(data), claim, code=code)

    yield listed("a list", b"".join(rows))
    yield listed("a place missing", b"".join(rows[1:]), code="ledger-root")
    yield listed("out of order", b"".join(rows[::-1]), code="places")
    yield listed("half a place", b"".join(rows)[:-1], code="places")
    yield listed("no place", b"", code="places")
    yield listed("a document beyond", b"".join(rows[:-1]) + rows[-1][:32] + b"\0\0\0\4", code="places")
    more = sorted((document_key("t0-sha256", bytes([i]) * 32), i % 2) for i in range(5))
    many = b"".join(key + i.to_bytes(4, "big") for key, i in more)
    yield listed("more keys than documents", many, true | {"documents": 2, "entries": 2}, "not-canonical")
    yield listed("another root", b"".join(rows), true | {"root": "11" * 32}, "ledger-root")
    yield listed("another number of keys", b"".join(rows), true | {"entries": 2}, "ledger-root")
    yield listed(
        "fewer documents than the corpus",
        b"".join(rows[:1]),
        json.loads(encode(Places.of(keys[:1]).claim("t0-sha256", 4))),
        "ledger-documents",
    )
    empty = {"documents": 4, "entries": 0, "root": "00" * 32, "tier": SPANS}
    yield listed("a list of spans may be empty", b"", empty)
    for name, change in (
        ("a claim of documents without an entry", {"entries": 0, "root": "00" * 32}),
        ("zeros with entries", {"root": "00" * 32}),
        ("no zeros without entries", {"entries": 0, "tier": SPANS}),
        ("more entries than documents", {"entries": 5}),
        ("entries without documents", {"documents": 0, "tier": SPANS}),
        ("documents beyond 2^24", {"documents": (1 << 24) + 1}),
        ("an unknown tier", {"tier": "t3"}),
        ("a tier with a leading zero", {"tier": "t2-winnow-bytes-k04-w3"}),
        ("a tier of five digits", {"tier": "t2-winnow-bytes-k4-w10000"}),
        ("a normaliser of 61 characters", {"tier": "t1-" + "a" * 61}),
    ):
        yield case(name, "claim", spelt(canonical(true | change)), code="not-canonical")
    yield case("a claim", "claim", spelt(canonical(true)))
    yield case(
        "a claim of a tier that nobody can use", "claim", spelt(canonical(empty | {"tier": "t2-winnow-u32-k9999-w1"}))
    )


# -- corpus, schedule, draws --------------------------------------------------------------------------


@cache
def run(packing: str = "windows") -> dict[str, Any]:
    """A run made by hand: its log, corpus, and an answerer's replies."""
    with TemporaryDirectory() as folder:
        cut = Packing("windows", 8, 6) if packing == "windows" else Packing("documents")
        found = made_run(Path(folder) / "run", TEXTS, packing=cut, steps=6, batch=2, tiers=["t0-sha256", SPANS])
        _, (entries, leaves, notes, _) = log_case(found.path)
        entries, notes = [raw(it) for it in entries], [raw(it) for it in notes]
        keeper = Answerer(found)
        digests = [("t0-sha256", sha256(text).digest()) for text in (TEXTS[0], b"a quiet night\n")]
        answers = [
            keeper.digests(digests),
            keeper.spans(SPANS, [b"stormy night", b"stormy light"]),
        ]
        return {
            "entries": entries,
            "leaves": raw(leaves),
            "notes": notes,
            "head": keeper.head,
            "answers": [answer.to_bytes() for answer in answers],
        }


def audited(entries: list[bytes], note: bytes) -> bytes:
    """A signed audit of a run's data, as its manifest says it is."""
    manifest = json.loads(entries[0])
    corpus = manifest["corpus"]
    predicate = {
        "auditor": AUDITOR.public.vkey,
        "corpus": corpus["root"],
        "documents": corpus["documents"],
        "findings": [],
        "head": note.decode(),
        "ledgers": manifest["ledgers"],
        "length": corpus["tokens"],
        "package": "0",
        "run": tagged("run", entries[0]).hex(),
        "time": 1_700_000_000,
        "trainer": TRAINER,
        "verdict": "complete",
        "version": VERSION,
    }
    return sign_audit(msgspec.convert(predicate, DataAudit), AUDITOR)


def corpora() -> Cases:
    """Leaves, samples, records digests, pieces."""
    windows, whole = run(), run("documents")
    claim, leaves = json.loads(windows["entries"][0])["corpus"], windows["leaves"]
    documents = json.loads(whole["entries"][0])["corpus"]
    yield case("a corpus in windows", "corpus", claim, spelt(leaves))
    yield case("a corpus of documents", "corpus", documents, spelt(leaves))
    yield case(
        "windows longer than everything",
        "corpus",
        claim | {"packing": {"kind": "windows", "length": 999, "stride": 1}},
        spelt(leaves),
    )
    for name, data, code in (
        ("a leaf missing", leaves[96:], "corpus-leaves"),
        ("the last leaf missing", leaves[:-96], "corpus-root"),
        ("half a leaf", leaves[:-1], "corpus-leaves"),
        ("another digest", altered(leaves, 20), "corpus-root"),
        ("another index", altered(leaves, 7), "corpus-leaves"),
        ("another length", altered(leaves, 15), "corpus-leaves"),
        ("another token start", altered(leaves, 87), "corpus-leaves"),
        ("no leaf", b"", "corpus-root"),
        (
            "2^63 tokens",
            bytes(8) + (1 << 63).to_bytes(8, "big") + bytes(72) + (1 << 63).to_bytes(8, "big"),
            "corpus-leaves",
        ),
    ):
        yield case(name, "corpus", claim, spelt(data), code=code)
    for name, change, code in (
        ("tokens of two bytes", {"tokenizer": "uint16"}, "corpus-leaves"),
        ("another number of tokens", {"tokens": 1}, "corpus-root"),
        ("an unknown tokenizer", {"tokenizer": "uint8"}, "not-canonical"),
        ("bytes behind a tokenizer's file", {"tokenizer": "bytes:tokenizers:" + "0" * 64}, "not-canonical"),
        ("windows without a stride", {"packing": {"kind": "windows", "length": 8, "stride": 0}}, "not-canonical"),
        ("documents with a length", {"packing": {"kind": "documents", "length": 8, "stride": 0}}, "not-canonical"),
    ):
        yield case(name, "corpus", claim | change, spelt(leaves), code=code)
    for i in (0, 4, 5, 12):
        yield case(f"window {i}", "spans", claim, spelt(leaves), i)
    yield case("an empty document is a sample", "spans", documents, spelt(leaves), 1)
    yield case("the records of a step", "records", claim, spelt(leaves), 3, [4, 0, 4])
    yield case("of another step", "records", claim, spelt(leaves), 4, [4, 0, 4])
    text = b"".join(b"%08d" % i for i in range(1056))
    hashes = [merkle.leaf_hash(b"TW1D" + text[i : i + 4096]) for i in (0, 4096, 8192)]
    tree = merkle.Tree(hashes)
    leaf = b"".join(
        [
            (0).to_bytes(8, "big"),
            len(text).to_bytes(8, "big"),
            bytes(32),
            tree.root(3),
            bytes(8),
            len(text).to_bytes(8, "big"),
        ]
    )
    proofs = [[spelt(it) for it in tree.inclusion_proof(i)] for i in range(3)]
    for i in range(3):
        yield case(f"piece {i}", "piece", spelt(leaf), i, spelt(text[4096 * i :][:4096]), proofs[i])
    yield case("another piece", "piece", spelt(leaf), 1, spelt(text[:4096]), proofs[0], code="record-bytes")
    yield case("a piece cut short", "piece", spelt(leaf), 2, spelt(text[8192:-1]), proofs[2], code="record-bytes")
    yield case("a piece beyond", "piece", spelt(leaf), 3, spelt(b""), proofs[2], code="proof-malformed")
    short = leaf[:8] + (4096 * 2 + 5).to_bytes(8, "big") + leaf[16:]
    yield case(
        "a leaf that lies about its length",
        "piece",
        spelt(short),
        2,
        spelt(text[8192:]),
        proofs[2],
        code="record-bytes",
    )


def schedules() -> Cases:
    """Orders, samples of steps, probes."""
    seed = spelt(bytes(range(32)))
    yield case("an epoch", "epoch", seed, 0, 14)
    yield case("the next", "epoch", seed, 1, 14)
    yield case("of one sample", "epoch", seed, 5, 1)
    yield case("a step of no sample", "samples", seed, 4, 0, 1, code="empty-corpus")
    yield case("a step of too many", "samples", seed, 4, (1 << 27) + 1, 1, code="schedule")
    for step in (1, 4, 5, 6, 1000):
        yield case(f"step {step}, batches of 4 of 14", "samples", seed, 4, 14, step)
    yield case("a batch that is larger than the corpus", "samples", seed, 20, 14, 2)
    yield case("a probe", "probe", seed, 3, spelt(bytes(32)), 4, 14)


def draws() -> Cases:
    """Seeds and draws."""
    nonce, session, head = bytes(range(32)), bytes(range(16)), b"log\n1\nAAAA\n"
    policy = encode(POLICY)
    commitment = commit_nonce(nonce)
    given = [spelt(it) for it in (session, policy, commitment, head, nonce)]
    yield case("a seed", "session-seed", *given)
    yield case("another nonce", "session-seed", *given[:4], spelt(bytes(32)), code="nonce-mismatch")
    yield case(
        "a nonce of 31 bytes",
        "session-seed",
        *given[:2],
        spelt(tagged("nonce-commitment", nonce[:31])),
        given[3],
        spelt(nonce[:31]),
        code="nonce-mismatch",
    )
    yield case("no session", "session-seed", spelt(b""), *given[1:], code="seed-input")
    yield case("no head", "session-seed", *given[:3], spelt(b""), given[4], code="seed-input")
    seed = spelt(session_seed(session=session, policy=policy, commitment=commitment, head=head, nonce=nonce))
    for k, n in ((0, 6), (3, 6), (6, 6), (9, 6), (5, 10**9), (100, 100)):
        yield case(f"{k} of {n}", "draw", seed, k, n)


def probabilities() -> Cases:
    """Fractions, misses, draws needed and owed."""
    for text in ("0", "1", "0.01", "1%", "1/3", "99.5%", "1e-3", "5E-1", "0.1e+1", "007/700", "1e-2%"):
        yield case(f"the fraction {text}", "fraction", text)
    for text in (
        "",
        "1.",
        ".5",
        "-0",
        "+1",
        "2",
        "101%",
        "1/0",
        "3/2",
        "1/3%",
        " 1",
        "1\n",
        "1e100",
        "0x1",
        "1_0",
        "\u0661",
        "1" * 41,
    ):
        yield case(f"no fraction: {text!a}", "fraction", text, code="not-a-fraction")
    for n, b, k in ((6, 2, 3), (1000, 10, 100), (1000, 10, 991), (1, 1, 0), (1, 1, 1), (5, 0, 5)):
        yield case(f"miss of {k} draws, {b} bad of {n}", "miss", n, b, k)
    for n, b, k in ((0, 0, 0), (5, 6, 1), (5, 1, 6), (10**9 + 1, 1, 1)):
        yield case(f"no such count: {n}, {b}, {k}", "miss", n, b, k, code="impossible-count")
    for n, share, confidence in (
        (6, "1/3", "0.9"),
        (1000, "0.01", "0.99"),
        (100000, "1%", "0.99"),
        (1000, "0", "1"),
        (10, "1", "0"),
    ):
        yield case(f"draws needed of {n} at {share}, {confidence}", "draws-needed", n, share, confidence)
    yield case("against 2^20 seeds", "draws-needed", 1000, "0.01", "0.99", 20)
    policy = json.loads(encode(Policy("0.99", "1%")))
    for name, change, n, code in (
        ("owed by confidence", {}, 1000, None),
        ("owed by number", {"draws": 7}, 1000, None),
        ("no more than there are", {"draws": 7}, 5, None),
        ("of no step", {}, 0, None),
        ("of no step, whatever the text", {"confidence": "high"}, 0, "policy"),
        ("by number, whatever the text", {"draws": 7, "bad_fraction": "few"}, 1000, "policy"),
        ("too many by number", {"draws": 16385}, 10, "policy"),
        ("as many as may be", {"draws": 16384}, 10**6, None),
        ("too many by confidence", {"bad_fraction": "0"}, 10**6, "policy"),
        ("a confidence that no text gives", {"confidence": "2"}, 10, "policy"),
    ):
        yield case(name, "draws-owed", policy | change, n, code=code)


# -- manifest, entries, log ---------------------------------------------------------------------------

EXACT = {
    "arithmetic": "exact-14",
    "build": {"torch": "2.13.0", "numpy": None},
    "definition": 1,
    "device": {"byteorder": "little", "used": "cpu"},
    "name": "exact",
    "switches": {"autocast.cpu": False},
}


def manifests() -> Cases:
    """Manifests."""
    good = json.loads(run()["entries"][0])
    program, corpus, files = good["program"], good["corpus"], good["program"]["files"]

    def manifest(name: str, change: dict[str, Any], code: str | None = None) -> Any:
        return case(name, "manifest", spelt(canonical(good | change)), code=code)

    def path(text: str) -> dict[str, Any]:
        return {"program": program | {"files": [files[0] | {"path": text}]}}

    def operation(**changes: Any) -> dict[str, Any]:
        spec = {
            "arguments": ["float32[4]{unit}", 2, None, [True]],
            "keywords": {"alpha": "f64:3ff0000000000000"},
            "operator": "aten.add_.Tensor",
        }
        return {
            "operations": {
                "operations": [{"digest": "00" * 32, "spec": spec | changes}],
                "unprobed": [{"operation": "x", "reason": "y"}],
            }
        }

    yield manifest("a manifest", {})
    yield manifest("of the exact profile", {"profile": EXACT})
    yield manifest("with a probe of operations", operation())
    yield manifest("of a registered seed", {"seed": good["seed"] | {"source": "registered"}})
    two = [files[0] | {"path": it} for it in ("a/b.py", "a/c.py")]
    yield manifest("of two files", {"program": program | {"files": two}})
    for name, change in (
        ("another version", {"version": "training-witness/v2"}),
        ("no batch", {"batch_size": 0}),
        ("no step", {"steps": 0}),
        ("more than 10^9 steps", {"steps": 10**9 + 1}),
        ("checkpoints between commitments", {"checkpoint_every": 3, "commit_every": 2}),
        ("commitments never", {"commit_every": 0}),
        ("checkpoints never", {"checkpoint_every": 0}),
        ("17 ledgers", {"ledgers": [good["ledgers"][1] | {"tier": f"t2-winnow-bytes-k{k}-w3"} for k in range(10, 27)]}),
        ("two ranks", {"ranks": 2}),
        ("too many probe samples", {"probe_samples": 4097}),
        ("a ledger twice", {"ledgers": [good["ledgers"][0]] * 2}),
        ("ledgers out of order", {"ledgers": good["ledgers"][::-1]}),
        ("a ledger over other documents", {"ledgers": [good["ledgers"][0] | {"documents": 5}]}),
        ("no file", {"program": program | {"files": []}}),
        ("files out of order", {"program": program | {"files": two[::-1]}}),
        (
            "a file that is a folder of another",
            {"program": program | {"files": [files[0] | {"path": it} for it in ("a", "a/b")]}},
        ),
        ("a file of more than 2^22 bytes", {"program": program | {"files": [files[0] | {"length": (1 << 22) + 1}]}}),
        ("a path that leaves the folder", path("../x.py")),
        ("an absolute path", path("/x.py")),
        ("a path with a backslash", path("a\\x.py")),
        ("a path with a part of one dot", path("a/./x.py")),
        ("a path beyond ASCII", path("\u00e9.py")),
        ("a path of 256 characters", path("a" * 256)),
        ("an entry without a class", {"program": program | {"entry": "module"}}),
        ("an entry that is no identifier", {"program": program | {"entry": "module:Class()"}}),
        ("an entry with two colons", {"program": program | {"entry": "a:B:C"}}),
    ):
        yield manifest(name, change, "manifest")
    for name, change in (
        ("a field too many", {"more": 0}),
        ("a boolean for a number", {"batch_size": True}),
        ("text for a number", {"steps": "6"}),
        ("another start", {"init": "load"}),
        ("another reduction", {"reduction": "mean"}),
        ("pieces of 5000 bytes", {"pieces": {"shards": 1, "size": 5000}}),
        ("no shard", {"pieces": {"shards": 0, "size": 4096}}),
        ("an unknown profile", {"profile": good["profile"] | {"name": "fast"}}),
        ("an exact profile without its arithmetic", {"profile": {k: v for k, v in EXACT.items() if k != "arithmetic"}}),
        ("an arithmetic of three digits", {"profile": EXACT | {"arithmetic": "exact-100"}}),
        ("a line of 513 characters", {"profile": EXACT | {"build": {"x": "y" * 513}}}),
        ("a line's name with a space", {"profile": EXACT | {"build": {"a b": 0}}}),
        ("129 lines", {"profile": EXACT | {"build": {f"l{i}": 0 for i in range(129)}}}),
        ("no thread", {"profile": good["profile"] | {"threads": {"inter": 0, "intra": 1}}}),
        ("an operator in upper case", operation(operator="aten.Add.Tensor")),
        ("an operator of another library", operation(operator="prim.add.Tensor")),
        ("an argument that is an object", operation(arguments=[{}])),
        ("an argument nested twice", operation(arguments=[[[0]]])),
        ("a claim that contradicts itself", {"ledgers": [good["ledgers"][0] | {"entries": 0}]}),
        ("another digest of documents", {"corpus": corpus | {"digest": "sha256"}}),
        ("a seed of 31 bytes", {"seed": good["seed"] | {"value": "00" * 31}}),
        ("a seed in upper case", {"seed": good["seed"] | {"value": "AB" * 32}}),
    ):
        yield manifest(name, change, "not-canonical")
    missing = {k: v for k, v in good.items() if k != "package"}
    yield case("a field missing", "manifest", spelt(canonical(missing)), code="not-canonical")
    yield case("white space", "manifest", spelt(json.dumps(good).encode()), code="not-canonical")
    yield manifest("a key that is none", {"key": "trainer"}, "key-malformed")
    yield manifest("a weak key", {"key": vkey("k", b"\1" + bytes(32))}, "weak-key")


def entries() -> Cases:
    """Entries behind the manifest."""
    found = [json.loads(entry) for entry in run()["entries"][1:]]
    step = next(it for it in found if it["type"] == "step")
    marks = step["fingerprint"]
    events = [
        {"type": "init", "state_root": "00" * 32},
        {"type": "checkpoint", "state_root": "00" * 32, "step": 0},
        {"type": "resume", "step": 3, "checkpoint": 5},
        {"type": "fault", "step": 1, "note": "\u00e9" * 256},
        {"type": "final", "steps": 6, "state_root": "00" * 32, "released": "00" * 32},
        step | {"state_root": None},
        step | {"hyperparameters": {"a b": None, "c": True, "d": -1, "e": "anything"}},
        step | {"fingerprint": marks | {"loss": "f64:7ff8000000000001", "update_norms": []}},
        step | {"step": 0},
    ]
    for i, it in enumerate(events):
        yield case(f"entry {i}: {it['type']}", "entry", spelt(canonical(it)))
    for name, it in (
        ("an unknown type", {"type": "note", "step": 1}),
        ("no type", {"step": 1}),
        ("a note of 257", events[3] | {"note": "x" * 257}),
        ("a fault without a note", {"type": "fault", "step": 1}),
        ("a root in upper case", events[0] | {"state_root": "AB" * 32}),
        ("a float without its kind", step | {"fingerprint": marks | {"loss": "3f800000"}}),
        ("a float of another width", step | {"fingerprint": marks | {"loss": "f32:3f80000000000000"}}),
        ("a float in upper case", step | {"fingerprint": marks | {"loss": "f32:3F800000"}}),
        ("a hyperparameter that is an array", step | {"hyperparameters": {"lr": []}}),
        ("a hyperparameter without a name", step | {"hyperparameters": {"": 0}}),
        ("a batch of 31 bytes", step | {"batch": "00" * 31}),
        ("a negative step", step | {"step": -1}),
        ("a manifest", json.loads(run()["entries"][0])),
    ):
        yield case(name, "entry", spelt(canonical(it)), code="not-canonical")
    large = step | {"hyperparameters": {"a": "x" * (1 << 16)}}
    yield case("more than 2^16 bytes", "entry", spelt(canonical(large)), code="too-large")


def logs() -> Cases:
    """Whole logs."""
    found = run()
    true = found["entries"]
    values = [json.loads(entry) for entry in true]
    at = {step: i for i, step in ((i, it["step"]) for i, it in enumerate(values) if it["type"] == "step")}

    def log(
        name: str,
        change: dict[int, Any] | list[Any],
        code: str | None = None,
        sizes: tuple[int, ...] = (1, 2),
        outliers: int = 1,
    ) -> Any:
        whole = change if isinstance(change, list) else [values[i] | change.get(i, {}) for i in range(len(values))]
        data = [canonical(it) if isinstance(it, dict) else it for it in whole]
        notes = heads_again(data, sizes, KEY)
        return case(
            name,
            "log",
            [spelt(it) for it in data],
            spelt(found["leaves"]),
            [spelt(it) for it in notes],
            outliers,
            code=code,
        )

    fault, resume = {"type": "fault", "step": 2, "note": ""}, {"type": "resume", "step": 4, "checkpoint": 3}
    end = len(values) - 1
    yield log("a log", {})
    yield log("without outliers", {}, outliers=0)
    yield log("with a fault and a resume", [*values[: at[5]], fault, resume, *values[at[5] :]], outliers=2)
    yield log("unfinished", values[: at[4]])
    yield log("of no step", values[:2])
    sparse = [
        it | ({"state_root": None} if it["type"] == "step" and it["step"] % 2 else {})
        for it in values
        if (it["type"], it.get("step")) != ("checkpoint", 3)
    ]
    sparse[0] = sparse[0] | {"commit_every": 2}
    yield log("with a root every two steps", sparse)
    rooted = [it | ({"state_root": "33" * 32} if it.get("step") == 3 else {}) for it in sparse]
    yield log("a root where none is promised", rooted, "state-root-missing")
    kept = {"type": "checkpoint", "step": 3, "state_root": "33" * 32}
    at_3 = next(i for i, it in enumerate(sparse) if it.get("step") == 3) + 1
    yield log("a kept state where no root is", [*sparse[:at_3], kept, *sparse[at_3:]], "state-root-missing")
    nan = [
        it | {"fingerprint": it["fingerprint"] | {"loss": "f32:7fc00000"}}
        if it.get("step") == 3 and it["type"] == "step"
        else it
        for it in values
    ]
    yield log("with a loss that is no number", nan, outliers=1)
    norms = ["f32:3f800000", "f64:3fe0000000000000", "f32:ff800000"]
    several = [
        it | {"fingerprint": it["fingerprint"] | {"update_norms": norms}} if it["type"] == "step" else it
        for it in values
    ]
    yield log("with several groups", several)
    for name, change, code in (
        ("a step missing", [*values[: at[2]], *values[at[2] + 1 :]], "step-order"),
        ("a step twice", [*values[: at[3]], values[at[3]], *values[at[3] :]], "step-order"),
        ("no initial state", [values[0], *values[2:]], "step-order"),
        ("two initial states", [*values[:2], values[1], *values[2:]], "step-order"),
        ("the manifest alone", values[:1], "step-order"),
        ("a manifest in the middle", [*values[:3], values[0], *values[3:]], "not-canonical"),
        ("a step beyond the promise", [*values[:end], values[at[6]] | {"step": 7}, values[end]], "step-order"),
        ("a root missing", {at[3]: {"state_root": None}}, "state-root-missing"),
        ("other records", {at[3]: {"records": "00" * 32}}, "records-digest"),
        ("the records of another step", {at[3]: {"records": values[at[4]]["records"]}}, "records-digest"),
        (
            "another number of groups",
            {at[3]: {"fingerprint": values[at[3]]["fingerprint"] | {"update_norms": []}}},
            "fingerprint-shape",
        ),
        (
            "a probe that was not promised",
            {at[1]: {"fingerprint": values[at[1]]["fingerprint"] | {"probe": "00" * 32}}},
            "fingerprint-shape",
        ),
        ("a kept state with another root", {at[6] + 1: {"state_root": "00" * 32}}, "checkpoint-event"),
        ("a kept state of another step", {at[6] + 1: {"step": 5}}, "checkpoint-event"),
        ("a kept state that is not announced", [*values[: at[6] + 1], *values[at[6] + 2 :]], "checkpoint-event"),
        ("a fault of a later step", [*values[: at[3]], fault | {"step": 3}, *values[at[3] :]], "event"),
        ("a fault of step 0", [*values[: at[3]], fault | {"step": 0}, *values[at[3] :]], "event"),
        ("a resume elsewhere", [*values[: at[3]], resume, *values[at[3] :]], "event"),
        (
            "a resume of an earlier step",
            [*values[: at[3]], resume | {"step": 1, "checkpoint": 0}, *values[at[3] :]],
            "event",
        ),
        (
            "probes that were not promised",
            [
                it | {"fingerprint": it["fingerprint"] | {"probe": "00" * 32}} if it["type"] == "step" else it
                for it in values
            ],
            "fingerprint-shape",
        ),
        ("a resume from later", [*values[: at[5]], resume | {"checkpoint": 5}, *values[at[5] :]], "event"),
        ("an end before the promise", [*values[: at[5]], values[end] | {"steps": 4}], "final-event"),
        ("an end with another root", {end: {"state_root": "00" * 32}}, "final-event"),
        ("something behind the end", [*values, fault], "final-event"),
        ("another end behind the end", [*values, values[end]], "final-event"),
        ("an entry that is none", [*values[:3], b"{}", *values[3:]], "not-canonical"),
        ("a corpus of other leaves", {0: {"corpus": values[0]["corpus"] | {"root": "00" * 32}}}, "corpus-root"),
        (
            "a root of zeros at a kept state",
            {at[6]: {"state_root": "00" * 32}, at[6] + 1: {"state_root": "00" * 32}},
            "state-root-missing",
        ),
    ):
        yield log(name, change, code)
    given = [[spelt(it) for it in true], spelt(found["leaves"])]
    origin_heads = heads_again(true, [1, 2], KEY)
    other = heads_again([*true[:-1], canonical(values[end] | {"released": "00" * 32})], [1, 2], KEY)
    longer = heads_again([*true, canonical(fault)], [1], KEY)
    yield case(
        "another history's head",
        "log",
        *given,
        [spelt(it) for it in (other[-1], origin_heads[-1])],
        1,
        code="equivocation",
    )
    yield case("a head of another root", "log", *given, [spelt(it) for it in other], 1, code="head-root")
    yield case(
        "a head beyond", "log", *given, [spelt(it) for it in (longer[-1], origin_heads[-1])], 1, code="head-beyond"
    )
    yield case("a session's head over fewer", "log", *given, [spelt(origin_heads[0])], 1, code="head-root")
    origin = origin_of(tagged("run", true[0]).hex())
    for name, root, code in (
        ("a head over nothing", merkle.EMPTY_ROOT, None),
        ("nothing's other root", bytes(32), "head-root"),
    ):
        note = sign_head(Checkpoint(origin, 0, root), KEY)
        yield case(name, "log", *given, [spelt(it) for it in (note, origin_heads[-1])], 1, code=code)
    strange = heads_again(true, [1], VERIFIER)
    yield case("a head by another key", "log", *given, [spelt(strange[-1])], 1, code="note-unsigned")


# -- certificates, audits, answers --------------------------------------------------------------------


@cache
def predicate(policy: Policy, nonce: bytes = bytes(range(32)), draws: int | None = None) -> Any:
    """What a certificate of a session over the run says, everything reproduced."""
    found = run()
    head = open_head(found["notes"][-1], [KEY.public])
    claim = json.loads(found["entries"][0])["corpus"]
    audit = LogAudit(Documents(parse_leaves(found["leaves"]), Packing(**claim["packing"])))
    for entry in found["entries"]:
        audit.read(entry)
    session, commitment, body = bytes(range(16)), commit_nonce(nonce), parse_note(found["notes"][-1]).text.encode()
    seed = session_seed(session=session, policy=encode(policy), commitment=commitment, head=body, nonce=nonce)
    k = draws_asked(policy, audit.steps) if draws is None else draws
    drawn = {number + 1: place for place, number in enumerate(draw(seed, audit.steps, k))}
    named = mandatory(audit, policy.outliers)
    fine = Result("reproduced")
    listed = [*named, *((step, "draw") for step in drawn if step not in {it for it, _ in named})]
    return Predicate(
        run=tagged("run", found["entries"][0]).hex(),
        trainer=TRAINER,
        verifier=VERIFIER.public.vkey,
        head=found["notes"][-1].decode(),
        statement=sign_note(statement_text(session.hex(), policy, commitment.hex(), body), KEY).decode(),
        session=session.hex(),
        policy=policy,
        commitment=commitment.hex(),
        nonce=nonce.hex(),
        draws=k,
        steps=audit.steps,
        promised=6,
        final_state_root=json.loads(found["entries"][-1])["state_root"],
        mandatory=tuple(named),
        checks=tuple(CheckResult(name, fine) for name in CHECKS),
        challenges=tuple(ChallengeResult(step, why, drawn.get(step), fine) for step, why in listed),
        data=DataReport(("t0-sha256", SPANS), 4, 3),
        profile="native",
        seed_source="own",
        notes=(),
        claims=tuple(CLAIMS),
        not_claimed=tuple(NOT_CLAIMED),
        verdict="reproduced" if k >= draws_asked(policy, audit.steps) else "incomplete",
        package="0",
    ), head


def claimed(steps: int, policy: Policy, note: bytes | None = None) -> Predicate:
    """A certificate of a session over a head and a run of which only the number of steps matters, all reproduced."""
    good = predicate(POLICY)[0]
    note = note or sign_head(Checkpoint(origin_of(good.run), 2 * steps + 2, bytes(32)), KEY)
    session, commitment, nonce = (bytes.fromhex(it) for it in (good.session, good.commitment, good.nonce))
    body = parse_note(note).text.encode()
    seed = session_seed(session=session, policy=encode(policy), commitment=commitment, head=body, nonce=nonce)
    count = draws_asked(policy, steps)
    drawn = {number + 1: place for place, number in enumerate(draw(seed, steps, count))}
    named = ((0, "init"), (1, "first"), (steps, "last"))
    listed = [*named, *((step, "draw") for step in drawn if step not in (1, steps))]
    return msgspec.structs.replace(
        good,
        run=parse_note(note).text.split("\n")[0].rpartition("/")[2],
        head=note.decode(),
        statement=sign_note(statement_text(good.session, policy, good.commitment, body), KEY).decode(),
        policy=policy,
        draws=count,
        steps=steps,
        promised=steps,
        mandatory=named,
        challenges=tuple(ChallengeResult(step, why, drawn.get(step), Result("reproduced")) for step, why in listed),
    )


CHECKS = (
    "manifest",
    "initial-state",
    "step-order",
    "state-roots",
    "records",
    "checkpoints",
    "events",
    "fingerprints",
    "final",
    "heads",
    "hyperparameters",
    "ledgers",
)
POLICY = Policy("0.9", "1/3", outliers=1)


def certificates() -> Cases:
    """Certificates, and what they say together."""
    good = predicate(POLICY)[0]
    signed = sign_certificate(good, VERIFIER)
    value = payload_of(signed)
    inside = value["predicate"]
    known = [VERIFIER.public.vkey]

    def certificate(
        name: str,
        change: dict[str, Any],
        code: str | None = None,
        keys: tuple[str, ...] = (),
        outer: dict[str, Any] | None = None,
        key: SigningKey = VERIFIER,
    ) -> Any:
        subject = [
            {
                "digest": {"sha256": (inside | change)["final_state_root"]},
                "name": f"training run {(inside | change)['run']}",
            }
        ]
        data = envelope_of(canonical(value | {"predicate": inside | change, "subject": subject} | (outer or {})), [key])
        return case(name, "certificate", spelt(data), keys, code=code)

    def results(
        name: str, which: dict[int, str], verdict: str, kind: str = "challenges", code: str | None = None
    ) -> Any:
        items = [
            it | {"result": {"code": "x", "evidence": {}, "message": "", "outcome": which[i]}} if i in which else it
            for i, it in enumerate(inside[kind])
        ]
        return certificate(name, {kind: items, "verdict": verdict}, code)

    yield case("a certificate", "certificate", spelt(signed), [])
    yield case("by an accepted verifier", "certificate", spelt(signed), known)
    yield certificate("without a statement", {"statement": None})
    yield results("a step diverged", {2: "diverged"}, "diverged")
    yield results("a check diverged", {3: "diverged"}, "diverged", "checks")
    yield results("a check incomplete", {11: "incomplete"}, "incomplete", "checks")
    yield results("both: diverged is worse", {1: "diverged", 2: "incomplete"}, "diverged")
    yield certificate(
        "a step listed twice, once diverged",
        {
            "challenges": [
                *inside["challenges"],
                inside["challenges"][1] | {"result": inside["challenges"][1]["result"] | {"outcome": "diverged"}},
            ],
            "verdict": "diverged",
        },
    )
    yield certificate("nothing done", {"challenges": [], "checks": [], "verdict": "incomplete"})
    fewer = predicate(POLICY, draws=1)[0]
    yield case("fewer draws than owed", "certificate", spelt(sign_certificate(fewer, VERIFIER)), [])
    most = predicate(Policy("0.9", "1/3", draws=6, outliers=0))[0]
    yield case("all steps drawn", "certificate", spelt(sign_certificate(most, VERIFIER)), [])
    none = {"steps": 0, "draws": 0, "mandatory": [], "challenges": [], "verdict": "incomplete"}
    yield certificate("of no step", none)
    for name, change in (
        ("a verdict that is too good", {"challenges": inside["challenges"][1:]}),
        ("a verdict that is too bad", {"verdict": "diverged"}),
        ("a check missing", {"checks": inside["checks"][1:]}),
        ("step 0 not mandatory", {"mandatory": inside["mandatory"][1:]}),
        ("another order", {"challenges": [it | {"order": 5} for it in inside["challenges"]]}),
        ("more steps than promised", {"promised": 5}),
        ("more draws than steps", {"draws": 7}),
        ("a claim more", {"claims": [*inside["claims"], "that it is safe"]}),
        ("a disclaimer less", {"not_claimed": inside["not_claimed"][1:]}),
    ):
        yield certificate(name, change, "certificate")
    for name, change, code in (
        ("another nonce", {"nonce": "11" * 32}, "nonce-mismatch"),
        ("another commitment", {"commitment": "11" * 32}, "statement"),
        ("another session", {"session": "11" * 16}, "statement"),
        ("another policy", {"policy": inside["policy"] | {"confidence": "0.5"}}, "statement"),
        ("a statement by somebody else", {"statement": sign_note("x\n", VERIFIER).decode()}, "note-unsigned"),
        ("another run", {"run": "11" * 32}, "head-origin"),
        ("another trainer", {"trainer": AUDITOR.public.vkey}, "note-unsigned"),
        ("a trainer without a key", {"trainer": "trainer"}, "key-malformed"),
        ("a head that is none", {"head": "x"}, "note-malformed"),
        ("another version", {"version": "training-witness/v2"}, "certificate-malformed"),
        ("too much promised", {"promised": 10**9 + 1}, "certificate-malformed"),
        (
            "a policy without a number",
            {"policy": inside["policy"] | {"bad_fraction": "few"}, "statement": None},
            "policy",
        ),
        ("an unknown outcome", {"verdict": "fine"}, "not-canonical"),
        ("a field too many", {"more": 0}, "not-canonical"),
        ("a note of 4097 characters", {"notes": ["x" * 4097]}, "not-canonical"),
        ("1025 outliers", {"policy": inside["policy"] | {"outliers": 1025}}, "not-canonical"),
        ("a verifier without a key", {"verifier": "verifier"}, "key-malformed"),
        ("signed by another than it names", {"verifier": AUDITOR.public.vkey}, "envelope-unsigned"),
    ):
        yield certificate(name, change, code)
    yield certificate(
        "another subject",
        {},
        "certificate-malformed",
        outer={"subject": [{"digest": {"sha256": "11" * 32}, "name": value["subject"][0]["name"]}]},
    )
    yield certificate("two subjects", {}, "certificate-malformed", outer={"subject": value["subject"] * 2})
    yield certificate(
        "another statement type", {}, "certificate-malformed", outer={"_type": "https://in-toto.io/Statement/v0"}
    )
    yield certificate(
        "another predicate type",
        {},
        "certificate-malformed",
        outer={"predicateType": "urn:training-witness:data-audit:v1"},
    )
    yield certificate("by a verifier who is not accepted", {}, "envelope-unsigned", [AUDITOR.public.vkey])
    forged = envelope_of(canonical(value), [AUDITOR])
    yield case(
        "signed by one accepted verifier in the name of another",
        "certificate",
        spelt(forged),
        [*known, AUDITOR.public.vkey],
        code="envelope-unsigned",
    )
    yield certificate("of a verifier beside those accepted", {"verifier": COSIGNER.public.vkey}, "certificate", known)
    long = claimed(1000, Policy("0.9", "5%"))
    yield case("of a thousand steps", "certificate", spelt(sign_certificate(long, VERIFIER)), [])
    left_out = msgspec.structs.replace(long, challenges=long.challenges[:-1], verdict="incomplete")
    yield case("of a thousand steps, one draw left out", "certificate", spelt(sign_certificate(left_out, VERIFIER)), [])
    second = sign_certificate(predicate(POLICY, nonce=bytes(range(1, 33)))[0], VERIFIER)
    short = [sign_certificate(predicate(POLICY, nonce=bytes([i]) * 32, draws=2)[0], VERIFIER) for i in (1, 2, 3)]
    yield case("two sessions", "certificates", [spelt(signed), spelt(second)], [])
    yield case("one session twice", "certificates", [spelt(signed), spelt(signed)], [])
    yield case("short sessions that do not suffice", "certificates", [spelt(short[0])], [])
    yield case("short sessions that suffice together", "certificates", [spelt(it) for it in short], [])
    bad = value | {
        "predicate": inside
        | {
            "checks": [it | {"result": it["result"] | {"outcome": "diverged"}} for it in inside["checks"]],
            "verdict": "diverged",
        }
    }
    yield case("one diverged", "certificates", [spelt(signed), spelt(envelope_of(canonical(bad), [VERIFIER]))], [])
    empty = value | {"predicate": inside | none | {"statement": None, "head": run()["notes"][0].decode()}}
    digest = canonical(json.loads(canonical(empty)))
    reseeded = spelt(envelope_of(digest, [VERIFIER]))
    yield case("of different heads", "certificates", [spelt(signed), reseeded], [], code="other-head")
    size = int(good.head.split("\n")[1])
    forked = claimed(6, POLICY, sign_head(Checkpoint(origin_of(good.run), size, bytes(32)), KEY))
    pair = [spelt(signed), spelt(sign_certificate(forked, VERIFIER))]
    yield case("of two histories", "certificates", pair, [], code="equivocation")


def audits() -> Cases:
    """Audits of data."""
    found = run()
    signed = audited(found["entries"], found["notes"][-1])
    value = payload_of(signed)
    inside = value["predicate"]

    def audit(
        name: str,
        change: dict[str, Any],
        code: str | None = None,
        outer: dict[str, Any] | None = None,
        keys: tuple[str, ...] = (),
        key: SigningKey = AUDITOR,
    ) -> Any:
        return case(
            name,
            "audit",
            spelt(envelope_of(canonical(value | {"predicate": inside | change} | (outer or {})), [key])),
            keys,
            code=code,
        )

    yield audit("an audit", {})
    yield audit("by an accepted auditor", {}, keys=[AUDITOR.public.vkey])
    yield audit("that found something", {"findings": ["document 1: another digest"], "verdict": "differs"})
    for name, change, code in (
        ("complete, with findings", {"findings": ["x"]}, "data-audit"),
        ("different, without findings", {"verdict": "differs"}, "data-audit"),
        ("another version", {"version": "v2"}, "data-audit-malformed"),
        ("another corpus than its subject", {"corpus": "11" * 32}, "data-audit-malformed"),
        ("another run", {"run": "11" * 32}, "data-audit-malformed"),
        ("another trainer", {"trainer": VERIFIER.public.vkey}, "note-unsigned"),
        ("an unknown verdict", {"verdict": "fine"}, "not-canonical"),
        ("65 findings", {"findings": ["x"] * 65, "verdict": "differs"}, "not-canonical"),
        ("a ledger that contradicts itself", {"ledgers": [inside["ledgers"][0] | {"entries": 0}]}, "not-canonical"),
        ("an auditor without a key", {"auditor": "x"}, "key-malformed"),
    ):
        yield audit(name, change, code)
    yield audit(
        "a certificate's type", {}, "data-audit-malformed", {"predicateType": "urn:training-witness:certificate:v1"}
    )
    yield audit("by an auditor who is not accepted", {}, "envelope-unsigned", keys=[VERIFIER.public.vkey])
    yield audit("signed by another", {}, "envelope-unsigned", key=VERIFIER)


def answers() -> Cases:
    """Answers about documents."""
    for packing in ("windows", "documents"):
        found = run(packing)
        head = spelt(found["head"])
        for i, data in enumerate(found["answers"]):
            yield case(f"{packing}: answer {i}", "answer", spelt(data), head, [])
    digests, spans = (json.loads(it) for it in found["answers"])

    def answer(name: str, change: Any, code: str | None = None, of: Any = digests, under: str = head) -> Any:
        value = json.loads(json.dumps(of))
        change(value)
        return case(name, "answer", spelt(canonical(value)), under, [], code=code)

    def put(*path: Any, to: Any) -> Any:
        def change(value: Any) -> None:
            for name in path[:-1]:
                value = value[name]
            value[path[-1]] = to

        return change

    reply = digests["replies"][0]
    for name, change, code in (
        ("another version", put("version", to="v2"), "answer-malformed"),
        ("included shown as absent", put("replies", 0, "result", to="absent"), "answer-malformed"),
        ("a digest that is possible", put("replies", 0, "result", to="possible"), "answer-malformed"),
        ("another digest", put("replies", 0, "digest", to="11" * 32), "ledger-inclusion"),
        ("other occurrences", put("replies", 0, "occurrences", to="010101"), "ledger-inclusion"),
        ("occurrences beyond the corpus", put("replies", 0, "occurrences", to="010104"), "ledger-inclusion"),
        (
            "occurrences with a byte too many",
            put("replies", 0, "occurrences", to=reply["occurrences"] + "00"),
            "not-canonical",
        ),
        ("no document listed", put("replies", 0, "documents", to=[]), "answer"),
        ("another document listed", put("replies", 0, "documents", 0, to=reply["documents"][1]), "answer"),
        (
            "a leaf that is not in the corpus",
            put("replies", 0, "documents", 0, "leaf", to=reply["documents"][0]["leaf"][:-1] + "0"),
            "inclusion-proof",
        ),
        ("a document without its proof", put("replies", 0, "documents", 0, "proof", to=[]), "inclusion-proof"),
        ("absence of another digest", put("replies", 1, "digest", to=reply["digest"]), "ledger-absence"),
        (
            "half a ledger's proof",
            put("replies", 1, "proof", to=digests["replies"][1]["proof"][:-2]),
            "ledger-proof-malformed",
        ),
        ("a tier that the run has no ledger of", put("replies", 0, "tier", to="t1-x"), "answer"),
        ("a tier that is none", put("replies", 0, "tier", to="x"), "not-canonical"),
        ("no reply", put("replies", to=[]), "not-canonical"),
        ("no tail", put("tail", to=[]), "answer-malformed"),
        ("a tail of another index", put("tail", 0, "index", to=1), "answer-malformed"),
        ("a tail of another entry", put("tail", 0, "entry", "released", to="11" * 32), "inclusion-proof"),
        ("another manifest", put("manifest", "package", to="1"), "head-origin"),
        ("a manifest without its proof", put("manifest_proof", to=[]), "inclusion-proof"),
        ("records out of order", lambda it: it["records"].reverse(), "answer-malformed"),
        ("a record of another step", put("records", 0, "entry", "step", to=2), "inclusion-proof"),
        ("a certificate that is none", put("evidence", to=["{}"]), "envelope-malformed"),
    ):
        yield answer(name, change, code)
    supports = claimed(6, POLICY, found["head"])
    accuses = (CheckResult("heads", Result("diverged")), *supports.checks)
    begun = claimed(0, POLICY, found["notes"][0])
    for name, made, code in (
        ("a certificate that supports it", supports, None),
        (
            "a certificate that accuses",
            msgspec.structs.replace(supports, checks=accuses, verdict="diverged"),
            "completeness",
        ),
        (
            "a certificate over another head",
            msgspec.structs.replace(begun, challenges=(), mandatory=(), verdict="incomplete"),
            "completeness",
        ),
    ):
        yield answer(name, put("evidence", to=[sign_certificate(made, VERIFIER).decode()]), code)
    yield case(
        "another head than the answer's",
        "answer",
        spelt(canonical(digests)),
        spelt(found["notes"][0]),
        [],
        code="answer",
    )
    audit = payload_of(audited(found["entries"], found["head"]))
    for name, change, code in (
        ("an audit that supports it", {}, None),
        ("an audit that accuses", {"verdict": "differs", "findings": ["x"]}, "completeness"),
        ("an audit of other ledgers", {"ledgers": audit["predicate"]["ledgers"][:1]}, "completeness"),
        ("an audit of fewer documents", {"documents": 3}, "completeness"),
    ):
        envelope = envelope_of(canonical(audit | {"predicate": audit["predicate"] | change}), [AUDITOR])
        yield answer(name, put("evidence", to=[envelope.decode()]), code)
    span = spans["replies"][0]
    grams = span["grams"]
    few = span | {"grams": grams[:1], "length": 5, "opened": None, "result": "possible", "shown": span["shown"][:1]}
    hidden = span | {"shown": span["shown"][:1], "grams": [*grams[:-1], grams[-1] | {"digest": "11" * 32}]}
    twice = span | {"opened": span["opened"] | {"pieces": span["opened"]["pieces"] * 2}}
    for name, change, code in (
        ("a span: grams out of order", lambda it: it["replies"][0]["grams"].reverse(), "answer-malformed"),
        ("a span shorter than the guarantee", put("replies", 0, "length", to=5), "answer-malformed"),
        ("a span of one gram, shorter than the guarantee", put("replies", 0, to=few), "answer-malformed"),
        ("a span possible, not all shown", put("replies", 0, to=few | {"length": 12, "grams": grams}), "answer"),
        ("a gram that is not shown, of another digest", put("replies", 0, to=hidden), "answer"),
        ("a gram behind the span", put("replies", 0, "grams", -1, "position", to=9), "answer-malformed"),
        ("a piece twice", put("replies", 0, to=twice), "answer-malformed"),
        ("a span included, shown as absent", put("replies", 0, "result", to="absent"), "answer"),
        ("a span that is not opened", put("replies", 0, "opened", to=None), "answer"),
        ("a span possible, not opened", lambda it: it["replies"][0].update(opened=None, result="possible"), None),
        ("a span opened elsewhere", put("replies", 0, "opened", "start", to=17), "answer"),
        ("a span opened beyond the document", put("replies", 0, "opened", "start", to=30), "answer-malformed"),
        ("a span of other bytes", put("replies", 0, "opened", "pieces", 0, "data", to=b"x".hex() * 31), "record-bytes"),
        ("a span of another digest", put("replies", 0, "digest", to="11" * 32), "answer"),
        ("a gram of another digest", put("replies", 0, "grams", 0, "digest", to="11" * 32), "ledger-inclusion"),
        ("grams shown out of order", lambda it: it["replies"][0]["shown"].reverse(), "answer-malformed"),
        (
            "a gram shown that is none",
            put("replies", 0, "shown", -1, "gram", to=len(span["grams"])),
            "answer-malformed",
        ),
        ("a span in a tier of documents", put("replies", 0, "tier", to="t0-sha256"), "answer-malformed"),
        ("a span that is absent, shown as possible", put("replies", 1, "result", to="possible"), "answer"),
    ):
        yield answer(name, change, code, spans)


def other_answers() -> Cases:
    """Answers about other logs, and from ledgers that lie."""
    found = run("documents")
    true, made = found["entries"][:-2], json.loads(found["answers"][0])
    manifest, init, first, second = (json.loads(entry) for entry in true[:4])

    def answer(
        name: str,
        log: list[Any],
        tail: list[int],
        records: tuple[int, ...] = (),
        code: str | None = None,
        **changes: Any,
    ) -> Any:
        data = [canonical(it) for it in log]
        tree, note = merkle.Tree([merkle.leaf_hash(it) for it in data]), heads_again(data, [], KEY)[-1]
        proofs = [[it.hex() for it in tree.inclusion_proof(i)] for i in range(len(data))]
        parts = [[{"entry": log[i], "index": i, "proof": proofs[i]} for i in part] for part in (tail, records)]
        value = made | {"head": note.decode(), "manifest": log[0], "manifest_proof": proofs[0]}
        value |= {"tail": parts[0], "records": parts[1]} | changes
        return case(name, "answer", spelt(canonical(value)), spelt(note), [], code=code)

    fault, resume = {"type": "fault", "step": 1, "note": ""}, {"type": "resume", "step": 2, "checkpoint": 0}
    final = {"type": "final", "steps": 7, "state_root": "00" * 32, "released": "00" * 32}
    large = second | {"hyperparameters": {"a": "x" * (1 << 16)}}
    log = [manifest, init, first, second]
    yield answer("of a run that only promised", [manifest], [])
    yield answer("of a run that did not start", log[:2], [1])
    yield answer("of two steps", log, [3], (2, 3))
    yield answer("of a log that ends with faults", [*log, fault, fault], [3, 4, 5])
    yield answer("of a log that ends with a resume", [*log, resume], [4])
    for name, entries, tail, records, code in (
        ("no tail, no records", log, [], (), "answer-malformed"),
        ("a tail that begins with a fault", [*log, fault, fault], [4, 5], (), "answer-malformed"),
        ("a tail of two steps", log, [2, 3], (), "answer-malformed"),
        ("more steps than promised", [*log, *[fault] * 5, final], [9], (), "answer"),
        ("more steps than entries", [*log, resume | {"step": 4}], [4], (), "answer"),
        ("one step recorded twice", [*log[:3], first, second], [4], (2, 3), "answer"),
        ("a record of step 0", [*log[:2], first | {"step": 0}, second], [3], (2,), "answer-malformed"),
        ("a record that is none", [*log, resume], [4], (1,), "answer-malformed"),
        ("a record of a later step", [*log[:3], second | {"step": 3}, second], [4], (3,), "answer-malformed"),
        ("an entry of more than 2^16 bytes", [*log[:3], large], [3], (), "too-large"),
    ):
        yield answer(name, entries, tail, records, code)
    digest = sha256(b"not a document").digest()
    key, reply = document_key("t0-sha256", digest), made["replies"][0]
    for name, occurrences, code in (
        ("a ledger that names a document of other bytes", Occurrences(1, (0,)), "answer"),
        ("a ledger that names a document beyond the corpus", Occurrences(1, (7,)), "ledger-inclusion"),
        ("a ledger that counts a document twice", Occurrences(2, (0,)), "ledger-inclusion"),
    ):
        tree = build([(key, occurrences.value)])
        claim = {"documents": 4, "entries": 1, "root": tree.root.hex(), "tier": "t0-sha256"}
        lie = reply | {"digest": digest.hex(), "documents": reply["documents"][:1]}
        lie |= {"proof": tree.prove(key).to_bytes().hex(), "occurrences": occurrences.to_bytes().hex()}
        yield answer(name, [manifest | {"ledgers": [claim]}, init], [1], code=code, replies=[lie])
    value, head = of_tokens()
    span = value["replies"][0]
    for name, change, code in (
        ("a span of tokens", {}, None),
        ("a span of half a token", {"length": 23}, "answer-malformed"),
        ("a span between tokens", {"opened": span["opened"] | {"start": 5}}, "answer-malformed"),
    ):
        replies = [span | change]
        yield case(name, "answer", spelt(canonical(value | {"replies": replies})), spelt(head), [], code=code)


def of_tokens() -> tuple[Any, bytes]:
    """An answer about a span of tokens of two bytes, and its head."""
    texts = [bytes(range(64 * i, 64 * i + 64)) for i in range(3)]
    with TemporaryDirectory() as folder:
        tier, cut = "t2-winnow-u16-k4-w3", Packing("windows", 8, 8)
        found = made_run(Path(folder) / "run", texts, packing=cut, steps=2, batch=1, tiers=[tier], tokens="uint16")
        keeper = Answerer(found)
        return json.loads(keeper.spans(tier, [texts[1][4:28]]).to_bytes()), keeper.head


FILES = {
    "encoding": encoding,
    "keys": keys,
    "notes": notes,
    "heads": heads,
    "envelopes": envelopes,
    "merkle-trees": trees,
    "states": states,
    "ledgers": ledgers,
    "corpus": corpora,
    "schedule": schedules,
    "draws": draws,
    "probabilities": probabilities,
    "manifests": manifests,
    "entries": entries,
    "logs": logs,
    "certificates": certificates,
    "audits": audits,
    "answers": lambda: (*answers(), *other_answers()),
}


def text_of(name: str) -> str:
    """A file of vectors: one case a line."""
    lines = ",\n".join(json.dumps(it, separators=(",", ":"), ensure_ascii=False) for it in FILES[name]())
    return f'{{"format":"{name}","cases":[\n{lines}\n]}}\n'


def main(write: bool) -> int:
    """Brings the vectors up to date, or names the files that are not."""
    stale = [
        name
        for name in FILES
        if (path := VECTORS / f"{name}.json") and text_of(name) != (path.read_text() if path.exists() else "")
    ]
    print(*WRONG, sep="\n")
    for name in stale:
        print(name)
        if write:
            VECTORS.mkdir(exist_ok=True)
            (VECTORS / f"{name}.json").write_text(text_of(name))
    return 1 if stale and not write else 0


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv[1:]))
