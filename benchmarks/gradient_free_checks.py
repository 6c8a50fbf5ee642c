"""How long do the gradient-free checks of a million steps take, and in how much memory?

Synthetic records that pass every check: corpus, schedule and records digests are real, roots and fingerprints are made up.
"""

import resource
import sys
import time

import _report

from protocol import merkle
from protocol.checks import LogAudit
from protocol.corpus import Documents, Packing, describe
from protocol.encoding import encode, encode_trusted
from protocol.keys import SigningKey
from protocol.manifest import Manifest, Pieces, ProgramClaim, Seed, SourceFile
from protocol.native_profile import NativeProfile, Threads
from protocol.notes import Checkpoint
from protocol.operations import OperationProbe
from protocol.records import CheckpointEvent, FinalEvent, Fingerprint, InitRecord, StepRecord
from protocol.schedule import Schedule


def synthetic(steps: int) -> tuple[Documents, list[bytes], str]:
    leaves, at = [], 0
    for index in range(1000):
        leaves.append(describe(index, at, [bytes([index % 256]) * 1000]))
        at += 1000
    documents = Documents(leaves, Packing("windows", 129, 128))
    seed = "11" * 32
    manifest = Manifest(
        key=SigningKey("trainer", bytes(range(32))).public.vkey,
        program=ProgramClaim("witness.programs.gpt:GPT", "reference", (SourceFile("gpt.py", "00" * 32, 1),), []),
        corpus=documents.claim(),
        seed=Seed(seed),
        batch_size=2,
        steps=steps,
        commit_every=1,
        checkpoint_every=steps,
        probe_samples=1,
        pieces=Pieces(),
        profile=NativeProfile({}, {}, {}, {}, Threads(1, 1)),
        operations=OperationProbe(),
        package="0",
    )
    schedule = Schedule(bytes.fromhex(seed), documents.samples, 2)
    entries = [encode(manifest), encode(InitRecord("22" * 32))]
    for step in range(1, steps + 1):
        entries.append(
            encode_trusted(
                StepRecord(
                    step,
                    documents.records_digest(step, schedule.indices(step)).hex(),
                    "cd" * 32,
                    {"lr": f"f64:{0x3F50624DD2F1A9FC + step:016x}"},
                    Fingerprint("f32:40000000", "f32:40000000", ("f32:3f000000", "f32:3f000000"), "ef" * 32),
                    f"{step:064x}",
                )
            )
        )
    entries += [encode(CheckpointEvent(steps, f"{steps:064x}")), encode(FinalEvent(steps, f"{steps:064x}", "00" * 32))]
    return documents, entries, manifest.origin


def main() -> None:
    steps = 100_000 if "--quick" in sys.argv else 1_000_000
    _report.heading("How long do the gradient-free checks of a million steps take, and in how much memory?")
    documents, entries, origin = synthetic(steps)
    frontier = merkle.Frontier()
    for entry in entries:
        frontier.append(entry)
    head = Checkpoint(origin, len(entries), frontier.root())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, processor = time.perf_counter(), time.process_time()
    audit = LogAudit(documents)
    audit.watch([head])
    for entry in entries:
        audit.read(entry)
    audit.finish(head)
    wall, used = time.perf_counter() - start, time.process_time() - processor
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    row = [
        f"{steps:,}",
        f"{sum(map(len, entries)) / 1e6:.0f} MB",
        f"{wall:.1f} s",
        f"{used:.1f} s",
        f"{grown / 1e3:.0f} MB",
        "no" if "torch" not in sys.modules else "YES",
    ]
    _report.table(("steps", "log", "wall", "processor", "memory added by the checks", "torch imported"), [row])
    print("One core. Aim: at most 10 s, 1 GB, no torch.")


if __name__ == "__main__":
    main()
