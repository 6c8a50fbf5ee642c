"""What does a ledger cost: to build, to ask, to check, and in memory - up to ten million documents?

Documents are made-up digests; everything else is the real path: list, tree, proofs, checks. Every size is measured in a
process of its own, so that its memory is its own.

Beside it, over the same keys: a sorted list, which answers faster and proves nothing; a Merkle tree over the sorted
keys, whose two neighbouring leaves are shown for an absent key (it proves "in" and "not in" at once for a prover that
misplaces a key: tests/attacks/test_ledger_contradiction.py); and pymerkle's tree, which is a log: it proves that
a key was appended, and nothing about a key that was not.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import _report
import numpy as np
import pymerkle

from protocol import merkle
from protocol.ledger import root_of_rows
from protocol.ledger_claim import RAW, Occurrences, document_key
from protocol.ledger_proof import Proof
from protocol.places import Places, document_keys, joined_places
from protocol.winnowing import Winnowing, select_many

QUESTIONS = 2000
PYMERKLE_MOST = 1_000_000
"""Entries: 7 us and 1.6 KB each."""


@contextmanager
def measured(row: dict[str, float], name: str) -> Iterator[None]:
    """Seconds of the processor, and on the wall."""
    wall, processor = time.perf_counter(), time.process_time()
    yield
    row[name], row[name + " wall"] = time.process_time() - processor, time.perf_counter() - wall


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def made_digests(documents: int) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 256, (documents + QUESTIONS, 32), dtype=np.uint8)


def ledger_of(documents: int) -> dict[str, float]:
    """The ledger alone: nothing else is in memory with it, but for the digests it is made of."""
    row: dict[str, float] = {"documents": documents, "before": megabytes()}
    digests = made_digests(documents)
    with measured(row, "list"):
        places = Places.joined(joined_places(document_keys(RAW, digests[:documents]), np.arange(documents)))
    present = [digest.tobytes() for digest in digests[: documents : documents // QUESTIONS]][:QUESTIONS]
    absent = [digest.tobytes() for digest in digests[documents:]]
    del digests
    with measured(row, "root"):
        claim = places.claim(RAW, documents)
    with measured(row, "build"):
        ledger = places.ledger(claim)
    row["memory"] = megabytes()
    asked = [(digest, document_key(RAW, digest)) for digest in present + absent]
    with measured(row, "prove"):
        proofs = [(digest, places.find(key), ledger.prove(key)) for digest, key in asked]
    encoded = [proof.to_bytes() for _, _, proof in proofs]
    assert all(Proof.from_bytes(data) == proof for data, (_, _, proof) in zip(encoded, proofs, strict=True))
    with measured(row, "check"):
        for digest, found, proof in proofs[:QUESTIONS]:
            claim.check_inclusion(digest, Occurrences(len(found), tuple(found)), proof)
        for digest, _, proof in proofs[QUESTIONS:]:
            claim.check_absence(digest, proof)
    sizes = [len(data) for data in encoded]
    row |= {"inclusion": np.mean(sizes[:QUESTIONS]), "absence": np.mean(sizes[QUESTIONS:]), "longest": max(sizes)}
    assert "torch" not in sys.modules
    return row


def others_of(documents: int) -> dict[str, float]:
    """The same keys in what others use."""
    row: dict[str, float] = {"documents": documents}
    digests = document_keys(RAW, made_digests(documents))
    present = [digest.tobytes() for digest in digests[: documents : documents // QUESTIONS]][:QUESTIONS]
    absent = [digest.tobytes() for digest in digests[documents:]]
    with measured(row, "list build"):
        keys = sorted(digest.tobytes() for digest in digests[:documents])
    with measured(row, "list ask"):
        for key in absent:
            assert keys[bisect_left(keys, key) % documents] != key
    with measured(row, "sorted build"):
        tree = merkle.Tree.packed(b"".join(map(merkle.leaf_hash, keys)))
        top = tree.root()
    with measured(row, "sorted ask"):
        pairs = []
        for key in absent:
            at = min(max(bisect_left(keys, key), 1), documents - 1)
            pairs.append((at, tree.inclusion_proof(at - 1), tree.inclusion_proof(at)))
    with measured(row, "sorted check"):
        for at, left, right in pairs:
            merkle.verify_inclusion(merkle.leaf_hash(keys[at - 1]), at - 1, documents, left, top)
            merkle.verify_inclusion(merkle.leaf_hash(keys[at]), at, documents, right, top)
    row["sorted proof"] = np.mean([32 * (len(left) + len(right) + 2) + 8 for _, left, right in pairs])
    del tree, pairs
    if documents <= PYMERKLE_MOST:
        with measured(row, "pymerkle build"):
            log = pymerkle.InmemoryTree(algorithm="sha256")
            for key in keys:
                log.append_entry(key)
            top = log.get_root()
        numbers = [1 + bisect_left(keys, key) for key in present]
        with measured(row, "pymerkle ask"):
            proofs = [log.prove_inclusion(number) for number in numbers]
        bases = [log.get_leaf(number) for number in numbers]
        with measured(row, "pymerkle check"):
            for base, proof in zip(bases, proofs, strict=True):
                pymerkle.verify_inclusion(base, top, proof)
        row["pymerkle proof"] = np.mean([32 * len(proof.path) for proof in proofs])
    return row


def streamed(documents: int) -> dict[str, float]:
    """A root over rows that come sorted from outside, as they would from an external sort."""
    row: dict[str, float] = {"documents": documents}
    source, prefixes = np.random.default_rng(3), 1 << 16

    def blocks() -> Iterator[bytes]:
        for prefix in range(prefixes):
            rows = source.integers(0, 256, (documents // prefixes, 64), dtype=np.uint8)
            rows[:, :2] = np.array([prefix], dtype=">u2").view(np.uint8)
            yield rows[np.argsort(rows[:, :8].copy().view(">u8").ravel().astype(np.uint64))].tobytes()

    with measured(row, "making"):
        for _ in blocks():
            pass
    source = np.random.default_rng(3)
    with measured(row, "both"):
        _, count = root_of_rows(blocks())
    row["documents"], row["seconds"], row["memory"] = count, row["both"] - row["making"], megabytes()
    return row


def spans_of(size: int) -> dict[str, float]:
    """The index of verbatim spans over made-up English: words by Zipf's law, in documents of some kilobytes."""
    row: dict[str, float] = {"bytes": size}
    source, parameters = np.random.default_rng(5), Winnowing()
    letters = np.frombuffer(b"etaoinshrdlucmfwypvbgkjqxz", dtype=np.uint8)
    words = [bytes(source.choice(letters, source.integers(2, 10))) for _ in range(20_000)]
    texts, made = [], 0
    while made < size:
        chosen = source.zipf(1.2, source.integers(100, 1500)) % len(words)
        texts.append(b" ".join(words[word] for word in chosen.tolist()))
        made += len(texts[-1])
    row["documents"], row["bytes"] = len(texts), made
    with measured(row, "list"):
        parts = [
            joined_places(document_keys(parameters.tier, found.digests), found.documents)
            for found in select_many(enumerate([text] for text in texts), parameters)
        ]
        places = Places.joined(b"".join(parts))
        del parts
    with measured(row, "root"):
        claim = places.claim(parameters.tier, len(texts))
    with measured(row, "build"):
        ledger = places.ledger(claim)
    row |= {"grams": len(places), "entries": claim.entries, "memory": megabytes()}
    row["list size"], row["tree size"] = len(places.data), len(ledger.rows) + len(ledger.pairs)
    return row


