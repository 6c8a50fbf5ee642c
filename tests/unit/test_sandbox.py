"""A stranger's program in the sandbox: what it tries, what comes of it, and what we are told."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.errors import IncompleteError, ProtocolError, UsageError
from witness.sandbox import End, JobResult, Limits, Sandbox, discard, landlock, missing_layers, read_output

pytestmark = pytest.mark.skipif(bool(missing_layers()), reason=f"no sandbox here: {missing_layers()}")

JOBS = Path(__file__).parent / "sandbox_jobs"
ENVIRONMENT = {"OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "0", "MKL_CBWR": "COMPATIBLE"}
MIB = 1 << 20
SMALL = Limits(
    memory_bytes=512 * MIB,
    cpu_seconds=60,
    wall_seconds=60,
    file_bytes=64 * MIB,
    open_files=64,
    output_bytes=128 * MIB,
    output_entries=200,
    threads=64,
)


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("public")
    (folder / "public").write_text("public")
    return folder


@pytest.fixture(scope="module")
def sandbox(public: Path) -> Iterator[Sandbox]:
    """One sandbox for all tests of this module: every job runs after all the hostile ones before it."""
    with Sandbox(environment=ENVIRONMENT, readable=[public], limits=SMALL, import_paths=[JOBS]) as sandbox:
        yield sandbox


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    job = tmp_path / "job"
    job.mkdir()
    yield job
    if job.exists():
        discard(job)  # a tree too deep for pytest to clear away must not be left to it


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder beside the job's, which must come out of every test as it went in."""
    folder = tmp_path / "outside"
    (folder / "empty").mkdir(parents=True)
    victim = folder / "victim"
    victim.write_text("the secret")
    victim.chmod(0o640)
    before = victim.stat()
    yield folder
    after = victim.stat()
    assert victim.read_text() == "the secret"
    assert (after.st_mode, after.st_mtime_ns, after.st_nlink) == (before.st_mode, before.st_mtime_ns, 1)
    assert sorted(path.name for path in folder.iterdir()) == ["empty", "victim"]


def report(job: Path) -> dict[str, str]:
    return json.loads(read_output(job, "report.json", limit=1 << 16))


def attempts(sandbox: Sandbox, job: Path, name: str, **inputs: object) -> tuple[JobResult, dict[str, str]]:
    """Runs a hostile target that reports its attempts, and checks that none succeeded."""
    (job / "inputs.json").write_text(json.dumps({"parent": os.getpid()} | inputs, default=str))
    result = sandbox.run(job, f"hostile_jobs:{name}")
    assert result.succeeded, result
    outcome = report(job)
    assert [f"{key}: {value}" for key, value in outcome.items() if value.startswith("done")] == []
    return result, outcome


def test_all_layers_are_on(sandbox: Sandbox, job: Path) -> None:
    layers = sandbox.run(job, "honest_jobs:ordinary_python").layers
    assert layers[:3] == ("rlimits", "no-new-privileges", "no-capabilities")
    assert layers[3:5] == (f"landlock-{landlock.abi()}", "seccomp")


