"""The manifest: what the trainer promises before step 1. What is not in it cannot be claimed later.

It is entry 0 of the run's log, and a head over it is signed before the first step. The run id is its digest, so
program, data, order, seed, numeric profile and key of a run cannot be exchanged afterwards. It holds no time and no
free text that a trainer could turn until the digest pleases: `seed` says where randomness comes from, and `own` means
that the trainer could have tried many (attack A28; every certificate repeats it).

Specified in spec/manifest.md.
"""

import hashlib
import re
from typing import Any, Literal

from protocol import PROTOCOL_VERSION
from protocol.corpus import CorpusClaim
from protocol.encoding import Count, Hex32, Struct, decode, encode, tagged_hash
from protocol.errors import ProtocolError
from protocol.keys import parse_vkey
from protocol.ledger_claim import LedgerClaim
from protocol.operations import OperationProbe
from protocol.profile import Profile
from protocol.soundness import MAX_STEPS
from protocol.statetree import Pieces

MAX_MANIFEST = 1 << 22
MAX_FILES, MAX_SOURCE = 512, 1 << 22
MAX_PROBE = 1 << 12
MAX_LEDGERS = 16
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENTRY = re.compile(rf"{_IDENTIFIER.pattern}(\.{_IDENTIFIER.pattern})*:{_IDENTIFIER.pattern}(\.{_IDENTIFIER.pattern})*")


class SourceFile(Struct, frozen=True):
    """One file of the program: path relative to the program's root, with `/`, SHA-256 and length in bytes."""

    path: str
    digest: Hex32
    length: Count


class ProgramClaim(Struct, frozen=True):
    """The program and how it is started.

    Attributes:
        entry: `module:Class`.
        kind: `reference` (a program of this package: the verifier runs its own copy) or `files` (shipped with the run).
        files: every source file the program imports from its own folder, in path order.
        arguments: plain form (`protocol.plain`) of `[args, kwargs]` given to the class.
    """

    entry: str
    kind: Literal["reference", "files"]
    files: tuple[SourceFile, ...]
    arguments: Any

    @property
    def digest(self) -> bytes:
        """What a verifier consents to run: entry, kind and every file (arguments are data, not code)."""
        return tagged_hash("program", self.entry.encode(), self.kind.encode(), encode(self.files))


class Seed(Struct, frozen=True):
    """Where the run's randomness comes from.

    Attributes:
        value: 32 bytes; initialisation, order, dropout and probes derive from it.
        source: `own`: chosen by the trainer; `registered`: derived from a value that somebody else drew after the
            manifest was announced.
    """

    value: Hex32
    source: Literal["own", "registered"] = "own"


class Manifest(Struct, frozen=True, tag="manifest", tag_field="type"):
    """What a run is.

    Attributes:
        key: the trainer's verifier key (C2SP vkey); heads and session statements are signed with it.
        program: code and arguments.
        corpus: data and packing.
        seed: randomness.
        batch_size: samples a step.
        steps: number of steps promised.
        commit_every: state roots are committed at steps divisible by this, and at the last.
        checkpoint_every: states are kept at steps divisible by this, and at the last.
        probe_samples: samples of the fingerprint's probe batch; 0 when the program defines no probe.
        pieces: how states are cut.
        profile: numeric profile to re-apply at replay.
        operations: operation probe: digests of the operations the run really uses; empty where the profile defines
            them.
        ledgers: what was built over the corpus for questions about inclusion and exclusion, by tier in order.
        ranks: processes that train together.
        reduction: how ranks' gradients are added; `none` for one rank.
        package: version of the package that recorded.
        version: of this protocol.
    """

    key: str
    program: ProgramClaim
    corpus: CorpusClaim
    seed: Seed
    batch_size: Count
    steps: Count
    commit_every: Count
    checkpoint_every: Count
    probe_samples: Count
    pieces: Pieces
    profile: Profile
    operations: OperationProbe
    package: str
    ledgers: tuple[LedgerClaim, ...] = ()
    ranks: Count = 1
    reduction: Literal["none"] = "none"
    init: Literal["build"] = "build"
    version: str = PROTOCOL_VERSION

    @property
    def run_id(self) -> bytes:
        """SHA-256 over the domain and the manifest's bytes."""
        return tagged_hash("run", encode(self))

    @property
    def origin(self) -> str:
        """The origin line of this run's log heads."""
        return f"{PROTOCOL_VERSION}/{self.run_id.hex()}"

    def commits(self, step: int) -> bool:
        """Whether the state root after `step` is committed."""
        return step % self.commit_every == 0 or step == self.steps

    def keeps(self, step: int) -> bool:
        """Whether the state after `step` is kept as a checkpoint."""
        return step % self.checkpoint_every == 0 or step == self.steps


