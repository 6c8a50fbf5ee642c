"""Documents altered until they are no longer found: which tier still finds them, and which says that it does not."""

import hashlib
import random
import unicodedata

import pytest

from protocol.errors import VerificationError
from protocol.ledger import build
from protocol.ledger_claim import RAW, LedgerClaim, document_key, grouped
from protocol.normaliser import NORMALISERS, document_digest
from protocol.winnowing import Winnowing, select

NAMES = [name for name, normaliser in NORMALISERS.items() if normaliser.unicode == unicodedata.unidata_version]
if not NAMES:
    pytest.skip("no normaliser is defined by this Python's Unicode data", allow_module_level=True)
T1 = f"t1-{NAMES[0]}"
SPANS = Winnowing()


class Committed:
    """A corpus with its ledgers, and an asker who has a digest only."""

    def __init__(self, documents):
        places = {
            RAW: [(document_digest(RAW, document), i) for i, document in enumerate(documents)],
            T1: [(document_digest(T1, document), i) for i, document in enumerate(documents)],
            SPANS.tier: [(gram.digest, i) for i, document in enumerate(documents) for gram in select(document, SPANS)],
        }
        self.entries, self.ledgers, self.claims = {}, {}, {}
        for tier, found in places.items():
            keyed = sorted((document_key(tier, digest), index) for digest, index in found)
            self.entries[tier] = dict(grouped(keyed))
            ledger = build((key, occurrences.value) for key, occurrences in self.entries[tier].items())
            self.ledgers[tier] = ledger
            self.claims[tier] = LedgerClaim(tier, ledger.root.hex(), len(ledger), len(documents))

    def ask(self, tier, digest):
        """The documents that hold it, proven; or None, proven."""
        key = document_key(tier, digest)
        proof = self.ledgers[tier].prove(key)
        if key in self.entries[tier]:
            return self.claims[tier].check_inclusion(digest, self.entries[tier][key], proof).documents
        self.claims[tier].check_absence(digest, proof)
        return None

    def absent_grams(self, span):
        return sum(self.ask(SPANS.tier, gram.digest) is None for gram in select(span, SPANS))


TEXTS = [
    f"Document {i}: caf\u00e9, na\u00efve, \u212b.\nA second line of number {i * 7919}.\n".encode() for i in range(40)
]
CORPUS = Committed(TEXTS)

