"""Answers: true ones are accepted with the uses that the schedule gives, and no altered one ever is."""

import hashlib
import json
import random
from pathlib import Path

import msgspec
import pytest
from made_run import KEY, SPANS, made_run

from protocol.answer import MAX_ANSWER, Answer, SpanReply, merge, parse_answer
from protocol.answering import CheckedAnswer, check_answer, check_grams
from protocol.corpus import Packing
from protocol.encoding import encode
from protocol.errors import ProtocolError, VerificationError, WitnessError
from protocol.ledger_claim import RAW, Occurrences, document_key
from protocol.notes import Checkpoint, sign_head
from protocol.places import Places
from protocol.schedule import Schedule, epoch_order
from protocol.usage import Orders
from witness.ledgers import Book
from witness.query import Answerer
from witness.rundir import RunDir

TEXTS = [b"document %d says that %d is not %d. " % (i, i, i + 1) * 4 for i in range(24)] + [b"twice" * 20] * 2
SPAN = TEXTS[5][7:107]
OTHER = b"no document of this corpus says anything like this, not even one of them, at all"


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return made_run(tmp_path_factory.mktemp("answers") / "run", TEXTS, steps=12)


@pytest.fixture(scope="module")
def keeper(run: RunDir) -> Answerer:
    return Answerer(run)


def held(keeper: Answerer, answer: Answer) -> CheckedAnswer:
    return check_answer(answer.to_bytes(), keeper.head)


def test_an_included_document_comes_with_the_steps_that_read_it(keeper: Answerer) -> None:
    checked = held(keeper, keeper.digests([(RAW, sha(TEXTS[3]))]))
    reply = checked.replies[0]
    assert (reply.result, checked.steps) == ("included", 12)
    found = reply.found[0]
    schedule = Schedule(bytes.fromhex("11" * 32), len(TEXTS), 4)
    assert found.leaf.index == 3
    assert {use.step for use in found.uses} == {s for s in range(1, 13) if 3 in schedule.indices(s)} != set()
    assert found.weight.weight == sum(use.tokens for use in found.uses) / 2
    assert found.weight.influence == "some"
    assert reply.completeness.level == "root-consistent"


def test_equal_documents_are_one_entry_with_two_places(keeper: Answerer) -> None:
    reply = held(keeper, keeper.digests([(RAW, sha(TEXTS[-1]))])).replies[0]
    assert reply.occurrences == Occurrences(2, (24, 25))
    assert [found.leaf.index for found in reply.found] == [24, 25]


def test_absence_in_every_tier_and_between_all_keys(keeper: Answerer) -> None:
    questions = [(tier, sha(b"%d" % i)) for tier in keeper.tiers for i in range(40)]
    assert {reply.result for reply in held(keeper, keeper.digests(questions)).replies} == {"absent"}


def test_a_span_is_opened_where_it_stands(keeper: Answerer) -> None:
    answer = keeper.spans(SPANS, [SPAN])
    reply = held(keeper, answer).replies[0]
    assert (reply.result, reply.found[0].leaf.index) == ("included", 5)
    check_grams(answer.replies[0], SPAN)
    with pytest.raises(VerificationError, match="other grams"):
        check_grams(answer.replies[0], SPAN[1:] + b".")


def test_one_missing_gram_proves_a_span_absent(keeper: Answerer) -> None:
    answer = keeper.spans(SPANS, [OTHER])
    assert held(keeper, answer).replies[0].result == "absent"
    assert len(answer.replies[0].shown) == 1


