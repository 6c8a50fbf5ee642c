"""The README's promises: its snippets run, its commands exist, its files are there."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SNIPPETS = dict(re.findall(r"<!-- snippet: (\w+) -->\n```python\n(.*?)```", README, re.DOTALL))


def test_every_python_block_is_a_named_snippet() -> None:
    assert len(re.findall(r"```python", README)) == len(SNIPPETS) == 2


def test_loop_records_a_run_that_verifies(tmp_path: Path) -> None:
    script = tmp_path / "bigram.py"
    script.write_text(SNIPPETS["loop"])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=environment, check=True, timeout=120)
    command = [sys.executable, "-m", "witness", "verify", "runs/bigram", "--rounds", "1", "--json"]
    asked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert asked.returncode == 2
    digest = re.search(r'"digest": "([0-9a-f]{64})"', asked.stdout)
    assert digest is not None
    consented = subprocess.run(
        [*command, "--trust-program", digest[1]], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert consented.returncode == 0, consented.stdout + consented.stderr


def test_three_lines_are_three_lines() -> None:
    loop = SNIPPETS["loop"].split("with witness.record", 1)[1]
    assert len(("with witness.record" + loop).strip().splitlines()) == 3


def test_class_form_names_real_methods() -> None:
    from witness import Program

    tree = ast.parse(SNIPPETS["class"])
    methods = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert methods == {"build", "step", "hyperparameters", "collate", "probe", "packing"}
    assert all(callable(getattr(Program, name)) for name in methods)


COMMANDS = sorted(set(re.findall(r"^witness (data \w+|demo leak|\w+)", README, re.MULTILINE)))


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_readme_exist_with_their_options(command: str) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "witness", *command.split(), "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.returncode == 0
    for line in re.findall(rf"^witness {command}.*$", README, re.MULTILINE):
        for option in re.findall(r"(--[a-z-]+)", line.split("#")[0]):
            assert option in shown.stdout, f"{option} of `{line}`"


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
