"""The rows of the attack table: each test file declares its own, and its tests are held to them.

`python -m attacks.table`, started in `tests/`, writes them into README.md; `test_table.py` fails where that was
forgotten.
"""

import importlib.util
import sys
from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from attacks.court import Seen, audit_of, nonce_that, verify
from attacks.programs import STEPS

from protocol import checks, soundness

By = Literal["check", "mandatory", "draw", "opening", "signature", "certificate", "parser", "sandbox", "answer"]
WHAT: dict[By, str] = {
    "check": "gradient-free check",
    "mandatory": "mandatory challenge",
    "draw": "uniform draw",
    "opening": "opening",
    "signature": "signature",
    "certificate": "certificate",
    "parser": "parser",
    "sandbox": "sandbox",
    "answer": "answer about the data",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One way to cheat.

    Attributes:
        cheat: number in the catalogue.
        variant: what the cheat does, in a few words.
        by: the kind of thing that catches it.
        what: which one.
        code: first code that the verifier reports; of an answer about the data, its result.
        step: the step it names; None where a step does not come into it.
        bad: bad steps of the run.
        draws: uniform draws that the test makes; 0 where draws do not come into it.
    """

    cheat: str
    variant: str
    by: By
    what: str
    code: str
    step: int | None = None
    bad: int = 0
    draws: int = 0

    @property
    def by_draws(self) -> Fraction:
        """Probability with which the draws alone find it, as `protocol.soundness` states it."""
        return soundness.detection_probability(STEPS, self.bad, self.draws)

    @property
    def detection(self) -> Fraction:
        """Probability of being caught at all."""
        return self.by_draws if self.by == "draw" else Fraction(1)

    def line(self) -> str:
        """As it stands in README.md."""
        step = "-" if self.step is None else str(self.step)
        alone = (
            f"{soundness.decimal_down(self.by_draws, 4)} ({self.bad} bad, {self.draws} drawn)" if self.draws else "-"
        )
        chance = alone.split()[0] if self.by == "draw" else "1"
        cells = (self.cheat, self.variant, f"{WHAT[self.by]}: {self.what}", f"`{self.code}`", step, chance, alone)
        return f"| {' | '.join(cells)} |"


README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def files() -> list[Path]:
    """The files of the cheats, in order."""
    return sorted(Path(__file__).parent.glob("test_a[0-9][0-9]_*.py"))


def rows_of(path: Path) -> tuple[Row, ...]:
    """The rows that one of them declares."""
    spec = importlib.util.spec_from_file_location(f"rows_of_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return tuple(module.ROWS)


def rendered() -> str:
    """The table of all files."""
    head = f"| cheat | what it does | what catches it | code | step | probability | draws alone |\n|{' --- |' * 7}"
    lines = [row.line() for path in files() for row in rows_of(path)]
    return f"{BEGIN}\n{head}\n" + "\n".join(lines) + f"\n{END}"


def caught(seen: Seen, row: Row) -> None:
    """Holds what a verifier saw to the row: diverged, with that code, at that step."""
    assert seen.verdict == "diverged", seen.found
    assert (seen.code, seen.step) == (row.code, row.step), seen.found


def found_by_draws_alone(run: Path, row: Row, also: Collection[int] = (), **how: Any) -> Seen:
    """Shows that only the draws can find a cheat, that they do when they hit it, and that the certificate says how
    often.

    Args:
        run: with bad steps.
        row: what to expect of a draw of its step.
        also: other bad steps.
        how: the session is led; see `verify`.

    Returns:
        What the verifier saw whose nonce drew the step.
    """
    assert row.step is not None and row.by == "draw" and row.bad == 1 + len(also)
    assert dict(checks.mandatory(audit_of(run), 2)).keys().isdisjoint({row.step, *also}), (
        "this is to be about the draws"
    )
    hit = verify(run, draws=row.draws, nonce=nonce_that(run, row.draws, hits=row.step, misses=also), **how)
    caught(hit, row)
    # Other nonces miss all of it. What they certify is true, and states the probability of finding one bad step.
    miss = verify(run, draws=row.draws, nonce=nonce_that(run, row.draws, misses=(row.step, *also)), **how)
    assert miss.verdict == "reproduced", miss.found
    assert miss.evidence.detection == Fraction(row.draws, STEPS) <= row.detection < 1
    return hit


def main() -> None:
    """Writes the table into README.md."""
    text = README.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    README.write_text(before + rendered() + after)


if __name__ == "__main__":
    sys.exit(main())
