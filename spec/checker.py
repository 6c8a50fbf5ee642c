#!/usr/bin/env python3
"""A second implementation of `training-witness/v1`, written from the texts beside it and from nothing else.

    checker.py run DIR [--key VKEY]                          a run's folder: every check that needs no program
    checker.py cert FILE [FILE...] [--key VKEY] [--run DIR]  certificates, added up; held to a run's log
    checker.py answer FILE --head HEAD [--key VKEY]          a proof file about documents
    checker.py audit FILE [--key VKEY]                       an audit of a run's data
    checker.py note FILE --key VKEY                          a signed note, or a head
    checker.py vectors DIR [--json]                          the test vectors
One line a finding, with its code; the exit status is that of the worst: errors.md. Python 3.11 or newer, nothing else.
Behind a `def` stand the text and the section that it implements. The file is set tight, and a test bounds its length.
"""

# fmt: off
# ruff: noqa: C408, D101, D102, D103, E401, E701, I001, N818, PYI024, RET503
import argparse, base64, json, math, os, re, shutil, sqlite3, struct, sys, tempfile
from bisect import bisect_left, bisect_right
from collections import namedtuple
from contextlib import closing, contextmanager
from fractions import Fraction
from functools import lru_cache, reduce
from hashlib import sha256, sha512, shake_256
from itertools import accumulate, combinations, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

VERSION, TOP, ZERO, unhex = "training-witness/v1", (1 << 53) - 1, bytes(32), bytes.fromhex
CANNOT_TELL, HARMLESS = {"head-beyond", "ledger-too-long", "incomplete"}, {"", "unknown-file", "leftover"}
USAGE = {"empty-corpus", "file-unreadable", "impossible-count", "key-collision", "key-kind", "not-a-fraction",
         "other-head", "other-run", "run-missing", "schedule", "seed-input", "threshold", "usage"}

class Failure(Exception):  # its one argument is a code of errors.md
    code = property(lambda self: self.args[0])

def need(holds: Any, code: str) -> None:
    if not holds: raise Failure(code)

@contextmanager
def malformed(code: str) -> Any:
    try: yield
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError, sqlite3.Error, struct.error) as error:
        raise Failure(code) from error

# -- encoding -----------------------------------------------------------------------------------------------
def plain(value: Any, depth: int = 1) -> bool:  # encoding 2
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (depth <= 256 and not (isinstance(value, int) and abs(value) > TOP)
            and (not isinstance(value, dict) or all(re.fullmatch("[ -~]*", key) for key in value))
            and all(plain(item, depth + 1) for item in below))

def canonical(value: Any) -> bytes:  # encoding 2
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

def fits(shape: Any, value: Any) -> bool:
    """Whether a value has a type: a closed object, [item, least, most], pattern, range, alternatives, or a constant."""
    match shape:
        case dict():
            return type(value) is dict and value.keys() == shape.keys() and all(fits(shape[k], value[k]) for k in shape)
        case list():
            low, high = shape[1:] or (0, TOP)
            return type(value) is list and low <= len(value) <= high and all(fits(shape[0], item) for item in value)
        case str(): return type(value) is str and re.fullmatch(shape, value, re.DOTALL) is not None
        case range(): return type(value) is int and value in shape
        case tuple(): return any(fits(item, value) for item in shape)
        case None | int(): return type(value) is type(shape) and value == shape
        case _: return shape(value)

def mapped(name: str, item: Any, most: int = TOP) -> Any:  # the type of an object whose members are not listed
    return lambda it: type(it) is dict and len(it) <= most and all(fits(name, k) and fits(item, it[k]) for k in it)

def decode(data: bytes, cap: int, shape: Any) -> Any:  # encoding 3
    need(len(data) <= cap, "too-large")
    with malformed("not-canonical"):
        value = json.loads(data.decode(), parse_float=int, parse_constant=int)  # int of what is no integer raises
        need(plain(value) and canonical(value) == data and fits(shape, value), "not-canonical")
    return value

def u64(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}Q", *numbers)

def tagged(domain: str, *parts: bytes) -> bytes:  # encoding 5
    return sha256(b"".join(u64(len(it)) + it for it in (f"{VERSION}/{domain}".encode(), *parts))).digest()

def real(spelt: str) -> float:  # encoding 4
    return struct.unpack(">f" if spelt[1] == "3" else ">d", unhex(spelt[4:]))[0]

def base64_of(spelt: str, code: str, lenient: bool = False) -> bytes:
    if lenient and not set("+/") & set(spelt): spelt = spelt.replace("-", "+").replace("_", "/")
    with malformed(code): data = base64.b64decode(spelt, validate=True)
    need(base64.b64encode(data).decode() == spelt, code)
    return data

COUNT, INTEGER, TEXT, HEX, WORD = range(TOP + 1), range(-TOP, TOP + 1), ".*", "[0-9a-f]{64}", "[ -~]{0,512}"
FLOAT, PATH, ANY = "f32:[0-9a-f]{8}|f64:[0-9a-f]{16}", [HEX, 0, 64], lambda _: True

# -- keys, notes, heads, envelopes --------------------------------------------------------------------------
P, ORDER = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int, int, int]

