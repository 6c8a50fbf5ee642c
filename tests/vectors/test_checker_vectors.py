"""The independent checker against the public vectors: signatures, trees, notes and envelopes of other people."""

import importlib.util
import json
from base64 import b64decode
from collections import Counter
from pathlib import Path
from typing import Any

CHECKER = Path(__file__).parents[2] / "spec" / "checker.py"
spec = importlib.util.spec_from_file_location("checker_alone", CHECKER)
assert spec is not None and spec.loader is not None
checker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(checker)


def outcome(call: str, *given: Any) -> str:
    def spelt(value: Any) -> Any:
        if isinstance(value, bytes):
            return "hex:" + value.hex()
        return [spelt(it) for it in value] if isinstance(value, list) else value

    return checker.outcome(call, [spelt(it) for it in given]).get("code", "ok")


def test_wycheproof(vectors: Path) -> None:
    outcomes: Counter[str] = Counter()
    for group in json.loads((vectors / "wycheproof" / "ed25519_test.json").read_bytes())["testGroups"]:
        for case in group["tests"]:
            given = [bytes.fromhex(text) for text in (group["publicKey"]["pk"], case["sig"], case["msg"])]
            found = outcome("signature", *given)
            assert found == {"valid": "ok", "invalid": "bad-signature"}[case["result"]], case
            outcomes[found] += 1
    assert outcomes == {"ok": 88, "bad-signature": 63}


def test_cctv_edge_cases(vectors: Path) -> None:
    outcomes: Counter[str] = Counter()
    for case in json.loads((vectors / "cctv-ed25519" / "ed25519vectors.json").read_bytes()):
        flags = set(case["flags"] or ())
        weak, wrong = flags & {"low_order_A", "non_canonical_A"}, flags & {"non_canonical_R", "low_order_residue"}
        found = outcome("signature", bytes.fromhex(case["key"]), bytes.fromhex(case["sig"]), case["msg"].encode())
        assert found == ("weak-key" if weak else "bad-signature" if wrong else "ok"), case
        outcomes[found] += 1
    assert outcomes == {"weak-key": 526, "bad-signature": 302, "ok": 86}


def test_public_keys_to_refuse(vectors: Path) -> None:
    data = json.loads((vectors / "cctv-ed25519" / "reject_public_keys.json").read_bytes())
    for text in data["low_order_public_keys_hex"] + data["non_canonical_public_keys_hex"]:
        assert outcome("signature", bytes.fromhex(text), bytes(64), b"") == "weak-key"


def test_proofs(vectors: Path) -> None:
    folder, wrong, seen = vectors / "transparency-dev-merkle" / "testdata", [], 0
    for path in [*sorted(folder.glob("inclusion/**/*.json")), *sorted(folder.glob("consistency/**/*.json"))]:
        case = json.loads(path.read_bytes())
        proof = [b64decode(it) for it in case["proof"] or []]
        if path.is_relative_to(folder / "inclusion"):
            leaf, root = b64decode(case["leafHash"]), b64decode(case["root"])
            found = outcome("inclusion", leaf, case["leafIdx"], case["treeSize"], proof, root)
        else:
            roots = [b64decode(case[name]) for name in ("root1", "root2")]
            found = outcome("consistency", case["size1"], case["size2"], *roots, proof)
        seen += 1
        if (found != "ok") != case["wantErr"]:
            wrong.append(path.relative_to(folder).as_posix())
    assert seen == 196
    # A tree of one leaf whose root is 12 bytes long: hashes have 32 bytes here.
    assert wrong == ["consistency/additional/sizes-are-equal-one-and-proof-is-empty.json"]


def test_notes(vectors: Path) -> None:
    data = json.loads((vectors / "golang-mod" / "signed_note.json").read_bytes())
    due = {
        "malformed": "note-malformed",
        "invalid-signature": "bad-signature",
        "unverified": "note-unsigned",
        "ok": "ok",
    }
    cases = data["open_cases_note_is_base64"]
    for case in cases:
        assert outcome("note", b64decode(case["note"]), case["verifiers"]) == due[case["expect"]], case["id"]
    assert len(cases) == 13
    for text in data["bad_vkeys"]:
        assert outcome("vkey", text) == "key-malformed"
    live = json.loads((vectors / "golang-mod" / "tlog_checkpoint_tiles.json").read_bytes())["sumdb_checkpoint"]
    assert outcome("head", live["note"].encode(), [live["vkey"]], "go.sum database tree") == "ok"


def test_envelopes(vectors: Path) -> None:
    data = json.loads((vectors / "dsse" / "vectors.json").read_bytes())
    for case in data["vectors"]:
        keys = [checker.Key(name, 1, bytes.fromhex(data["keys"][name]["public"]), b"") for name in case["trustedKeys"]]
        found = []
        for kind in case["supportedPayloadTypes"]:
            try:
                checker.open_envelope(json.dumps(case["envelope"]).encode(), keys, 10_000, case["threshold"], kind)
                found.append("ok")
            except checker.Failure as failure:
                found.append(failure.code)
        assert ("ok" in found) == (case["expect"] == "accept"), (case["id"], found)
    assert len(data["vectors"]) == 9
