"""The examples and generated tables of the specification, derived from the artefacts in `spec/example`.

    python spec/examples.py            # names every block that is not up to date
    python spec/examples.py --write    # brings them up to date

A block in a text is a comment `<!-- example: NAME -->` and, on the next line, a fenced block; `BLOCKS[NAME]` says what
stands in it. Nothing is copied by hand, so what is shown is what the package reads and writes. Needs no torch.
"""

import base64
import json
import re
import struct
import sys
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cache
from hashlib import sha256, shake_256
from pathlib import Path
from typing import Any

SPEC = Path(__file__).resolve().parent
EXAMPLE = SPEC / "example"
sys.path.insert(0, str(SPEC.parent))

from protocol import merkle, soundness
from protocol.answering import check_answer
from protocol.binding import statement_text
from protocol.certificate import Evidence, open_certificate
from protocol.checks import LogAudit, mandatory
from protocol.corpus import Documents, assemble, parse_leaves
from protocol.data_audit import open_audit
from protocol.dsse import pae
from protocol.encoding import decode, encode, f32, f64, tagged_hash, tagged_preimage
from protocol.errors import CODES
from protocol.keys import COSIGNATURE, SigningKey
from protocol.ledger_claim import LedgerClaim, document_key
from protocol.ledger_proof import Proof
from protocol.notes import open_head, parse_note
from protocol.operations import OperationProbe
from protocol.places import Places
from protocol.plain import to_plain
from protocol.profile import Profile
from protocol.randomness import Stream, commit_nonce, draw, session_seed
from protocol.records import FinalEvent, StepRecord, parse_entry
from protocol.schedule import Schedule, epoch_order, probe_indices, stream_seed
from protocol.session import challenges, needed_pieces, probe_of
from protocol.statetree import Entry, Table, leaf_hashes, ranges
from protocol.winnowing import Winnowing, select
from witness.hashing import hash_state
from witness.ledgers import Book, open_places
from witness.logreader import LogReader
from witness.rundir import RunDir

BLOCK = re.compile(r"<!-- example: ([a-z0-9-]+) -->\n```([a-z]*)\n(.*?)```\n", re.DOTALL)
TABLE = re.compile(r"<!-- table: ([a-z-]+) -->\n(.*?)<!-- end of table -->\n", re.DOTALL)
WIDTH = 118


def pretty(value: Any, indent: int = 0, before: int = 0) -> str:
    """JSON with white space for reading: whatever fits on a line stands on one.

    Args:
        value: plain data.
        indent: of the line on which it begins.
        before: characters that stand before it there.
    """
    line = json.dumps(value, ensure_ascii=False)
    if indent + before + len(line) < WIDTH or not isinstance(value, dict | list) or not value:
        return line
    pad, end = " " * (indent + 1), " " * indent
    if isinstance(value, dict):
        items = [f"{json.dumps(k)}: {pretty(v, indent + 1, len(k) + 4)}" for k, v in value.items()]
        return "{\n" + ",\n".join(pad + item for item in items) + f"\n{end}}}"
    items = [pretty(item, indent + 1) for item in value]
    return "[\n" + ",\n".join(pad + item for item in items) + f"\n{end}]"


def shown(data: bytes) -> str:
    """Canonical JSON, for reading."""
    return pretty(json.loads(data)) + "\n"


# -- the artefacts ------------------------------------------------------------------------------------


@cache
def entries() -> tuple[bytes, ...]:
    """The entries of the example's log."""
    with LogReader(RunDir(EXAMPLE / "run").log_path) as log:
        return tuple(log.entries())


@cache
def documents() -> Documents:
    """The example's corpus."""
    claim = audit_without_corpus().manifest.corpus
    leaves = parse_leaves((EXAMPLE / "run/corpus/leaves").read_bytes())
    return Documents(leaves, claim.packing, claim.tokenizer)


@cache
def audit_without_corpus() -> LogAudit:
    """The example's log, read for its manifest."""
    audit = LogAudit()
    audit.read(entries()[0])
    return audit