def test_grams_that_are_nowhere_together_prove_a_span_absent(tmp_path: Path) -> None:
    halves = random.Random(1).randbytes(300), random.Random(2).randbytes(300)
    keeper = Answerer(made_run(tmp_path / "run", [*halves, b"x" * 60], steps=2, batch=1))
    # All windows within one half choose what stands in a document; those over the seam may choose new grams, so ask
    # the ledger about the old ones only, as a lazy asker might.
    whole = keeper.spans(SPANS, [halves[0]]).replies[0], keeper.spans(SPANS, [halves[1]]).replies[0]
    shown = (whole[0].shown[0], msgspec.structs.replace(whole[1].shown[0], gram=len(whole[0].grams)))
    moved = [msgspec.structs.replace(gram, position=gram.position + 300) for gram in whole[1].grams]
    reply = SpanReply(SPANS, "00" * 32, 600, "absent", (*whole[0].grams, *moved), shown, None)
    answer = msgspec.structs.replace(keeper.spans(SPANS, [halves[0]]), replies=(reply,), records=())
    assert held(keeper, answer).replies[0].result == "absent"
    lie = msgspec.structs.replace(reply, shown=shown[:1])
    with pytest.raises(VerificationError, match="does not show it"):
        held(keeper, msgspec.structs.replace(answer, replies=(lie,)))


def test_without_the_data_a_span_is_possible_and_no_more(run: RunDir, tmp_path: Path) -> None:
    import shutil

    copy = RunDir(Path(shutil.copytree(run.path, tmp_path / "run")))
    (copy.corpus / "data").unlink()
    keeper = Answerer(copy)
    reply = held(keeper, keeper.spans(SPANS, [SPAN])).replies[0]
    assert (reply.result, 5 in reply.candidates, reply.found) == ("possible", True, ())
    assert held(keeper, keeper.digests([(RAW, sha(TEXTS[3]))])).replies[0].result == "included"


def test_a_span_below_the_guarantee_is_refused_with_the_length_that_is_needed(keeper: Answerer) -> None:
    with pytest.raises(WitnessError, match="T = 50") as caught:
        keeper.spans(SPANS, [TEXTS[5][:49]])
    assert caught.value.code == "span-length"
    assert keeper.spans(SPANS, [TEXTS[5][:50]]).replies[0].result == "included"


@pytest.mark.parametrize(("final", "faults", "steps"), [(True, 0, 8), (False, 0, 8), (False, 3, 8), (True, 2, 8)])
def test_the_number_of_steps_is_what_the_log_ends_with(tmp_path: Path, final: bool, faults: int, steps: int) -> None:
    keeper = Answerer(made_run(tmp_path / "run", TEXTS, final=final, faults=faults))
    answer = keeper.digests([(RAW, sha(TEXTS[0]))])
    assert held(keeper, answer).steps == steps
    if not final:
        with pytest.raises(ProtocolError):
            held(keeper, msgspec.structs.replace(answer, tail=answer.tail[1:]))


