"""How long until `witness check` has started, and until it has checked a certificate? Is torch imported?"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _report

REPEATS = 11


def best(command: list[str]) -> tuple[float, float]:
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - start)
    return min(seconds), statistics.median(seconds)


def main() -> None:
    _report.heading("How long until `witness check` has started, and until it has checked a certificate?")
    witness = [sys.executable, "-m", "witness"]
    with tempfile.TemporaryDirectory() as folder:
        run, certificate = Path(folder) / "run", Path(folder) / "cert"
        subprocess.run(
            [*witness, "train", "mlp", "--out", str(run), "--steps", "8", "--threads", "1", "--json"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        subprocess.run(
            [*witness, "verify", str(run), "--rounds", "1", "--out", str(certificate), "--json"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "witness check --help": [*witness, "check", "--help"],
            "witness check CERT": [*witness, "check", str(certificate)],
            "witness --help": [*witness, "--help"],
        }
        rows = []
        for name, command in commands.items():
            least, median = best(command)
            rows.append([f"`{name}`", f"{least * 1e3:.0f} ms", f"{median * 1e3:.0f} ms"])
        code = f"import sys; sys.argv[1:] = ['check', {str(certificate)!r}]\nfrom witness.cli import group\ngroup.main(standalone_mode=False)\nprint('torch' in sys.modules, 'numpy' in sys.modules)"
        shown = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout.splitlines()[-1]
    _report.table(("command", f"best of {REPEATS}", "median"), rows)
    print(f"torch, numpy imported by `check`: {shown}. Aim: at most 100 ms, no torch.")


if __name__ == "__main__":
    main()