@cache
def audit() -> LogAudit:
    """The example's log, under all checks that need no gradient."""
    found = LogAudit(documents())
    key = trainer().public
    run = RunDir(EXAMPLE / "run")
    heads = [open_head(run.read_head(size), [key], audit_without_corpus().manifest.origin) for size in run.head_sizes()]
    found.watch(heads)
    for entry in entries():
        found.read(entry)
    found.finish(heads[-1])
    return found


def secret(name: str) -> SigningKey:
    """A key that everybody knows; `spec/example/make.py` makes the same."""
    return SigningKey(name, sha256(b"training-witness example key " + name.encode()).digest())


def trainer() -> SigningKey:
    """The example's trainer."""
    return secret("trainer.example")


def head_note() -> bytes:
    """The newest head of the example's run."""
    return RunDir(EXAMPLE / "run").latest_head()


def head_body() -> bytes:
    """The text that its signature is over."""
    return parse_note(head_note()).text.encode()


def record(step: int) -> StepRecord:
    """A step's record."""
    found = parse_entry(entries()[audit().entry_of[step - 1]])
    assert isinstance(found, StepRecord)
    return found


@cache
def state(step: int) -> tuple[Table, dict[str, bytes]]:
    """A kept state: its table and the bytes of its entries."""
    pieces = audit().manifest.pieces
    found, buffers = RunDir(EXAMPLE / "run").read_checkpoint(step, pieces)
    return hash_state(found, buffers.__getitem__, pieces), buffers


@cache
def texts() -> tuple[bytes, ...]:
    """The example's documents."""
    data, at, found = (EXAMPLE / "run/corpus/data").read_bytes(), 0, []
    for leaf in documents().leaves:
        found.append(data[at : at + leaf.length])
        at += leaf.length
    return tuple(found)


@cache
def evidence() -> Evidence:
    """The example's certificate, checked."""
    return open_certificate((EXAMPLE / "certificate.json").read_bytes(), keys=[secret("verifier.example").public])


@cache
def session() -> list[tuple[bytes, bytes]]:
    """Requests and replies of the example's session."""
    frames = json.loads((EXAMPLE / "session.json").read_bytes())
    return [(bytes.fromhex(one["request"]), bytes.fromhex(one["reply"])) for one in frames]


def claim_of(tier: str) -> LedgerClaim:
    """What the manifest says of one ledger."""
    return next(claim for claim in audit().manifest.ledgers if claim.tier.startswith(tier))


def book(tier: str) -> Book:
    """One ledger of the example."""
    claim = claim_of(tier)
    return Book(claim, open_places(EXAMPLE / "run/corpus", claim, documents()))


# -- the blocks ---------------------------------------------------------------------------------------


def _canonical() -> str:
    return entries()[1].decode() + "\n"


def _tagged() -> str:
    nonce = bytes.fromhex(evidence().predicate.nonce)
    return pretty(
        {
            "domain": "nonce-commitment",
            "parts": [nonce.hex()],
            "preimage": tagged_preimage("nonce-commitment", nonce).hex(),
            "digest": tagged_hash("nonce-commitment", nonce).hex(),
        }
    )


def _floats() -> str:
    rows = [[text, f32(float(text)), f64(float(text))] for text in ("1", "-0.0", "0.1", "inf")]
    return pretty({"value, f32, f64": rows}) + "\n"


def _plain() -> str:
    values = [None, True, 7, 2**53, 0.25, "a", b"\x00\xff", [1, "1"], (1, 2), {3}, {"lr": 0.25, "steps": [1, 2]}]
    return "".join(f"{value!r:34}{encode(to_plain(value)).decode()}\n" for value in values)


def _merkle() -> str:
    leaves = [merkle.leaf_hash(entry) for entry in entries()]
    tree = merkle.Tree(leaves)
    return pretty(
        {
            "leaf hashes of entries 1 and 2": [leaf.hex() for leaf in leaves[1:3]],
            "roots of sizes 0, 1, 2, 14": [tree.root(size).hex() for size in (0, 1, 2, 14)],
            "inclusion of leaf 1 in size 14": [node.hex() for node in tree.inclusion_proof(1)],
            "inclusion of leaf 13 in size 14": [node.hex() for node in tree.inclusion_proof(13)],
            "consistency from size 6 to size 14": [node.hex() for node in tree.consistency_proof(6)],
            "consistency from size 8 to size 14": [node.hex() for node in tree.consistency_proof(8)],
        }
    )