def test_a_run_that_only_promised_has_read_nothing(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", TEXTS)
    with run.log() as log:
        entries = list(log.entries())
    run.log_path.unlink()
    for note in run.heads.iterdir():
        note.unlink()
    with run.log() as log:
        log.append(entries[0])
        run.sign_head(log, run.manifest().origin, KEY)
    keeper = Answerer(run)
    checked = held(keeper, keeper.digests([(RAW, sha(TEXTS[0]))]))
    assert (checked.steps, checked.replies[0].found[0].uses) == (0, ())
    assert checked.replies[0].found[0].weight.influence == "none"


def test_another_head_of_the_run_is_refused(keeper: Answerer, run: RunDir) -> None:
    answer = keeper.digests([(RAW, sha(TEXTS[3]))])
    other = sign_head(Checkpoint(keeper.manifest.origin, 5, bytes(32)), KEY)
    with pytest.raises(VerificationError, match="another head"):
        check_answer(answer.to_bytes(), other)
    with pytest.raises(VerificationError):
        check_answer(answer.to_bytes(), sign_head(Checkpoint("another/log", 5, bytes(32)), KEY))


def test_answers_about_one_head_fit_into_one_file(keeper: Answerer) -> None:
    one, two = (keeper.digests([(RAW, sha(TEXTS[i]))]) for i in (1, 2))
    both = held(keeper, merge([one, two]))
    assert [reply.found[0].leaf.index for reply in both.replies] == [1, 2]
    for number, whole in enumerate((one, two)):
        alone = both.alone([number])
        assert alone.replies == whole.replies
        assert held(keeper, alone).replies[0].found == held(keeper, whole).replies[0].found


# --- altered answers


def answers(keeper: Answerer) -> list[Answer]:
    return [
        keeper.digests([(RAW, sha(TEXTS[3]))]),
        keeper.digests([(RAW, sha(OTHER))]),
        keeper.spans(SPANS, [SPAN]),
    ]


def test_no_altered_byte_is_accepted_as_the_same_answer(keeper: Answerer) -> None:
    """Every byte outside the manifest's long middle, and a sample of that: an answer that still verifies says nothing
    that the ledger does not prove."""
    dice = random.Random(7)
    for answer in answers(keeper):
        data = answer.to_bytes()
        start, stop = data.index(b'"manifest":'), data.index(b'"records":')
        places = [at for at in range(len(data)) if not start < at < stop] + dice.sample(range(start, stop), 200)
        truth = check_answer(data, keeper.head)
        accepted = 0
        for at in dice.sample(places, min(700, len(places))):
            altered = data[:at] + bytes([data[at] ^ (1 << dice.randrange(7))]) + data[at + 1 :]
            try:
                found = check_answer(altered, keeper.head)
            except WitnessError:
                continue
            accepted += 1
            assert found.replies == truth.replies, at
        assert accepted == 0


def test_cut_extended_and_reordered_answers_are_refused(keeper: Answerer) -> None:
    data = answers(keeper)[0].to_bytes()
    for altered in (data[:-1], data + b"\n", b" " + data, data.replace(b",", b", ", 1), b"", b"{}", b"\xff" * 9):
        with pytest.raises(ProtocolError):
            check_answer(altered, keeper.head)
    plain = json.loads(data)
    for name in plain:
        short = {k: v for k, v in plain.items() if k != name}
        with pytest.raises(ProtocolError):
            check_answer(encode(short), keeper.head)
    with pytest.raises(ProtocolError):
        check_answer(encode({**plain, "extra": 1}), keeper.head)


def test_every_part_is_bound(keeper: Answerer) -> None:
    """Each field exchanged for the true one of another question, run or place."""
    hit, miss, span = answers(keeper)
    other = keeper.digests([(RAW, sha(TEXTS[7]))])
    swap = msgspec.structs.replace

    def refused(answer: Answer) -> None:
        with pytest.raises((ProtocolError, VerificationError)):
            held(keeper, answer)

    reply = hit.replies[0]
    for name in ("proof", "occurrences", "documents", "digest"):
        refused(swap(hit, replies=(swap(reply, **{name: getattr(other.replies[0], name)}),)))
        refused(swap(hit, replies=(swap(reply, **{name: getattr(miss.replies[0], name)}),)))
    refused(swap(hit, replies=(swap(reply, result="absent"),)))
    refused(swap(hit, replies=(swap(reply, result="absent", occurrences=None, documents=()),)))
    refused(swap(hit, replies=(swap(reply, tier=keeper.tiers[1]),)))
    refused(swap(hit, replies=(swap(reply, tier=SPANS),)))
    refused(swap(hit, replies=(swap(reply, documents=reply.documents * 2),)))
    refused(swap(miss, replies=(swap(miss.replies[0], result="included"),)))
    refused(swap(miss, replies=(swap(miss.replies[0], digest=reply.digest),)))
    refused(swap(hit, manifest_proof=hit.manifest_proof[1:]))
    refused(swap(hit, manifest=swap(hit.manifest, batch_size=5)))
    refused(swap(hit, tail=()))
    refused(swap(hit, tail=(swap(hit.tail[0], entry=swap(hit.tail[0].entry, steps=3)),)))
    first = hit.records[0]
    refused(swap(hit, records=(first, first)))
    refused(swap(hit, records=(swap(first, index=first.index + 1),)))
    refused(swap(hit, records=(swap(first, entry=swap(first.entry, hyperparameters={"learning_rate": 0})),)))
    opened = span.replies[0].opened
    for name, value in {"start": opened.start + 1, "pieces": opened.pieces * 2, "document": reply.documents[0]}.items():
        refused(swap(span, replies=(swap(span.replies[0], opened=swap(opened, **{name: value})),)))
    piece = opened.pieces[0]
    altered = swap(piece, data=("00" if piece.data[:2] != "00" else "01") + piece.data[2:])
    refused(swap(span, replies=(swap(span.replies[0], opened=swap(opened, pieces=(altered,))),)))
    refused(swap(span, head=""))
    refused(swap(span, replies=(swap(span.replies[0], result="absent", opened=None),)))


@pytest.mark.parametrize("spelled", ["", "0", "AA", "0a0", " 0a", "0a\n", "0g", "0a" * 40 + "A0", "0a" * 200 + "0"])
def test_hexadecimal_has_one_spelling(keeper: Answerer, spelled: str) -> None:
    hit = answers(keeper)[0]
    for name in ("proof", "occurrences"):
        reply = msgspec.structs.replace(hit.replies[0], **{name: spelled})
        with pytest.raises(ProtocolError) as caught:
            parse_answer(msgspec.structs.replace(hit, replies=(reply,)).to_bytes())
        assert caught.value.code == "not-canonical"


def test_the_hashes_of_every_proof_have_one_spelling(keeper: Answerer) -> None:
    """Their digits are looked at where a proof is checked, not where it is parsed: no proof may be forgotten."""
    hit, _, span = answers(keeper)
    listed, record, tail = hit.replies[0].documents[0], hit.records[0], hit.tail[0]
    piece = span.replies[0].opened.pieces[0]
    swap = msgspec.structs.replace

    def opened(**changes: object) -> Answer:
        return swap(span, replies=(swap(span.replies[0], opened=swap(span.replies[0].opened, **changes)),))

    places = {
        "document": lambda path: swap(hit, replies=(swap(hit.replies[0], documents=(swap(listed, proof=path),)),)),
        "record": lambda path: swap(hit, records=(swap(record, proof=path), *hit.records[1:])),
        "tail": lambda path: swap(hit, tail=(swap(tail, proof=path), *hit.tail[1:])),
        "manifest": lambda path: swap(hit, manifest_proof=path),
        "opened document": lambda path: opened(document=swap(span.replies[0].opened.document, proof=path)),
        "piece": lambda path: opened(pieces=(swap(piece, proof=path), *span.replies[0].opened.pieces[1:])),
    }
    proofs = {
        "document": listed.proof,
        "record": record.proof,
        "tail": tail.proof,
        "manifest": hit.manifest_proof,
        "opened document": span.replies[0].opened.document.proof,
        "piece": piece.proof or ("ab" * 32,),
    }
    for name, change in places.items():
        first, *rest = proofs[name]
        for spelled in (first.upper(), " " + first[1:], first[:-1] + "g", first[:-2] + "\n" + first[-1]):
            if spelled != first:
                with pytest.raises(ProtocolError) as caught:
                    held(keeper, change((spelled, *rest)))
                assert caught.value.code == "not-canonical", name


def test_no_part_of_an_answer_may_hold_a_float(keeper: Answerer) -> None:
    data = answers(keeper)[0].to_bytes()
    program = keeper.manifest.program
    assert program.arguments == [[], {}] and data.count(b'"arguments":[[],{}]') == 1
    with pytest.raises(ProtocolError) as caught:
        parse_answer(data.replace(b'"arguments":[[],{}]', b'"arguments":[[0.5],{}]'))
    assert caught.value.code == "not-canonical"


def test_leaving_records_out_only_hides_weight(keeper: Answerer) -> None:
    hit = answers(keeper)[0]
    found = held(keeper, msgspec.structs.replace(hit, records=())).replies[0].found[0]
    assert (found.weight.shown, found.weight.weight, found.weight.influence) == (0, None, "not shown")
    assert found.uses == held(keeper, hit).replies[0].found[0].uses


def test_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_answer(b" " * (MAX_ANSWER + 1))
    assert caught.value.code == "too-large"


def test_windows_are_counted_by_the_tokens_of_the_document_in_them(tmp_path: Path) -> None:
    keeper = Answerer(made_run(tmp_path / "run", TEXTS, packing=Packing("windows", 50, 25), steps=200))
    found = held(keeper, keeper.digests([(RAW, sha(TEXTS[3]))])).replies[0].found[0]
    documents = keeper.books.documents
    schedule = Schedule(bytes.fromhex("11" * 32), documents.samples, 4)
    forward = sum(
        span.stop - span.start
        for step in range(1, 201)
        for sample in schedule.indices(step)
        for span in documents.spans(sample)
        if span.document == 3
    )
    assert sum(use.tokens for use in found.uses) == forward > 0
    assert found.weight.steps > 64 or found.weight.shown == found.weight.steps


def test_spans_of_tokens_begin_on_a_token_and_are_counted_in_tokens(tmp_path: Path) -> None:
    dice = random.Random(5)
    texts = [dice.randbytes(2 * 90) for _ in range(8)]
    texts[5] = b"\x00" + texts[3][:-1]  # the same bytes, one byte off: other tokens
    tier = "t2-winnow-u16-k8-w4"
    packing = Packing("windows", 20, 20)
    run = made_run(tmp_path / "run", texts, packing=packing, tiers=[RAW, tier], steps=9, tokens="uint16")
    keeper = Answerer(run)
    span = texts[3][2 * 30 : 2 * 45]
    reply = held(keeper, keeper.spans(tier, [span])).replies[0]
    (found,) = reply.found
    assert (reply.result, found.leaf.index) == ("included", 3)
    # Tokens 300 to 315 of the stream are in window 15 alone.
    schedule = Schedule(bytes.fromhex("11" * 32), keeper.books.documents.samples, 4)
    assert [use.step for use in found.uses] == [s for s in range(1, 10) if 15 in schedule.indices(s)]
    assert {use.tokens for use in found.uses} == {15}
    with pytest.raises(WitnessError) as caught:
        keeper.spans(tier, [span + b"x"])
    assert caught.value.code == "span-units"
    with pytest.raises(WitnessError, match=r"T = 11 units \(22 bytes\)"):
        keeper.spans(tier, [span[:20]])
    odd = texts[5][1 + 2 * 30 : 1 + 2 * 45]
    opened = held(keeper, keeper.spans(tier, [odd])).replies[0]
    assert opened.found[0].leaf.index == 3  # where the bytes stand on a border of tokens


def test_a_ledger_that_lists_a_document_under_another_digest_is_found_out(tmp_path: Path) -> None:
    """The trainer's ledger says that document 3 is the benign text that everybody asks about."""
    benign = b"a licensed text"
    made = []

    def change(true):
        claim, places = next(pair for pair in true if pair[0].tier == RAW)
        moved = Places.of((document_key(RAW, sha(benign)) if d == 3 else key, d) for key, d in places)
        made.append((moved.claim(RAW, claim.documents), moved))
        return made

    keeper = Answerer(made_run(tmp_path / "run", TEXTS, change=change))
    keeper.books._books[RAW] = Book(*made[0])
    answer = keeper.digests([(RAW, sha(benign))])
    with pytest.raises(VerificationError, match="not its own"):
        held(keeper, answer)


@pytest.mark.parametrize("room", [0, 4 * 24, 1 << 20])
def test_kept_orders_are_of_their_own_run_and_epoch(room: int) -> None:
    orders = Orders(room)
    for _ in range(2):
        for seed in (b"1" * 32, b"2" * 32):
            for samples, epoch in ((24, 0), (24, 1), (7, 0)):
                places = orders.places(seed, samples, epoch)
                drawn = epoch_order(seed, epoch, samples)
                assert places[drawn].tolist() == list(range(samples))
    assert sum(kept.nbytes for kept in orders._kept.values()) <= room