TRICKS = {
    "nothing": (lambda text: text, True, True),
    "a trailing newline": (lambda text: text + "\n", False, True),
    "no trailing newline": (lambda text: text.rstrip("\n"), False, True),
    "trailing blanks": (lambda text: text.replace("\n", " \t\n"), False, True),
    "CRLF": (lambda text: text.replace("\n", "\r\n"), False, True),
    "CR": (lambda text: text.replace("\n", "\r"), False, True),
    "NFD": (lambda text: unicodedata.normalize("NFD", text), False, True),
    "NFC": (lambda text: unicodedata.normalize("NFC", text), False, True),
    "a byte order mark": (lambda text: "\ufeff" + text, False, True),
    "all of these": (
        lambda text: "\ufeff" + unicodedata.normalize("NFD", text).replace("\n", " \r\n") + "\n\n",
        False,
        True,
    ),
    "a zero-width space": (lambda text: text.replace("second", "sec\u200bond"), False, False),
    "a zero-width joiner at the end": (lambda text: text + "\u200d", False, False),
    "NFKC": (lambda text: unicodedata.normalize("NFKC", text + "\ufb01"), False, False),
    "upper case": (str.upper, False, False),
    "a no-break space": (lambda text: text.replace(" ", "\u00a0", 1), False, False),
    "a blank at the beginning": (lambda text: " " + text, False, False),
    "one more mark than is sorted": (lambda text: text + "\u0301" * 40, False, False),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_what_each_tier_finds(trick):
    change, raw, normal = TRICKS[trick]
    altered = change(TEXTS[11].decode()).encode()
    assert CORPUS.ask(RAW, document_digest(RAW, altered)) == ((11,) if raw else None)
    assert CORPUS.ask(T1, document_digest(T1, altered)) == ((11,) if normal else None)


def test_duplicates_are_one_entry_with_every_place():
    """A shard given twice (A17), and a document that only differs in what T1 ignores."""
    corpus = Committed([*TEXTS, *TEXTS[:3], TEXTS[2].replace(b"\n", b"\r\n")])
    assert corpus.claims[RAW].entries == 41 and corpus.claims[T1].entries == 40
    assert corpus.ask(RAW, document_digest(RAW, TEXTS[2])) == (2, 42)
    assert corpus.ask(T1, document_digest(T1, TEXTS[2])) == (2, 42, 43)


def test_a_held_out_set_that_leaked_is_named_document_by_document():
    """A16: four fifths of the validation set in training; and the split that is clean, proven zero."""
    validation = [b"validation document %d\n" % i for i in range(50)]
    leaky = Committed([*TEXTS, *validation[:40]])
    found = [leaky.ask(RAW, document_digest(RAW, document)) for document in validation]
    assert found == [(40 + i,) for i in range(40)] + [None] * 10
    assert [CORPUS.ask(RAW, document_digest(RAW, document)) for document in validation] == [None] * 50


DICE = random.Random(50)
LONG = [bytes(DICE.choices(b"abcdefghijklmnopqrstuvwxyz     \n", k=3000)) for _ in range(12)]
BOOKS = Committed(LONG)


def test_a_verbatim_span_hides_nowhere():
    """Cut out of the middle and put among other words, from T = 50 bytes on."""
    for _ in range(200):
        text = DICE.choice(LONG)
        start = DICE.randrange(len(text) - 400)
        span = text[start : start + DICE.randint(SPANS.guarantee, 400)]
        assert select(span, SPANS) and BOOKS.absent_grams(span) == 0


def test_one_byte_changed_in_a_span_of_two_hundred_is_proven_absent():
    for _ in range(200):
        text = DICE.choice(LONG)
        start = DICE.randrange(len(text) - 200)
        span = bytearray(text[start : start + 200])
        span[DICE.randrange(60, 140)] = ord("#")
        assert BOOKS.absent_grams(bytes(span)) > 0


def test_a_paraphrase_is_proven_absent_and_that_is_all_it_says():
    """A21: near-duplicates are not covered. Absent word for word is what an answer may say, and no more."""
    text = LONG[3]
    near = b"".join(text[at : at + 45] + b"#" for at in range(0, len(text), 45))  # 98 % of it, no 50 bytes in a row
    assert BOOKS.ask(RAW, document_digest(RAW, near)) is None
    assert BOOKS.absent_grams(near) > 0


def test_a_span_over_the_border_of_two_documents_is_in_neither():
    """A24: spans are defined for documents before packing; a window over two documents is no span of the corpus."""
    assert BOOKS.absent_grams(LONG[0][-100:] + LONG[1][:100]) > 0
    assert BOOKS.absent_grams(LONG[0][-100:]) == BOOKS.absent_grams(LONG[1][:100]) == 0


def test_a_gram_of_one_tier_is_no_document_of_another():
    """A document that is byte for byte a gram: its digest is the same, and its key is not."""
    gram = select(LONG[0], SPANS)[5]
    document = LONG[0][gram.position : gram.position + SPANS.k]
    assert hashlib.sha256(document).digest() == gram.digest == document_digest(RAW, document)
    assert BOOKS.ask(SPANS.tier, gram.digest) is not None
    assert BOOKS.ask(RAW, gram.digest) is None
    key = document_key(SPANS.tier, gram.digest)
    shown, occurrences = BOOKS.ledgers[SPANS.tier].prove(key), BOOKS.entries[SPANS.tier][key]
    with pytest.raises(VerificationError):
        BOOKS.claims[RAW].check_inclusion(gram.digest, occurrences, shown)