def _keys() -> str:
    key, cosigner = trainer(), secret("cosigner.example").cosigner
    return pretty(
        {
            "name": key.public.name,
            "seed": sha256(b"training-witness example key trainer.example").hexdigest(),
            "public": key.public.raw.hex(),
            "key ID": key.public.key_id.hex(),
            "vkey": key.public.vkey,
            "private text": key.secret_text,
            "signature of the empty message": key.sign(b"").hex(),
            f"vkey of a cosigner (type {COSIGNATURE})": cosigner.vkey,
        }
    )


def _envelope() -> str:
    data = (EXAMPLE / "audit.json").read_bytes()
    envelope = json.loads(data)
    signed = pae(envelope["payloadType"], base64.b64decode(envelope["payload"]))
    return pretty({"envelope": envelope, "signed bytes begin with": signed[:48].decode(), "signed bytes": len(signed)})


def _state() -> str:
    table, buffers = state(3)
    rows = []
    for entry in table.entries:
        data = buffers[entry.name]
        at = table.first[entry.name]
        cut = ranges(entry, table.pieces)
        hashes = leaf_hashes(entry, table.pieces, table.digests[at : at + len(cut)])
        rows.append(
            {
                "entry": json.loads(encode(entry)),
                "bytes": data.decode() if entry.dtype == "json" else data.hex(),
                "ranges": [list(pair) for pair in cut],
                "leaf hashes": [leaf.hex() for leaf in hashes],
            }
        )
    return pretty({"state after step": 3, "leaves": rows, "root": table.root.hex()})


def _run_id() -> str:
    manifest = audit().manifest
    claim = manifest.program
    return pretty(
        {
            "length of the manifest": len(entries()[0]),
            "run id": manifest.run_id.hex(),
            "origin": manifest.origin,
            "program digest": claim.digest.hex(),
        }
    )


def _log() -> str:
    return "".join(entry.decode() + "\n" for entry in entries()[1:])


def _schedule() -> str:
    manifest = audit().manifest
    seed, samples = bytes.fromhex(manifest.seed.value), documents().samples
    key = tagged_hash("schedule", seed, (0).to_bytes(8, "big"))
    words = struct.unpack(f">{samples}Q", shake_256(key).digest(8 * samples))
    schedule = Schedule(seed, samples, manifest.batch_size)
    root = audit().state_root(2)
    return pretty(
        {
            "seed": seed.hex(),
            "samples": samples,
            "epoch 0": {
                "key": key.hex(),
                "words": [f"{word:016x}" for word in words],
                "order": epoch_order(seed, 0, samples).tolist(),
            },
            "steps": {str(step): schedule.indices(step) for step in range(1, manifest.steps + 1)},
            "probe of step 3": {"root before": root.hex(), "samples": probe_indices(seed, 3, root, samples, 1)},
            "stream seed of step 3, rank 0, `step`": stream_seed(seed, 3, 0, "step").hex(),
        }
    )


def _corpus() -> str:
    rows = []
    for leaf, text in zip(documents().leaves, texts(), strict=True):
        rows.append({"bytes": text.decode(), "leaf": leaf.to_bytes().hex(), "leaf hash": leaf.leaf_hash().hex()})
    return pretty({"documents": rows, "root": documents().root.hex()})


def _samples() -> str:
    found = documents()
    drawn = audit().indices(1)
    pieces = {(d, 0): text for d, text in enumerate(texts())}
    preimage = tagged_preimage("records", (1).to_bytes(8, "big"), *_records_parts(drawn))
    return pretty(
        {
            "samples": found.samples,
            "samples of step 1": drawn,
            "spans (document, start, stop)": {
                str(sample): [list(span) for span in found.spans(sample)] for sample in drawn
            },
            "bytes": {str(sample): assemble(found, pieces, sample).decode() for sample in drawn},
            "preimage of the records digest": preimage.hex(),
            "records digest": record(1).records,
        }
    )