def point_of(raw: bytes) -> Point:  # keys 3; extended coordinates
    need(len(raw) == 32, "key-malformed")
    y = int.from_bytes(raw, "little") & ((1 << 255) - 1)
    u, v = (y * y - 1) % P, (D * y * y + 1) % P
    need(y < P, "weak-key")
    need(u == 0 or pow(u * v, (P - 1) // 2, P) == 1, "key-malformed")
    need(u * y * (u + v * y * y) % P, "weak-key")
    x = pow(u * pow(v, -1, P), (P + 3) // 8, P)
    x = x if (v * x * x - u) % P == 0 else x * pow(2, (P - 1) // 4, P) % P
    x = x if x & 1 == raw[31] >> 7 else P - x
    return x, y, 1, x * y % P

def add(p: Point, q: Point) -> Point:
    a, b, c, d = (p[1] - p[0]) * (q[1] - q[0]), (p[1] + p[0]) * (q[1] + q[0]), 2 * p[3] * q[3] % P * D, 2 * p[2] * q[2]
    e, f, g, h = (b - a) % P, (d - c) % P, (d + c) % P, (b + a) % P
    return e * f % P, g * h % P, f * g % P, e * h % P

BASE = point_of((4 * pow(5, -1, P) % P).to_bytes(32, "little"))

@lru_cache(1 << 14)
def verifies(key: bytes, signature: bytes, message: bytes) -> bool:  # keys 4
    x, y, _, t = point_of(key)
    s, k = (int.from_bytes(it, "little") for it in (signature[32:], sha512(signature[:32] + key + message).digest()))
    if len(signature) != 64 or s >= ORDER: return False
    total, minus, k = (0, 1, 1, 0), (P - x, y, 1, P - t), k % ORDER
    terms = (total, BASE, minus, add(BASE, minus))
    for i in range(max(s, k).bit_length() - 1, -1, -1):
        total = add(add(total, total), terms[(s >> i & 1) + 2 * (k >> i & 1)])
    x, y = (it * pow(total[2], -1, P) % P for it in total[:2])
    return (y | (x & 1) << 255).to_bytes(32, "little") == signature[:32]

Key, Head = namedtuple("Key", "name kind raw id"), namedtuple("Head", "size origin root body")

def is_name(name: str) -> bool:  # keys 2
    return name != "" and not any(c == "+" or c < " " or c.isspace() or "\ud800" <= c <= "\udfff" for c in name)

def read_vkey(vkey: str) -> Key:  # keys 2
    name, spelt, data = [*vkey.split("+", 2), "", ""][:3]
    raw = base64_of(data, "key-malformed")
    need(len(raw) == 33 and is_name(name) and raw[0] in (1, 4), "key-malformed")
    point_of(raw[1:])
    identity = sha256(name.encode() + b"\n" + raw).digest()[:4]
    need(spelt == identity.hex(), "key-malformed")
    return Key(name, raw[0], raw[1:], identity)

def read_note(data: bytes) -> tuple[str, list[tuple[str, bytes]]]:  # heads 2
    need(len(data) <= 1 << 20, "too-large")
    with malformed("note-malformed"): before, found, after = data.decode().rpartition("\n\n")
    *lines, last = after.split("\n")
    good = found and last == "" and 1 <= len(lines) <= 100 and not re.search("[\0-\x09\x0b-\x1f]", before)
    need(good, "note-malformed")
    signatures = [(name, base64_of(spelt, "note-malformed")) for line in lines
                  for dash, name, spelt in [[*line.split(" ", 2), "", ""][:3]] if dash == "\u2014" and is_name(name)]
    need(len(signatures) == len(lines) and all(len(blob) >= 5 for _, blob in signatures), "note-malformed")
    return before + "\n", signatures

def open_note(data: bytes, keys: Any) -> tuple[str, list[tuple[Key, int | None]]]:  # heads 2, 4; with a cosigner's time
    known, signers = {(key.name, key.id): key for key in keys}, []
    need(all(known[key.name, key.id] == key for key in keys), "key-collision")
    text, signatures = read_note(data)
    for name, blob in signatures:
        key, message, time = known.get((name, blob[:4])), text.encode(), None
        if key is None: continue
        if key.kind == 4:
            time, blob = int.from_bytes(blob[4:12], "big"), blob[8:]
            message = b"cosignature/v1\ntime %d\n" % time + message
        need((time or 0) < 1 << 63 and verifies(key.raw, blob[4:], message), "bad-signature")
        signers.append((key, time))
    need(signers, "note-unsigned")
    return text, signers

def open_head(data: bytes, keys: Any, origin: str | None = None) -> Head:  # heads 3
    text, signers = open_note(data, keys)
    need(any(key.kind == 1 for key, _ in signers), "note-unsigned")
    found = re.fullmatch("([^\n]+)\n(0|[1-9][0-9]{0,18})\n([^\n]*)\n", text)
    need(found, "head-malformed")
    name, size, root = found[1], int(found[2]), base64_of(found[3], "head-malformed")
    need(size < 1 << 63 and len(root) == 32, "head-malformed")
    need(origin in (None, name), "head-origin")
    return Head(size, name, root, text.encode())

ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u([dD][89a-fA-F]..)|.)", re.DOTALL)  # group 1: half a pair
Kind = namedtuple("Kind", "cap shape signer type subject title malformed wrong")

def read_envelope(data: bytes, cap: int) -> dict[str, Any]:  # envelope 3, steps 1 and 2
    need(len(data) <= cap, "too-large")
    with malformed("envelope-malformed"):
        value = json.loads(data.decode(), parse_int=float, parse_constant=int)
        strings = [value["payload"], value["payloadType"], *(it["sig"] for it in value["signatures"])]
        need(type(value["signatures"]) is list and len(strings) <= 102 and all(type(it) is str for it in strings)
             and not any(it[1] for it in ESCAPE.finditer(data.decode())), "envelope-malformed")
    return value

def open_envelope(data: bytes, keys: Any, cap: int, threshold: int, kind: str) -> tuple[bytes, set[bytes]]:
    """The payload, and the keys that signed it: envelope 3."""
    need(all(key.kind == 1 for key in keys), "key-kind")
    need(1 <= threshold <= len({key.raw for key in keys}), "threshold")
    value = read_envelope(data, cap)
    need(value["payloadType"] == kind, "payload-type")
    strings = [value["payload"], *(it["sig"] for it in value["signatures"])]
    payload, *signatures = (base64_of(it, "envelope-malformed", lenient=True) for it in strings)
    message = b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(payload), payload)
    signers = {key.raw for key in keys if any(verifies(key.raw, it, message) for it in signatures)}
    need(len(signers) >= threshold, "envelope-unsigned")
    return payload, signers

def open_statement(data: bytes, keys: Any, kind: Kind) -> dict[str, Any]:
    """The predicate, after steps 1 and 2 of certificate 4, or of data-audit 3."""
    payload = base64_of(read_envelope(data, kind.cap)["payload"], "envelope-malformed", lenient=True)
    subject = [dict(digest=mapped(TEXT, TEXT), name=TEXT)]
    value = decode(payload, kind.cap, dict(_type=TEXT, predicate=kind.shape, predicateType=TEXT, subject=subject))
    found = value.pop("predicate")
    named = read_vkey(found[kind.signer])
    need(named.kind == 1, "key-malformed")
    _, signers = open_envelope(data, keys or [named], kind.cap, 1, "application/vnd.in-toto+json")
    subject = [{"digest": {"sha256": found[kind.subject]}, "name": kind.title + found["run"]}]
    due = {"_type": "https://in-toto.io/Statement/v1", "predicateType": kind.type, "subject": subject}
    need(value == due and found["version"] == VERSION, kind.malformed)
    need(not keys or named.raw in {key.raw for key in keys}, kind.wrong)
    need(named.raw in signers, "envelope-unsigned")
    return found

# -- trees --------------------------------------------------------------------------------------------------
def leaf_hash(leaf: bytes) -> bytes: return sha256(b"\0" + leaf).digest()  # merkle-tree 2
def node(left: bytes, right: bytes) -> bytes: return sha256(b"\1" + left + right).digest()  # merkle-tree 2

def grow(peaks: list[bytes], size: int, found: bytes) -> None:  # one more leaf hash; peaks are roots of full trees
    while size & 1: found, size = node(peaks.pop(), found), size >> 1
    peaks.append(found)

def fold(peaks: list[bytes]) -> bytes:
    return reduce(lambda right, left: node(left, right), reversed(peaks)) if peaks else sha256().digest()

def root_of(hashes: Any) -> bytes:  # merkle-tree 2
    peaks: list[bytes] = []
    for size, found in enumerate(hashes): grow(peaks, size, found)
    return fold(peaks)

def climb(fn: int, sn: int, proof: list[bytes], found: list[bytes], code: str) -> list[bytes]:
    """The loop of both proofs; of the hashes that grow, right siblings touch the last one only."""
    for sibling in proof:
        need(sn, code)
        if fn & 1 or fn == sn:
            found = [node(sibling, it) for it in found]
            while fn and not fn & 1: fn, sn = fn >> 1, sn >> 1
        else: found = [*found[:-1], node(found[-1], sibling)]
        fn, sn = fn >> 1, sn >> 1
    need(sn == 0, code)
    return found

def inclusion(leaf: bytes, index: int, size: int, proof: list[bytes], root: bytes) -> None:  # merkle-tree 3
    good = 0 <= index < size <= 1 << 63 and len(proof) <= 64 and all(len(it) == 32 for it in (*proof, leaf, root))
    need(good, "proof-malformed")
    need(climb(index, size - 1, proof, [leaf], "inclusion-proof") == [root], "inclusion-proof")

def consistency(size1: int, size2: int, root1: bytes, root2: bytes, proof: list[bytes]) -> None:  # merkle-tree 4
    good = 0 < size1 <= size2 <= 1 << 63 and len(proof) <= 64 and all(len(it) == 32 for it in (*proof, root1, root2))
    need(good, "proof-malformed")
    path, fn, sn, code = [root1, *proof] if size1.bit_count() == 1 else proof, size1 - 1, size2 - 1, "consistency-proof"
    if size1 == size2: return need(not proof and root1 == root2, code)
    need(path, code)
    while fn & 1: fn, sn = fn >> 1, sn >> 1
    need(climb(fn, sn, path[1:], [path[0], path[0]], code) == [root1, root2], code)

# -- ledgers ------------------------------------------------------------------------------------------------
TIER = "t0-sha256|t1-[a-z0-9][a-z0-9.-]{0,59}|t2-winnow-(bytes|u16|u32)-k([1-9][0-9]{0,3})-w([1-9][0-9]{0,3})"
Proof = namedtuple("Proof", "kind path other")

def ledger_key(tier: str, digest: bytes) -> bytes: return tagged("ledger/key", tier.encode(), digest)  # ledger 2
def ledger_leaf(key: bytes, value: bytes) -> bytes: return sha256(b"\1TW1L" + key + value).digest()  # ledger 3
def inner(left: bytes, right: bytes) -> bytes: return sha256(b"\2TW1I" + left + right).digest()  # ledger 3
def bit(key: bytes, i: int) -> int: return key[i >> 3] >> (7 - (i & 7)) & 1

def prefix_root(pairs: list[tuple[bytes, bytes]], depth: int = 0) -> bytes:  # ledger 3; pairs of key and value, sorted
    if len(pairs) < 2: return ledger_leaf(*pairs[0]) if pairs else ZERO
    cut = bisect_left(pairs, 1, key=lambda pair: bit(pair[0], depth))
    return inner(prefix_root(pairs[:cut], depth + 1), prefix_root(pairs[cut:], depth + 1))

def read_proof(data: bytes) -> Proof:  # ledger 4
    need(len(data) <= 8259, "too-large")
    kind, depth = data[0] if data else 0, int.from_bytes(data[1:3], "big")
    start = 3 + (depth + 7) // 8
    bitmap, code = int.from_bytes(data[3:start], "big"), "ledger-proof-malformed"
    end = start + 32 * bitmap.bit_count()
    need(kind in (1, 2, 3) and depth <= 255 + (kind == 1) and len(data) == end + 64 * (kind == 2), code)
    listed = [data[i:i + 32] for i in range(start, end, 32)]
    rest = iter(listed)
    path = [next(rest) if bit(data[3:start], i) else ZERO for i in range(depth)]
    need(bitmap & ((1 << -depth % 8) - 1) == 0 and ZERO not in listed and path[-1:] != [ZERO], code)
    return Proof(kind, path, (data[-64:-32], data[-32:]))

def check_proof(root: bytes, key: bytes, value: bytes | None, proof: Proof) -> None:  # ledger 5; without a value, 6
    code, found = "ledger-inclusion" if value else "ledger-absence", ZERO
    need((proof.kind == 1) == bool(value), code)
    shared = 256 - (int.from_bytes(key, "big") ^ int.from_bytes(proof.other[0], "big")).bit_length()
    need(proof.kind != 2 or len(proof.path) <= shared < 256, code)
    if proof.kind < 3: found = ledger_leaf(key, value) if value else ledger_leaf(*proof.other)
    for i in range(len(proof.path) - 1, -1, -1):
        found = inner(proof.path[i], found) if bit(key, i) else inner(found, proof.path[i])
    need(found == root, code)

def leb128(number: int) -> bytes:
    return (bytes([number & 127 | 128]) + leb128(number >> 7)) if number > 127 else bytes([number])

def write_occurrences(total: int, documents: list[int]) -> bytes:  # ledger 2
    gaps = (b - a - 1 for a, b in pairwise((-1, *documents)))
    return b"".join(map(leb128, (total, len(documents), *gaps)))

def read_occurrences(data: bytes) -> tuple[int, list[int]]:  # ledger 2
    need(len(data) <= (1 << 24) + 16, "too-large")
    groups = re.findall(rb"[\x80-\xff]{0,8}[\0-\x7f]", data)
    numbers = [sum((byte & 127) << 7 * i for i, byte in enumerate(group)) for group in groups]
    documents = [end - 1 for end in accumulate(gap + 1 for gap in numbers[2:])]
    good = documents and numbers[1] == len(documents) <= numbers[0] <= TOP and documents[-1] < 1 << 24
    need(good and write_occurrences(numbers[0], documents) == data, "not-canonical")
    return numbers[0], documents

def value_of(total: int, documents: list[int]) -> bytes:  # ledger 2
    return tagged("ledger/value", write_occurrences(total, documents))

def is_claim(value: Any) -> bool:  # ledger 8
    if not fits(dict(documents=range((1 << 24) + 1), entries=COUNT, root=HEX, tier=TIER), value): return False
    documents, entries = value["documents"], value["entries"]
    whole = value["tier"][:2] == "t2" or (entries <= documents and (entries > 0 or documents == 0))
    return whole and (entries == 0 or documents > 0) and (entries == 0) == (value["root"] == "0" * 64)

def check_places(data: bytes, claim: dict[str, Any]) -> None:  # ledger 7
    spans, n, held = claim["tier"][:2] == "t2", claim["documents"], {}
    need(len(data) % 36 == 0 and len(data) // 36 <= 1 << 28, "places")
    places = [(data[i:i + 32], int.from_bytes(data[i + 32:i + 36], "big")) for i in range(0, len(data), 36)]
    ordered = all(a <= b for a, b in pairwise(places)) and all(index < n for _, index in places)
    need(ordered and (places or spans or n == 0), "places")
    for key, index in places: held.setdefault(key, []).append(index)
    need(spans or len(held) <= n, "not-canonical")
    values = [(key, value_of(len(them), sorted(set(them)))) for key, them in held.items()]
    need((prefix_root(values).hex(), len(held)) == (claim["root"], claim["entries"]), "ledger-root")
    need(spans or len(places) == len({index for _, index in places}) == n, "ledger-documents")

# -- states -------------------------------------------------------------------------------------------------
TENSORS = dict(BOOL="bool", U8="uint8", I8="int8", F8_E4M3="float8_e4m3fn", F8_E5M2="float8_e5m2", U16="uint16",
               I16="int16", F16="float16", BF16="bfloat16", U32="uint32", I32="int32", F32="float32", U64="uint64",
               I64="int64", F64="float64", C64="complex64")  # run-directory 4
WIDTHS = dict(zip([*TENSORS.values(), "complex128"], [1] * 5 + [2] * 4 + [4] * 3 + [8] * 4 + [16], strict=True), json=1)
ENTRIES = [dict(aliases=[TEXT], dtype=TEXT, name=TEXT, shape=[COUNT])]
Pieces, PIECES = dict[str, int], dict(shards=range(1, (1 << 20) + 1), size=tuple(1 << i for i in range(12, 21)))

def size_of(entry: Any) -> int: return math.prod(entry["shape"]) * WIDTHS[entry["dtype"]]  # state-root 2

def shards(entry: Any, pieces: Pieces) -> list[range]:  # state-root 3: where the pieces of each shard begin
    total, first = size_of(entry), (entry["shape"] or [1])[0]
    whole = pieces["shards"] == 1 or entry["dtype"] == "json" or not entry["shape"] or total == 0
    step, end = max(1, total) if whole else -(-first // pieces["shards"]) * (total // first), max(1, total)
    return [range(at, min(at + step, end), pieces["size"]) for at in range(0, end, step)]

def check_entries(entries: list[Any], pieces: Pieces) -> int:  # state-root 2; the number of pieces
    names = [name for it in entries for name in (it["name"], *it["aliases"])]
    order = all(a["name"].encode() < b["name"].encode() for a, b in pairwise(entries)) and len(set(names)) == len(names)
    each = all(0 < len(it["name"].encode()) <= 1024 and it["aliases"] == sorted(it["aliases"]) and it["dtype"] in WIDTHS
               and len(it["shape"]) <= 16 and size_of(it) < 1 << 48 for it in entries)
    need(order and each and len(entries) <= 1 << 20, "state-table")
    total = 0
    for it in entries:
        total += sum(map(len, shards(it, pieces)))
        need(total <= 1 << 24, "state-table")
    return total

def cuts(entry: Any, pieces: Pieces) -> list[tuple[int, int]]:  # state-root 3
    ends = (size_of(entry), pieces["size"])
    return [(at, min(at + ends[1], shard.stop, ends[0])) for shard in shards(entry, pieces) for at in shard]

def state_root(entries: list[Any], digests: Any, pieces: Pieces) -> bytes:  # state-root 4
    rest = iter(digests)
    return root_of(leaf_hash(b"TW1S" + tagged("state/entry", canonical(it)) + u64(i, *span) + next(rest))
                   for it in entries for i, span in enumerate(cuts(it, pieces)))

def root_of_bytes(entries: list[Any], data: list[bytes], pieces: Pieces) -> bytes:
    check_entries(entries, pieces)
    need([len(it) for it in data] == [size_of(it) for it in entries], "state-bytes")
    found = (sha256(it[a:b]).digest() for entry, it in zip(entries, data, strict=True) for a, b in cuts(entry, pieces))
    return state_root(entries, found, pieces)

def check_table(table: bytes, root: bytes, pieces: Pieces) -> list[Any]:  # state-root 5
    need(len(table) <= 1 << 28, "too-large")
    end = 4 + int.from_bytes(table[:4], "big")
    need(len(table) >= end and (len(table) - end) % 32 == 0, "state-table")
    entries = decode(table[4:end], 1 << 28, ENTRIES)
    need(32 * check_entries(entries, pieces) == len(table) - end, "state-table")
    need(state_root(entries, (table[i:i + 32] for i in range(end, len(table), 32)), pieces) == root, "state-root")
    return entries

def read_tensors(data: bytes) -> dict[str, tuple[Any, bytes]]:  # a safetensors file: entry and bytes
    start, found, spans = 8 + int.from_bytes(data[:8], "little"), {}, []
    with malformed("state-file"):
        header = json.loads(data[8:start].decode(), parse_float=int, parse_constant=int)
        for name, it in sorted(header.items(), key=lambda pair: pair[0].encode()):
            if name == "__metadata__": continue
            need(fits(dict(data_offsets=[COUNT, 2, 2], dtype="|".join(TENSORS), shape=[COUNT]), it), "state-file")
            entry = dict(aliases=[], dtype=TENSORS[it["dtype"]], name=name, shape=it["shape"])
            spans.append(it["data_offsets"])
            found[name] = entry, data[start + spans[-1][0]:start + spans[-1][1]]
    spans = [[0, 0], *sorted(spans), [len(data) - start] * 2]
    need(all(a[1] == b[0] for a, b in pairwise(spans)), "state-file")
    need(all(size_of(entry) == len(it) for entry, it in found.values()), "state-file")
    return found

def root_of_state(data: bytes, pieces: Pieces) -> bytes:  # run-directory 4
    tensors = read_tensors(data)
    with malformed("state-file"):
        entries = decode(tensors.pop("@entries")[1], 1 << 28, ENTRIES)
        found = [tensors.pop(it["name"]) for it in entries]
    shapes = [(entry["dtype"], entry["shape"]) for entry, _ in found]
    need(not tensors and shapes == [("uint8", [size_of(it)]) for it in entries], "state-file")
    return root_of_bytes(entries, [it for _, it in found], pieces)

# -- corpus, schedule, challenges ---------------------------------------------------------------------------
TOKENS = "bytes|uint(16|32)(:(tokenizers|tiktoken-(r50k_base|cl100k_base|o200k_base)):[0-9a-f]{64})?"
PACKING = dict(kind="documents", length=0, stride=0), dict(kind="windows", length=COUNT[1:], stride=COUNT[1:])
CORPUS = dict(digest="sha256-pieces-4096", documents=COUNT, packing=PACKING, root=HEX, source=TEXT, tokenizer=TOKENS,
              tokens=COUNT)
Leaf = namedtuple("Leaf", "index length digest pieces start tokens hash")

def read_leaf(data: bytes) -> Leaf:  # corpus 2
    return Leaf(*struct.unpack(">QQ32s32sQQ", data), leaf_hash(b"TW1C" + data))

def pieces_root(data: bytes) -> bytes:  # corpus 2
    return root_of(leaf_hash(b"TW1D" + data[i:i + 4096]) for i in range(0, max(1, len(data)), 4096))

def check_piece(leaf: Leaf, index: int, data: bytes, proof: list[bytes]) -> None:  # corpus 6
    try: inclusion(leaf_hash(b"TW1D" + data), index, max(1, -(-leaf.length // 4096)), proof, leaf.pieces)
    except Failure as failure: raise Failure(failure.code.replace("inclusion-proof", "record-bytes")) from failure
    need(len(data) == min(4096, leaf.length - index * 4096), "record-bytes")

class Corpus:
    """Leaves and the samples that packing makes of them: corpus 2 to 5."""

    def __init__(self, claim: dict[str, Any], data: bytes) -> None:
        need(len(data) % 96 == 0 and len(data) // 96 <= 1 << 24, "corpus-leaves")
        self.length, self.stride = claim["packing"]["length"], claim["packing"]["stride"]
        self.width = {"byte": 1, "uint16": 2, "uint32": 4}[claim["tokenizer"][:6].removesuffix("s")]
        self.leaves = [read_leaf(data[i:i + 96]) for i in range(0, len(data), 96)]
        *self.starts, tokens = accumulate((leaf.tokens for leaf in self.leaves), initial=0)
        n, places = len(self.starts), list(enumerate(self.starts))
        good = [(leaf.index, leaf.start) for leaf in self.leaves] == places and tokens < 1 << 63
        need(good and all(leaf.tokens * self.width == leaf.length for leaf in self.leaves), "corpus-leaves")
        root = root_of(leaf.hash for leaf in self.leaves).hex()
        need((n, tokens, root) == (claim["documents"], claim["tokens"], claim["root"]), "corpus-root")
        self.samples = max(0, (tokens - self.length) // self.stride + 1) if self.stride else n

    def spans(self, sample: int) -> list[tuple[int, int, int]]:
        if not self.stride: return [(sample, 0, self.leaves[sample].length)]
        a, b = sample * self.stride, sample * self.stride + self.length
        found = ((d, max(a - self.starts[d], 0), min(b - self.starts[d], self.leaves[d].tokens))
                 for d in range(bisect_right(self.starts, a) - 1, bisect_left(self.starts, b)))
        return [(d, low * self.width, high * self.width) for d, low, high in found if low < high]

    def records(self, step: int, samples: list[int]) -> str:
        parts = (u64(i) + b"".join(self.leaves[d].hash + u64(a, b) for d, a, b in self.spans(i)) for i in samples)
        return tagged("records", u64(step), *parts).hex()

@lru_cache(8)
def epoch_order(seed: bytes, epoch: int, samples: int) -> list[int]:  # schedule 2
    need(samples >= 1, "empty-corpus")
    need(samples <= 1 << 27, "schedule")
    words = shake_256(tagged("schedule", seed, u64(epoch))).digest(8 * samples)
    return sorted(range(samples), key=lambda i: words[8 * i:8 * i + 8])

def samples_of(seed: bytes, batch: int, samples: int, step: int) -> list[int]:  # schedule 3
    epoch, place = divmod(step - 1, -(-max(1, samples) // batch))
    return epoch_order(seed, epoch, samples)[place * batch:(place + 1) * batch]

def stream(seed: bytes) -> Any:  # challenge 4: the function `below`
    key, data, at = tagged("stream", seed), b"", 0
    def below(n: int) -> int:
        nonlocal data, at
        word = 1 << 64
        while word >= (1 << 64) - (1 << 64) % n:
            if at == len(data): data = shake_256(key).digest(max(512, 2 * at))
            word, at = int.from_bytes(data[at:at + 8], "big"), at + 8
        return word % n
    return below

def probe_samples(seed: bytes, step: int, root: bytes, number: int, samples: int) -> list[int]:  # schedule 4
    below = stream(tagged("probe", seed, u64(step), root))
    return [below(samples) for _ in range(number)]

def session_seed(session: bytes, policy: bytes, commitment: bytes, head: bytes, nonce: bytes) -> bytes:
    """The seed that a nonce opens: challenge 2 and 3."""
    need(session and policy and head, "seed-input")
    need(len(nonce) == 32 and tagged("nonce-commitment", nonce) == commitment, "nonce-mismatch")
    return tagged("session-seed", session, policy, commitment, head, nonce)

def draw(seed: bytes, k: int, n: int) -> list[int]:  # challenge 5; `moved` holds what is not at its place
    below, moved, found = stream(seed), {}, []
    for i in range(min(k, n)):
        j = i + below(n - i)
        found.append(moved.get(j, j))
        moved[j] = moved.pop(i, i)
    return found

def fraction(spelt: str) -> Fraction:  # soundness 3
    decimal = r"([0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,2})?)(%?)"
    found = re.fullmatch(decimal + "|([0-9]{1,40})/([0-9]{1,40})", spelt)
    need(found and int(found[4] or 1), "not-a-fraction")
    value = Fraction(found[1]) / (100 if found[2] else 1) if found[1] else Fraction(int(found[3]), int(found[4]))
    need(value <= 1, "not-a-fraction")
    return value

def miss(n: int, b: int, k: int) -> tuple[int, int]:  # soundness 2; over and under, not reduced
    need(1 <= n <= 10**9 and 0 <= b <= n and 0 <= k <= n, "impossible-count")
    return math.perm(n - max(b, k), min(b, k)), math.perm(n, min(b, k))  # C(n-b, k)/C(n, k) = C(n-k, b)/C(n, b)

def bad_steps(n: int, share: Fraction) -> int: return max(1, math.ceil(share * n))  # soundness 4

def draws_needed(n: int, share: Fraction, confidence: Fraction, tries: int = 0, most: int = TOP) -> int:
    """The least number that suffices, or one more than `most`: soundness 4; against 2^tries seeds, 5."""
    need(1 <= n <= 10**9, "impossible-count")
    b, allowed = bad_steps(n, share), (1 - confidence) / 2**tries
    def enough(k: int) -> bool:
        over, under = miss(n, b, k)
        return over * allowed.denominator <= allowed.numerator * under
    return bisect_left(range(min(n - b + 1, most + 1)), True, key=enough)

def draws_owed(policy: dict[str, Any], n: int) -> int:  # soundness 4
    try: numbers = fraction(policy["bad_fraction"]), fraction(policy["confidence"])
    except Failure as failure: raise Failure("policy") from failure
    need(policy["draws"] <= 1 << 14, "policy")
    if not n or policy["draws"]: return min(n, policy["draws"])
    found = draws_needed(n, *numbers, most=1 << 14)
    need(found <= 1 << 14, "policy")
    return found

# -- manifest and log ---------------------------------------------------------------------------------------
LINES = mapped("[A-Za-z0-9_.]{1,64}", (True, False, INTEGER, None, WORD), 128)
NATIVE = dict(build=LINES, device=LINES, environment=LINES, name="native", switches=LINES,
              optimizers=[dict(implementations=["loop|foreach|fused|own", 1, 4096], kind=WORD, name=WORD), 0, 64],
              threads=dict(inter=range(1, 4097), intra=range(1, 4097)))
EXACT = dict(arithmetic="exact-[1-9][0-9]?", build=LINES, definition=COUNT, device=LINES, name="exact", switches=LINES)
ARGUMENT = None, True, False, INTEGER, WORD, [(None, True, False, INTEGER, WORD), 0, 4096]
OPERATOR = "aten[.][a-z_][a-z0-9_]{0,79}[.][A-Za-z_][A-Za-z0-9_]{0,63}"
SPEC = dict(arguments=[ARGUMENT, 0, 64], keywords=mapped("[a-z_][a-z0-9_]{0,63}", ARGUMENT, 64), operator=OPERATOR)
PROBE = dict(operations=[dict(digest=HEX, spec=SPEC), 0, 512], unprobed=[dict(operation=WORD, reason=WORD), 0, 512])
MANIFEST = dict(
    batch_size=COUNT, checkpoint_every=COUNT, commit_every=COUNT, corpus=CORPUS, init="build", key=TEXT,
    ledgers=[is_claim], operations=PROBE, package=TEXT, pieces=PIECES, probe_samples=COUNT, profile=(NATIVE, EXACT),
    program=dict(arguments=ANY, entry=TEXT, files=[dict(digest=HEX, length=COUNT, path=TEXT)], kind="reference|files"),
    ranks=COUNT, reduction="none", seed=dict(source="own|registered", value=HEX), steps=COUNT, type="manifest",
    version=TEXT)
MARKS = dict(gradient_norm=FLOAT, loss=FLOAT, probe=(HEX, None), update_norms=[FLOAT])
ENTRY = (dict(state_root=HEX, type="init"), dict(state_root=HEX, step=COUNT, type="checkpoint"),
         dict(checkpoint=COUNT, step=COUNT, type="resume"), dict(note=".{0,256}", step=COUNT, type="fault"),
         dict(batch=HEX, fingerprint=MARKS, records=HEX, state_root=(HEX, None), step=COUNT, type="step",
              hyperparameters=mapped("[ -~]{1,128}", (None, True, False, INTEGER, TEXT))),
         dict(released=HEX, state_root=HEX, steps=COUNT, type="final"))

def check_manifest(m: dict[str, Any]) -> None:  # manifest 4, steps 2 to 4
    need(m["version"] == VERSION, "manifest")
    read_vkey(m["key"])
    files, tiers, every = m["program"]["files"], [it["tier"] for it in m["ledgers"]], m["commit_every"]
    paths, (module, _, name) = [it["path"] for it in files], m["program"]["entry"].partition(":")
    need(all(fits("[A-Za-z_][A-Za-z0-9_]*", it) for it in (*module.split("."), *name.split("."))), "manifest")
    need(m["batch_size"] and 1 <= m["steps"] <= 10**9 and m["probe_samples"] <= 1 << 12 and m["ranks"] == 1, "manifest")
    need(every and m["checkpoint_every"] and m["checkpoint_every"] % every == 0, "manifest")
    need(all(a < b for a, b in (*pairwise(tiers), *pairwise(paths))), "manifest")
    need(len(tiers) <= 16 and all(it["documents"] == m["corpus"]["documents"] for it in m["ledgers"]), "manifest")
    need(1 <= len(paths) <= 512 and all(it["length"] <= 1 << 22 for it in files), "manifest")
    need(all(fits(r"[ -\[\]-~]{1,255}", it) and not {"", ".", ".."} & set(it.split("/")) for it in paths), "manifest")
    need(not any(b.startswith(a + "/") for a in paths for b in paths), "manifest")

def read_manifest(data: bytes) -> dict[str, Any]:  # manifest 4
    value = decode(data, 1 << 22, MANIFEST)
    check_manifest(value)
    return value

def origin_of(run: str) -> str: return f"{VERSION}/{run}"  # heads 3

class Log:
    """The facts of a log: log 4."""

    def __init__(self, entries: list[bytes], leaves: bytes, heads: list[Head], head: Head) -> None:
        known, peaks, heads = {}, [], [*heads, head]
        for it in heads:
            need(it.size or it.root == fold([]), "head-root")
            need(known.setdefault(it.size, it.root) == it.root, "equivocation")
        need(entries, "log-empty")
        self.m, self.run = read_manifest(entries[0]), tagged("run", entries[0]).hex()
        self.corpus, self.seed = Corpus(self.m["corpus"], leaves), unhex(self.m["seed"]["value"])
        epoch_order(self.seed, 0, self.corpus.samples)
        self.roots, self.prints, self.due, self.kept = {}, [], "", set()
        self.events = {"resume": [], "fault": [], "final": []}
        for i, data in enumerate(entries):
            if i: self.read(i, decode(data, 1 << 16, ENTRY))
            grow(peaks, i, leaf_hash(data))
            need(i + 1 not in known or fold(peaks) == known[i + 1], "head-root")
        need(head.size == len(entries), "head-root")
        need(max(known) <= len(entries), "head-beyond")
        need(self.roots, "step-order")

    def root(self, step: int) -> str:
        need(self.roots.get(step) not in (None, "0" * 64), "state-root-missing")
        return self.roots[step]

    def read(self, i: int, it: dict[str, Any]) -> None:
        kind, s, m = it["type"], len(self.prints), self.m
        need(not self.events["final"], "final-event")
        need((i == 1) == (kind == "init"), "step-order")
        need(self.due in ("", kind), "checkpoint-event")
        if kind == "init": self.roots[0] = it["state_root"]
        elif kind == "step": self.step(it, s + 1)
        elif kind == "checkpoint": need(it["step"] == s and it["state_root"] == self.root(s), "checkpoint-event")
        elif kind == "resume": need(it["step"] == s and it["checkpoint"] <= s, "event")
        elif kind == "fault": need(1 <= it["step"] <= s, "event")
        else: need(it["steps"] == s == m["steps"] and it["state_root"] == self.root(s), "final-event")
        if kind in self.events: self.events[kind].append(it)
        if kind in ("init", "checkpoint"): self.kept.add(s)
        kept = kind == "step" and (it["step"] % m["checkpoint_every"] == 0 or it["step"] == m["steps"])
        self.due = "checkpoint" if kept else ""

    def step(self, it: dict[str, Any], s: int) -> None:
        m, marks, last = self.m, it["fingerprint"], self.prints[-1] if self.prints else it["fingerprint"]
        need(it["step"] == s <= m["steps"], "step-order")
        need((it["state_root"] is not None) == (s % m["commit_every"] == 0 or s == m["steps"]), "state-root-missing")
        drawn = samples_of(self.seed, m["batch_size"], self.corpus.samples, s)
        need(it["records"] == self.corpus.records(s, drawn), "records-digest")
        shapes = [(len(it["update_norms"]), it["probe"] is None) for it in (last, marks)]
        good = shapes[0] == shapes[1] and shapes[1][0] <= 4096 and (m["probe_samples"] or not marks["probe"])
        need(good, "fingerprint-shape")
        self.prints.append(marks)
        self.roots[s] = it["state_root"]

    def mandatory(self, outliers: int) -> list[list[Any]]:  # challenge 6, 7
        updates, losses, n = [], [real(it["loss"]) for it in self.prints], len(self.prints)
        for norms in ([real(norm) for norm in it["update_norms"]] for it in self.prints):
            squares = reduce(lambda total, norm: total + norm * norm, norms, 0.0)
            updates.append(norms[0] if len(norms) == 1 else math.sqrt(squares))
        found = {0: "init"}
        for series in (enumerate(updates, 1), enumerate((b - a for a, b in pairwise(losses)), 2)):
            order = sorted(series, key=lambda it: (it[1] == it[1], -it[1] if it[1] == it[1] else 0, it[0]))
            found |= dict.fromkeys([step for step, _ in order[:outliers]], "outlier")
        found |= {it["step"]: "fault" for it in self.events["fault"]}
        found |= {it["step"] + 1: "resume" for it in self.events["resume"] if it["step"] < n}
        return [[step, why] for step, why in sorted((found | ({1: "first"} | {n: "last"} if n else {})).items())]

# -- certificates and audits --------------------------------------------------------------------------------
CHECKS = ["manifest", "initial-state", "step-order", "state-roots", "records", "checkpoints", "events", "fingerprints",
          "final", "heads", "hyperparameters", "ledgers"]  # log 3
# The words of certificate 6: SHA-256 of the canonical JSON of [claims, not_claimed].
WORDS = "91fd1bd0fd725f4a24ef8f897579d3c0576f16875349430e698834ecf082be49"
RANK, HEAD, PROSE = ["reproduced", "incomplete", "diverged"], ".{0,65536}", ".{0,4096}"
RESULT = dict(code=".{0,64}", evidence=mapped(TEXT, ANY), message=PROSE, outcome="|".join(RANK))
POLICY = dict(answer_seconds=range(1, (1 << 20) + 1), bad_fraction=".{0,64}", confidence=".{0,64}", draws=COUNT,
              outliers=range(1025), session_seconds=range(1, (1 << 25) + 1))
ASKED = dict(absent=COUNT, asked=COUNT, included=[dict(documents=[COUNT], name=PROSE, tier=TEXT)], name=PROSE)
ABOUT = dict(checked=COUNT, documents=COUNT, exclusion=(None, ASKED), tiers=[TEXT])
CERTIFICATE = Kind(1 << 26, dict(
    challenges=[dict(order=(INTEGER, None), reason=TEXT, result=RESULT, step=COUNT)],
    checks=[dict(name=TEXT, result=RESULT)], claims=[PROSE], commitment=HEX, data=ABOUT, draws=COUNT,
    final_state_root=HEX, head=HEAD, nonce=HEX,
    mandatory=[lambda it: fits([ANY, 2, 2], it) and fits(COUNT, it[0]) and fits(TEXT, it[1])], not_claimed=[PROSE],
    notes=[PROSE], package=TEXT, policy=POLICY, profile=TEXT, promised=COUNT, run=HEX, seed_source=TEXT,
    session="[0-9a-f]{32}", statement=(HEAD, None), steps=COUNT, trainer=TEXT, verdict="|".join(RANK), verifier=TEXT,
    version=TEXT), "verifier", "urn:training-witness:certificate:v1", "final_state_root", "training run ",
    "certificate-malformed", "certificate")
AUDIT = Kind(1 << 18, dict(
    auditor=TEXT, corpus=HEX, documents=COUNT, findings=[PROSE, 0, 64], head=HEAD, ledgers=[is_claim, 0, 16],
    length=COUNT, package=TEXT, run=HEX, time=COUNT, trainer=TEXT, verdict="complete|differs", version=TEXT), "auditor",
    "urn:training-witness:data-audit:v1", "corpus", "data of training run ", "data-audit-malformed", "data-audit")

def check_certificate(data: bytes, keys: Any = ()) -> SimpleNamespace:  # certificate 4, 5
    p = open_statement(data, keys, CERTIFICATE)
    trainer, n, policy, worst = read_vkey(p["trainer"]), p["steps"], canonical(p["policy"]), {}
    head = open_head(p["head"].encode(), [trainer], origin_of(p["run"]))
    digests = [sha256(policy).hexdigest(), sha256(head.body).hexdigest()]
    due = "\n".join([f"{VERSION}/session", p["session"], p["commitment"], *digests, ""])
    need(p["statement"] is None or open_note(p["statement"].encode(), [trainer])[0] == due, "statement")
    session, commitment, nonce = (unhex(p[name]) for name in ("session", "commitment", "nonce"))
    seed = session_seed(session, policy, commitment, head.body, nonce)
    need(p["promised"] <= 10**9, "certificate-malformed")
    need(n <= min(p["promised"], head.size), "certificate")
    owed = draws_owed(p["policy"], n)
    need(p["draws"] <= min(n, 1 << 14), "certificate")
    drawn = {number + 1: place for place, number in enumerate(draw(seed, p["draws"], n))}
    mandatory = [step for step, _ in p["mandatory"]]
    need(all(it["order"] == drawn.get(it["step"]) for it in p["challenges"]), "certificate")
    need(n == 0 or {0, 1, n} <= set(mandatory), "certificate")
    for it in (*p["checks"], *p["challenges"]):
        name = it.get("name", it.get("step"))
        worst[name] = max(worst.get(name, 0), RANK.index(it["result"]["outcome"]))
    missing = n == 0 or any(worst.get(name, 1) == 1 for name in (*CHECKS, *mandatory, *drawn))
    verdict = RANK[2 if 2 in worst.values() else int(missing or p["draws"] < owed)]
    words = sha256(canonical([p["claims"], p["not_claimed"]])).hexdigest()
    need(verdict == p["verdict"] and words == WORDS, "certificate")
    counted = 0 if missing else p["draws"]
    missed = miss(n, bad_steps(n, fraction(p["policy"]["bad_fraction"])), counted) if n else (1, 1)
    return SimpleNamespace(p=p, head=head, worst=worst, missing=missing, verdict=verdict, counted=counted,
                           missed=missed)

def add_up(found: list[SimpleNamespace]) -> tuple[str, tuple[int, int]]:  # certificate 7
    for a, b in combinations(found, 2):
        need((a.p["run"], a.head.size) != (b.p["run"], b.head.size) or a.head == b.head, "equivocation")
    n, fresh, missed = found[0].p["steps"], {it.p["nonce"]: it for it in reversed(found)}.values(), (1, 1)
    need(all((it.head, it.p["steps"]) == (found[0].head, n) for it in found), "other-head")
    share, confidence = ([fraction(it.p["policy"][name]) for it in found] for name in ("bad_fraction", "confidence"))
    for it in fresh if n else ():
        one = miss(n, bad_steps(n, min(share)), it.counted)
        missed = missed[0] * one[0], missed[1] * one[1]
    enough = any(it.counted for it in fresh) and missed[1] - missed[0] >= max(confidence) * missed[1]
    bad, good = any(it.verdict == RANK[2] for it in found), any(it.verdict == RANK[0] for it in fresh)
    return RANK[2 if bad else 0 if good or enough else 1], missed

def hold_to_log(it: SimpleNamespace, entries: list[bytes], leaves: bytes) -> None:  # certificate 8
    about = tagged("run", entries[0]).hex(), read_manifest(entries[0])["key"]
    need(about == (it.p["run"], it.p["trainer"]), "other-run")
    if it.verdict == RANK[2]: return
    log = Log(entries[:it.head.size], leaves, [], it.head)
    n = len(log.prints)
    due = n, log.mandatory(it.p["policy"]["outliers"]), log.roots[n] or "0" * 64
    need(due == (it.p["steps"], it.p["mandatory"], it.p["final_state_root"]), "certificate")

def check_audit(data: bytes, keys: Any = ()) -> dict[str, Any]:  # data-audit 3
    p = open_statement(data, keys, AUDIT)
    open_head(p["head"].encode(), [read_vkey(p["trainer"])], origin_of(p["run"]))
    need((p["verdict"] == "complete") == (not p["findings"]), "data-audit")
    return p

def is_audit(data: bytes) -> bool:  # data-audit 3
    try: payload = base64_of(read_envelope(data, CERTIFICATE.cap)["payload"], "", lenient=True)
    except Failure: return False
    return AUDIT.type.encode() in payload[:4096] + b"\0" + payload[-4096:]

# -- answers ------------------------------------------------------------------------------------------------
LOGGED, LISTED = dict(entry=ENTRY, index=COUNT, proof=PATH), dict(leaf="[0-9a-f]{192}", proof=PATH)
BYTES, HELD, OUTCOME = "([0-9a-f]{2}){1,8259}", ("([0-9a-f]{2}){1,16777232}", None), "included|possible|absent"
OPENED = dict(document=LISTED, pieces=[dict(data="([0-9a-f]{2}){0,4096}", proof=PATH), 1, 64], start=COUNT)
SHOWN, GRAM = dict(gram=COUNT, occurrences=HELD, proof=BYTES), dict(digest=HEX, position=COUNT)
REPLY = (dict(digest=HEX, documents=[LISTED, 0, 1000], occurrences=HELD, proof=BYTES, question="digest", result=OUTCOME,
              tier=TIER),
         dict(digest=HEX, grams=[GRAM, 1, 1 << 16], length=range(1, (1 << 19) + 1), opened=(None, OPENED),
              question="span", result=OUTCOME, shown=[SHOWN, 1, 64], tier=TIER))
ANSWER = dict(evidence=[TEXT, 0, 16], head=HEAD, manifest=MANIFEST, manifest_proof=PATH, records=[LOGGED, 0, 1 << 14],
              replies=[REPLY, 1, 1 << 20], tail=[LOGGED, 0, 64], version=TEXT)

class Answer:
    """What an answer proves: answer 3 to 6."""

    def __init__(self, data: bytes, head: bytes, keys: Any = ()) -> None:
        a = decode(data, 1 << 28, ANSWER)
        m, tail, records = a["manifest"], a["tail"], a["records"]
        need(a["version"] == VERSION, "answer-malformed")
        check_manifest(m)
        key, run = read_vkey(m["key"]), tagged("run", canonical(m)).hex()
        self.head, self.corpus = open_head(head, [key], origin_of(run)), m["corpus"]
        self.ledgers = {it["tier"]: it for it in m["ledgers"]}
        need(open_head(a["head"].encode(), [key], origin_of(run)) == self.head, "answer")
        inclusion(leaf_hash(canonical(m)), 0, self.head.size, [*map(unhex, a["manifest_proof"])], self.head.root)
        size = self.head.size
        places = list(range(size - len(tail), size))
        need([it["index"] for it in tail] == places and (tail or size == 1), "answer-malformed")
        for it in tail: self.under(it)
        need(all((it["entry"]["type"] == "fault") == (i > 0) for i, it in enumerate(tail)), "answer-malformed")
        last = tail[0]["entry"] if tail else {}
        self.steps = last.get("steps", last.get("step", 0))
        need(self.steps <= min(m["steps"], max(0, size - 2)), "answer")
        for last, it in pairwise([dict(index=0), *records]):
            need(it["entry"]["type"] == "step" and last["index"] < it["index"], "answer-malformed")
            need(1 <= it["entry"]["step"] <= self.steps, "answer-malformed")
            self.under(it)
        need(len({it["entry"]["step"] for it in records}) == len(records), "answer")
        self.audits, self.spots = [], []
        due = run, m["key"], "complete", self.corpus["root"], self.corpus["documents"], m["ledgers"]
        for it in (envelope.encode() for envelope in a["evidence"]):
            if is_audit(it):
                self.audits.append(check_audit(it, keys))
                names = "run", "trainer", "verdict", "corpus", "documents", "ledgers"
                need(tuple(self.audits[-1][name] for name in names) == due, "completeness")
            else:
                spot = check_certificate(it, keys)
                need((spot.p["trainer"], spot.head) == (m["key"], self.head), "completeness")
                need(spot.verdict != RANK[2], "completeness")
                self.spots.append(spot)
        self.replies = [self.reply(it) for it in a["replies"]]

    def under(self, it: dict[str, Any]) -> None:
        data = canonical(it["entry"])
        need(len(data) <= 1 << 16, "too-large")
        inclusion(leaf_hash(data), it["index"], self.head.size, [*map(unhex, it["proof"])], self.head.root)

    def asked(self, tier: str, digest: str, it: dict[str, Any]) -> list[int]:  # who holds a digest: answer 4, step 2
        claim, proof, key = self.ledgers[tier], read_proof(unhex(it["proof"])), ledger_key(tier, unhex(digest))
        if it["occurrences"] is None: return check_proof(unhex(claim["root"]), key, None, proof) or []
        total, documents = read_occurrences(unhex(it["occurrences"]))
        need(documents[-1] < claim["documents"] and (tier[:2] == "t2" or total == len(documents)), "ledger-inclusion")
        check_proof(unhex(claim["root"]), key, value_of(total, documents), proof)
        return documents

    def listed(self, it: dict[str, Any], among: Any) -> Leaf:
        leaf, n, root = read_leaf(unhex(it["leaf"])), self.corpus["documents"], unhex(self.corpus["root"])
        need(leaf.index in among, "answer")
        inclusion(leaf.hash, leaf.index, n, [*map(unhex, it["proof"])], root)
        return leaf

    def reply(self, it: dict[str, Any]) -> dict[str, Any]:
        tier, replayed = it["tier"], set()
        need(tier in self.ledgers, "answer")
        found = self.digest(it, tier) if it["question"] == "digest" else self.span(it, re.fullmatch(TIER, tier))
        for c in self.spots:
            if c.worst.get("ledgers") == 0 and tier in c.p["data"]["tiers"]:
                replayed |= {step for step, rank in c.worst.items() if type(step) is int and step and not rank}
        level = "fully audited" if self.audits else "spot-checked" if replayed else "root-consistent"
        return dict(tier=tier, result=it["result"], completeness=level, documents=found)

    def digest(self, it: dict[str, Any], tier: str) -> list[int]:  # answer 4
        read_proof(unhex(it["proof"]))
        need(it["result"] == ("absent" if it["occurrences"] is None else "included"), "answer-malformed")
        documents = self.asked(tier, it["digest"], it)
        due = documents[:1000] if tier[:2] != "t2" else []
        need(len(it["documents"]) == len(due), "answer")
        leaves = [self.listed(one, [index]) for one, index in zip(it["documents"], due, strict=True)]
        need(tier[:2] != "t0" or all(leaf.digest.hex() == it["digest"] for leaf in leaves), "answer")
        return documents

    def span(self, it: dict[str, Any], tier: Any) -> list[int]:  # answer 5
        need(tier[1], "answer-malformed")
        width, k, w = {"bytes": 1, "u16": 2, "u32": 4}[tier[1]], int(tier[2]), int(tier[3])
        places, shown = [g["position"] for g in it["grams"]], [s["gram"] for s in it["shown"]]
        units = it["length"] // width
        need(it["length"] % width == 0 and units >= w + k - 1, "answer-malformed")
        need(all(a < b for a, b in (*pairwise(places), *pairwise(shown))), "answer-malformed")
        need(places[-1] <= units - k and shown[-1] < len(places), "answer-malformed")
        held = [set(self.asked(it["tier"], it["grams"][one["gram"]]["digest"], one)) for one in it["shown"]]
        candidates, opened = set.intersection(*held), it["opened"]
        need(it["result"] == ("included" if opened else "possible" if candidates else "absent"), "answer")
        need(it["result"] != "possible" or len(shown) == min(64, len(places)), "answer")
        if opened is None: return sorted(candidates)
        leaf, start, stop = self.listed(opened["document"], candidates), opened["start"], opened["start"] + it["length"]
        due = range(start // 4096, (stop - 1) // 4096 + 1)
        need(stop <= leaf.length and start % width == 0 and len(opened["pieces"]) == len(due), "answer-malformed")
        for i, one in zip(due, opened["pieces"], strict=True):
            check_piece(leaf, i, unhex(one["data"]), [*map(unhex, one["proof"])])
        data = unhex("".join(one["data"] for one in opened["pieces"]))[start % 4096:][:it["length"]]
        grams = all(sha256(data[g["position"] * width:][:k * width]).hexdigest() == g["digest"] for g in it["grams"])
        need(grams and sha256(data).hexdigest() == it["digest"], "answer")
        return [leaf.index]

# -- run directories ----------------------------------------------------------------------------------------
def read_database(path: Path) -> list[tuple[bytes, bytes]]:  # run-directory 3; entries and stored hashes
    with tempfile.TemporaryDirectory() as folder, malformed("log-damaged"):
        for it in (path, path.with_name(f"{path.name}-wal")):  # a copy: the folder is not written to
            if it.is_file() and not it.is_symlink(): shutil.copyfile(it, Path(folder) / it.name)
        with closing(sqlite3.connect(Path(folder) / path.name)) as base:
            kind = base.execute("SELECT type FROM sqlite_master WHERE name = 'leaf'").fetchall()
            need(kind == [("table",)], "log-damaged")
            rows = base.execute("SELECT id, entry, hash FROM leaf ORDER BY id").fetchall()
    need(rows, "log-empty")
    need(all(row[0] == i and type(row[1]) is bytes for i, row in enumerate(rows, 1)), "log-damaged")
    return [row[1:] for row in rows]

HEADS, STATES = re.compile("heads/[0-9]{12,}[.]note"), re.compile("checkpoints/[0-9]{10,}[.]state")
KINDS = "copy|text-file|text-folder|npy|documents|tokens|safetensors|jsonl"
KNOWN = re.compile(f"{HEADS.pattern}|{STATES.pattern}|model[.]safetensors|key|lock|log[.]sqlite(-wal|-shm)?|"
                   f"corpus/(corpus[.]json|leaves|data|names|lines|({TIER})[.]places)")

def check_folder(top: Path, vkey: str | None = None) -> tuple[Log | None, list[tuple[str, str]]]:  # run-directory 6
    findings: list[tuple[str, str]] = []
    names = {it.relative_to(top).as_posix(): it.is_symlink() or not it.is_dir() for it in sorted(top.rglob("*"))}
    names = [name for name, is_file in names.items() if is_file or KNOWN.fullmatch(name)]
    def part(where: str, act: Any, *given: Any) -> Any:
        try: return act(*given)
        except Failure as failure: findings.append((failure.code, where))
    def read(name: str, cap: int = 1 << 40) -> bytes:
        path = top / name
        need(os.path.lexists(path), "file-missing")
        need(path.is_file() and path.resolve() == top.resolve() / name, "not-a-file")
        need(path.stat().st_size <= cap, "too-large")
        return path.read_bytes()
    def begin() -> tuple[list[bytes], dict[str, Any]]:
        read("log.sqlite")
        rows = read_database(top / "log.sqlite")
        need(all(leaf_hash(entry) == stored for entry, stored in rows), "log-entry")
        for entry, _ in rows[1:]: decode(entry, 1 << 16, ENTRY)
        m = read_manifest(rows[0][0])
        need(vkey in (None, m["key"]), "wrong-key")
        return [entry for entry, _ in rows], m
    def head(name: str) -> Head:
        it = open_head(read(name, 1 << 16), [read_vkey(m["key"])], origin_of(tagged("run", entries[0]).hex()))
        need(it.size == int(name[6:-5]), "head-name")
        return it
    def log() -> Log:
        need(heads, "head-missing")
        need(max(heads).size <= len(entries), "log-truncated")
        return Log(entries[:max(heads).size], read("corpus/leaves"), heads, max(heads))
    def state(name: str, step: int) -> None:
        root = root_of_state(read(name), pieces).hex()
        need(step > len(found.prints) or root == found.roots.get(step), "checkpoint-root")
    def source(name: str, it: dict[str, Any]) -> None:
        data = read(name)
        need((len(data), sha256(data).hexdigest()) == (it["length"], it["digest"]), "program-source")
    def origin() -> dict[str, Any]:
        defaults = dict(folder=False, part=None, path=None)
        shape = dict(claim=CORPUS, folder=(True, False), kind=KINDS, part=(TEXT, None), path=(TEXT, None))
        given = decode(read("corpus/corpus.json"), 1 << 20, lambda it: fits(shape, defaults | it))
        need(given["claim"] == found.m["corpus"], "corpus-root")
        return given
    def documents() -> None:
        need((top / "corpus/data").is_file(), "corpus-file")
        data, at = read("corpus/data"), 0
        need(len(data) == sum(leaf.length for leaf in found.corpus.leaves), "corpus-changed")
        for leaf in found.corpus.leaves:
            text, at = data[at:at + leaf.length], at + leaf.length
            need((sha256(text).digest(), pieces_root(text)) == (leaf.digest, leaf.pieces), "corpus-changed")
    def ledger(claim: dict[str, Any]) -> None:
        need(claim["entries"] <= 1 << 24, "ledger-too-long")
        leaves = sorted(ledger_key("t0-sha256", it.digest) + struct.pack(">I", it.index) for it in found.corpus.leaves)
        check_places(b"".join(leaves) if claim["tier"][:2] == "t0" else read(f"corpus/{claim['tier']}.places"), claim)
    def weights(final: dict[str, Any]) -> None:
        tensors = read_tensors(read("model.safetensors")).values()
        root = root_of_bytes([entry for entry, _ in tensors], [data for _, data in tensors], pieces)
        need(root.hex() == final["released"], "released-weights")
    started = part("log.sqlite", begin)
    if started is None: return None, findings
    (entries, m), heads = started, []
    for name in names:
        if HEADS.fullmatch(name): heads += filter(None, [part(name, head, name)])
    corpus = part("corpus/leaves", lambda: Corpus(m["corpus"], read("corpus/leaves")))
    found = part("log.sqlite", log) if corpus else None
    if found is None: return None, findings
    pieces, files = m["pieces"], {f"program/{it['path']}": it for it in m["program"]["files"]}
    for name in sorted({*names, *(f"checkpoints/{step:010}.state" for step in found.kept)}):
        if STATES.fullmatch(name): part(name, state, name, int(name[12:-6]))
        elif name not in files and not KNOWN.fullmatch(name):
            findings.append(("leftover" if re.fullmatch("(.*/)?[.][^/]*[.]tmp", name) else "unknown-file", name))
    for i, entry in enumerate(entries):
        owed = i == 0 or json.loads(entry)["type"] in ("init", "checkpoint", "final")
        if owed and f"heads/{i + 1:012}.note" not in names: findings.append(("head-missing", f"heads/{i + 1:012}.note"))
    for name, it in files.items(): part(name, source, name, it)
    given = part("corpus/corpus.json", origin)
    if given and given["kind"] == "copy": part("corpus/data", documents)
    elif given: findings.append(("", "the data lies elsewhere, and was not read"))
    for claim in m["ledgers"]: part(f"corpus/{claim['tier']}.places", ledger, claim)
    for it in found.events["final"]: part("model.safetensors", weights, it)
    return found, findings

# -- vectors and commands -----------------------------------------------------------------------------------
def revived(value: Any) -> Any:  # `hex:` and `raw:` mark bytes in a vector
    if isinstance(value, dict): return {k: revived(it) for k, it in value.items()}
    if isinstance(value, list): return [revived(it) for it in value]
    if not isinstance(value, str) or value[:4] not in ("hex:", "raw:"): return value
    return unhex(value[4:]) if value[0] == "h" else value[4:].encode()

def shown(value: Any) -> Any:
    if isinstance(value, bytes): return "hex:" + value.hex()
    if isinstance(value, Fraction): return str(value)
    return [shown(it) for it in value] if isinstance(value, list | tuple) else value

def detection(missed: tuple[int, int], digits: int = 6) -> str:  # soundness 6
    units = (missed[1] - missed[0]) * 10**digits // missed[1]
    return f"{units // 10**digits}.{units % 10**digits:0{digits}}"

def keys_of(vkeys: Any) -> list[Key]: return [read_vkey(it) for it in vkeys]

def certified(data: bytes, vkeys: Any) -> list[Any]:
    it = check_certificate(data, keys_of(vkeys))
    return [it.verdict, not it.missing, it.counted, detection(it.missed)]

def added(data: list[bytes], vkeys: Any) -> list[Any]:
    verdict, missed = add_up([check_certificate(it, keys_of(vkeys)) for it in data])
    return [verdict, detection(missed)]

def logged(entries: list[bytes], leaves: bytes, notes: list[bytes], outliers: int) -> list[Any]:
    key, origin = read_vkey(read_manifest(entries[0])["key"]), origin_of(tagged("run", entries[0]).hex())
    heads = [open_head(it, [key], origin) for it in notes]
    log = Log(entries, leaves, heads, heads[-1])
    return [log.run, len(log.prints), log.mandatory(outliers)]

def recorded(claim: Any, leaves: bytes, step: int, samples: list[int]) -> str:
    corpus = Corpus(typed(claim, CORPUS), leaves)
    need(max(samples, default=0) < corpus.samples, "schedule")
    return corpus.records(step, samples)

def noted(data: bytes, vkeys: Any) -> list[Any]:
    text, signers = open_note(data, keys_of(vkeys))
    return [text, [key.name for key, _ in signers]]

def typed(value: Any, shape: Any) -> Any: return decode(canonical(value), 1 << 28, shape)
def fine(*_: Any) -> None: """For calls that show no value."""

CALLS: dict[str, Any] = {  # the calls of the vectors
    "answer": lambda data, head, vkeys: [list(it.values()) for it in Answer(data, head, keys_of(vkeys)).replies],
    "audit": lambda data, vkeys: check_audit(data, keys_of(vkeys))["verdict"],
    "certificate": certified,
    "certificates": added,
    "claim": lambda data: fine(decode(data, 1 << 20, is_claim)),
    "consistency": consistency,
    "corpus": lambda claim, leaves: Corpus(typed(claim, CORPUS), leaves).samples,
    "decode": lambda data, cap: decode(data, cap, ANY),
    "draw": draw,
    "draws-needed": lambda n, a, b, *tries: miss(n, 0, 0) and draws_needed(n, fraction(a), fraction(b), *tries),
    "draws-owed": lambda policy, n: draws_owed(typed(policy, POLICY), n),
    "entry": lambda data: fine(decode(data, 1 << 16, ENTRY)),
    "envelope": lambda data, vkeys, *given: open_envelope(data, keys_of(vkeys), *given)[0],
    "epoch": epoch_order,
    "fraction": fraction,
    "head": lambda data, vkeys, origin: open_head(data, keys_of(vkeys), origin),
    "inclusion": inclusion,
    "ledger-key": ledger_key,
    "ledger-proof": lambda root, key, value, proof: check_proof(root, key, value, read_proof(proof)),
    "ledger-value": value_of,
    "log": logged,
    "manifest": lambda data: read_manifest(data) and tagged("run", data).hex(),
    "merkle-root": lambda leaves: root_of(map(leaf_hash, leaves)),
    "miss": lambda n, b, k: Fraction(*miss(n, b, k)),
    "note": noted,
    "occurrences": read_occurrences,
    "piece": lambda leaf, *given: check_piece(read_leaf(leaf), *given),
    "places": lambda data, claim: check_places(data, typed(claim, is_claim)),
    "probe": probe_samples,
    "records": recorded,
    "samples": samples_of,
    "session-seed": session_seed,
    "signature": lambda key, *given: fine(point_of(key), need(verifies(key, *given), "bad-signature")),
    "spans": lambda claim, leaves, sample: Corpus(typed(claim, CORPUS), leaves).spans(sample),
    "state-root": lambda entries, data, pieces: root_of_bytes(typed(entries, ENTRIES), data, typed(pieces, PIECES)),
    "table": lambda table, root, pieces: fine(check_table(table, root, typed(pieces, PIECES))),
    "tagged-hash": lambda domain, parts: tagged(domain, *parts),
    "vkey": read_vkey,
}

def outcome(call: str, given: list[Any]) -> dict[str, Any]:
    try: return {"gives": shown(CALLS[call](*revived(given)))}
    except Failure as failure: return {"code": failure.code}

def run_vectors(folder: Path, as_json: bool) -> list[tuple[str, str]]:
    counts, wrong = {}, []
    for path in sorted(folder.glob("*.json")):
        for case in json.loads(path.read_bytes())["cases"]:
            counts[path.stem] = counts.get(path.stem, 0) + 1
            found = outcome(case["call"], case["given"])
            if found != {name: case[name] for name in ("gives", "code") if name in case}:
                wrong.append(f"{path.stem}: {case['name']}: {json.dumps(found)}")
    if as_json: print(json.dumps({"cases": counts, "wrong": wrong}))
    need(counts, "file-unreadable")
    said = [("", f"{sum(counts.values())} vectors in {len(counts)} files")] if not as_json else []
    return said + [("vector", text) for text in wrong]

def load(name: str) -> bytes:
    try: return Path(name).read_bytes()
    except OSError as error: raise Failure("file-unreadable") from error

def command(it: argparse.Namespace) -> list[tuple[str, str]]:  # findings: code (none where all is well) and text
    keys, name = keys_of(it.key), it.names[0]
    if it.act == "vectors": return run_vectors(Path(name), it.json)
    if it.act == "note":
        text, signers = open_note(load(name), keys)
        found = [f"signed by {key.name}" + ("" if time is None else f" at {time}") for key, time in signers]
        return [("", line) for line in (*found, *text.splitlines())]
    if it.act == "run":
        need(Path(name).is_dir(), "run-missing")
        log, findings = check_folder(Path(name), it.key[0] if it.key else None)
        about = f"run {log.run}: {len(log.prints)} steps; check 11 was not made, it needs the program" if log else ""
        return ([("", about)] if log else []) + findings
    if it.act == "audit": return [("", f"audit: {check_audit(load(name), keys)['verdict']}")]
    if it.act == "answer":
        replies = Answer(load(name), load(it.head), keys).replies
        return [("", " ".join(f"{k}={v}" for k, v in reply.items())) for reply in replies]
    found = [check_certificate(load(name), keys) for name in it.names]
    for one in found if it.run else ():
        entries = [entry for entry, _ in read_database(Path(it.run) / "log.sqlite")]
        hold_to_log(one, entries, load(f"{it.run}/corpus/leaves"))
    verdict, missed = add_up(found)
    text = f"{len(found)} certificate(s): {verdict}, detection {detection(missed)}"
    return [("" if verdict == RANK[0] else verdict, text)]

class Parser(argparse.ArgumentParser):
    """Ends with the status of `usage`."""

    def error(self, message: str) -> Any:
        print(f"usage: {message}")
        sys.exit(64)

def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("act", choices=["run", "cert", "answer", "audit", "note", "vectors"])
    parser.add_argument("names", nargs="+", metavar="PATH")
    parser.add_argument("--key", action="append", default=[], help="vkey of the trainer, or of an accepted signer")
    parser.add_argument("--head", help="the signed head under which an answer is read")
    parser.add_argument("--run", help="the folder whose log a certificate is held to")
    parser.add_argument("--json", action="store_true")
    it = parser.parse_args()
    if (it.act == "answer" and not it.head) or (it.act == "note" and not it.key): parser.error("--head or --key misses")
    try: findings = command(it)
    except Failure as failure: findings = [(failure.code, " ".join(it.names))]
    for code, text in findings: print(f"{code or 'ok'}: {text}")
    codes = {code for code, _ in findings} - HARMLESS
    status = {2 if code in CANNOT_TELL else 64 if code in USAGE else 1 for code in codes}
    return min(status, default=0)

if __name__ == "__main__":
    sys.exit(main())
