"""Do the package and the checker agree - on verdict, value and code - about artefacts that somebody altered?

    python spec/agree.py --count 20000 [--seed 0] [--only CALL]

The artefacts are the vectors, all of the example, and runs made by hand. Alterations are what hostile or broken hands
leave: bytes flipped, cut, added, moved; fields of JSON exchanged, removed, added and encoded canonically again;
envelopes, heads and logs signed again by the keys of the tests, so that what lies behind a signature is reached. Needs
no torch.
"""

import argparse
import base64
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SPEC = Path(__file__).resolve().parent
sys.path[:0] = [str(SPEC), str(SPEC.parent), str(SPEC.parent / "tests")]

import checker
import package_calls
from checker import Failure, canonical, origin_of, read_manifest, tagged

from protocol import dsse, merkle
from protocol.keys import SigningKey
from protocol.notes import Checkpoint, sign_head, sign_note

Case = tuple[str, list[Any]]
EXAMPLE = SPEC / "example"
IN_TOTO = "application/vnd.in-toto+json"


def key_named(name: str) -> SigningKey:
    """A key of the example, which everybody knows."""
    return SigningKey(name, sha256(b"training-witness example key " + name.encode()).digest())


def known_keys() -> dict[str, SigningKey]:
    """The keys that alterations may be signed with, by their texts."""
    keys = [key_named(f"{role}.example") for role in ("trainer", "verifier", "auditor")]
    keys.append(SigningKey("trainer.example", bytes(range(1, 33))))  # of `tests/made_run.py`
    return {key.public.vkey: key for key in keys}


KEYS = known_keys()


def spelt(data: bytes) -> str:
    """Bytes as vectors spell them: text as it is, everything else in hexadecimal."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "hex:" + data.hex()
    return "raw:" + text if len(text) > 8 and (text.isprintable() or "\n" in text) else "hex:" + data.hex()


def raw(text: str) -> bytes:
    """Bytes of a vector."""
    return bytes.fromhex(text[4:]) if text.startswith("hex:") else text[4:].encode()


# -- where alterations begin --------------------------------------------------------------------------


def log_case(path: Path, outliers: int = 2) -> Case:
    """The call about the log of a run's folder."""
    entries = [entry for entry, _ in checker.read_database(path / "log.sqlite")]
    notes = [one.read_bytes() for one in sorted((path / "heads").iterdir())]
    kept = [i for i, entry in enumerate(entries) if b'"type":"checkpoint"' in entry]
    if len(kept) == 1:  # made by hand, without the event that its last step owes
        last = max(i for i, entry in enumerate(entries) if b'"type":"step"' in entry)
        root, step = (json.loads(entries[last])[name] for name in ("state_root", "step"))
        entries.insert(last + 1, canonical({"state_root": root, "step": step, "type": "checkpoint"}))
        notes = heads_again(entries, [1, 2, kept[0] + 1], KEYS[json.loads(entries[0])["key"]])
    leaves = (path / "corpus/leaves").read_bytes()
    return "log", [[spelt(entry) for entry in entries], spelt(leaves), [spelt(note) for note in notes], outliers]


def folder_cases(path: Path) -> Iterator[Case]:
    """Every call that a run's folder has something for."""
    _, given = log = log_case(path)
    yield log
    entries, leaves, notes, _ = given
    manifest = read_manifest(raw(entries[0]))
    yield from [("manifest", [entries[0]]), *(("entry", [entry]) for entry in entries[1:])]
    yield from (("head", [note, [manifest["key"]], None]) for note in notes)
    yield from [("corpus", [manifest["corpus"], leaves]), ("records", [manifest["corpus"], leaves, 1, [0]])]
    for claim in manifest["ledgers"]:
        yield "claim", [spelt(canonical(claim))]
        if (path / f"corpus/{claim['tier']}.places").exists():
            yield "places", [spelt((path / f"corpus/{claim['tier']}.places").read_bytes()), claim]


