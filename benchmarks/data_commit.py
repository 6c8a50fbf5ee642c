"""How fast is `witness data commit`, with one process and with two, and does its memory stay flat?

Makes shards of JSON lines in a temporary folder (5 GB; `--quick`: 0.25 GB), commits to all of them and to half of them,
then to the same bytes as one text, and deletes everything. The shards are in the page cache when they are read.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _report
import numpy as np

SHARDS = 10
WORDS = [b"%x" % (number * 2654435761 % (1 << 36)) for number in range(4096)]


def make(folder: Path, size: int) -> int:
    """Shards with documents of 0.7 to 6 KB; their number."""
    source = np.random.default_rng(11)
    paragraphs = [b" ".join(WORDS[word] for word in source.integers(0, len(WORDS), 80)) for _ in range(500)]
    documents = 0
    for shard in range(SHARDS):
        with (folder / f"part-{shard:02}.jsonl").open("wb", buffering=1 << 20) as file:
            while file.tell() < size // SHARDS:
                chosen = source.integers(0, len(paragraphs), source.integers(1, 9))
                text = b"Document %d. " % documents + b"\\n".join(paragraphs[one] for one in chosen.tolist())
                file.write(b'{"id":%d,"text":"%s"}\n' % (documents, text))
                documents += 1
    return documents


def commit(data: Path, out: Path, workers: int) -> list[str]:
    """Seconds on the wall and of all processors together, and memory of the largest process."""
    shutil.rmtree(out, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, __file__, "child", str(data), str(out), str(workers)]
    start = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    size = sum(file.stat().st_size for file in ([data] if data.is_file() else data.iterdir()))
    return [
        f"{wall:.1f} s",
        f"{size / wall / 1e6:.0f} MB/s",
        f"{processor:.1f} s",
        f"{int(done.stdout) / 1024:.0f} MB",
    ]


def child(data: str, out: str, workers: str) -> None:
    """The command in this process, which then says how much memory it and its workers took at most."""
    from witness.cli import main as witness

    sys.argv = ["witness", "data", "commit", data, "--out", out, "--workers", workers, "--json"]
    told, sys.stdout = sys.stdout, open("/dev/null", "w")  # noqa: PTH123, SIM115
    try:
        witness()
    except SystemExit as end:
        assert end.code == 0
    sys.stdout = told
    most = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(most)


def main() -> None:
    size = (1 << 28) if "--quick" in sys.argv else 5 << 30
    _report.heading("How fast is `witness data commit`, and does its memory stay flat?")
    with tempfile.TemporaryDirectory(prefix="witness-bench-") as where:
        root = Path(where)
        if shutil.disk_usage(root).free < 4 * size:
            sys.exit(f"{4 * size >> 30} GB of free disk are needed in {root.parent}")
        shards, half = root / "shards", root / "half"
        shards.mkdir()
        half.mkdir()
        documents = make(shards, size)
        for file in sorted(shards.iterdir())[: SHARDS // 2]:
            (half / file.name).hardlink_to(file)
        lines = [
            ["JSON lines, 10 shards", f"{documents:,}", str(workers), *commit(shards, root / "out", workers)]
            for workers in (1, 2, 1, 2)
        ]
        lines.append(["half of the shards", f"{documents // 2:,}", "1", *commit(half, root / "out", 1)])
        text = root / "whole.txt"
        with text.open("wb") as whole:
            for file in sorted(shards.iterdir()):
                with file.open("rb") as shard:
                    shutil.copyfileobj(shard, whole, 1 << 20)
        lines.append(["the same bytes as one text", "1", "1", *commit(text, root / "out", 1)])
    _report.table(("data", "documents", "processes", "wall", "throughput", "processor", "largest process"), lines)


if __name__ == "__main__":
    if len(sys.argv) == 5:
        child(*sys.argv[2:])
    else:
        main()
