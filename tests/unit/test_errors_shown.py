"""What somebody sees of a refusal: the next action also in a traceback; and a help text without escapes."""

import traceback

from click.testing import CliRunner

from protocol.errors import CODES, UsageError
from witness.cli import group


def last_line(error: UsageError) -> str:
    return "".join(traceback.format_exception(error)).splitlines()[-1]


def test_a_traceback_ends_with_what_to_do_next() -> None:
    error = UsageError("run-locked", "another process is writing")
    assert last_line(error) == f"next: {CODES['run-locked'].next_action}"
    error.next_action = "wait"
    error.add_note("a note of somebody else's")
    error.next_action = "wait longer"
    assert error.__notes__ == ["a note of somebody else's", "next: wait longer"]
    assert last_line(error) == "next: wait longer"
    assert str(error) == "another process is writing"


def test_help_shows_no_escapes() -> None:
    shown = CliRunner().invoke(group, ["--help"]).output
    assert "\\" not in shown and "\b" not in shown
    assert "witness verify runs/a                   challenge it\n" in shown