def _records_parts(samples: Iterable[int]) -> list[bytes]:
    found, parts = documents(), []
    for sample in samples:
        part = sample.to_bytes(8, "big")
        for document, start, stop in found.spans(sample):
            part += found.leaves[document].leaf_hash() + start.to_bytes(8, "big") + stop.to_bytes(8, "big")
        parts.append(part)
    return parts


def _ledger() -> str:
    raw, normal = book("t0"), book("t1")
    present, absent = sha256(texts()[0]).digest(), sha256(b"a quiet night\n").digest()
    same = sha256(b"it was a dark\nand stormy night").digest()
    rows = []
    for one, digest in ((raw, present), (raw, absent), (normal, same)):
        proof, occurrences = one.answer(digest)
        rows.append(
            {
                "tier": one.claim.tier,
                "digest": digest.hex(),
                "key": document_key(one.claim.tier, digest).hex(),
                "occurrences": None if occurrences is None else occurrences.to_bytes().hex(),
                "value": None if occurrences is None else occurrences.value.hex(),
                "kind": proof.kind,
                "proof": proof.to_bytes().hex(),
            }
        )
    return pretty({"places of t0-sha256": _places(raw.places), "questions": rows})


def _places(places: Places) -> list[str]:
    return [(key + document.to_bytes(4, "big")).hex() for key, document in places]


def _tree() -> str:
    proof, _ = book("t0").answer(sha256(b"a quiet night\n").digest())
    assert Proof.from_bytes(proof.to_bytes()) == proof
    return pretty(
        {
            "kind": proof.kind,
            "path (root first)": [node.hex() for node in proof.path],
            "other leaf (key, value)": None if proof.other is None else [part.hex() for part in proof.other],
            "root": claim_of("t0").root,
        }
    )


def _grams() -> str:
    parameters = Winnowing.of_tier(claim_of("t2").tier)
    text = b"stormy night"
    chosen = [
        {
            "position": gram.position,
            "gram": text[gram.position : gram.position + parameters.k].decode(),
            "digest": gram.digest.hex(),
        }
        for gram in select(text, parameters)
    ]
    orders = [f"{order:010x}" for order in gram_orders(text, parameters.k)]
    return pretty({"tier": parameters.tier, "span": text.decode(), "orders": orders, "chosen": chosen})


def gram_orders(text: bytes, k: int) -> list[int]:
    """The orders of all grams of bytes, written out as the text defines them."""
    mask = (1 << 64) - 1

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        return x ^ x >> 31

    hashes = [mix((unit + 1) * 0x9E3779B97F4A7C15 & mask) for unit in text]
    found = []
    for at in range(len(text) - k + 1):
        total = 0
        for value in hashes[at : at + k]:
            total = (total * 0xD1342543DE82EF95 + value) & mask
        found.append(mix(total) >> 24)
    return found


def _challenge() -> str:
    predicate = evidence().predicate
    inputs = {
        "session": bytes.fromhex(predicate.session),
        "policy": encode(predicate.policy),
        "commitment": bytes.fromhex(predicate.commitment),
        "head": evidence().head.body(),
        "nonce": bytes.fromhex(predicate.nonce),
    }
    assert commit_nonce(inputs["nonce"]) == inputs["commitment"]
    seed = session_seed(**inputs)
    stream = Stream(seed)
    return pretty(
        {
            **{name: value.decode() if name in ("policy", "head") else value.hex() for name, value in inputs.items()},
            "seed": seed.hex(),
            "first words of the stream": [f"{stream.word():016x}" for _ in range(4)],
            "draw of all six, from 0": draw(seed, 6, 6),
            "draws owed": evidence().owed_draws,
            "mandatory": [list(one) for one in mandatory(audit(), predicate.policy.outliers)],
            "challenges (step, reason, order)": [
                [one.step, one.reason, one.order]
                for one in challenges(audit(), predicate.policy, seed, predicate.draws)
            ],
        }
    )


