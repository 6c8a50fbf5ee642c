"""What the package says to the calls that `spec/checker.py` answers: the other side of every comparison.

`outcome(call, given)` has the shape of `checker.outcome`: `{"gives": value}` or `{"code": code}`. Byte strings travel
as `hex:` and digits, or as `raw:` and text. Needs no torch.
"""

import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

SPEC = Path(__file__).resolve().parent
sys.path[:0] = [str(SPEC), str(SPEC.parent)]

from checker import canonical, revived, shown

from protocol import merkle, soundness
from protocol.answering import check_answer
from protocol.certificate import Evidence, add, open_certificate
from protocol.checks import LogAudit, mandatory
from protocol.corpus import CorpusClaim, Documents, parse_leaves
from protocol.corpus import check_piece as check_opened
from protocol.data_audit import open_audit
from protocol.dsse import open_envelope
from protocol.encoding import decode, tagged_hash
from protocol.errors import WitnessError
from protocol.keys import PublicKey
from protocol.ledger_claim import LedgerClaim, Occurrences, document_key
from protocol.ledger_proof import Proof, verify_absence, verify_inclusion
from protocol.manifest import parse_manifest
from protocol.messages import Policy
from protocol.notes import open_head, open_note, parse_vkey
from protocol.places import Places
from protocol.randomness import draw, session_seed
from protocol.records import parse_entry
from protocol.required import draws_asked
from protocol.schedule import Schedule, epoch_order, probe_indices
from protocol.statetree import Entry, Pieces, Table, digest_pieces


def _keys(vkeys: Sequence[str]) -> list[PublicKey]:
    return [parse_vkey(text) for text in vkeys]


def _vkey(text: str) -> Any:
    key = parse_vkey(text)
    return [key.name, key.kind, key.raw, key.key_id]


def _note(data: bytes, vkeys: Sequence[str]) -> Any:
    found = open_note(data, _keys(vkeys))
    return [found.text, [signer.name for signer in found.signers]]


def _head(data: bytes, vkeys: Sequence[str], origin: str | None) -> Any:
    head = open_head(data, _keys(vkeys), origin)
    return [head.size, head.origin, head.root, head.body()]


def _as(value: Any, kind: Any, limit: int = 1 << 28) -> Any:
    return decode(canonical(value), kind, limit=limit)


def _proof(root: bytes, key: bytes, value: bytes | None, proof: bytes) -> None:
    found = Proof.from_bytes(proof)
    if value is None:
        verify_absence(root, key, found)
    else:
        verify_inclusion(root, key, value, found)


def _occurrences(data: bytes) -> Any:
    found = Occurrences.from_bytes(data)
    return [found.count, found.documents]


def _places(data: bytes, claim: Any) -> None:
    claimed = _as(claim, LedgerClaim)
    Places(data).check(claimed)


def _table(entries: Any, data: Sequence[bytes], pieces: dict[str, int]) -> bytes:
    cut = _as(pieces, Pieces)
    kinds = _as(entries, tuple[Entry, ...])
    digests = [digest for one, it in zip(kinds, data, strict=True) for digest in digest_pieces(one, cut, it)]
    return Table(kinds, digests, cut).root


def _documents(claim: Any, leaves: bytes) -> Documents:
    claimed = _as(claim, CorpusClaim)
    found = Documents(parse_leaves(leaves), claimed.packing, claimed.tokenizer)
    found.check(claimed)
    return found


def _log(entries: Sequence[bytes], leaves: bytes, notes: Sequence[bytes], outliers: int) -> Any:
    manifest = parse_manifest(entries[0])
    heads = [open_head(note, [parse_vkey(manifest.key)], manifest.origin) for note in notes]
    LogAudit().watch(heads)  # which is first in the text, and needs no corpus
    claim = manifest.corpus
    audit = LogAudit(Documents(parse_leaves(leaves), claim.packing, claim.tokenizer))
    audit.watch(heads)
    for entry in entries:
        audit.read(entry)
    audit.finish(heads[-1])
    return [manifest.run_id.hex(), audit.steps, [list(pair) for pair in mandatory(audit, outliers)]]


def _detection(value: Fraction) -> str:
    return soundness.decimal_down(value, 6)


