"""The specification's promises: true examples and tables, sections that exist, fields that are those of the code."""

import base64
import importlib.util
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import msgspec
import pytest

from protocol import PROTOCOL_VERSION
from protocol import messages as m
from protocol.answer import Answer, Reply, SpanReply
from protocol.answering import check_answer
from protocol.certificate import CLAIMS, NOT_CLAIMED, Predicate, open_certificate
from protocol.corpus import CorpusClaim
from protocol.data_audit import DataAudit, open_audit
from protocol.encoding import MAX_INTEGER, Struct, decode, encode, f32
from protocol.errors import CODES
from protocol.exact_profile import ARITHMETICS, DEFINITION, ExactProfile
from protocol.keys import parse_vkey
from protocol.ledger_claim import LedgerClaim
from protocol.manifest import Manifest, ProgramClaim, parse_manifest
from protocol.native_profile import NativeProfile
from protocol.notes import open_cosignature
from protocol.opening import RecordsOpening, StateOpening
from protocol.operations import OperationProbe
from protocol.profile import Profile
from protocol.records import AfterManifest, Fingerprint, StepRecord
from protocol.required import CHECKS
from protocol.statetree import Entry
from protocol.verifying import VerifierSession
from witness.fsck import fsck
from witness.rundir import RunDir

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "spec"
EXAMPLE = SPEC / "example"
TEXTS = sorted(SPEC.rglob("*.md"))
NAMES = [path.relative_to(SPEC).as_posix() for path in TEXTS]
FORMATS = [name for name in NAMES if "/" not in name and name not in ("README.md", "glossary.md")]