def example_cases() -> Iterator[Case]:
    """Calls about the example."""
    yield from folder_cases(EXAMPLE / "run")
    certificate, audit, answer = (
        spelt((EXAMPLE / f"{it}.json").read_bytes()) for it in ("certificate", "audit", "answer")
    )
    head = log_case(EXAMPLE / "run")[1][2][-1]
    vkeys = [key.public.vkey for key in KEYS.values()]
    yield from [("certificate", [certificate, []]), ("certificate", [certificate, vkeys[:3]])]
    yield from [
        ("certificates", [[certificate, certificate], []]),
        ("audit", [audit, []]),
        ("audit", [audit, vkeys[1:3]]),
    ]
    yield from [("answer", [answer, head, []]), ("answer", [answer, head, vkeys[1:3]])]
    yield (
        "note",
        [spelt((EXAMPLE / "cosigned.note").read_bytes()), [vkeys[0], key_named("cosigner.example").cosigner.vkey]],
    )
    yield "envelope", [audit, vkeys[2:3], 1 << 18, 1, IN_TOTO]


def made_cases(folder: Path) -> Iterator[Case]:
    """Calls about runs made by hand, over documents of several pieces and of two widths of tokens."""
    from made_run import SPANS, made_run

    from protocol.corpus import Packing
    from witness.query import Answerer

    texts = [b"document %d says that %d is not %d. " % (i, i, i + 1) * 4 for i in range(9)] + [b"twice" * 2000] * 2
    for name, packing in (("whole", Packing("documents")), ("windows", Packing("windows", 64, 48))):
        run = made_run(folder / name, texts, packing=packing, steps=6, final=name == "whole", faults=2)
        yield from folder_cases(run.path)
        keeper = Answerer(run)
        digests = [("t0-sha256", sha256(text).digest()) for text in (texts[3], texts[-1], b"other")]
        answers = [keeper.digests(digests), keeper.spans(SPANS, [texts[5][7:107], texts[-1][4000:4500], bytes(99)])]
        yield from (("answer", [spelt(it.to_bytes()), spelt(keeper.head), []]) for it in answers)
    tokens = [b"%04d" % i * 40 for i in range(6)]
    yield from folder_cases(
        made_run(folder / "tokens", tokens, packing=Packing("windows", 7, 5), steps=4, tokens="uint16").path
    )


def vector_cases(folder: Path = SPEC / "vectors") -> Iterator[Case]:
    """The vectors."""
    for path in sorted(folder.glob("*.json")):
        yield from ((case["call"], case["given"]) for case in json.loads(path.read_bytes())["cases"])


# -- alterations --------------------------------------------------------------------------------------


def altered_bytes(data: bytes, rng: random.Random) -> bytes:
    """One alteration of bytes."""
    at = rng.randrange(len(data) + 1)
    stop = min(len(data), at + rng.choice([1, 1, 2, 32, 64]))
    match rng.randrange(7 if data else 2):
        case 0:
            return data[:at] + rng.randbytes(rng.choice([1, 1, 2, 32])) + data[at:]
        case 1:
            return data + rng.choice([b"\n", b"\0", b" ", data[-32:]])
        case 2:
            return data[:at]
        case 3:
            return data[:at] + data[stop:]
        case 4:
            return data[:at] + data[at:stop] * 2 + data[stop:]
        case _:
            at = min(at, len(data) - 1)
            return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield from nodes(item, (*path, name))


def at_path(value: Any, path: tuple[Any, ...]) -> Any:
    """What is there."""
    for name in path:
        value = value[name]
    return value


def placed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with something else there."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = placed(value[path[0]], path[1:], new)
    return copy


POOL = [
    None,
    True,
    False,
    0,
    1,
    2,
    -1,
    2**53 - 1,
    2**40,
    "",
    "x",
    "\u00e9",
    "0" * 64,
    [],
    {},
    [[]],
    {"": 0},
    "y" * 5000,
    1 - 2**53,
]


def altered_text(text: str, rng: random.Random) -> str:
    """Another string, close to this one."""
    at = rng.randrange(len(text) + 1)
    digits = [c for c in "0123456789abcdef" if c != text[at : at + 1]]
    return rng.choice(
        [
            text[:at] + rng.choice(digits) + text[at + 1 :],
            text[:at] + rng.choice(digits) + text[at + 1 :],
            text[:at] + text[at + 1 :],
            text[:at] + rng.choice("0a+/=-\u00e9\n ~") + text[at:],
            text.upper(),
            text + text[-1:],
        ]
    )


