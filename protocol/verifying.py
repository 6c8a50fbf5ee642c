"""The verifier's end of a session: makes requests, and checks every reply against what was committed.

Specified in spec/session.md, section 5.
"""

from __future__ import annotations

from collections.abc import Callable

from protocol import checks
from protocol import messages as m
from protocol.binding import check_statement
from protocol.corpus import LEAF_BYTES, MAX_DOCUMENTS, Documents, parse_leaves
from protocol.encoding import encode
from protocol.errors import IncompleteError, ProtocolError, VerificationError
from protocol.keys import parse_vkey
from protocol.ledger_claim import LedgerClaim
from protocol.manifest import Manifest, check_source, parse_manifest
from protocol.notes import Checkpoint, open_head, parse_checkpoint, parse_note
from protocol.opening import RecordsOpening, StateOpening, expect
from protocol.places import PLACE_BYTES, Places
from protocol.randomness import commit_nonce, session_seed
from protocol.session import Challenge, challenges

MAX_HEADS, MAX_HEAD_BYTES = 1 << 20, 1 << 28

MAX_LISTED = 1 << 24
"""Places of a ledger that a verifier fetches (600 MB)."""


class VerifierSession:
    """The verifier's end: makes requests, checks every reply against what was committed.

    Each `..._request` gives a frame to send; the method named beside it takes the reply and returns True (or the thing)
    when its part is complete, False to be asked again.

    Args:
        policy: what will be demanded.
        nonce: 32 fresh random bytes, secret until `reveal_request`.
        held: whether the run directory is in the verifier's own hands, so that no signed statement is owed.
    """

    def __init__(self, policy: m.Policy, nonce: bytes, *, held: bool = False) -> None:
        self.policy, self._nonce, self.held = policy, nonce, held
        self.commitment = commit_nonce(nonce)
        self.id = ""
        self.head_note = ""
        self.statement: str | None = None
        self.head: Checkpoint | None = None
        self.heads: list[str] = []
        self._head_bytes = 0
        self.audit: checks.LogAudit | None = None
        self.draws = 0
        self.places: dict[str, Places] = {}
        """Checked lists of ledgers, by tier."""
        self._parts = bytearray()
        self.challenges: list[Challenge] | None = None
        self.spool: Callable[[bytes], object] | None = None
        """Takes every log entry as it passes its checks, for whoever needs records again."""
        self._leaves = bytearray()
        self._manifest: Manifest | None = None

    def hello(self) -> bytes:
        """The opening request."""
        return m.pack(m.Hello(self.policy, self.commitment.hex()))

    def welcome(self, reply: bytes) -> None:
        """Takes the binding; its signatures are checked as soon as the manifest names the key (`begin`).

        Raises:
            VerificationError: `refused`, `statement-missing`.
        """
        welcome, _ = expect(reply, m.Welcome)
        if welcome.statement is None and not self.held:
            raise VerificationError("statement-missing", "the prover does not bind itself to a head by signature")
        self.id, self.head_note, self.statement = welcome.session, welcome.head, welcome.statement
        self.head = parse_checkpoint(parse_note(welcome.head.encode()).text.encode())
        if not 1 <= self.head.size <= MAX_HEADS * 1024:
            raise ProtocolError("head-malformed", f"a head over {self.head.size} entries")

    def heads_request(self) -> bytes:
        """Asks for signed heads."""
        return m.pack(m.GetHeads(self._bound(), len(self.heads)))

    def take_heads(self, reply: bytes) -> bool:
        """Collects signed heads; True when all are there."""
        heads, _ = expect(reply, m.Heads)
        if heads.first != len(self.heads) or heads.total > MAX_HEADS or (not heads.notes and heads.total > heads.first):
            raise ProtocolError("frame", "the list of heads does not go on where it stopped")
        self._head_bytes += sum(map(len, heads.notes))
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ProtocolError("too-large", f"more than {MAX_HEAD_BYTES} bytes of signed heads")
        self.heads += heads.notes
        return len(self.heads) >= heads.total

    def leaves_request(self) -> bytes:
        """Asks for corpus leaves."""
        return m.pack(m.GetLeaves(self._bound(), len(self._leaves) // LEAF_BYTES))

    def take_leaves(self, reply: bytes) -> bool:
        """Collects corpus leaves; True when all are there."""
        part, payload = expect(reply, m.Part)
        leaves, known = parse_leaves(payload), len(self._leaves) // LEAF_BYTES
        if part.first != known or part.total > MAX_DOCUMENTS or (not leaves and part.total > part.first):
            raise ProtocolError("frame", "the list of corpus leaves does not go on where it stopped")
        self._leaves += payload
        return known + len(leaves) >= part.total

    def log_request(self) -> bytes:
        """Asks for log entries: the manifest first, then, after `begin`, the rest."""
        return m.pack(m.GetLog(self._bound(), self.audit.size if self.audit else 0))

    def take_manifest(self, reply: bytes) -> Manifest:
        """Reads entry 0 alone, and checks the signatures of head and statement with the key it names.

        Raises:
            VerificationError: `bad-signature`, `note-unsigned`, `head-origin`, `statement`.
        """
        _, payload = expect(reply, m.Part)
        entries = m.split_entries(payload)
        if not entries:
            raise ProtocolError("log-empty", "the log holds no manifest")
        manifest = parse_manifest(entries[0])
        key = parse_vkey(manifest.key)
        open_head(self.head_note.encode(), [key], manifest.origin)
        if self.statement is not None:
            check_statement(self.statement, key, self.id, self.policy, self.commitment.hex(), self._signed_head())
        return manifest

    def begin(self, manifest: Manifest) -> None:
        """Starts the audit once leaves and heads are there."""
        key = parse_vkey(manifest.key)
        self._manifest = manifest
        self.audit = checks.LogAudit(
            Documents(parse_leaves(bytes(self._leaves)), manifest.corpus.packing, manifest.corpus.tokenizer)
        )
        self.audit.watch(open_head(note.encode(), [key], manifest.origin) for note in [*self.heads, self.head_note])

    def take_log(self, reply: bytes) -> bool:
        """Runs checks 1 to 10 on the entries that came; True when the log is complete and all of them hold."""
        if self.audit is None or self.head is None:
            raise RuntimeError("begin() comes first")
        part, payload = expect(reply, m.Part)
        entries = m.split_entries(payload)
        if part.first != self.audit.size or not entries or self.audit.size + len(entries) > self.head.size:
            raise ProtocolError("frame", "the log does not go on where it stopped")
        for entry in entries:
            self.audit.read(entry)
            if self.audit.size == 1 and self.audit.manifest != self._manifest:
                raise ProtocolError("manifest", "the prover showed two manifests")
            if self.spool is not None:
                self.spool(entry)
        if self.audit.size < self.head.size:
            return False
        self.audit.finish(self.head)
        return True

    def places_request(self, claim: LedgerClaim) -> bytes:
        """Asks for the list behind a ledger.

        Raises:
            IncompleteError: `ledger-too-long`.
        """
        self._require_listed(claim, claim.entries)
        return m.pack(m.GetPlaces(self._bound(), claim.tier, len(self._parts) // PLACE_BYTES))

    def take_places(self, claim: LedgerClaim, reply: bytes) -> bool:
        """Collects the list behind a ledger; True when it is there, whole, and has the committed root.

        Raises:
            ProtocolError: `frame`, `places`.
            VerificationError: `ledger-root`, `ledger-documents`.
            IncompleteError: `ledger-too-long`: in a tier of spans a key can have any number of places.
        """
        part, payload = expect(reply, m.Part)
        if not claim.of_spans and part.total > claim.documents:
            raise VerificationError(
                "ledger-documents", f"{claim.tier} lists {part.total} places, for {claim.documents} documents"
            )
        self._require_listed(claim, part.total)
        if part.first * PLACE_BYTES != len(self._parts) or (not payload and part.total > part.first):
            raise ProtocolError("frame", "a list of places does not go on where it stopped")
        self._parts += payload
        if len(self._parts) < part.total * PLACE_BYTES:
            return False
        self.hold_places(claim, Places(bytes(self._parts)))
        self._parts.clear()
        return True

    def _require_listed(self, claim: LedgerClaim, count: int) -> None:
        if count > MAX_LISTED:
            raise IncompleteError(
                "ledger-too-long", f"the ledger {claim.tier} lists {count} places or more; {MAX_LISTED} are read"
            )

    def hold_places(self, claim: LedgerClaim, places: Places) -> None:
        """Keeps a list once it is checked against its claim."""
        places.check(claim)
        self.places[claim.tier] = places

    def source_request(self, path: str) -> bytes:
        """Asks for one source file."""
        return m.pack(m.GetSource(self._bound(), path))

    def take_source(self, path: str, reply: bytes) -> bytes:
        """The file, checked against the manifest."""
        if self.audit is None:
            raise RuntimeError("begin() comes first")
        _, data = expect(reply, m.Part)
        check_source(self.audit.manifest.program, path, data)
        return data

    def reveal_request(self, draws: int) -> bytes:
        """Shows the nonce and fixes the number of uniform draws; the challenges are known from here on."""
        self.draws = draws
        return m.pack(m.Reveal(self._bound(), self._nonce.hex(), draws))

    def revealed(self, reply: bytes) -> list[Challenge]:
        """Derives the challenges."""
        expect(reply, m.Done)
        return self.derive()

    def derive(self) -> list[Challenge]:
        """The challenges that nonce, head and policy mean."""
        if self.audit is None:
            raise RuntimeError("begin() comes first")
        seed = session_seed(
            session=bytes.fromhex(self.id),
            policy=encode(self.policy),
            commitment=self.commitment,
            head=self._signed_head(),
            nonce=self._nonce,
        )
        self.challenges = challenges(self.audit, self.policy, seed, self.draws)
        return self.challenges

    @property
    def nonce(self) -> bytes:
        """The nonce, once it was revealed.

        Raises:
            RuntimeError: before that.
        """
        if self.challenges is None:
            raise RuntimeError("the nonce is secret until it is revealed")
        return self._nonce

    def close_request(self) -> bytes:
        """Says goodbye."""
        return m.pack(m.Close(self._bound()))

    def _bound(self) -> str:
        if not self.id:
            raise RuntimeError("welcome() comes first")
        return self.id

    def _signed_head(self) -> bytes:
        if self.head is None:
            raise RuntimeError("welcome() comes first")
        return self.head.body()

    def opening(self, step: int) -> StateOpening:
        """Starts opening the state after `step`."""
        if self.audit is None or self.challenges is None:
            raise RuntimeError("reveal comes first")
        return StateOpening(self._bound(), step, self.audit)

    def records(self, step: int) -> RecordsOpening:
        """Starts opening the records of `step`."""
        if self.audit is None or self.challenges is None:
            raise RuntimeError("reveal comes first")
        return RecordsOpening(self._bound(), step, self.audit)