def parse_manifest(data: bytes) -> Manifest:
    """Parses and checks a manifest from the other side.

    Raises:
        ProtocolError: `not-canonical`, `too-large`, `manifest`, `weak-key`.
    """
    manifest = decode(data, Manifest, limit=MAX_MANIFEST)
    validate(manifest)
    return manifest


def validate(manifest: Manifest) -> None:
    """Checks what types cannot say.

    Raises:
        ProtocolError: `manifest`, naming the line.
    """

    def require(holds: bool, line: str) -> None:
        if not holds:
            raise ProtocolError("manifest", line)

    require(manifest.version == PROTOCOL_VERSION, f"version {manifest.version[:40]!r} is not {PROTOCOL_VERSION}")
    parse_vkey(manifest.key)
    require(manifest.batch_size >= 1, "a batch holds at least one sample")
    require(1 <= manifest.steps <= MAX_STEPS, f"a run has 1 to {MAX_STEPS} steps")
    require(manifest.commit_every >= 1 and manifest.checkpoint_every >= 1, "intervals are at least 1")
    require(manifest.checkpoint_every % manifest.commit_every == 0, "a checkpoint is at a committed step")
    require(manifest.probe_samples <= MAX_PROBE, f"a probe batch holds at most {MAX_PROBE} samples")
    tiers = [ledger.tier for ledger in manifest.ledgers]
    require(tiers == sorted(set(tiers)) and len(tiers) <= MAX_LEDGERS, "ledgers are in tier order, each once")
    for ledger in manifest.ledgers:
        require(ledger.documents == manifest.corpus.documents, f"the ledger {ledger.tier} lists another corpus")
    require(manifest.ranks == 1, "this version replays runs of one rank")
    files = manifest.program.files
    require(0 < len(files) <= MAX_FILES, f"a program has 1 to {MAX_FILES} files")
    paths = [file.path for file in files]
    require(paths == sorted(set(paths)), "source files are in path order, each once")
    for file in files:
        parts = file.path.split("/")
        clean = file.path.isascii() and file.path.isprintable() and "\\" not in file.path and len(file.path) <= 255
        require(
            clean and all(part not in ("", ".", "..") for part in parts), f"{file.path[:80]!r} is not a relative path"
        )
        require(file.length <= MAX_SOURCE, f"{file.path[:80]!r} is larger than {MAX_SOURCE} bytes")
    folders = {"/".join(parts[:i]) for parts in (path.split("/") for path in paths) for i in range(1, len(parts))}
    require(folders.isdisjoint(paths), "a source file is also a folder of another")
    require(is_entry(manifest.program.entry), f"{manifest.program.entry[:80]!r} is not module:Class, in ASCII")


def is_entry(text: str) -> bool:
    """Whether a text names a class of a module.

    Python's identifiers depend on the version of its Unicode data; those of ASCII do not.
    """
    return _ENTRY.fullmatch(text) is not None


def is_identifier(text: str) -> bool:
    """Whether a text is an identifier for every version of Python."""
    return _IDENTIFIER.fullmatch(text) is not None


def check_source(claim: ProgramClaim, path: str, data: bytes) -> None:
    """Raises `ProtocolError` (`program-source`) unless `data` is the committed file at `path`."""
    for file in claim.files:
        if file.path == path:
            if file.length != len(data) or hashlib.sha256(data).hexdigest() != file.digest:
                raise ProtocolError("program-source", f"{path} is not the committed file")
            return
    raise ProtocolError("program-source", f"{path} is not a file of the program")