WORDS = [
    ["reproduced", "diverged", "incomplete"],
    ["included", "possible", "absent"],
    ["complete", "differs"],
    ["own", "registered"],
    ["native", "exact"],
    ["bytes", "uint16", "uint32"],
]


def well_typed(old: Any, like: list[Any], rng: random.Random) -> Any:
    """Another value that its field could have."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return max(0, old + rng.choice([-2, -1, 1, 2, 7]))
    if isinstance(old, str):
        words = [word for group in WORDS if old in group for word in group]
        digits = old and set(old) <= set("0123456789abcdef")
        at = rng.randrange(len(old)) if old else 0
        turned = (
            old[:at] + f"{int(old[at], 16) ^ 1 << rng.randrange(4):x}" + old[at + 1 :]
            if digits
            else altered_text(old, rng)
        )
        return rng.choice(words or like or [turned]) if rng.random() < 0.6 else turned
    if isinstance(old, list) and old:
        i, j = rng.randrange(len(old)), rng.randrange(len(old))
        return rng.choice(
            [old[:i] + old[i + 1 :], old[: i + 1] + old[i:], [*old[:i], old[j], *old[i + 1 :]], old[::-1], old[:i]]
        )
    return rng.choice(like) if like else old


def altered_value(value: Any, rng: random.Random) -> Any:
    """One alteration of a JSON value, somewhere in it."""
    paths = list(nodes(value))
    path = rng.choice(paths)
    old = at_path(value, path)
    kind = rng.randrange(8)
    if len(paths) > 1 and rng.random() < 0.6:
        # Names repeat along a branch as often as its arrays are long: what stands deeper would hide what stands above.
        depth = rng.randrange(1, 1 + max(map(len, paths)))
        path = rng.choice([it for it in paths if len(it) == depth] or paths)
        old = at_path(value, path)
        like = [
            at_path(value, it) for it in paths if it[-1:] == path[-1:] or (isinstance(old, dict) and len(it) == depth)
        ]
        like = [it for it in like if type(it) is type(old) and it != old]
        return placed(value, path, well_typed(old, like, rng))
    if kind == 0:
        return placed(value, path, rng.choice(POOL))
    if kind == 1:
        return placed(value, path, at_path(value, rng.choice(paths)))
    if isinstance(old, bool | float) or old is None:
        return placed(value, path, rng.choice([True, False, None, 0]))
    if isinstance(old, int):
        return placed(value, path, rng.choice([old + 1, old - 1, 2 * old, 0, 1, -old, old + 2**32, 2**53 - 1]))
    if isinstance(old, str):
        same = [at_path(value, it) for it in paths]
        like = [it for it in same if isinstance(it, str) and len(it) == len(old) and it != old]
        return placed(value, path, rng.choice(like) if like and kind < 4 else altered_text(old, rng))
    if isinstance(old, list):
        i, j = (rng.randrange(len(old)) if old else 0 for _ in "ij")
        swapped = list(old)
        if old:
            swapped[i], swapped[j] = old[j], old[i]
        return placed(
            value, path, rng.choice([old[:i] + old[i + 1 :], old[: i + 1] + old[i:], swapped, old[::-1], old[:i]])
        )
    names = sorted(old)
    if not names:
        return placed(value, path, {"x": 1})
    name, other = rng.choice(names), rng.choice(names)
    rest = {key: item for key, item in old.items() if key != name}
    new = rng.choice([rest, old | {"x": 1}, old | {name: old[other], other: old[name]}, rest | {name + "s": old[name]}])
    return placed(value, path, new)


def envelope_of(payload: bytes, signers: Sequence[SigningKey]) -> bytes:
    """An envelope."""
    return dsse.sign(IN_TOTO, payload, list(signers))


def payload_of(envelope: bytes) -> Any:
    """The statement in an envelope."""
    return json.loads(base64.b64decode(json.loads(envelope)["payload"]))


def signer_of(statement: Any) -> list[SigningKey]:
    """The key that a statement names, if it is one of ours; else another one of ours."""
    predicate = statement.get("predicate") if isinstance(statement, dict) else None
    predicate = predicate if isinstance(predicate, dict) else {}
    named = predicate.get("verifier", predicate.get("auditor"))
    return [KEYS.get(named) or key_named("verifier.example")] if isinstance(named, str) else [*KEYS.values()][:1]


def bound_again(predicate: dict[str, Any]) -> None:
    """Signs a certificate's session statement again, over what it now says."""
    try:
        body = predicate["head"].split("\n\n")[0] + "\n"
        digests = [sha256(it).hexdigest() for it in (canonical(predicate["policy"]), body.encode())]
        lines = [f"{checker.VERSION}/session", predicate["session"], predicate["commitment"], *digests]
        key = KEYS[predicate["trainer"]]
        predicate["statement"] = sign_note("".join(f"{line}\n" for line in lines), key).decode()
    except (KeyError, TypeError, AttributeError, ValueError, package_calls.WitnessError):
        return


