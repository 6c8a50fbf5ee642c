"""Drive a session from the verifier's side, from the first request to the signed certificate.

The numbered steps are the session's: bind, read the log under the gradient-free checks, ask for consent, compare the
numeric profile, reveal the nonce, replay every challenge, sign. Nothing here imports torch or the run's program; that
happens in the sandbox. A failure becomes an outcome with a code: wrong is *diverged*, cannot tell is *incomplete*, and
neither becomes a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import witness
from protocol import checks, soundness
from protocol.certificate import CLAIMS, NOT_CLAIMED, DataReport, Exclusion, Predicate, sign_certificate
from protocol.comparison import Comparison, require_attributable
from protocol.errors import IncompleteError, ProtocolError, UsageError, VerificationError, WitnessError
from protocol.exact_profile import ExactProfile
from protocol.keys import SigningKey, parse_vkey
from protocol.ledger_claim import RAW
from protocol.manifest import Manifest, ProgramClaim
from protocol.messages import Policy
from protocol.notes import open_head
from protocol.places import raw_places
from protocol.required import CHECKS, ChallengeResult, CheckResult, Result, assess, draw_count, verdict_of
from protocol.verifying import VerifierSession
from witness import source
from witness.asking import LAST_CALL, Ask, Clock, exchange
from witness.challenging import Challenger
from witness.documents import asked_documents, exclusion
from witness.exact_profile import announce_compilation
from witness.layout import lay_out
from witness.listening import Listener, Plan
from witness.outcomes import NOT_RUN, failed_check, result_of, run_notes
from witness.replay import ROWS, Replayer
from witness.spool import LogSpool
from witness.statefile import disk_error

REPLAY_CHECK, LEDGER_CHECK = "hyperparameters", "ledgers"


@dataclass(slots=True)
class Options:
    """How to verify.

    Attributes:
        trust: hex digest of a program that the verifier consents to run in the sandbox; reference programs need none.
        budget: seconds for all challenges; fewer draws are made when they would take longer.
        round_size: draws between two reports.
        keep_going: replay on after the first divergence.
        known_heads: signed heads of this run seen elsewhere, which the log must contain.
        held: the run directory is in the verifier's hands.
        exclude: a file or folder of documents to ask about: are they in the corpus?
        save_program: a missing or empty folder to write the program's own files to, so that they can be read first.
    """

    trust: str = ""
    budget: float | None = None
    round_size: int = 8
    keep_going: bool = False
    known_heads: Sequence[bytes] = ()
    held: bool = False
    exclude: Path | None = None
    save_program: Path | None = None


@dataclass(slots=True)
class Verification:
    """One session from beginning to end.

    Attributes:
        transport: moves a frame to the prover and brings one back.
        policy: what to demand.
        key: signs the certificate.
        nonce: 32 fresh random bytes.
        options: how.
        listener: hears progress.
        clock: time, for deadlines and the budget.
    """

    transport: Callable[[bytes], bytes]
    policy: Policy
    key: SigningKey
    nonce: bytes
    options: Options = field(default_factory=Options)
    listener: Listener = field(default_factory=Listener)
    clock: Clock = field(default_factory=Clock)
    session: VerifierSession = field(init=False)
    results: list[ChallengeResult] = field(init=False, default_factory=list)
    checked: dict[str, Result] = field(init=False, default_factory=dict)
    notes: list[str] = field(init=False, default_factory=list)
    cancelled: bool = field(init=False, default=False)
    exclusion: Exclusion | None = field(init=False, default=None)
    documents: set[int] = field(init=False, default_factory=set)

    def run(self) -> bytes:
        """Runs the session and returns the signed certificate, whatever the verdict.

        Raises:
            WitnessError: before there is a run to certify anything about: no binding, no readable manifest.
            UsageError: `known-head`; `not-a-fraction`, `impossible-count`, for a policy that a run of this length
                cannot be held to.
        """
        self.session = VerifierSession(self.policy, self.nonce, held=self.options.held)
        ask = Ask(self.transport, self.policy, self.clock, self.listener.waiting)
        with TemporaryDirectory(prefix="witness-verify-", ignore_cleanup_errors=True) as work:
            # 1. the prover binds itself to a head before it knows the nonce
            self.listener.stage("binding the prover to a signed head")
            ask(self.session.hello(), self.session.welcome)
            manifest = ask(self.session.log_request(), self.session.take_manifest)
            self._require_heads(manifest)
            records = LogSpool(Path(work) / "log")
            try:
                self._replay(ask, manifest, Path(work), records)
            except KeyboardInterrupt:
                self.cancelled = True
            finally:
                records.close()
                with suppress(WitnessError):  # courtesy only: nothing hangs on the prover's hearing it
                    exchange(self.transport, self.session.close_request(), LAST_CALL)
            return self._certify(manifest)

    def _require_heads(self, manifest: Manifest) -> None:
        """What the verifier brings to compare with must be heads of this run: else the trainer would be accused."""
        for note in self.options.known_heads:
            try:
                open_head(note, [parse_vkey(manifest.key)], manifest.origin)
            except WitnessError as error:
                raise UsageError("known-head", f"not a signed head of this run: {error}") from error

    # -- steps 2 to 6 -----------------------------------------------------------------------------

    def _replay(self, ask: Ask, manifest: Manifest, work: Path, records: LogSpool) -> None:
        # 2. every gradient-free check that needs no program, on every step
        if not self._read_log(ask, manifest, records):
            return
        draw_count(self.policy, self._audit().steps)  # our own policy may ask for too much: nobody else's fault
        try:
            self._check_ledgers(ask, manifest)
            # 3. consent
            folder = self._consented(ask, manifest, work)
            if isinstance(manifest.profile, ExactProfile):
                announce_compilation(self.listener.stage)
            with Replayer(manifest, folder) as replayer:
                # 4. can this machine be held to the recorded bits?
                self.listener.stage("comparing this machine with the run's numeric profile")
                comparison = replayer.compare()
                self.notes += comparison.remarks()
                self._check_hyperparameters(manifest, replayer, comparison)
                # 5. reveal, and 6. replay
                self._challenge(ask, replayer, comparison, records)
        except WitnessError as error:
            outcome = result_of(error)
            if self.checked.get(LEDGER_CHECK, NOT_RUN).outcome == "reproduced":
                self.checked.setdefault(REPLAY_CHECK, outcome)
            self.notes.append(f"{outcome.outcome}: {error}")

    def _read_log(self, ask: Ask, manifest: Manifest, records: LogSpool) -> bool:
        session, head = self.session, self.session.head
        self.listener.stage("reading the corpus and the log, checking every step")
        try:
            while not ask(session.heads_request(), session.take_heads):
                pass
            while not ask(session.leaves_request(), session.take_leaves):
                pass
            session.heads += [note.decode("utf-8", "replace") for note in self.options.known_heads]
            session.begin(manifest)
            session.spool = records.append
            while not ask(session.log_request(), session.take_log):
                self.listener.advance(session.audit.size if session.audit else 0, head.size if head else 0)
        except WitnessError as error:
            failed = result_of(error)
            at = failed_check(error)
            self.checked = {name: failed if name == at else NOT_RUN for name in CHECKS}
            return False
        self.checked = {name: Result("reproduced") for name in CHECKS if name not in (REPLAY_CHECK, LEDGER_CHECK)}
        return True

    def _check_ledgers(self, ask: Ask, manifest: Manifest) -> None:
        """Reads the list behind every ledger; the one of raw documents follows from the corpus leaves."""
        session = self.session
        self.listener.stage("checking the ledgers over the corpus")
        try:
            for claim in manifest.ledgers:
                if claim.tier == RAW:
                    session.hold_places(claim, raw_places(self._audit().documents.leaves))
                else:
                    while not ask(session.places_request(claim), partial(session.take_places, claim)):
                        pass
        except WitnessError as error:
            self.checked[LEDGER_CHECK] = result_of(error)
            if not self.options.keep_going:
                raise
        else:
            self.checked[LEDGER_CHECK] = Result("reproduced")
            if self.options.exclude is not None:
                asked = asked_documents(self.options.exclude, session.places)
                self.exclusion = exclusion(self.options.exclude.name, asked, session.places)

    def _consented(self, ask: Ask, manifest: Manifest, work: Path) -> Path | None:
        program = manifest.program
        digest = program.digest.hex()
        if program.kind == "reference":
            own = source.claim_of_reference(program.entry)
            if own.files != program.files:
                raise IncompleteError(
                    "reference-differs",
                    f"the run used other reference programs than this package's ({manifest.package} against "
                    f"{witness.__version__})",
                    evidence={"program": program.entry},
                )
            return None
        files = {f.path: ask(self.session.source_request(f.path), _taker(self.session, f.path)) for f in program.files}
        if self.options.save_program is not None:
            self._save(program, files, self.options.save_program)
        if self.options.trust != digest:
            self.listener.consent(manifest, digest, self.options.save_program)
            given = f"{self.options.trust[:64]!r} is not its digest: " if self.options.trust else ""
            raise IncompleteError(
                "program-not-trusted",
                f"{program.entry} would run in the sandbox; {given}consent with --trust-program {digest}",
                evidence={"program": program.entry, "digest": digest, "files": [f.path for f in program.files]},
            )
        folder = work / "program"
        folder.mkdir()
        return lay_out(program, files, folder)

    @staticmethod
    def _save(program: ProgramClaim, files: Mapping[str, bytes], folder: Path) -> None:
        """Writes what the prover offers to run where the verifier can read it; nothing is executed."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lay_out(program, files, folder)
        except OSError as error:
            raise disk_error(folder, error) from None

    def _check_hyperparameters(self, manifest: Manifest, replayer: Replayer, comparison: Comparison) -> None:
        audit = self._audit()
        self.listener.stage("computing the hyperparameters of every step")
        try:
            for first in range(1, audit.steps + 1, ROWS):
                last = min(first + ROWS - 1, audit.steps)
                try:
                    checks.check_hyperparameters(audit, first, replayer.hyperparameters(first, last))
                except VerificationError as error:
                    require_attributable(comparison, manifest.operations, (), error)
                    raise
                self.listener.advance(last, audit.steps)
            self.checked[REPLAY_CHECK] = Result("reproduced")
        except WitnessError as error:
            self.checked[REPLAY_CHECK] = result_of(error)
            if not self.options.keep_going:
                raise

    def _challenge(self, ask: Ask, replayer: Replayer, comparison: Comparison, records: LogSpool) -> None:
        audit, session = self._audit(), self.session
        owed = draw_count(self.policy, audit.steps)
        seconds = max(replayer.seconds)  # building and probing each operation once costs about what a replay costs
        fixed = len(checks.mandatory(audit, self.policy.outliers))
        draws = owed
        if self.options.budget is not None:
            draws = min(owed, max(0, int(self.options.budget / max(seconds, 1e-3)) - fixed))
        try:
            drawn = ask(session.reveal_request(draws), session.revealed)
        except (VerificationError, ProtocolError) as error:
            # Whoever has seen the nonce knows every challenge, and cannot choose to have been asked none (attack A33).
            refused = result_of(error)
            self.results = [ChallengeResult(c.step, c.reason, c.order, refused) for c in session.derive()]
            return
        challenger = Challenger(session, ask, replayer, comparison, records.read)
        self.documents = challenger.documents
        bad = soundness.bad_steps(audit.steps, self.policy.bad_fraction)

        def worth(count: int) -> str:
            return soundness.decimal_down(soundness.detection_probability(audit.steps, bad, count), 4)

        size = challenger.state_bytes(drawn[0].step if audit.steps == 0 else audit.steps - 1) if drawn else 0
        self.listener.planned(Plan(audit.steps, fixed, draws, owed, size, seconds * len(drawn), worth(draws)))
        mandatory = [c for c in drawn if c.reason != "draw"]
        rest = [c for c in drawn if c.reason == "draw"]
        stops = range(0, max(1, len(rest)), self.options.round_size)
        done: set[int] = set()
        self.listener.stage("replaying the mandatory challenges")
        for number, batch in enumerate([mandatory, *(rest[at : at + self.options.round_size] for at in stops)]):
            if number == 1:
                self.listener.stage("replaying the random draws")
            for challenge in sorted(batch, key=lambda c: c.step):
                result = challenger.run(challenge)
                self.results.append(ChallengeResult(challenge.step, challenge.reason, challenge.order, result))
                self.listener.challenged(challenge, result)
                if result.outcome != "reproduced" and not self.options.keep_going:
                    return
                done.update([challenge.order] if challenge.order is not None and result.outcome == "reproduced" else [])
            clean = next((i for i in range(draws) if i not in done), draws)
            self.listener.round_done(clean, worth(clean))

    # -- step 7 -----------------------------------------------------------------------------------

    def _certify(self, manifest: Manifest) -> bytes:
        session, audit = self.session, self.session.audit or checks.LogAudit()
        if audit.size and session.challenges is None:
            session.derive()
        owed = checks.mandatory(audit, self.policy.outliers) if audit.size > 1 else []
        if self.cancelled:
            self.notes.append("the verifier was stopped; its draws count for nothing")
        blank = Result("incomplete", "cancelled", "the verifier was stopped before this") if self.cancelled else NOT_RUN
        present = [CheckResult(name, self.checked.get(name, blank)) for name in CHECKS]
        drawn = [
            c.step
            for c in sorted(session.challenges or (), key=lambda c: -1 if c.order is None else c.order)
            if c.order is not None
        ]
        missing, failures = assess(audit.steps, drawn, owed, present, self.results)
        root = bytes(32)
        if self.checked.get("state-roots", NOT_RUN).outcome == "reproduced":
            root = checks.final_root(audit)
        predicate = Predicate(
            run=manifest.run_id.hex(),
            trainer=manifest.key,
            verifier=self.key.public.vkey,
            head=session.head_note,
            statement=session.statement,
            session=session.id,
            policy=self.policy,
            commitment=session.commitment.hex(),
            nonce=self.nonce.hex(),
            draws=session.draws,
            steps=audit.steps,
            promised=manifest.steps,
            final_state_root=root.hex(),
            mandatory=tuple(owed),
            checks=tuple(present),
            challenges=tuple(self.results),
            data=DataReport(
                tiers=tuple(session.places),
                documents=manifest.corpus.documents,
                checked=len(self.documents),
                exclusion=self.exclusion,
            ),
            profile=manifest.profile.full_name,
            seed_source=manifest.seed.source,
            notes=tuple(note[:4000] for note in [*run_notes(audit, manifest), *self.notes]),
            claims=CLAIMS,
            not_claimed=NOT_CLAIMED,
            verdict=verdict_of(missing, failures, session.draws, draw_count(self.policy, audit.steps)),
            package=witness.__version__,
        )
        return sign_certificate(predicate, self.key)

    def _audit(self) -> checks.LogAudit:
        if self.session.audit is None:
            raise RuntimeError("the log was not read")
        return self.session.audit


def _taker(session: VerifierSession, path: str) -> Callable[[bytes], bytes]:
    return lambda reply: session.take_source(path, reply)
