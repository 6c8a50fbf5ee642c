"""Makes the artefacts that the specification's examples are cut from: one run, and all that others made of it.

    python spec/example/make.py

Everything is written beside this file: the run's folder, the frames of a session over it, the certificate, an audit of
its data, an answer about its documents, and a profile of the other sort. Keys, nonce, session id and time are fixed and
public: never use them elsewhere. The texts of the specification are brought up to date with `python spec/examples.py`.
"""

import json
import shutil
import sys
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import witness
from protocol.encoding import encode
from protocol.keys import SigningKey
from protocol.messages import Policy
from protocol.notes import cosign
from witness.auditing import audit_data
from witness.data import open_corpus
from witness.prover import RunArchive, serving_session
from witness.query import Answerer
from witness.rundir import RunDir
from witness.verifier import Options, Verification

RUN = HERE / "run"
TEXTS = ["it was a dark\nand stormy night\n", "", "the rain fell in torrents", "it was a dark\r\nand stormy night\n"]
LEDGERS = ("default", "t2-winnow-bytes-k4-w3")
NOW = 1_700_000_000


def key(name: str) -> SigningKey:
    """A key that everybody knows."""
    return SigningKey(name, sha256(b"training-witness example key " + name.encode()).digest())


def record(folder: Path, profile: str) -> None:
    """Records the run: it stops after step 4, is resumed, and its trainer declares a fault."""
    from mean import Mean

    corpus = open_corpus(TEXTS, Mean().packing())
    corpus.source = "two sentences"
    given = {"key": key("trainer.example"), "checkpoint_every": 3, "pieces": 4096}
    with witness.record(folder, Mean(), corpus, ledgers=LEDGERS, profile=profile, **given) as run:
        for batch in run:
            run.step(batch)
            run.stopping = batch.step == 4
    with witness.record(folder, Mean(), key=given["key"], resume=True) as run:
        for batch in run:
            if batch.step == 6:
                run.fault(2, "a disk was full")
            run.step(batch)


def hold_session() -> None:
    """A verifier's session over the run, frame by frame, and the certificate that it ends in."""
    frames: list[dict[str, str]] = []
    with RunArchive(RunDir.open(RUN), block=True) as archive:
        session = sha256(b"training-witness example session").digest()[:16]
        prover = serving_session(archive, session, key("trainer.example"))

        def exchange(frame: bytes) -> bytes:
            reply = prover.handle(frame)
            frames.append({"request": frame.hex(), "reply": reply.hex()})
            return reply

        trust = archive.audit.manifest.program.digest.hex()
        policy = Policy("0.9", "1/3", outliers=1)
        nonce = sha256(b"training-witness example nonce").digest()
        options = Options(trust=trust)
        certificate = Verification(exchange, policy, key("verifier.example"), nonce, options).run()
    (HERE / "certificate.json").write_bytes(certificate)
    (HERE / "session.json").write_text(json.dumps(frames, indent=1) + "\n")


def ask(audit: bytes) -> None:
    """An answer to four questions: a document that is there, one that is not, a span that is, and one that is not."""
    answerer = Answerer(RunDir.open(RUN))
    digests = answerer.digests(
        [("t0-sha256", sha256(TEXTS[0].encode()).digest()), ("t0-sha256", sha256(b"a quiet night\n").digest())],
        [(HERE / "certificate.json").read_bytes(), audit],
    )
    spans = answerer.spans(LEDGERS[1], [b"stormy night", b"stormy light"])
    from protocol.answer import merge

    (HERE / "answer.json").write_bytes(merge([digests, spans]).to_bytes())


def main() -> None:
    """Makes everything anew."""
    torch.set_num_threads(1)
    shutil.rmtree(RUN, ignore_errors=True)
    record(RUN, "exact-14")
    hold_session()
    audit = audit_data(RunDir.open(RUN), key("auditor.example"), clock=lambda: NOW)
    (HERE / "audit.json").write_bytes(audit)
    ask(audit)
    head = RunDir.open(RUN).latest_head()
    (HERE / "cosigned.note").write_bytes(cosign(head, key("cosigner.example"), NOW))
    with TemporaryDirectory() as folder:
        record(Path(folder) / "run", "native")
        manifest = RunDir.open(Path(folder) / "run").manifest()
    native = {"profile": manifest.profile, "operations": manifest.operations}
    (HERE / "native.json").write_bytes(encode(native))


if __name__ == "__main__":
    main()