def altered_statement(data: bytes, rng: random.Random) -> bytes:
    """Another certificate or audit, signed."""
    statement = payload_of(data)
    for _ in range(rng.choice([1, 1, 1, 2])):
        if rng.random() < 0.8 and isinstance(statement, dict) and isinstance(statement.get("predicate"), dict):
            statement["predicate"] = altered_value(statement["predicate"], rng)
        else:
            statement = altered_value(statement, rng)
    predicate = statement.get("predicate") if isinstance(statement, dict) else None
    if isinstance(predicate, dict):
        if rng.random() < 0.5:
            bound_again(predicate)
        if rng.random() < 0.3 and "commitment" in predicate and isinstance(predicate.get("nonce"), str):
            predicate["statement"] = None
        if rng.random() < 0.7 and "final_state_root" in predicate and "run" in predicate:
            statement["subject"] = [
                {"digest": {"sha256": predicate["final_state_root"]}, "name": f"training run {predicate['run']}"}
            ]
        if rng.random() < 0.3 and "verdict" in predicate and "checks" in predicate:
            predicate["verdict"] = rng.choice(checker.RANK)
    return envelope_of(encoded(statement), signer_of(statement))


def encoded(value: Any) -> bytes:
    """Canonical JSON, or for what has none something close to it."""
    try:
        return canonical(value)
    except ValueError:
        return json.dumps(value).encode()


def heads_again(entries: list[bytes], sizes: Sequence[int], key: SigningKey) -> list[bytes]:
    """Heads over entries, signed."""
    tree = merkle.Tree([merkle.leaf_hash(entry) for entry in entries])
    origin = origin_of(tagged("run", entries[0]).hex())
    sizes = sorted({min(size, len(entries)) for size in sizes} | {len(entries)})
    return [sign_head(Checkpoint(origin, size, tree.root(size)), key) for size in sizes]


def altered_log(given: list[Any], rng: random.Random) -> list[Any]:
    """Another log, with heads over what it now holds."""
    entries, leaves, notes, outliers = [raw(it) for it in given[0]], raw(given[1]), given[2], given[3]
    sizes = [int(raw(note).split(b"\n")[1]) for note in notes]
    key = KEYS.get(json.loads(entries[0])["key"])
    for _ in range(rng.choice([1, 1, 1, 2])):
        i, j = rng.randrange(len(entries)), rng.randrange(len(entries))
        match rng.randrange(12):
            case 0:
                del entries[max(1, i) :]
            case 1:
                del entries[i]
            case 2:
                entries.insert(i, entries[j])
            case 3:
                entries[i], entries[j] = entries[j], entries[i]
            case 4:
                leaves = altered_bytes(leaves, rng)
            case 5:
                entries[i] = altered_bytes(entries[i], rng)
            case 6:
                return [given[0], given[1], altered_list(notes, rng) or notes, outliers]
            case 7:
                entries[0] = encoded(altered_value(json.loads(entries[0]), rng))
            case 8:
                event = rng.choice(EVENTS) | {}
                event |= {name: rng.randrange(8) for name in ("step", "steps", "checkpoint") if name in event}
                entries.insert(i, canonical(event))
            case _:
                entries[i] = encoded(altered_value(json.loads(entries[i]), rng))
        if not entries:
            return given
        try:
            [json.loads(entry) for entry in entries]
        except ValueError:
            break
    if key is not None and rng.random() < 0.95:
        notes = [spelt(note) for note in heads_again(entries, sizes, key)]
    return [[spelt(entry) for entry in entries], spelt(leaves), notes, rng.choice([0, 1, 2, outliers])]


