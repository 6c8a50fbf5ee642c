"""Our restricted profile against the RFC 8785 pairs: what it allows it encodes the same way, the rest it refuses."""

import json
from typing import Any

import pytest

from protocol.encoding import decode, encode
from protocol.errors import ProtocolError, UsageError

# Outside the profile: keys that are not printable ASCII (french, structures, weird) and floats (structures, values).
REFUSED = {"french", "structures", "values", "weird"}


def test_canonical_pairs(vectors):
    folder = vectors / "jcs" / "testdata"
    encoded, refused = set(), set()
    for path in sorted((folder / "input").glob("*.json")):
        value = json.loads(path.read_bytes())
        try:
            data = encode(value)
        except UsageError as error:
            assert error.code == "unencodable"
            refused.add(path.stem)
            continue
        assert data == (folder / "output" / path.name).read_bytes()
        assert data.hex() == "".join((folder / "outhex" / f"{path.stem}.txt").read_text().split())
        assert decode(data, Any, limit=len(data)) == value
        if data != path.read_bytes():
            with pytest.raises(ProtocolError):
                decode(path.read_bytes(), Any, limit=10_000)
        encoded.add(path.stem)
    assert refused == REFUSED
    assert encoded == {"arrays", "unicode"}