def alone(part: str, size: int) -> dict[str, float]:
    """A part of this experiment in a process of its own."""
    command = [sys.executable, __file__, part, str(size)]
    environment = {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout)


def seconds(row: dict[str, float], name: str) -> str:
    return f"{row[name]:.1f} s ({row[name + ' wall']:.1f})"


def micro(row: dict[str, float], name: str, questions: int) -> str:
    return f"{row[name] / questions * 1e6:.0f} us" if name in row else "-"


def main() -> None:
    quick = "--quick" in sys.argv
    sizes = (10_000, 100_000) if quick else (100_000, 1_000_000, 10_000_000)
    _report.heading("What does a ledger cost: to build, to ask, to check, and in memory?")
    table([ledger_line(alone("ledger", size)) for size in sizes])
    print(
        "Processor seconds (wall in brackets); one core, no torch. Aims at 10^7: build 20 s, 2 GB; 1 KB, check 50 us.\n"
    )
    table([others_line(alone("others", size)) for size in sizes])
    large = alone("streamed", 1_000_000 if quick else 100_000_000)
    print(f"{large['documents']:,.0f} sorted rows, streamed: a root in {large['seconds']:.0f} s of the processor")
    print(f"({large['seconds'] / large['documents'] * 1e6:.2f} us a row), in {large['memory']:.0f} MB.\n")
    table([spans_line(alone("spans", 1_000_000 if quick else 100_000_000))])


def table(lines: list[dict[str, str]]) -> None:
    _report.table(list(lines[0]), [list(line.values()) for line in lines])


def ledger_line(row: dict[str, float]) -> dict[str, str]:
    return {
        "documents": f"{row['documents']:,}",
        "keys, sorted": seconds(row, "list"),
        "root, streamed": seconds(row, "root"),
        "list checked, tree built": seconds(row, "build"),
        "a proof": micro(row, "prove", 2 * QUESTIONS),
        "its check": micro(row, "check", 2 * QUESTIONS),
        "inclusion": f"{row['inclusion']:.0f} B",
        "absence": f"{row['absence']:.0f} B",
        "longest": f"{row['longest']:.0f} B",
        "memory": f"{row['memory']:.0f} MB",
    }


def others_line(row: dict[str, float]) -> dict[str, str]:
    known = "pymerkle build" in row
    return {
        "documents": f"{row['documents']:,}",
        "sorted list: sort": seconds(row, "list build"),
        "look up": micro(row, "list ask", QUESTIONS),
        "sorted Merkle tree: build": seconds(row, "sorted build"),
        "two proofs": micro(row, "sorted ask", QUESTIONS),
        "their check": micro(row, "sorted check", QUESTIONS),
        '"absence"': f"{row['sorted proof']:.0f} B",
        "pymerkle: build": seconds(row, "pymerkle build") if known else "not run",
        "a proof": micro(row, "pymerkle ask", QUESTIONS),
        "its check": micro(row, "pymerkle check", QUESTIONS),
        "inclusion": f"{row['pymerkle proof']:.0f} B" if known else "-",
    }


def spans_line(row: dict[str, float]) -> dict[str, str]:
    return {
        "bytes": f"{row['bytes']:,}",
        "documents": f"{row['documents']:,}",
        "grams chosen": f"{row['grams']:,}",
        "distinct": f"{row['entries']:,}",
        "chosen, sorted": seconds(row, "list"),
        "root": seconds(row, "root"),
        "list checked, tree built": seconds(row, "build"),
        "list": f"{row['list size'] / 1e6:.0f} MB",
        "tree": f"{row['tree size'] / 1e6:.0f} MB",
        "memory": f"{row['memory']:.0f} MB",
    }


PARTS = {"ledger": ledger_of, "others": others_of, "streamed": streamed, "spans": spans_of}

if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in PARTS:
        print(json.dumps(PARTS[sys.argv[1]](int(sys.argv[2])), default=float))
    else:
        main()
