"""The four families of failure, and the one table that gives every failure its code, exit status and HTTP status.

`ProtocolError`: the bytes are not what the format says (whoever sent them). `VerificationError`: well-formed, and
wrong - the run diverged from what was committed. `IncompleteError`: cannot tell; never a pass, never an accusation.
`UsageError`: our own caller asked for something impossible. Verification returns the verified thing or raises; it
never returns a bool, because a bool can be ignored.

Specified in spec/errors.md.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple

EXIT_REPRODUCED, EXIT_DIVERGED, EXIT_INCOMPLETE, EXIT_USAGE = 0, 1, 2, 64
Family = Literal["malformed", "wrong", "cannot tell", "usage"]


class Code(NamedTuple):
    """One row of the error table."""

    meaning: str
    family: Family
    exit_status: int
    http_status: int
    next_action: str


def _malformed(
    meaning: str,
    action: str = "ask the sender for a well-formed artefact; nothing in this one was used",
    http: int = 400,
) -> Code:
    return Code(meaning, "malformed", EXIT_DIVERGED, http, action)


def _wrong(meaning: str, action: str = "treat the run as diverged; the evidence names what differs") -> Code:
    return Code(meaning, "wrong", EXIT_DIVERGED, 422, action)


def _unknown(meaning: str, action: str, http: int = 503) -> Code:
    return Code(meaning, "cannot tell", EXIT_INCOMPLETE, http, action)


def _usage(meaning: str, action: str, http: int = 400) -> Code:
    return Code(meaning, "usage", EXIT_USAGE, http, action)


CODES: Mapping[str, Code] = MappingProxyType(
    {
        # manifest
        "manifest": _malformed("a line of the manifest says something impossible"),
        "program-source": _malformed(
            "a source file is not the committed one", "ask the trainer for the committed sources"
        ),
        # programs and their state
        "program": _usage("the program does not keep the contract of a Program", "see `help(witness.Program)`"),
        "program-arguments": _malformed("the program's arguments cannot be made again"),
        "state-restore": _malformed("the committed state does not fit what the program builds"),
        "unbound-state": _usage(
            "part of the state cannot be bound by the root", "make it a buffer, plain data, or give it state_dict()"
        ),
        # files
        "disk": _usage("the disk refuses", "mend the disk or name another folder, then continue with --resume"),
        "disk-full": _usage(
            "the disk is full", "free some space, then continue with --resume; what was written is intact"
        ),
        "state-file": _malformed(
            "a state file is cut short or altered", "restore the file from a copy; `witness fsck` names what is damaged"
        ),
        # run directory
        "file-missing": _malformed(
            "a file of the run is missing", "restore it from a copy; `witness fsck` names what is damaged"
        ),
        "head-missing": _malformed(
            "the run has no signed head", "finish or resume the run: heads are signed at checkpoints and at the end"
        ),
        "head-root": _wrong("a signed head is not a head of this log"),
        "key-exists": _usage("a key file is never overwritten", "name another file"),
        "key-missing": _usage("the key file cannot be read", "make one with `witness keygen`"),
        "log-damaged": _malformed("the log's file is damaged", "restore log.sqlite from a copy; nothing was changed"),
        "log-empty": _malformed(
            "the log holds no manifest", "nothing was committed to yet: start the run again, without --resume"
        ),
        "program-load": _unknown(
            "the program cannot be loaded here from its files",
            "install what the message names, in the versions that the run's profile says",
        ),
        "program-source-missing": _usage(
            "the program's source cannot be bound", "put the program into a .py file of its own folder"
        ),
        "run-exists": _usage("the run's folder is taken", "name another folder, or continue the run with --resume"),
        "run-locked": _usage("the run is being written", "wait for that process, or stop it"),
        "run-missing": _usage("no such run", "name the folder of a run, as in `witness train --out FOLDER`"),
        # gradient-free checks
        "checkpoint-event": _wrong("a kept state is missing or is not the committed one"),
        "equivocation": _wrong(
            "two signed heads of one log contradict each other",
            "keep both heads: together they prove that the trainer signed two histories",
        ),
        "event": _wrong("a resume or fault speaks of a step it cannot know"),
        "final-event": _wrong("the run's end is not where or what the manifest promises"),
        "fingerprint-shape": _wrong("a fingerprint does not have the declared shape"),
        "hyperparameters": _wrong("a recorded hyperparameter is not what the program computes"),
        "records-digest": _wrong("a step did not draw the records that corpus, seed and schedule say"),
        "state-root-missing": _wrong("a promised state root is missing"),
        "step-order": _wrong("steps are missing, repeated or out of order"),
        "head-beyond": _unknown(
            "a signed head seen elsewhere lies beyond the log that was shown",
            "ask the prover for its newest head: until then the log may be another one than others saw",
        ),
        # sessions
        "policy": _malformed(
            "a policy says nothing, or asks for more than a session can hold",
            "ask for a session under another policy: certificates over one head add up",
        ),
        "frame": _malformed("a message is not the one that is due"),
        "refused": _wrong(
            "the prover refused to open what it is committed to", "an unanswered challenge counts as diverged"
        ),
        "session": _malformed("the request does not fit the session", "start a new session"),
        "statement": _wrong("the prover's signed statement binds something else"),
        "statement-missing": _wrong(
            "the prover did not bind itself by signature", "ask the trainer to serve the run with its key"
        ),
        # http (witness.http)
        "address": _usage(
            "no prover can be reached under this address", "give the http or https URL that the trainer names"
        ),
        "busy": _unknown("the server does as much as it can at the moment", "ask again a little later"),
        "extra-missing": _usage(
            "an optional part of the package is not installed", "install the extra that the message names"
        ),
        "http-reply": _malformed("an HTTP reply is not one that a prover gives"),
        "internal": _unknown(
            "the server failed; its log says why", "ask whoever runs the server to read its log", http=500
        ),
        "listen": _usage("the server cannot listen there", "choose another address or port"),
        "method": _usage(
            "the address does not take this HTTP method", "see the table of endpoints in `witness.http`", http=405
        ),
        "not-a-prover": _unknown(
            "what answers there does not speak the protocol, and has committed to nothing",
            "check the address; until a prover binds itself, nobody is accused",
            http=502,
        ),
        "not-found": _usage("nothing is at this address", "start a new session; a server forgets idle ones", http=404),
        "rate": _unknown("too many sessions or questions from this address", "close some, or wait a minute", http=429),
        "slow-request": _unknown("the request did not arrive in time", "send it again, faster", http=408),
        "unanswered": _wrong(
            "the prover bound itself and then did not answer in the time that the policy gives",
            "an unanswered challenge counts as diverged: whoever may fall silent on the bad steps is never caught",
        ),
        "unreachable": _unknown(
            "no prover answers at this address",
            "check the address and the network; nobody had committed to anything yet",
        ),
        # sandbox (witness.sandbox)
        "sandbox-environment": _unknown(
            "a pinned environment variable could run code outside the sandbox",
            "read the variable; if it is harmless, replay with an environment of your own, without it",
        ),
        "sandbox-misuse": _usage("the sandbox cannot be used like this", "mend the call; nothing was run"),
        "sandbox-output": _malformed(
            "a sandboxed job did not leave the file it owed", "read the job's standard error and exit status"
        ),
        "sandbox-unavailable": _unknown(
            "a stranger's program cannot be confined, or its process was lost",
            "replay on Linux 5.13 or later with Landlock and seccomp, on x86-64 or AArch64",
        ),
        # data queries
        "document-digest": _wrong("a document is not the one that its corpus leaf names"),
        "ledger-omission": _wrong("a document that a step read is missing from a ledger"),
        "ledger-too-long": _unknown(
            "a ledger's list is longer than this verifier fetches", "audit the data where it lies"
        ),
        "ledger-documents": _wrong("a ledger does not list every document of the corpus"),
        "ledger-root": _wrong("the list of a ledger is not the committed one"),
        "ledger-tier": _usage("no such tier, or not for this corpus", "name a tier that `witness inspect` lists"),
        "places": _malformed("not a list of ledger places"),
        "too-many-uses": _usage(
            "a document is used too often to list", "ask about a shorter run, or for the counts alone"
        ),
        # command line
        "demo": _usage(
            "a part of the demonstration did not end as it must", "see what it printed; `witness fsck` may say more"
        ),
        "certificate-exists": _usage("a certificate is never overwritten", "name another file"),
        "file-unreadable": _usage("a file cannot be read", "check its name and permissions"),
        "known-head": _usage(
            "a head that was given for comparison is not one of this run",
            "name a signed head of the run, or leave it out",
        ),
        "key-name": _usage("the name cannot name a key", "use a word without spaces and without '+'"),
        "file-kind": _usage(
            "a file that was named is not of the kind that the command takes", "name the kind of file that is due"
        ),
        "not-a-key": _usage(
            "what was named is not a key",
            "name a file that `witness keygen` wrote; where a public key is due, give the text that it printed",
        ),
        "other-key": _usage(
            "the key that was named is not the run's own",
            "name the key that the run was recorded with; without --key it is the one in the run's folder",
        ),
        "other-run": _usage("the certificate is about another run", "name the run that the certificate is about"),
        "released-weights": _wrong(
            "a weights file is not the one the run released", "ask the trainer for the released file"
        ),
        "unforeseen": _unknown(
            "an error that no code here expected",
            "please report it, with this line and the command; what was written before is intact",
            http=500,
        ),
        "usage": _usage("the options do not fit together", "see --help"),
        # fsck (witness.fsck, witness.logreader)
        "checkpoint-root": _wrong("a kept state is not the one that the log commits to"),
        "head-name": _malformed("a head lies under the name of another size"),
        "leftover": _malformed("a file that a crash left behind", "delete it, or leave it: nothing reads it"),
        "log-entry": _malformed(
            "a log entry is not the one whose hash was stored with it", "restore log.sqlite from a copy"
        ),
        "log-truncated": _malformed(
            "a signed head covers more entries than the log holds",
            "restore log.sqlite from a copy, and do not resume before: the trainer would sign a second history",
        ),
        "not-a-file": _malformed(
            "something other than a regular file lies where a file belongs", "put the file itself there"
        ),
        "unknown-file": _malformed(
            "a file that does not belong to a run", "move it elsewhere, or leave it: nothing reads it"
        ),
        "unreadable": _unknown("a file may not be read by this user", "run this again as a user who may read the run"),
        # certificates
        "certificate": _wrong(
            "a certificate's facts do not support what it says", "do not rely on it; ask for a session of your own"
        ),
        "certificate-malformed": _malformed("not a certificate of this protocol"),
        "other-head": _usage("the certificates are about different heads", "add certificates over one head"),
        # recording
        "not-self-contained": _usage(
            "a step, executed again from the same state, came out differently",
            "something outside the state decides the step: an unseeded generator, a global, a clock, an "
            "unregistered tensor",
        ),
        "resume-diverged": _usage(
            "the run does not continue with the recorded bits",
            "resume on the machine and settings it was recorded with",
        ),
        "resume-mismatch": _usage(
            "this is not the run that was started", "continue with the same program, data and key"
        ),
        "run-finished": _usage("the run is finished", "record a new run in another folder"),
        # replay
        "reference-differs": _unknown(
            "the run used another release of the reference programs",
            "verify with the package version the manifest names",
        ),
        "wrong-key": _wrong(
            "the key is not the one the manifest names", "serve the run with the key it was recorded with"
        ),
        "cancelled": _unknown(
            "the verifier was stopped before this", "run another session: evidence over one head adds up"
        ),
        "init-diverged": _wrong("the initial state is not what the program builds from the seed"),
        "not-run": _unknown("not run, because something before it failed", "see the first failure"),
        "program-not-trusted": _unknown(
            "the program is not a reference program and consent to run it is missing",
            "read its sources (--save-program DIR writes them down), then consent with --trust-program DIGEST; it "
            "runs in the sandbox only",
        ),
        "compiler": _unknown(
            "the program is compiled, and its compiler does not work in the sandbox",
            "ask the trainer for a run without torch.compile: nothing is said against this one, and no machine can "
            "replay it in the sandbox",
        ),
        "rebuild-diverged": _wrong("a state rebuilt from a kept one is not the committed one"),
        "replay-batch": _wrong("the step was not given the batch that the program makes of the committed records"),
        "replay-fingerprint": _wrong("the recorded fingerprint is not the replayed one"),
        "replay-hyperparameters": _wrong("the recorded hyperparameters are not the replayed ones"),
        "replay-state": _wrong("the replayed state is not the committed one"),
        "replay-failed": _wrong("the program fails on the committed state and records"),
        "replay-stopped": _unknown(
            "a replay did not come to its end here", "give the replay more time or memory, or a machine like the run's"
        ),
        # encoding
        "not-canonical": _malformed("the bytes are not the one canonical encoding of what they say"),
        "too-large": _malformed(
            "larger than the format's cap",
            "ask the sender for a smaller artefact; nothing was read past the cap",
            http=413,
        ),
        # merkle
        "consistency-proof": _wrong("the newer tree is not proven to extend the older one"),
        "inclusion-proof": _wrong("the leaf is not proven to be in the tree"),
        "leaf-hash": _usage(
            "a leaf hash is not 32 bytes", "append the SHA-256 leaf hash of the leaf, not the leaf itself"
        ),
        "no-such-leaf": _usage(
            "the tree has no such leaf or size", "ask for a size it has reached and an index below that size"
        ),
        "proof-malformed": _malformed("a Merkle proof has a hash of the wrong length, or an index or size of no tree"),
        # keys and notes
        "bad-signature": _wrong("a signature does not verify under the key it names"),
        "head-malformed": _malformed("a log head is not an origin, a size and a root"),
        "head-origin": _wrong("a head is another log's"),
        "key-collision": _usage("two different keys have one name and one key ID", "rename one of the keys"),
        "key-kind": _usage(
            "the key is for another kind of signature", "cosigners' keys are of type 4; all others of type 1"
        ),
        "key-malformed": _malformed(
            "not the text or the bytes of an Ed25519 key", "ask for the key's text again: name+key id+base64"
        ),
        "note-malformed": _malformed("not a signed note"),
        "note-unsigned": _wrong("no known key signed the note"),
        "signing-key": _usage("not an Ed25519 seed", "pass 32 secret random bytes"),
        "unsignable": _usage(
            "the text cannot be signed as a note or a statement", "sign text that the format can carry"
        ),
        "weak-key": _malformed(
            "a public key that must not be trusted",
            "ask its owner for another: signatures under this one prove nothing",
        ),
        # dsse
        "envelope-malformed": _malformed("not a DSSE envelope"),
        "envelope-unsigned": _wrong("fewer known keys signed the envelope than its reader requires"),
        "payload-type": _wrong("the envelope holds another kind of statement than its reader expects"),
        "threshold": _usage(
            "no set of the given keys could reach the threshold", "ask for 1 to as many signers as there are keys"
        ),
        # statetree
        "state-bytes": _wrong("the bytes of a tensor are not as long as its entry says"),
        "state-root": _wrong("an opened state is not the committed one"),
        "state-table": _malformed("a state table does not describe one training state"),
        # corpus and schedule
        "corpus-leaves": _malformed("the document leaves do not form one corpus"),
        "corpus-root": _wrong("the documents are not the committed corpus"),
        "empty-corpus": _usage(
            "there is no sample to draw", "name a corpus with at least one sample (windows need `length` tokens)"
        ),
        "record-bytes": _wrong("opened record bytes are not the committed ones"),
        "schedule": _usage(
            "no such sample or batch", "use sample numbers below the corpus's sample count and a positive batch size"
        ),
        # answers and audits of data (protocol.answer, answering, replies, completeness, data_audit)
        "answer": _wrong(
            "a proof file does not prove what it says", "believe nothing in it; ask again, under a head that you trust"
        ),
        "answer-malformed": _malformed("the bytes are not an answer about a run's data"),
        "completeness": _wrong(
            "a certificate or audit does not support the answer it came with",
            "leave it out, or read what it says about the run",
        ),
        "data-audit": _wrong("an audit of data contradicts itself", "ask for another, or audit the data yourself"),
        "data-audit-malformed": _malformed("not an audit of data of this protocol"),
        "head-moved": _unknown("the run grows a new head while it is asked", "ask again, or when the run is finished"),
        "span-length": _usage(
            "nothing can be proven about a span of this length", "ask about a span of the length that the message names"
        ),
        # ledger, normaliser, winnowing (protocol.ledger, ledger_proof, ledger_claim, normaliser, winnowing)
        "ledger-absence": _wrong(
            "a document is not proven to be absent from the ledger",
            "take the question as unanswered, and ask for a proof under the signed root",
        ),
        "ledger-buffers": _malformed("stored rows and nodes do not form a ledger", "build the ledger again"),
        "ledger-duplicate": _usage(
            "a ledger key comes twice", "merge the documents with equal digests into one list of occurrences"
        ),
        "ledger-inclusion": _wrong(
            "a document is not proven to be in the ledger",
            "take the question as unanswered, and ask for a proof under the signed root",
        ),
        "ledger-key": _usage(
            "a ledger's keys, values and roots are 32 bytes", "derive them with protocol.ledger_claim"
        ),
        "ledger-proof-malformed": _malformed("the bytes are not a proof from a ledger"),
        "normaliser-unknown": _unknown(
            "this version has no such normaliser", "use the package version that the manifest names, or ask for tier t0"
        ),
        "span-units": _usage(
            "the data is not a whole number of tokens, or more than the format can number",
            "pass whole little-endian tokens of the width that the tier names",
        ),
        "unicode-version": _unknown(
            "this Python has another version of the Unicode data than the normaliser is defined by",
            "use a Python with that version (3.11 has Unicode 14.0.0)",
        ),
        # data
        "corpus-changed": _wrong(
            "the data is no longer what was committed", "put the data back as it was when the run began"
        ),
        "corpus-data": _usage(
            "this cannot be made a corpus",
            "pass the path of a file or folder in an accepted format, a list of bytes or text, or an array",
        ),
        "corpus-file": _malformed(
            "a file of a run's corpus is missing, cut short or altered", "restore the file from a copy of the run"
        ),
        "corpus-missing": _usage(
            "the data is not where the run left it", "put the data back, or say with --data where it is now"
        ),
        # witness.data: files, formats and committed folders
        "corpus-busy": _usage("another process writes there", "wait until it has ended, or name another folder"),
        "corpus-exists": _usage("the folder holds something already", "name a folder that is missing or empty"),
        "data-expands": _usage(
            "a file expands beyond all measure", "if that is meant, decompress it yourself and commit to the result"
        ),
        "data-file": _usage(
            "a data file is damaged, or not of its format", "mend the file, or name the format that it really has"
        ),
        "data-format": _usage("the format is not known", "name the format of the data"),
        "data-option": _usage("an option does not fit the data", "leave the option out, or name what the data holds"),
        "data-worker": _usage(
            "a process that reads the data died", "call it again; with --workers 1 it needs no other"
        ),
        # randomness and soundness
        "impossible-count": _usage(
            "no such number of steps, draws or tries",
            "use counts that fit the run: draws and bad steps from 0 to its steps",
        ),
        "nonce-mismatch": _wrong(
            "a revealed nonce is not the one that was committed to",
            "refuse the session: its challenges were not drawn as the protocol says",
        ),
        "not-a-fraction": _usage(
            "not an exact number between 0 and 1", 'write it as a string: "0.01", "1%" or "1/100"'
        ),
        "seed-input": _usage(
            "a challenge seed cannot be derived from this",
            "pass 32-byte nonces and seeds, and bind what they depend on",
        ),
        # encoding
        "unencodable": _usage(
            "the value has no canonical encoding",
            "use objects, arrays, strings, booleans, null and integers below 2^53",
        ),
        # exact arithmetic (witness.arithmetic)
        "arithmetic-unproven": _unknown(
            "the arithmetic of this machine does not give the defined bits",
            "report the named operation; replay on another machine",
        ),
        "exact-refused": _usage(
            "the exact profile has no definition for an operation of this program",
            "use what the message names instead, or record with --profile native",
        ),
        # profile and operations (protocol.comparison, protocol.*profile, protocol.operations, witness.*profile)
        "compile-nondeterministic": _usage(
            "a compiled function is not the same from run to run without deterministic algorithms",
            "call torch.use_deterministic_algorithms(True) before the run, or do not compile",
        ),
        "environment-variable": _usage(
            "an environment variable that decides bits has a value no replayer could apply",
            "unset it or give it one of its documented values",
        ),
        "operation-differs": _unknown(
            "an operation of this run gives other bits on this machine",
            "replay on a machine of the recorded class, or ask for an exact run",
        ),
        "operation-refused": _malformed("an operation probe names an operation or an argument that no recorder writes"),
        "operation-unprobed": _unknown(
            "bits cannot be demanded here: an operation is not covered by the probe",
            "replay on a machine whose profile lines all agree",
        ),
        "outside-differs": _unknown(
            "a divergence that may be this machine's: it differs in what no arithmetic defines",
            "replay with the versions of torch, Python, numpy and libc that the evidence names",
        ),
        "profile-differs": _unknown(
            "this machine differs from the recorded one in a line that decides bits",
            "replay on a machine where the named lines agree",
        ),
        "profile-not-applicable": _unknown(
            "a line of the recorded profile cannot be applied in this process",
            "start the replay with the recorded environment and versions",
        ),
        "profile-unknown": _usage("there is no numeric profile of this name", "name one that the message lists"),
        "subnormals-flushed": _usage(
            "this process flushes subnormal numbers, which the exact profile keeps",
            "call torch.set_flush_denormal(False), and load no library that was linked with -ffast-math",
        ),
    }
)


class WitnessError(Exception):
    """An error with a machine-readable code from `CODES`; raise one of its subclasses.

    Args:
        code: a key of `CODES`, of the subclass's family: what an error means must not depend on how it is read.
        message: one line: what was found, in the terms of whoever must act.
        evidence: named facts (step, tensor, expected, found...), printable and JSON-able.
        next_action: what to do now, where the table's own advice is too general.
    """

    family: ClassVar[Family]

    def __init__(
        self, code: str, message: str, *, evidence: Mapping[str, object] | None = None, next_action: str | None = None
    ) -> None:
        if code not in CODES:
            raise KeyError(f"error code {code!r} is not in protocol.errors.CODES")
        if CODES[code].family != self.family:
            raise KeyError(f"{code!r} means {CODES[code].family!r}; a {type(self).__name__} means {self.family!r}")
        super().__init__(message)
        self._next_action = ""
        self.code = code
        self.evidence: dict[str, object] = dict(evidence or {})
        self.next_action = next_action or CODES[code].next_action

    @property
    def next_action(self) -> str:
        """What to do now; also the last line of a traceback, which is all that a caller from Python may see."""
        return self._next_action

    @next_action.setter
    def next_action(self, action: str) -> None:
        others = [note for note in getattr(self, "__notes__", ()) if note != f"next: {self._next_action}"]
        self._next_action = action
        self.__notes__ = [*others, f"next: {action}"]

    @property
    def exit_status(self) -> int:
        """The process exit status of this failure."""
        return CODES[self.code].exit_status

    @property
    def http_status(self) -> int:
        """The HTTP status of this failure."""
        return CODES[self.code].http_status

    def diagnostics(self) -> str:
        """What happened, the evidence, and what to do next, on a few lines."""
        lines = [f"{self.code}: {self}"]
        lines += [f"  {name}: {value}" for name, value in self.evidence.items()]
        lines.append(f"  next: {self.next_action}")
        return "\n".join(lines)


class ProtocolError(WitnessError):
    """Malformed bytes from the other side, or from disk."""

    family = "malformed"


class VerificationError(WitnessError):
    """Well-formed and wrong: the claim does not hold."""

    family = "wrong"


class IncompleteError(WitnessError):
    """Cannot tell: a check that was owed could not run."""

    family = "cannot tell"


class UsageError(WitnessError):
    """Our caller asked for something that cannot be done."""

    family = "usage"