def _frames() -> str:
    rows = []
    for request, reply in session():
        payload = len(reply) - 4 - _length(reply)
        more = f" + {payload} bytes" if payload else ""
        rows += [f"V {_line(_header(request))}", f"P {_line(_header(reply))}{more}"]
    return "\n".join(rows) + "\n"


def _line(header: dict[str, Any]) -> str:
    """A header on one line, what is long in it cut short."""

    def short(value: Any) -> Any:
        if isinstance(value, str):
            return value if len(value) <= 40 else value[:24] + "..."
        return f"({len(value)} items)" if isinstance(value, list) and len(str(value)) > 60 else value

    return json.dumps({name: short(value) for name, value in header.items() if name != "session"}, ensure_ascii=False)


def _length(frame: bytes) -> int:
    return int.from_bytes(frame[:4], "big")


def _header(frame: bytes) -> Any:
    return json.loads(frame[4 : 4 + _length(frame)])


def _statement() -> str:
    predicate = evidence().predicate
    text = statement_text(predicate.session, predicate.policy, predicate.commitment, evidence().head.body())
    assert predicate.statement is not None and parse_note(predicate.statement.encode()).text == text
    return predicate.statement


def _opened(kind: str) -> str:
    for request, reply in session():
        header = _header(request)
        if header["type"] == kind and header["step"] > 0:
            return pretty({"request": header, "reply": _header(reply), "payload": reply[4 + _length(reply) :].hex()})
    return "(none in this session)"


def _needed() -> str:
    step = 3
    return pretty(
        {
            "step": step,
            "batch samples": audit().indices(step),
            "probe samples": probe_of(audit(), step),
            "needed (document, piece)": [list(pair) for pair in needed_pieces(audit(), step)],
        }
    )


def _soundness() -> str:
    rows = ["steps   bad  draws  miss                                     detection"]
    for steps, bad, draws in ((6, 2, 3), (1000, 10, 100), (100000, 1000, 459), (100000, 1, 459)):
        miss = soundness.miss_probability(steps, bad, draws)
        text = str(miss) if len(str(miss)) < 36 else f"{str(miss.numerator)[:12]}.../{str(miss.denominator)[:12]}..."
        caught = soundness.decimal_down(soundness.detection_probability(steps, bad, draws), 6)
        rows.append(f"{steps:<7} {bad:<4} {draws:<6} {text:<40} {caught}")
    rows.append("")
    for steps, share, confidence in (
        (6, "1/3", "0.9"),
        (1000, "0.01", "0.99"),
        (100000, "1%", "0.99"),
        (1000, "0", "1"),
    ):
        count = soundness.draws_needed(steps, share, confidence)
        rows.append(f"draws_needed({steps}, {share!r}, {confidence!r}) = {count}")
    return "\n".join(rows) + "\n"


def _payload(name: str) -> bytes:
    return base64.b64decode(json.loads((EXAMPLE / name).read_bytes())["payload"])


def _certificate() -> str:
    evidence()
    return shown(_payload("certificate.json"))


def _audit() -> str:
    open_audit((EXAMPLE / "audit.json").read_bytes(), keys=(secret("auditor.example").public,))
    return shown(_payload("audit.json"))


def _answer() -> str:
    data = (EXAMPLE / "answer.json").read_bytes()
    check_answer(data, head_note())
    value = json.loads(data)
    value["manifest"] = "(the manifest)"
    value["evidence"] = [f"(an envelope of {len(one)} characters)" for one in value["evidence"]]
    return pretty(value)


def _uses() -> str:
    checked = check_answer((EXAMPLE / "answer.json").read_bytes(), head_note())
    rows = []
    for reply in checked.replies:
        found = []
        for one in reply.found:
            weight = one.weight
            assert weight is not None and one.uses is not None
            uses = [list(use) for use in one.uses]
            found.append({"document": one.leaf.index, "uses (step, place, tokens)": uses, "weight": str(weight.weight)})
        level = reply.completeness.level
        rows.append({"tier": reply.tier, "result": reply.result, "completeness": level, "found": found})
    return pretty({"steps": checked.steps, "replies": rows})


