"""Normalisers: what two documents may differ in and still count as one, named and fixed to the byte (tier T1).

Raw bytes (tier T0) are the default, and a trailing newline defeats them. A normaliser is offered beside T0, never
instead of it, and never does more than its name says: no compatibility forms (NFKC makes a superscript two into a
two), no lower case, no change of zero-width characters.

Unicode data belongs to the name. A code point that one version leaves unassigned may compose or reorder in the next,
so two sides with different data would compute different digests of one document, and an absence would be proven that
is none. A Python with other data refuses; it never answers approximately.

Specified in spec/tiers.md, section 3.
"""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from protocol.errors import IncompleteError
from protocol.ledger_claim import RAW

MAX_MARKS: Final = 30
"""Longest run of combining marks that is normalised (UAX #15, Stream-Safe Text Format)."""
_BYTE_ORDER_MARK: Final = "\ufeff"


class Normaliser(NamedTuple):
    """One way to make documents alike.

    Attributes:
        name: with its version, as in the tier `t1-<name>`.
        unicode: version of the Unicode data that it is defined by.
        rule: bytes to bytes; call `normalise`, which checks the version first.
    """

    name: str
    unicode: str
    rule: Callable[[bytes], bytes]

    @property
    def tier(self) -> str:
        """The ledger tier of documents after this normaliser."""
        return f"t1-{self.name}"


def _nfc_lf_strip(data: bytes) -> bytes:
    """The rule of `nfc-lf-strip`; see `NORMALISERS`."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return data
    if not text.isascii():
        if _long_run().search(text):
            return data
        text = unicodedata.normalize("NFC", text.lstrip(_BYTE_ORDER_MARK))
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    # Line by line: a pattern for "white space, then the end of the line" takes quadratic time on blanks within a line.
    return "\n".join([line.rstrip("\t ") for line in text.split("\n")]).rstrip("\n").encode()


NORMALISERS: Final[Mapping[str, Normaliser]] = MappingProxyType(
    {
        f"nfc-lf-strip-unicode{short}": Normaliser(f"nfc-lf-strip-unicode{short}", version, _nfc_lf_strip)
        for short, version in {"14": "14.0.0", "15": "15.0.0", "15.1": "15.1.0", "16": "16.0.0"}.items()
    }
)
"""Every normaliser by name. `nfc-lf-strip`, in this order:

1. A document that is not UTF-8 (RFC 3629: no surrogates, no overlong forms) stays as it is, and nothing below is done.
2. So does one with a run of more than 30 combining marks: code points whose canonical decomposition begins with one of
   a combining class other than 0. Sorting such runs takes quadratic time, and no language needs them.
3. U+FEFF at the beginning is removed, as often as it stands there. Elsewhere it stays.
4. Normalization Form C (UAX #15) by the Unicode data of the name's version.
5. CR LF becomes LF, then CR becomes LF. Other line and paragraph separators stay.
6. U+0020 and U+0009 before each LF and at the end are removed, then LF at the end. Other white space stays.

What comes out is normal: the same normaliser leaves it as it is. A document may come out empty.
"""


def normalise(name: str, data: bytes) -> bytes:
    """What a normaliser makes of a document.

    Args:
        name: a key of `NORMALISERS`.
        data: the whole document.

    Raises:
        IncompleteError: `normaliser-unknown`; `unicode-version`, if this Python has other Unicode data than the name
            says.
    """
    normaliser = NORMALISERS.get(name)
    if normaliser is None:
        raise IncompleteError("normaliser-unknown", f"there is no normaliser {name[:80]!r} in this version")
    if unicodedata.unidata_version != normaliser.unicode:
        raise IncompleteError(
            "unicode-version",
            f"{name} is defined by Unicode {normaliser.unicode}, and this Python has {unicodedata.unidata_version}",
            evidence={"needed": normaliser.unicode, "found": unicodedata.unidata_version},
        )
    return normaliser.rule(data)


def document_digest(tier: str, data: bytes) -> bytes:
    """The digest by which a ledger of whole documents knows `data`: what an asker sends, instead of the text.

    Args:
        tier: `t0-sha256` or `t1-<normaliser>`.
        data: the whole document.

    Raises:
        IncompleteError: `normaliser-unknown`, `unicode-version`.
    """
    if tier == RAW:
        return hashlib.sha256(data).digest()
    if not tier.startswith("t1-"):
        raise IncompleteError("normaliser-unknown", f"{tier[:80]!r} is not a tier of whole documents")
    return hashlib.sha256(normalise(tier.removeprefix("t1-"), data)).digest()


@lru_cache(maxsize=1)
def _long_run() -> re.Pattern[str]:
    """Matches a run of combining marks that is too long; from this Python's Unicode data, once it is needed."""
    ranges = list[list[int]]()
    for point in range(0x300, 0x110000):
        if not 0xD800 <= point < 0xE000 and unicodedata.combining(unicodedata.normalize("NFD", chr(point))[0]):
            if ranges and ranges[-1][1] == point - 1:
                ranges[-1][1] = point
            else:
                ranges.append([point, point])
    marks = "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)
    # One comparison excludes most text; to walk the ranges for each character takes ten times as long.
    return re.compile(f"(?=[{chr(ranges[0][0])}-{chr(ranges[-1][1])}])[{marks}]{{{MAX_MARKS + 1}}}")