def test_the_kernel_agrees(sandbox: Sandbox, job: Path) -> None:
    """The layers, read from outside while a job runs."""
    facts: dict[str, str] = {}

    def look() -> None:
        deadline = time.monotonic() + 20
        while not (pid := (job / "pid").read_text() if (job / "pid").exists() else "") and time.monotonic() < deadline:
            time.sleep(0.005)
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        facts.update((name, value.strip()) for name, _, value in (line.partition(":") for line in lines))
        facts["limits"] = Path(f"/proc/{pid}/limits").read_text()
        facts["session"] = str(os.getsid(int(pid)))
        facts["adjustment"] = Path(f"/proc/{pid}/oom_score_adj").read_text().strip()

    looker = threading.Thread(target=look)
    looker.start()
    sandbox.run(job, "hostile_jobs:sleeping", limits=replace(SMALL, wall_seconds=1))
    looker.join()
    assert {facts[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
    assert (facts["session"], facts["adjustment"]) == (facts["Pid"], "1000")
    limits = {line[:25].strip(): line[25:].split()[:2] for line in facts["limits"].splitlines()}
    assert limits["Max cpu time"] == ["60", "60"]
    assert limits["Max open files"] == ["64", "64"]
    assert limits["Max core file size"] == ["1", "1"]
    assert limits["Max file size"] == [str(64 * MIB)] * 2


def test_an_honest_job_gets_the_bits_of_an_ordinary_process(sandbox: Sandbox, job: Path, tmp_path: Path) -> None:
    result = sandbox.run(job, "honest_jobs:training", limits=replace(SMALL, memory_bytes=2048 * MIB))
    assert result.succeeded, result.stderr_tail
    ordinary = tmp_path / "ordinary"
    ordinary.mkdir()
    code = "import sys, pathlib, honest_jobs; honest_jobs.training(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, ordinary], env=ENVIRONMENT, cwd=JOBS, check=True)
    assert report(job) == report(ordinary)
    assert report(job)["threads"] == 2
    assert result.refused == ()
    assert result.cpu_seconds > 0
    assert result.max_rss_bytes > 50 * MIB


def test_ordinary_python_works(sandbox: Sandbox, job: Path) -> None:
    result = sandbox.run(job, "honest_jobs:ordinary_python")
    assert result.succeeded, result
    facts = json.loads(read_output(job, "report.json", limit=4096))
    assert facts["cwd"] == facts["home"] == facts["temporary"] == str(job)
    assert facts["results"] == [1]
    # Nothing is inherited from this process.
    assert set(facts["variables"]) == {*ENVIRONMENT, "PATH", "LANG", "HOME", "TMPDIR", *python_own(facts["variables"])}
    assert "said 1" in result.stderr_tail


def python_own(names: list[str]) -> set[str]:
    """Variables that Python itself sets when it starts."""
    return {"LC_CTYPE"} & set(names)


def test_what_was_made_readable_is(sandbox: Sandbox, job: Path, public: Path) -> None:
    (job / "inputs.json").write_text(json.dumps({"readable": str(public)}))
    assert sandbox.run(job, "honest_jobs:reading").succeeded
    assert read_output(job, "copy", limit=100) == b"public"


def test_no_network(sandbox: Sandbox, job: Path) -> None:
    result, outcome = attempts(sandbox, job, "network")
    assert set(outcome.values()) == {"EPERM"}
    assert result.refused == ("socket", "socketpair", "connect", "io_uring_setup")


def test_no_inherited_descriptor(sandbox: Sandbox, job: Path) -> None:
    assert sandbox.run(job, "hostile_jobs:descriptors").succeeded
    assert json.loads(read_output(job, "report.json", limit=4096)) == [0, 1, 2]


def test_no_reading_outside(sandbox: Sandbox, job: Path, outside: Path) -> None:
    (job / "planted").symlink_to(outside / "victim")
    _, outcome = attempts(sandbox, job, "reading", secret=outside / "victim")
    assert set(outcome.values()) <= {"EACCES", "EXDEV", "EBADF", "EPERM"}


def test_no_memory_of_others(sandbox: Sandbox, job: Path) -> None:
    result, outcome = attempts(sandbox, job, "memory_of_others")
    assert set(outcome.values()) == {"EPERM"}
    assert result.refused == ("ptrace", "process_vm_readv", "pidfd_open")


def test_no_writing_outside(sandbox: Sandbox, job: Path, outside: Path, public: Path) -> None:
    (job / "planted_folder").symlink_to(outside)
    result, outcome = attempts(sandbox, job, "writing", outside=outside, readable=public)
    assert set(outcome.values()) <= {"EACCES", "EXDEV", "EPERM"}
    assert {"truncate", "utimensat", "setxattr", "memfd_create"} <= set(result.refused)
    assert (public / "public").read_text() == "public"


@pytest.mark.parametrize("abi", [1, 2, 3, 4, 5, 6])
def test_an_older_landlock_holds_as_well(
    abi: int, job: Path, outside: Path, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an old kernel's Landlock cannot refuse, the filter does."""
    if landlock.abi() < abi:
        pytest.skip(f"Landlock ABI {landlock.abi()}")
    monkeypatch.setattr(landlock, "abi", lambda: abi)
    (job / "planted_folder").symlink_to(outside)
    with Sandbox(environment={}, preload=(), readable=[public], import_paths=[JOBS]) as sandbox:
        result, _ = attempts(sandbox, job, "writing", outside=outside, readable=public)
        assert f"landlock-{abi}" in result.layers
        attempts(sandbox, job, "signals")
    assert (public / "public").read_text() == "public"


def test_no_other_process(sandbox: Sandbox, job: Path) -> None:
    result, outcome = attempts(sandbox, job, "processes")
    assert outcome.pop("clone3") == "ENOSYS"
    assert set(outcome.values()) == {"EPERM"}
    assert {"clone", "execve", "unshare"} <= set(result.refused)


def test_no_signal_to_others(sandbox: Sandbox, job: Path) -> None:
    result, outcome = attempts(sandbox, job, "signals")
    assert set(outcome.values()) == {"EPERM"}
    assert {"kill", "tgkill", "prlimit64", "fcntl", "prctl"} <= set(result.refused)


@pytest.mark.parametrize("name", ["memory", "tensors", "threads_with_memory"])
def test_memory_is_capped(sandbox: Sandbox, job: Path, name: str) -> None:
    result = sandbox.run(job, f"hostile_jobs:{name}")
    assert result.out_of_memory
    assert not result.succeeded
    assert result.max_rss_bytes < 1024 * MIB


def test_shared_memory_is_capped(sandbox: Sandbox, job: Path) -> None:
    _, outcome = attempts(sandbox, job, "shared_memory")
    assert outcome == {"shared": "ENOMEM"}


def test_processor_time_is_capped(sandbox: Sandbox, job: Path) -> None:
    result = sandbox.run(job, "hostile_jobs:spinning", limits=replace(SMALL, cpu_seconds=1))
    assert (result.end, result.signal) == (End.CPU_TIME, signal.SIGKILL)
    assert result.timed_out
    assert 0.8 < result.cpu_seconds < 3


@pytest.mark.parametrize("name", ["sleeping", "stopped"])
def test_wall_time_is_capped(sandbox: Sandbox, job: Path, name: str) -> None:
    result = sandbox.run(job, f"hostile_jobs:{name}", limits=replace(SMALL, wall_seconds=0.3))
    assert (result.end, result.signal) == (End.WALL_TIME, signal.SIGKILL)
    assert result.timed_out
    assert 0.3 <= result.wall_seconds < 5


def test_a_file_is_capped(sandbox: Sandbox, job: Path) -> None:
    result = sandbox.run(job, "hostile_jobs:huge_file", limits=replace(SMALL, file_bytes=3 * MIB))
    assert (result.end, result.exit_status) == (End.EXITED, 1)
    assert "File too large" in result.stderr_tail
    assert (job / "huge").stat().st_size == 3 * MIB


def test_all_files_together_are_capped_even_if_deleted(sandbox: Sandbox, job: Path) -> None:
    result = sandbox.run(job, "hostile_jobs:many_bytes")
    assert (result.end, result.signal) == (End.OUTPUT, signal.SIGKILL)


@pytest.mark.parametrize(("name", "cap"), [("many_entries", 200), ("deep_folders", 5000)])
def test_entries_are_capped(sandbox: Sandbox, job: Path, name: str, cap: int) -> None:
    result = sandbox.run(job, f"hostile_jobs:{name}", limits=replace(SMALL, output_entries=cap))
    assert result.end is End.OUTPUT
    discard(job)
    assert not job.exists()


def test_open_files_are_capped(sandbox: Sandbox, job: Path) -> None:
    result = sandbox.run(job, "hostile_jobs:many_descriptors")
    assert result.exit_status == 1
    assert "Too many open files" in result.stderr_tail


def test_threads_are_capped(sandbox: Sandbox, job: Path) -> None:
    result = sandbox.run(job, "hostile_jobs:many_threads")
    assert (result.end, result.signal) == (End.THREADS, signal.SIGKILL)


def test_no_thread_outlives_its_job(sandbox: Sandbox, job: Path) -> None:
    result = sandbox.run(job, "hostile_jobs:lingering_threads")
    assert result.succeeded
    last = (job / "alive").read_text() if (job / "alive").exists() else ""
    sandbox.run(job, "honest_jobs:ordinary_python")
    assert ((job / "alive").read_text() if (job / "alive").exists() else "") == last


def test_output_is_capped(sandbox: Sandbox, job: Path) -> None:
    result = sandbox.run(
        job, "hostile_jobs:endless_output", limits=replace(SMALL, output_bytes=1 << 50, wall_seconds=10)
    )
    assert (result.end, result.signal) == (End.OUTPUT, signal.SIGKILL)
    assert result.stderr_tail == "x" * (16 << 10)


def test_what_a_job_says_cannot_command_a_terminal(sandbox: Sandbox, job: Path) -> None:
    lines: list[str] = []
    result = sandbox.run(job, "hostile_jobs:terminal_commands", progress=lines.append)
    assert result.succeeded, result
    assert "hello" in result.stderr_tail
    assert all(c == "\n" or c.isprintable() for c in result.stderr_tail)
    assert lines == ["\ufffd[31mstep 1", "y" * 500, "step 3", "\ufffd\ufffd"]


def test_refused_calls_without_end_are_an_end(sandbox: Sandbox, job: Path) -> None:
    result = sandbox.run(job, "hostile_jobs:refusals")
    assert result.end is End.FORBIDDEN
    assert result.refused == ("pidfd_open",)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="only x86-64 has a second convention for 64-bit programs")
def test_a_call_of_a_foreign_convention_kills(sandbox: Sandbox, job: Path) -> None:
    result = sandbox.run(job, "hostile_jobs:foreign_convention")
    assert (result.end, result.signal) == (End.FORBIDDEN, signal.SIGSYS)
    assert result.killed_by_filter


def test_a_job_that_clutches_at_life_ends(sandbox: Sandbox, job: Path) -> None:
    result = sandbox.run(job, "hostile_jobs:clutching", limits=replace(SMALL, wall_seconds=10))
    assert (result.end, result.exit_status) == (End.EXITED, 1)


@pytest.mark.parametrize(("name", "status"), [("failing", 1), ("leaving", 7)])
def test_failure_is_reported(sandbox: Sandbox, job: Path, name: str, status: int) -> None:
    result = sandbox.run(job, f"honest_jobs:{name}")
    assert (result.end, result.exit_status, result.succeeded) == (End.EXITED, status, False)
    assert name == "leaving" or "ValueError: the program is wrong" in result.stderr_tail


@pytest.mark.parametrize(
    "target", ["honest_jobs", "honest_jobs:absent", "no_such_module:f", "os;x:y", "honest_jobs:os.x"]
)
def test_a_target_of_ours_that_does_not_exist_is_our_mistake(sandbox: Sandbox, job: Path, target: str) -> None:
    with pytest.raises(UsageError) as caught:
        sandbox.run(job, target)
    assert caught.value.code == "sandbox-misuse"


def test_an_unfit_folder_is_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (Path("/"), Path(sys.prefix), Path(sys.prefix).parent, tmp_path / "absent", tmp_path / "file"):
        with pytest.raises(UsageError):
            sandbox.run(folder, "honest_jobs:failing")


def test_one_zygote_served_them_all(sandbox: Sandbox, job: Path) -> None:
    link = sandbox._link
    assert link is not None
    assert link.alive()
    sandbox.run(job, "honest_jobs:leaving")
    assert sandbox._link is link


def test_without_landlock_nothing_runs_unless_asked(job: Path, outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    with pytest.raises(IncompleteError) as caught:
        Sandbox(environment={})
    assert (caught.value.code, caught.value.evidence) == ("sandbox-unavailable", {"missing": ["landlock"]})
    with Sandbox(environment={}, preload=(), import_paths=[JOBS], allow_weaker=True) as weaker:
        result, _ = attempts(weaker, job, "network")
        assert not [layer for layer in result.layers if layer.startswith("landlock")]
        for name in ("processes", "signals", "memory_of_others"):
            attempts(weaker, job, name)


def test_a_module_that_cannot_be_preloaded_is_named() -> None:
    with pytest.raises(IncompleteError, match="no_such_module"), Sandbox(environment={}, preload=("no_such_module",)):
        pass


def test_a_module_that_computes_when_imported_is_not_preloaded() -> None:
    """A fork of a process that has used OpenMP hangs when it does."""
    with (
        pytest.raises(IncompleteError, match="computes when imported"),
        Sandbox(environment={"OMP_NUM_THREADS": "2"}, preload=("computing_module",), import_paths=[JOBS]),
    ):
        pass


def test_a_folder_is_removed_whatever_is_in_it(tmp_path: Path) -> None:
    job = tmp_path / "job"
    (tmp_path / "kept").write_text("kept")
    (job / "a" / "b").mkdir(parents=True)
    (job / "a" / "c").mkdir()
    (job / "a" / "link").symlink_to(tmp_path)
    (job / "a" / "b" / "file").touch()
    (job / "a" / "b").chmod(0)
    (job / "a").chmod(0o300)
    discard(job)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_only_regular_files_of_a_job_are_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder", "absent"):
        with pytest.raises(ProtocolError) as caught:
            read_output(tmp_path, name, limit=100)
        assert caught.value.code == "sandbox-output"
    assert read_output(tmp_path, "secret", limit=6) == b"secret"
    with pytest.raises(ProtocolError) as caught:
        read_output(tmp_path, "secret", limit=5)
    assert caught.value.code == "too-large"
