"""A slip on the command line is usage: it accuses nobody. What is an artefact and damaged is malformed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from made_run import KEY, made_run

from protocol.errors import EXIT_DIVERGED, EXIT_USAGE, UsageError, WitnessError
from protocol.keys import SigningKey
from witness.cli import group
from witness.holding import hold_to_run
from witness.prover import serving_session
from witness.rundir import RunDir

EXAMPLE = Path(__file__).parents[2] / "spec" / "example"
OTHER = SigningKey("other.example", bytes(range(9, 41)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return made_run(tmp_path_factory.mktemp("named") / "run", [b"a document %d" % i for i in range(8)], steps=3)


def refused(*arguments: object) -> tuple[str, int]:
    error = CliRunner().invoke(group, list(map(str, arguments))).exception
    assert isinstance(error, WitnessError), error
    return error.code, error.exit_status


@pytest.mark.parametrize("text", [b"", b"just words", b'["payload"]', b'{"verdict":"reproduced"}', b"\x89PNG\r\n"])
def test_another_kind_of_file_is_usage(text: bytes, tmp_path: Path, run: RunDir) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(text)
    head = run.heads / f"{run.head_sizes()[-1]:012}.note"
    assert refused("check", file) == ("file-kind", EXIT_USAGE)
    assert refused("query", "--check", file, "--head", head) == ("file-kind", EXIT_USAGE)
    assert refused("query", run.path, "--digest", "00" * 32, "--cert", file) == ("file-kind", EXIT_USAGE)


def test_a_damaged_certificate_is_malformed(tmp_path: Path) -> None:
    whole = (EXAMPLE / "certificate.json").read_bytes()
    for name, data in (("short", whole[:-20]), ("longer", whole + b"x"), ("other", b'{"payload":1}')):
        (tmp_path / name).write_bytes(data)
        assert refused("check", tmp_path / name)[1] == EXIT_DIVERGED, name


def test_what_is_no_key_is_usage(tmp_path: Path, run: RunDir) -> None:
    certificate = EXAMPLE / "certificate.json"
    assert refused("check", certificate, "--key", "foo") == ("not-a-key", EXIT_USAGE)
    assert refused("query", run.path, "--digest", "00" * 32, "--key", "foo") == ("not-a-key", EXIT_USAGE)
    (tmp_path / "text.txt").write_text("words\n")
    assert refused("verify", run.path, "--key", tmp_path / "text.txt") == ("not-a-key", EXIT_USAGE)


def test_a_key_of_ours_that_does_not_fit_is_usage(run: RunDir) -> None:
    audit = SimpleNamespace(manifest=run.manifest())
    archive: Any = SimpleNamespace(audit=audit, head=run.latest_head())
    with pytest.raises(UsageError) as caught:
        serving_session(archive, bytes(16), OTHER)
    assert caught.value.code == "other-key" and OTHER.public.vkey in str(caught.value)
    serving_session(archive, bytes(16), KEY)


def test_a_certificate_about_another_run_is_usage(run: RunDir) -> None:
    one: Any = SimpleNamespace(predicate=SimpleNamespace(run="00" * 32, trainer=run.manifest().key))
    with pytest.raises(UsageError) as caught:
        hold_to_run(one, run.path)
    assert caught.value.code == "other-run"
