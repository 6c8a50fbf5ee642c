"""No orphans: whichever of the three processes ends, and however, the ones below it end too."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.errors import IncompleteError
from witness.sandbox import Sandbox, missing_layers

pytestmark = pytest.mark.skipif(bool(missing_layers()), reason=f"no sandbox here: {missing_layers()}")

JOBS = Path(__file__).parent / "sandbox_jobs"
ROOT = Path(__file__).parents[2]
CLIENT = """
import sys
from pathlib import Path
from witness.sandbox import Sandbox
job, jobs = map(Path, sys.argv[1:])
with Sandbox(environment={}, preload=(), import_paths=[jobs]) as sandbox:
    (job / "zygote").write_text(str(sandbox._link.pid))
    sandbox.run(job, "hostile_jobs:sleeping")
"""


def running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def number(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return 0


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_client_ends(tmp_path: Path, end: signal.Signals) -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, tmp_path, JOBS], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: number(tmp_path / "pid") > 0, "the job starts")
        job, zygote = number(tmp_path / "pid"), number(tmp_path / "zygote")
        assert running(job)
        assert running(zygote)
        client.send_signal(end)
        _, error = client.communicate(timeout=20)
        assert ("KeyboardInterrupt" in error) == (end is signal.SIGINT)
        wait_for(lambda: not running(zygote) and not running(job), f"zygote {zygote} and job {job} end")
    finally:
        client.kill()
        client.wait()


def test_the_zygote_ends(tmp_path: Path) -> None:
    with Sandbox(environment={}, preload=(), import_paths=[JOBS]) as sandbox:
        assert sandbox._link is not None
        zygote = sandbox._link.pid

        def strike() -> None:
            wait_for(lambda: number(tmp_path / "pid") > 0, "the job starts")
            os.kill(zygote, signal.SIGKILL)

        striker = threading.Thread(target=strike)
        striker.start()
        with pytest.raises(IncompleteError) as caught:
            sandbox.run(tmp_path, "hostile_jobs:sleeping")
        striker.join()
        assert caught.value.code == "sandbox-unavailable"
        wait_for(lambda: not running(number(tmp_path / "pid")), "the job ends")
        # The next job gets a new zygote.
        assert sandbox.run(tmp_path, "honest_jobs:ordinary_python").succeeded
        assert sandbox._link.pid != zygote


def test_an_error_while_waiting_ends_the_job(tmp_path: Path) -> None:
    class SurpriseError(Exception):
        pass

    def surprised(line: str) -> None:
        raise SurpriseError

    with Sandbox(environment={}, preload=(), import_paths=[JOBS]) as sandbox:
        (tmp_path / "progress").write_text("a line\n")
        with pytest.raises(SurpriseError):
            sandbox.run(tmp_path, "hostile_jobs:sleeping", progress=surprised)
        wait_for(lambda: not running(number(tmp_path / "pid")), "the job ends")


def test_the_end_of_the_block_ends_the_zygote() -> None:
    with Sandbox(environment={}, preload=()) as sandbox:
        assert sandbox._link is not None
        zygote = sandbox._link.pid
        assert running(zygote)
    assert not running(zygote)