def _files() -> str:
    run = EXAMPLE / "run"
    paths = sorted(path for path in run.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal")))
    return "".join(f"{path.stat().st_size:>6}  {path.relative_to(run).as_posix()}\n" for path in paths)


def _native() -> str:
    value = json.loads((EXAMPLE / "native.json").read_bytes())["profile"]
    decode(encode(value), Profile, limit=1 << 20)  # type: ignore[arg-type]
    return pretty(value)


def _operations() -> str:
    value = json.loads((EXAMPLE / "native.json").read_bytes())["operations"]
    decode(encode(value), OperationProbe, limit=1 << 20)
    return pretty(value)


def _batch() -> str:
    """What the default `collate` makes of the samples of step 1, as the record binds it."""
    found = documents()
    drawn = audit().indices(1)
    pieces = {(d, 0): text for d, text in enumerate(texts())}
    data = b"".join(assemble(found, pieces, sample) for sample in drawn)
    table = hash_state([Entry("batch", "uint8", (len(drawn), 8))], lambda _: data, audit().manifest.pieces)
    assert table.root.hex() == record(1).batch
    return pretty({"entries": json.loads(encode(table.entries)), "bytes": data.hex(), "root": table.root.hex()})


def _released() -> str:
    table = state(6)[0].released()
    final = parse_entry(entries()[-1])
    assert isinstance(final, FinalEvent) and table.root.hex() == final.released
    return pretty({"entries": json.loads(encode(table.entries)), "root": table.root.hex()})


def single(value: float) -> float:
    """The nearest float32."""
    found: float = struct.unpack(">f", struct.pack(">f", value))[0]
    return found


def exact_product(left: list[list[float]], right: list[list[float]], p: int) -> list[list[float]]:
    """The exact product, written out as the text defines it, for finite float32."""

    def grid(line: list[float]) -> tuple[int, list[int]]:
        fields = [struct.unpack(">I", struct.pack(">f", x))[0] >> 23 & 255 for x in line]
        exponent = max(1, *fields) - 126
        return exponent, [round(Fraction(x) * Fraction(2) ** (p - exponent)) for x in line]

    rows, columns = [grid(row) for row in left], [grid(list(column)) for column in zip(*right, strict=True)]
    return [
        [
            single(float(sum(a * b for a, b in zip(qa, qb, strict=True)) * Fraction(2) ** (ea + eb - 2 * p)))
            for eb, qb in columns
        ]
        for ea, qa in rows
    ]


def halving_sum(values: list[float]) -> float:
    """The sum by halving, in float32."""
    while len(values) > 1:
        half = (len(values) + 1) // 2
        more = values[half:]
        values = [single(x + more[i]) if i < len(more) else x for i, x in enumerate(values[:half])]
    return values[0] if values else 0.0


def placed(values: list[float]) -> float:
    """The sum of float32 sources of one place and one column."""
    field = struct.unpack(">Q", struct.pack(">d", max(map(abs, values))))[0] >> 52 & 0x7FF
    exponent = min(max(field - 1022, -900), 1024)
    bits = min(40, 63 - max(1, len(values).bit_length()))
    total = sum(round(Fraction(x) * Fraction(2) ** (bits - exponent)) for x in values)
    return single(float(total) * 2.0 ** (exponent - bits))


def philox(key: int, count: int, attempt: int = 0) -> list[int]:
    """Words of the stream of a key."""
    found: list[int] = []
    for block in range((count + 3) // 4):
        c, k0, k1 = [block & 0xFFFFFFFF, block >> 32, attempt, 0], key & 0xFFFFFFFF, key >> 32
        for _ in range(10):
            a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
            c = [b >> 32 ^ c[1] ^ k0, b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k1, a & 0xFFFFFFFF]
            k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
        found += c
    return found[:count]


LEFT = [[1.0, 0.1, -3.0], [1e-3, 2.5e-4, 7.0]]
RIGHT = [[0.3, 1e5], [-2.0, 0.7], [1.1, 1e-5]]
ADDED = [1.0, 1e8, -1e8, 3.0, 0.5]
KEY = 0x0123456789ABCDEF


def _arithmetic() -> str:
    left, right = ([[single(x) for x in row] for row in matrix] for matrix in (LEFT, RIGHT))
    added = [single(x) for x in ADDED]
    words = philox(KEY, 6)
    return pretty(
        {
            "A": [[f32(x) for x in row] for row in left],
            "B": [[f32(x) for x in row] for row in right],
            "A @ B, exact-14": [[f32(x) for x in row] for row in exact_product(left, right, 14)],
            "A @ B, exact-18": [[f32(x) for x in row] for row in exact_product(left, right, 18)],
            "x": [f32(x) for x in added],
            "sum of x by halving": f32(halving_sum(added)),
            "sum of x by placing": f32(placed(added)),
            "key": f"{KEY:016x}",
            "words": [f"{word:08x}" for word in words],
            "uniform float32": [f32((word >> 8) * 2.0**-24) for word in words],
        }
    )


def _step() -> str:
    return shown(encode(record(3)))


BLOCKS: dict[str, Callable[[], str]] = {
    "arithmetic": _arithmetic,
    "canonical": _canonical,
    "tagged-hash": _tagged,
    "floats": _floats,
    "plain": _plain,
    "merkle": _merkle,
    "keys": _keys,
    "head": lambda: head_note().decode(),
    "cosigned": lambda: (EXAMPLE / "cosigned.note").read_text(),
    "envelope": _envelope,
    "state": _state,
    "released": _released,
    "manifest": lambda: shown(entries()[0]),
    "run-id": _run_id,
    "native-profile": _native,
    "operations": _operations,
    "step": _step,
    "batch": _batch,
    "log": _log,
    "schedule": _schedule,
    "corpus": _corpus,
    "samples": _samples,
    "ledger": _ledger,
    "ledger-proof": _tree,
    "grams": _grams,
    "challenge": _challenge,
    "frames": _frames,
    "statement": _statement,
    "open-state": lambda: _opened("open-state"),
    "read-pieces": lambda: _opened("read-pieces"),
    "open-records": lambda: _opened("open-records"),
    "needed": _needed,
    "soundness": _soundness,
    "certificate": _certificate,
    "audit": _audit,
    "answer": _answer,
    "uses": _uses,
    "files": _files,
    "corpus-json": lambda: (EXAMPLE / "run/corpus/corpus.json").read_text() + "\n",
    "program": lambda: (EXAMPLE / "run/program/mean.py").read_text(),
}


def _errors() -> str:
    rows = ["| code | family | exit | HTTP | meaning |", "| --- | --- | --- | --- | --- |"]
    for code in sorted(CODES):
        row = CODES[code]
        rows.append(f"| `{code}` | {row.family} | {row.exit_status} | {row.http_status} | {row.meaning} |")
    return "\n".join(rows) + "\n"


TABLES: dict[str, Callable[[], str]] = {"errors": _errors}


def texts_of(folder: Path = SPEC) -> list[Path]:
    """The Markdown files of the specification."""
    return sorted(folder.rglob("*.md"))


def updated(text: str) -> str:
    """A text with its blocks and tables as they must be."""

    def block(found: re.Match[str]) -> str:
        body = BLOCKS[found[1]]()
        return f"<!-- example: {found[1]} -->\n```{found[2]}\n{body}{'' if body.endswith(chr(10)) else chr(10)}```\n"

    def table(found: re.Match[str]) -> str:
        return f"<!-- table: {found[1]} -->\n{TABLES[found[1]]()}<!-- end of table -->\n"

    return TABLE.sub(table, BLOCK.sub(block, text))


def main(write: bool) -> int:
    """Brings the texts up to date, or names those that are not."""
    stale = 0
    for path in texts_of():
        before = path.read_text()
        after = updated(before)
        if before != after:
            stale += 1
            print(path.relative_to(SPEC))
            if write:
                path.write_text(after)
    return 0 if write else min(stale, 1)


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv[1:]))
