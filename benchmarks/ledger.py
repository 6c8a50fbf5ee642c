"""What does a ledger cost: to build, to ask, to check? And a whole validation set against a million documents?

Documents are made-up digests; everything else is the real path: places, tree, proofs, checks. A sorted list of the same keys is shown
beside it: it answers faster and proves nothing (a sorted Merkle tree proves "in" and "not in" at once for a prover that misplaces a key).
"""

import hashlib
import statistics
import sys
import time
from bisect import bisect_left

import _report

from protocol.ledger_claim import RAW, document_key
from protocol.places import Places
from witness.ledgers import Book


def digest(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(8, "big")).digest()


def measured(documents: int) -> list[object]:
    start = time.perf_counter()
    places = Places.of((document_key(RAW, digest(i)), i) for i in range(documents))
    claim = places.claim(RAW, documents)
    listed = time.perf_counter() - start
    start = time.perf_counter()
    book = Book(claim, places)
    built = time.perf_counter() - start
    present = [digest(i * documents // 1000) for i in range(1000)]
    absent = [digest(documents + i) for i in range(1000)]
    start = time.perf_counter()
    answers = [book.answer(d) for d in present + absent]
    asked = (time.perf_counter() - start) / 2000
    start = time.perf_counter()
    for d, (proof, occurrences) in zip(present, answers[:1000], strict=True):
        assert occurrences is not None
        claim.check_inclusion(d, occurrences, proof)
    for d, (proof, _) in zip(absent, answers[1000:], strict=True):
        claim.check_absence(d, proof)
    checked = (time.perf_counter() - start) / 2000
    size = statistics.mean(len(proof.to_bytes()) for proof, _ in answers[1000:])
    keys = sorted(document_key(RAW, digest(i)) for i in range(documents))
    start = time.perf_counter()
    for d in absent:
        key = document_key(RAW, d)
        assert keys[bisect_left(keys, key) % documents] != key
    plain = (time.perf_counter() - start) / 1000
    return [
        f"{documents:,}",
        f"{listed:.1f} s",
        f"{built:.1f} s",
        f"{asked * 1e6:.0f} us",
        f"{checked * 1e6:.0f} us",
        f"{size:.0f} B",
        f"{plain * 1e6:.0f} us",
    ]


def validation_set(documents: int, asked: int) -> list[object]:
    places = Places.of((document_key(RAW, digest(i)), i) for i in range(documents))
    book = Book(places.claim(RAW, documents), places)
    start = time.perf_counter()
    hits = 0
    for number in range(asked):
        d = digest(number if number % 5 else documents + number)  # four of five leaked
        proof, occurrences = book.answer(d)
        if occurrences is None:
            book.claim.check_absence(d, proof)
        else:
            book.claim.check_inclusion(d, occurrences, proof)
            hits += 1
    return [f"{documents:,}", f"{asked:,}", f"{hits:,}", f"{time.perf_counter() - start:.1f} s"]


def main() -> None:
    quick = "--quick" in sys.argv
    _report.heading("What does a ledger cost: to build, to ask, to check?")
    sizes = (10_000, 100_000) if quick else (10_000, 100_000, 1_000_000)
    columns = (
        "documents",
        "list and root",
        "check and build",
        "answer",
        "check an answer",
        "absence proof",
        "sorted list, no proof",
    )
    _report.table(columns, [measured(n) for n in sizes])
    top = sizes[-1]
    _report.table(
        ("documents", "asked, each proven and checked", "found", "time"),
        [validation_set(top, 5_000 if quick else 50_000)],
    )
    print("One core. Aims: 10^6 documents in at most 5 s, a whole validation set of 50,000 in at most 10 s.")


if __name__ == "__main__":
    main()