EVENTS: list[dict[str, Any]] = [
    {"type": "resume", "step": 0, "checkpoint": 0},
    {"type": "fault", "step": 0, "note": ""},
    {"type": "checkpoint", "step": 0, "state_root": "33" * 32},
    {"type": "final", "steps": 0, "state_root": "33" * 32, "released": "55" * 32},
    {"type": "init", "state_root": "44" * 32},
]


def altered_list(items: list[Any], rng: random.Random) -> list[Any]:
    """Another list of vectors' values."""
    if not items:
        return items
    i = rng.randrange(len(items))
    return rng.choice([items[:i] + items[i + 1 :], items[::-1], placed(items, (i,), altered_argument(items[i], rng))])


def altered_argument(value: Any, rng: random.Random) -> Any:
    """Another value of the same type, as the calls demand it."""
    if isinstance(value, str) and value.startswith(("hex:", "raw:")):
        data = raw(value)
        if data[:1] in (b"{", b"[") and rng.random() < 0.6:
            try:
                return spelt(encoded(altered_value(json.loads(data), rng)))
            except (ValueError, RecursionError):
                pass
        return spelt(altered_bytes(data, rng))
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return max(0, rng.choice([value + 1, value - 1, 2 * value, value // 2, 0, 1]))
    if isinstance(value, str):
        return altered_text(value, rng)
    if isinstance(value, list):
        return altered_list(value, rng)
    return altered_value(value, rng)


def flipped(value: Any, rng: random.Random) -> Any:
    """Another value of the same form, for calls whose arguments are their caller's and no format's."""
    if isinstance(value, str) and value.startswith(("hex:", "raw:")):
        data = bytearray(raw(value))
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return spelt(bytes(data))
    if isinstance(value, list) and value:
        return placed(value, (i := rng.randrange(len(value)),), flipped(value[i], rng))
    return rng.randrange(1, 2 * value + 2) if isinstance(value, int) and value < 1 << 20 else value


RIGID = {"draw", "epoch", "ledger-key", "merkle-root", "probe", "samples", "session-seed", "state-root", "tagged-hash"}
RIGID_FROM = {"ledger-proof": 3, "piece": 1}  # arguments before this one are the caller's


def altered_answer(given: list[Any], rng: random.Random) -> list[Any]:
    """Another answer; most alterations are of what it replies."""
    value = json.loads(raw(given[0]))
    part = rng.choice(["replies", "replies", "replies", "records", "tail", None])
    for _ in range(rng.choice([1, 1, 2])):
        if part and value[part]:
            i = rng.randrange(len(value[part]))
            value[part][i] = altered_value(value[part][i], rng)
        else:
            value = altered_value(value, rng)
    return [spelt(encoded(value)), *given[1:]]


def altered_note(given: list[Any], rng: random.Random) -> list[Any]:
    """A note with another text, signed again."""
    key = next((KEYS[vkey] for vkey in given[1] if vkey in KEYS), None)
    try:
        text = altered_text(raw(given[0]).decode().rpartition("\n\n")[0] + "\n", rng)
        return [spelt(sign_note(text, key)), *given[1:]] if key else given
    except (ValueError, package_calls.WitnessError):
        return given


BEHIND_SIGNATURES: dict[str, Callable[[list[Any], random.Random], list[Any]]] = {
    "log": altered_log,
    "note": altered_note,
    "head": altered_note,
    "certificate": lambda given, rng: [spelt(altered_statement(raw(given[0]), rng)), given[1]],
    "audit": lambda given, rng: [spelt(altered_statement(raw(given[0]), rng)), given[1]],
    "certificates": lambda given, rng: [[spelt(altered_statement(raw(it), rng)) for it in given[0]], given[1]],
    "answer": altered_answer,
}


def altered(case: Case, rng: random.Random) -> Case:
    """Another case of the same call."""
    call, given = case
    if call in BEHIND_SIGNATURES and rng.random() < 0.75:
        try:
            return call, BEHIND_SIGNATURES[call](given, rng)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            pass  # what is altered is no longer of its kind
    places = [i for i, it in enumerate(given) if not isinstance(it, bool) and it is not None]
    i = rng.choice(places)
    rigid = call in RIGID or i < RIGID_FROM.get(call, 0)
    new = placed(given, (i,), (flipped if rigid else altered_argument)(given[i], rng))
    empty = call in ("log", "certificates") and not all(it or it == 0 for it in new[:3:2])
    return call, given if empty else new


# -- the comparison -----------------------------------------------------------------------------------


def compared(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the checker and the package say. An error that no side foresaw is an answer too, and never agrees."""
    answers = []
    for side in (checker.outcome, package_calls.outcome):
        try:
            answers.append(side(case[0], case[1]))
        except Failure as failure:
            answers.append({"code": failure.code})
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            answers.append({"raised": f"{type(error).__name__}: {error}"[:300]})
    return answers[0], answers[1]


def agree(call: str, left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Whether two answers are one.

    In an answer about documents a reader may look at digits where it uses them: `answer.md`, section 3.
    """
    late = call == "answer" and left.get("code") == "not-canonical" and "code" in right
    return "raised" not in left and (left == right or late)


def run(count: int, seed: int, cases: Sequence[Case], report: Callable[[Case, Any, Any], None]) -> Counter[str]:
    """Compares so many altered cases; the calls are drawn alike, however many cases each has.

    Returns:
        How many of each call, and under `codes` how many outcomes there were.
    """
    rng = random.Random(seed)  # noqa: S311 - a seed that can be told
    by_call: dict[str, list[Case]] = {}
    for case in cases:
        if case[0] not in ("ledger-value", "spans"):  # of which every alteration is a caller's mistake
            by_call.setdefault(case[0], []).append(case)
    weights = [3 if call in ("log", "certificate", "answer") else 1 for call in by_call]
    seen: Counter[str] = Counter()
    for _ in range(count):
        call = rng.choices(list(by_call), weights)[0]
        case = altered(rng.choice(by_call[call]), rng)
        while rng.random() < 0.15:
            case = altered(case, rng)
        left, right = compared(case)
        seen[f"{call}: {left.get('code', 'accepted')}"] += 1
        if not agree(call, left, right):
            report(case, left, right)
    return seen


def main() -> int:
    """Runs the comparison and prints what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one call")
    parser.add_argument("--write", type=Path, help="where cases that differ are written, one a line")
    given = parser.parse_args()
    differing: list[Any] = []

    def report(case: Case, left: Any, right: Any) -> None:
        differing.append({"case": case, "checker": left, "package": right})
        print(f"{case[0]}: checker {json.dumps(left)[:160]}, package {json.dumps(right)[:160]}", flush=True)

    started = time.monotonic()
    with TemporaryDirectory() as folder:
        cases = [*vector_cases(), *example_cases(), *made_cases(Path(folder))]
        cases = [case for case in cases if given.only in (None, case[0])]
        whole = [case for case in cases if not agree(case[0], *compared(case))]
        for case in whole:
            report(case, *compared(case))
        seen = run(given.count, given.seed, cases, report)
    if given.write:
        given.write.write_text("".join(json.dumps(it) + "\n" for it in differing))
    took = time.monotonic() - started
    codes = {name.split(": ")[1] for name in seen}
    print(f"{len(cases)} artefacts and {given.count} alterations of them in {took:.0f} s: {len(differing)} differ")
    print(f"{sum(n for name, n in seen.items() if name.endswith(': accepted'))} accepted; {len(codes) - 1} codes")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
