"""A24: cut a held-out document, so that no leaf and no window is the document that anybody asks about."""

from pathlib import Path

from attacks.asking import ask, ask_span
from attacks.table import Row
from made_run import made_run

from protocol.answer_terms import not_covered
from protocol.corpus import Packing
from protocol.schedule import Schedule

TEXT = b"".join(b"sentence %d of a held-out document, at some length. " % i for i in range(12))
OTHERS = [b"document %d, of the usual kind." % i for i in range(20)]
WINDOWS = Row(
    "A24", "a document is spread over packed windows", "answer", "document leaves, before packing", "included"
)
HALVES = Row(
    "A24", "a document is put into the corpus in two halves", "answer", "grams of the ledger of spans", "included"
)
ROWS = (WINDOWS, HALVES)


def test_packing_does_not_hide_a_document_and_every_window_counts(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", [*OTHERS[:7], TEXT, *OTHERS[7:]], packing=Packing("windows", 64, 64), steps=9)
    reply = ask(run, TEXT)
    assert reply.result == WINDOWS.code
    (found,) = reply.found
    before = sum(map(len, OTHERS[:7]))
    samples = range(before // 64, (before + len(TEXT) - 1) // 64 + 1)
    schedule = Schedule(bytes.fromhex("11" * 32), (sum(map(len, OTHERS)) + len(TEXT)) // 64, 4)
    read = [(step, i) for step in range(1, 10) for i, sample in enumerate(schedule.indices(step)) if sample in samples]
    assert [(use.step, use.place) for use in found.uses] == read and len(read) > 2
    assert all(use.tokens <= 64 for use in found.uses)


def test_halves_are_found_by_what_stands_in_them(tmp_path: Path) -> None:
    cut = len(TEXT) // 2
    run = made_run(tmp_path / "run", [*OTHERS, TEXT[:cut], TEXT[cut:]])
    assert ask(run, TEXT).result == "absent"
    assert ask_span(run, TEXT).result == "absent"  # it is in no one document: true, and not the whole truth
    for start, document in ((10, 20), (cut + 10, 21)):
        reply = ask_span(run, TEXT[start : start + 100])
        assert (reply.result, reply.found[0].leaf.index) == (HALVES.code, document)
        assert any("borders of two documents" in line for line in not_covered(reply.tier))
