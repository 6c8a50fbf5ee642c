"""The Landlock layer by itself, without the filter that would hide its gaps."""

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from witness.sandbox import landlock
from witness.sandbox.landlock import Access

needs = {
    number: pytest.mark.skipif(landlock.abi() < number, reason=f"Landlock ABI {landlock.abi()}") for number in (1, 6)
}
ROOT = Path(landlock.__file__).parents[2]
SCRIPT = """
import errno, json, os, socket, sys
from pathlib import Path
from witness.sandbox import kernel, landlock

facts = json.loads(sys.argv[1])
folder = Path(facts["folder"])
kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)  # else only root may
landlock.restrict(facts["abi"], [
    (folder / "readable", landlock.READ), (folder / "job", landlock.WRITE), (folder / "one", landlock.WRITE),
    (folder / "absent", landlock.READ),
])

def connect(family, address):
    with socket.socket(family) as client:
        client.connect(address)

def bind():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))

def through_socket():
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "job" / "socket"))

attempts = {
    "read": lambda: (folder / "readable" / "file").read_bytes(),
    "list": lambda: os.listdir(folder / "readable"),
    "write": lambda: (folder / "job" / "new").write_text("x"),
    "replace": lambda: (folder / "job" / "new").replace(folder / "job" / "sub" / "moved"),
    "truncate": lambda: os.truncate(folder / "job" / "sub" / "moved", 0),
    "remove": lambda: (folder / "job" / "sub" / "moved").unlink(),
    "write one": lambda: (folder / "one").write_text("x"),
    "read other": lambda: (folder / "other").read_bytes(),
    "list other": lambda: os.listdir(folder),
    "write readable": lambda: (folder / "readable" / "file").write_text("x"),
    "truncate readable": lambda: os.truncate(folder / "readable" / "file", 0),
    "execute": lambda: os.execv("/bin/true", ["true"]),
    "symlink": lambda: os.symlink("a", folder / "job" / "link"),
    "fifo": lambda: os.mkfifo(folder / "job" / "fifo"),
    "socket": through_socket,
    "signal": lambda: os.kill(os.getppid(), 0),
    "connect": lambda: connect(socket.AF_INET, ("127.0.0.1", facts["port"])),
    "bind": bind,
    "abstract": lambda: connect(socket.AF_UNIX, b"\\0" + facts["abstract"].encode()),
}
report = {}
for name, attempt in attempts.items():
    try:
        attempt()
        report[name] = "done"
    except OSError as error:
        report[name] = errno.errorcode[error.errno]
print(json.dumps(report))
"""
ALLOWED = {"read", "list", "write", "write one"}


def attempts(folder: Path, abi: int) -> dict[str, str]:
    for name in ("readable", "job/sub"):
        (folder / name).mkdir(parents=True)
    for name in ("readable/file", "one", "other"):
        (folder / name).write_text("text")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        name = f"training-witness-{os.getpid()}"
        abstract.bind(b"\0" + name.encode())
        abstract.listen()
        facts = {"folder": str(folder), "abi": abi, "port": server.getsockname()[1], "abstract": name}
        command = [sys.executable, "-c", SCRIPT, json.dumps(facts)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


@needs[1]
def test_files_are_confined(tmp_path: Path) -> None:
    outcome = attempts(tmp_path, landlock.abi())
    refused = {"read other", "list other", "write readable", "execute", "symlink", "fifo", "socket"}
    assert {name: outcome[name] for name in refused} == dict.fromkeys(refused, "EACCES")
    assert {name: outcome[name] for name in ALLOWED} == dict.fromkeys(ALLOWED, "done")
    if landlock.abi() >= 3:
        assert (outcome["replace"], outcome["truncate"], outcome["truncate readable"]) == ("done", "done", "EACCES")


@needs[1]
def test_the_oldest_version_confines_what_it_knows(tmp_path: Path) -> None:
    outcome = attempts(tmp_path, 1)
    refused = {"read other", "list other", "write readable", "execute", "symlink", "fifo", "socket"}
    assert {name: outcome[name] for name in refused} == dict.fromkeys(refused, "EACCES")
    assert outcome["replace"] == "EXDEV"  # moving between folders is never allowed before ABI 2
    assert outcome["connect"] == outcome["signal"] == "done"  # left to the filter


@needs[6]
def test_network_and_signals_are_confined(tmp_path: Path) -> None:
    outcome = attempts(tmp_path, landlock.abi())
    assert (outcome["connect"], outcome["bind"]) == ("EACCES", "EACCES")
    assert (outcome["signal"], outcome["abstract"]) == ("EPERM", "EPERM")


def test_rights_are_masked_by_the_version() -> None:
    assert [len(landlock.handled(abi)) for abi in range(1, 8)] == [13, 14, 15, 15, 16, 16, 16]
    assert landlock.handled(1) & (Access.REFER | Access.TRUNCATE | Access.IOCTL_DEV) == 0
    assert landlock.WRITE & (Access.EXECUTE | Access.MAKE_SYM | Access.MAKE_FIFO | Access.MAKE_SOCK) == 0


@needs[1]
def test_a_version_the_kernel_does_not_know_is_an_error(tmp_path: Path) -> None:
    """No silent weak mode: the rights asked for are never dropped."""
    code = """if True:
        from witness.sandbox import landlock
        landlock.handled = lambda version: 1 << 63
        try:
            landlock.restrict(1, [])
        except OSError as error:
            print(error.errno)
    """
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) == errno.EINVAL