def _examples() -> ModuleType:
    spec = importlib.util.spec_from_file_location("spec_examples", SPEC / "examples.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


examples = _examples()


def _text(name: str) -> str:
    return (SPEC / name).read_text()


def _sections(name: str) -> dict[int, str]:
    """Bodies of numbered sections."""
    parts = re.split(r"^## (\d+)\. .*$", _text(name), flags=re.MULTILINE)
    return {int(number): body for number, body in zip(parts[1::2], parts[2::2], strict=True)}


# -- examples -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", TEXTS, ids=NAMES)
def test_examples_and_tables_are_what_the_package_makes(path: Path) -> None:
    text = path.read_text()
    assert examples.updated(text) == text


def test_every_example_is_shown_once() -> None:
    shown = [name for path in TEXTS for name in re.findall(r"<!-- example: ([a-z0-9-]+) -->", path.read_text())]
    assert sorted(shown) == sorted(examples.BLOCKS)


def test_every_json_in_a_text_is_json() -> None:
    blocks = [block for path in TEXTS for block in re.findall(r"```json\n(.*?)```", path.read_text(), re.DOTALL)]
    assert len(blocks) > 20
    for block in blocks:
        for one in [block] if not block.startswith('{"') or block.count("\n{") == 0 else block.splitlines():
            json.loads(one)


def _shown(name: str, example: str) -> Any:
    found = re.search(rf"<!-- example: {example} -->\n```json\n(.*?)```", _text(name), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_what_is_shown_encodes_to_the_artefacts() -> None:
    """White space is all that the texts add."""
    log = f"file:{EXAMPLE / 'run/log.sqlite'}?immutable=1"  # else SQLite leaves files beside it
    with closing(sqlite3.connect(log, uri=True)) as opened:
        entries = [row[0] for row in opened.execute("SELECT entry FROM leaf ORDER BY id")]
    assert encode(_shown("manifest.md", "manifest")) == entries[0]
    assert encode(_shown("step-record.md", "step")) in entries
    listed = re.search(r"<!-- example: log -->\n```json\n(.*?)```", _text("log.md"), re.DOTALL)
    assert listed is not None and listed[1].encode().splitlines() == entries[1:]
    for name, example in (("certificate.md", "certificate"), ("data-audit.md", "audit")):
        payload = base64.b64decode(json.loads((EXAMPLE / f"{example}.json").read_bytes())["payload"])
        assert encode(_shown(name, example)) == payload
    native = json.loads((EXAMPLE / "native.json").read_bytes())
    assert _shown("profile.md", "native-profile") == native["profile"]
    assert _shown("profile.md", "operations") == native["operations"]


def test_the_artefacts_of_the_example_hold() -> None:
    report = fsck(RunDir(EXAMPLE / "run"))
    assert report.exit_status == 0 and not report.findings, report
    key = parse_vkey(_shown("keys.md", "keys")["vkey"])
    manifest = parse_manifest(encode(_shown("manifest.md", "manifest")))
    assert manifest.key == key.vkey
    evidence = open_certificate((EXAMPLE / "certificate.json").read_bytes())
    assert (evidence.verdict, evidence.missing, evidence.predicate.run) == ("reproduced", (), manifest.run_id.hex())
    audit = open_audit((EXAMPLE / "audit.json").read_bytes())
    assert (audit.predicate.verdict, audit.predicate.ledgers) == ("complete", manifest.ledgers)
    head = (EXAMPLE / "run/heads/000000000014.note").read_bytes()
    checked = check_answer((EXAMPLE / "answer.json").read_bytes(), head)
    assert [reply.result for reply in checked.replies] == ["included", "absent", "included", "absent"]
    cosigner = parse_vkey(_shown("keys.md", "keys")["vkey of a cosigner (type 4)"])
    assert open_cosignature((EXAMPLE / "cosigned.note").read_bytes(), cosigner).timestamp == 1_700_000_000
    native = json.loads((EXAMPLE / "native.json").read_bytes())
    profile = decode(encode(native["profile"]), Profile, limit=1 << 20)  # type: ignore[arg-type]
    assert isinstance(profile, NativeProfile)
    assert decode(encode(native["operations"]), OperationProbe, limit=1 << 20).operations


def test_the_session_of_the_example_is_one() -> None:
    """A verifier's end asks the recorded requests, accepts the recorded replies, and ends with the same challenges."""
    evidence = open_certificate((EXAMPLE / "certificate.json").read_bytes())
    session = VerifierSession(evidence.predicate.policy, bytes.fromhex(evidence.predicate.nonce))
    manifest: Manifest | None = None
    states: dict[int, StateOpening] = {}
    records: dict[int, RecordsOpening] = {}
    opened = 0
    for pair in json.loads((EXAMPLE / "session.json").read_bytes()):
        frame, reply = bytes.fromhex(pair["request"]), bytes.fromhex(pair["reply"])
        request = m.unpack_request(frame)
        if isinstance(request, m.Hello):
            assert session.hello() == frame
            session.welcome(reply)
        elif isinstance(request, m.GetHeads):
            assert session.take_heads(reply)
        elif isinstance(request, m.GetLeaves):
            assert session.take_leaves(reply) and manifest is not None
            session.begin(manifest)
        elif isinstance(request, m.GetLog):
            assert session.log_request() == frame
            if manifest is None:
                manifest = session.take_manifest(reply)
            else:
                assert session.take_log(reply)
        elif isinstance(request, m.GetPlaces):
            claim = next(one for one in session.audit.manifest.ledgers if one.tier == request.tier)  # type: ignore[union-attr]
            assert session.places_request(claim) == frame and session.take_places(claim, reply)
        elif isinstance(request, m.GetSource):
            assert session.take_source(request.path, reply)
        elif isinstance(request, m.Reveal):
            assert session.reveal_request(request.draws) == frame
            found = session.revealed(reply)
            listed = [(one.step, one.reason, one.order) for one in evidence.predicate.challenges]
            assert sorted((one.step, one.reason, one.order) for one in found) == sorted(listed)
        elif isinstance(request, m.OpenState):
            states[request.step] = session.opening(request.step)
            assert states[request.step].take_table(reply)
        elif isinstance(request, m.ReadPieces):
            _, last = states[request.step].take_pieces(reply)
            opened += last
        elif isinstance(request, m.OpenRecords):
            records[request.step] = session.records(request.step)
            assert records[request.step].take(reply)
        else:
            assert session.close_request() == frame
    assert opened >= 4 and set(records) == {1, 2, 3, 5, 6}


# -- constants and tables -----------------------------------------------------------------------------


def test_the_version_is_the_codes() -> None:
    assert re.findall(r"The version constant is `([^`]+)`", _text("README.md")) == [PROTOCOL_VERSION]
    assert f"`{PROTOCOL_VERSION}/` || domain" in _text("encoding.md")
    assert MAX_INTEGER == 2**53 - 1


def test_the_error_table_is_the_codes() -> None:
    rows = re.findall(
        r"^\| `([a-z0-9-]+)` \| ([a-z ]+) \| (\d+) \| (\d+) \| (.+) \|$", _text("errors.md"), re.MULTILINE
    )
    found = {code: (family, int(status), int(http), meaning) for code, family, status, http, meaning in rows}
    assert found == {code: (r.family, r.exit_status, r.http_status, r.meaning) for code, r in CODES.items()}
    families = re.findall(r"^\| ([a-z ]+) \| .* \| (\d+) \| [0-9, a-z]+ \|$", _sections("errors.md")[2], re.MULTILINE)
    assert {(r.family, r.exit_status) for r in CODES.values()} == {(name, int(status)) for name, status in families}


def test_the_words_of_a_certificate_are_the_codes() -> None:
    listed = re.findall(r"^\d+\. `([^`]+)`$", _sections("certificate.md")[6], re.MULTILINE)
    assert tuple(listed) == CLAIMS + NOT_CLAIMED


def test_the_checks_are_the_codes() -> None:
    rows = re.findall(r"^\| (\d+) \| `([a-z-]+)` \|", _sections("log.md")[3], re.MULTILINE)
    assert [name for _, name in rows] == list(CHECKS)
    assert [int(number) for number, _ in rows] == list(range(1, 13))


def test_domains_are_the_codes() -> None:
    used = set()
    for path in (ROOT / "protocol").glob("*.py"):
        used |= set(re.findall(r'tagged_(?:hash|preimage)\(\s*"([a-z/-]+)"', path.read_text()))
    assert set(re.findall(r"^\| `([a-z/-]+)` \|", _sections("encoding.md")[5], re.MULTILINE)) == used


def test_the_arithmetics_are_the_codes() -> None:
    assert f"the arithmetics {' and '.join(f'`{name}`' for name in ARITHMETICS)} of definition {DEFINITION}" in re.sub(
        r"\s+", " ", _text("profile.md")
    )


def _rows(body: str) -> list[str]:
    """Names in the first column of the tables of a section."""
    return [
        name
        for cell in re.findall(r"^\| ((?:`[a-zA-Z_]+`(?:, )?)+) \|", body, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", cell)
    ]


def _fields(kind: type[Struct]) -> set[str]:
    info = msgspec.structs.fields(kind)
    config = kind.__struct_config__
    return {field.encode_name for field in info} | ({config.tag_field} if config.tag_field is not None else set())


@pytest.mark.parametrize(
    ("name", "section", "kinds"),
    [
        ("state-root.md", 2, [Entry]),
        ("corpus.md", 3, [CorpusClaim]),
        ("ledger.md", 8, [LedgerClaim]),
        ("profile.md", 3, [NativeProfile]),
        ("profile.md", 4, [ExactProfile]),
        ("manifest.md", 2, [Manifest]),
        ("manifest.md", 3, [ProgramClaim]),
        ("step-record.md", 2, [StepRecord]),
        ("step-record.md", 4, [Fingerprint]),
        ("certificate.md", 2, [Predicate]),
        ("data-audit.md", 2, [DataAudit]),
    ],
)
def test_fields_are_the_codes(name: str, section: int, kinds: list[type[Struct]]) -> None:
    assert sorted(_rows(_sections(name)[section])) == sorted(set().union(*map(_fields, kinds)))


def test_fields_of_answers_are_the_codes() -> None:
    whole, digest, span = re.split(r"^A reply about .*$", _sections("answer.md")[2], flags=re.MULTILINE)
    assert sorted(_rows(whole)) == sorted(_fields(Answer))
    for table, kind in ((digest, Reply), (span, SpanReply)):
        assert sorted([*_rows(table), "question"]) == sorted(_fields(kind))


@pytest.mark.parametrize(("section", "union"), [(3, m.Request), (4, m.Reply)])
def test_messages_are_the_codes(section: int, union: Any) -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*?) \|", _sections("session.md")[section], re.MULTILINE)
    found = {kind: set(re.findall(r"`(\w+)`", cell)) for kind, cell in rows if kind != "type"}
    assert found == {kind.__struct_config__.tag: _fields(kind) - {"type"} for kind in get_args(union)}


def test_entries_of_the_log_are_the_codes() -> None:
    rows = re.findall(r"^\| `([a-z]+)` \| (.*?) \|", _sections("log.md")[2], re.MULTILINE)
    found = {kind: set(re.findall(r"`(\w+)`", cell)) for kind, cell in rows if kind not in ("type", "step")}
    kinds = [kind for kind in get_args(AfterManifest) if kind is not StepRecord]
    assert found == {kind.__struct_config__.tag: _fields(kind) - {"type"} for kind in kinds}


# -- anatomy and citations ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_anatomy(name: str) -> None:
    """Purpose, an example before any rule, what must not be trusted, and security, in this order."""
    headings = re.findall(r"^## (\d+)\. (.+)$", _text(name), re.MULTILINE)
    assert [int(number) for number, _ in headings] == list(range(1, len(headings) + 1))
    titles = [title for _, title in headings]
    assert titles[0] == "Example"
    assert titles[-2:] == ["What must not be trusted", "Security considerations"]
    purpose = _text(name).partition("\n## 1.")[0].splitlines()
    assert purpose[0].startswith("# ") and len("".join(purpose[1:])) > 80


@pytest.mark.parametrize("path", TEXTS, ids=NAMES)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("name", NAMES)
def test_sections_that_texts_cite_exist(name: str) -> None:
    text = re.sub(r"\s+", " ", _text(name))
    for target, number in re.findall(r"\]\(([a-z-]+\.md)\), section (\d+)", text):
        assert int(number) in _sections(target), (target, number)
    own = re.findall(r"(?<!\), )\bsections? (\d+)(?:(?: to | or | and )(\d+))?", text)
    numbers = [int(number) for pair in own for number in pair if number]
    if name not in ("README.md", *(n for n in NAMES if "/" in n)):
        outside = [int(n) for n in re.findall(r"RFC 4648, section (\d+)", text)]
        assert set(numbers) - set(outside) <= set(_sections(name)), numbers


def test_every_text_is_in_the_reading_order() -> None:
    listed = set(re.findall(r"^\| \[([a-z-]+\.md)\]", _text("README.md"), re.MULTILINE))
    assert listed == {name for name in NAMES if "/" not in name and name != "README.md"}
    decisions = set(re.findall(r"\]\((\d{4}-[a-z0-9-]+\.md)\)", _text("decisions/README.md")))
    assert decisions == {path.name for path in (SPEC / "decisions").glob("0*.md")}


@pytest.mark.parametrize("path", sorted((SPEC / "decisions").glob("0*.md")), ids=lambda path: path.stem)
def test_a_decision_names_its_costs(path: Path) -> None:
    text = path.read_text()
    assert text.startswith(f"# {path.name[:4]}: ")
    for part in ("**Context.**", "**Decision.**", "**Why.**", "**Negative consequences.**"):
        assert part in text
    assert len(text) < 4000


def test_sections_that_code_cites_exist() -> None:
    cited = 0
    for folder in ("protocol", "witness", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            text = re.sub(r"\s+", " ", path.read_text())
            for target, numbers in re.findall(r"spec/([a-z-]+\.md)((?:,? (?:sections? |to |and )?\d+)*)", text):
                assert (SPEC / target).exists(), (path, target)
                for number in re.findall(r"\d+", numbers):
                    assert int(number) in _sections(target), (path, target, number)
                cited += 1
    assert cited >= 40


def test_modules_of_the_protocol_cite_their_text() -> None:
    missing = [
        path.name
        for path in (ROOT / "protocol").glob("*.py")
        if path.name not in ("__init__.py", "answer_terms.py") and not re.search(r"spec/[a-z-]+\.md", path.read_text())
    ]
    assert missing == []


# -- exact arithmetic ---------------------------------------------------------------------------------


def test_what_is_written_of_exact_arithmetic_is_what_is_computed() -> None:
    """The text's own formulas in plain Python, against the package's arithmetic."""
    torch = pytest.importorskip("torch")
    from witness.arithmetic.generator import philox, sampling
    from witness.arithmetic.matrix import products
    from witness.arithmetic.summation import placing, sums

    generator = torch.Generator().manual_seed(5)
    left, right = (torch.randn(shape, generator=generator) * 10 for shape in ((3, 17), (17, 4)))
    left[1] *= 1e-30
    for bits in (14, 18):
        made = products.multiply(left, right, bits)
        assert made.tolist() == examples.exact_product(left.tolist(), right.tolist(), bits)
    for count in (1, 2, 3, 7, 64, 100):
        values = torch.randn(count, generator=generator) * 1e4
        assert sums.total(values).item() == examples.halving_sum(values.tolist())
        index = torch.zeros(count, dtype=torch.int64)
        assert placing.accumulate(1, index, values)[0].item() == examples.placed(values.tolist())
    device = torch.device("cpu")
    words = philox.unsigned(philox.words(examples.KEY, 11, device, attempt=3)).tolist()
    assert words == examples.philox(examples.KEY, 11, attempt=3)
    drawn = sampling.uniform(examples.KEY, 6, torch.float32, device).tolist()
    assert drawn == [(word >> 8) * 2.0**-24 for word in examples.philox(examples.KEY, 6)]
    shown = _shown("exact-arithmetic.md", "arithmetic")
    assert shown["A @ B, exact-14"] == [
        [f32(x) for x in row]
        for row in products.multiply(torch.tensor(examples.LEFT), torch.tensor(examples.RIGHT), 14).tolist()
    ]


def test_patterns_of_nan_are_the_codes() -> None:
    pytest.importorskip("torch")
    from witness.arithmetic.matrix import scaling

    listed = re.findall(r"`([0-9a-f]{2,16})` in\s(\w+)", _sections("exact-arithmetic.md")[2])
    quiet = {str(dtype).removeprefix("torch."): pattern for dtype, (_, pattern) in scaling._QUIET.items()}
    assert {name: int(pattern, 16) for pattern, name in listed} == quiet