def _certificate(data: bytes, vkeys: Sequence[str]) -> Any:
    found = open_certificate(data, keys=_keys(vkeys))
    return [found.verdict, not found.missing, found.draws, _detection(found.detection)]


def _certificates(data: Sequence[bytes], vkeys: Sequence[str]) -> Any:
    evidence: list[Evidence] = [open_certificate(one, keys=_keys(vkeys)) for one in data]
    found = add(evidence)
    return [found.verdict, _detection(found.detection)]


def _answer(data: bytes, head: bytes, vkeys: Sequence[str]) -> Any:
    rows = []
    for reply in check_answer(data, head, keys=_keys(vkeys)).replies:
        documents = list(reply.occurrences.documents) if reply.occurrences else list(reply.candidates)
        if reply.of_span and reply.found:
            documents = [reply.found[0].leaf.index]
        level = reply.completeness
        rows.append([reply.tier, reply.result, level.level, documents])
    return rows


def _piece(leaf: bytes, index: int, data: bytes, proof: list[bytes]) -> None:
    document = parse_leaves(leaf)[0]
    check_opened(document, index, data, proof)


CALLS: dict[str, Callable[..., Any]] = {
    "decode": lambda data, cap: decode(data, object, limit=cap),
    "tagged-hash": lambda domain, parts: tagged_hash(domain, *parts),
    "vkey": _vkey,
    "signature": lambda key, signature, message: PublicKey("k", key).verify(signature, message),
    "note": _note,
    "head": _head,
    "envelope": lambda data, vkeys, cap, threshold, kind: open_envelope(
        data, _keys(vkeys), payload_types=[kind], threshold=threshold, limit=cap
    ),
    "merkle-root": lambda leaves: merkle.root([merkle.leaf_hash(leaf) for leaf in leaves]),
    "inclusion": merkle.verify_inclusion,
    "consistency": merkle.verify_consistency,
    "ledger-proof": _proof,
    "ledger-key": document_key,
    "ledger-value": lambda count, documents: Occurrences(count, tuple(documents)).value,
    "occurrences": _occurrences,
    "places": _places,
    "claim": lambda data: decode(data, LedgerClaim, limit=1 << 20),
    "state-root": _table,
    "table": lambda table, root, pieces: Table.from_bytes(table, _as(pieces, Pieces), root=root),
    "corpus": lambda claim, leaves: _documents(claim, leaves).samples,
    "piece": _piece,
    "records": lambda claim, leaves, step, samples: _documents(claim, leaves).records_digest(step, samples).hex(),
    "spans": lambda claim, leaves, i: [[s.document, s.start, s.stop] for s in _documents(claim, leaves).spans(i)],
    "epoch": lambda seed, epoch, samples: epoch_order(seed, epoch, samples).tolist(),
    "samples": lambda seed, batch, samples, step: Schedule(seed, samples, batch).indices(step),
    "probe": lambda seed, step, root, number, samples: probe_indices(seed, step, root, samples, number),
    "session-seed": lambda session, policy, commitment, head, nonce: session_seed(
        session=session, policy=policy, commitment=commitment, head=head, nonce=nonce
    ),
    "draw": lambda seed, k, n: draw(seed, n, k),
    "fraction": soundness.fraction,
    "miss": soundness.miss_probability,
    "draws-needed": lambda n, share, confidence, tries=0: (
        soundness.grinding_draws_needed(n, share, confidence, tries)
        if tries
        else soundness.draws_needed(n, share, confidence)
    ),
    "draws-owed": lambda policy, n: draws_asked(_as(policy, Policy), n),
    "manifest": lambda data: parse_manifest(data).run_id.hex(),
    "entry": parse_entry,
    "log": _log,
    "certificate": _certificate,
    "certificates": _certificates,
    "audit": lambda data, vkeys: open_audit(data, keys=tuple(_keys(vkeys))).predicate.verdict,
    "answer": _answer,
}

SILENT = {"table", "entry", "claim", "places", "manifest-only"}  # what they give is not compared


def outcome(call: str, given: list[Any]) -> dict[str, Any]:
    """What the package gives, or the code with which it refuses."""
    try:
        found = CALLS[call](*revived(given))
    except WitnessError as error:
        return {"code": error.code}
    return {"gives": None if call in SILENT else shown(found)}
