"""An inspection as one HTML page: no script, nothing fetched, every text escaped, the same bytes for the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from witness.printable import printable
from witness.report import charts, wording

_TEMPLATE = "page.html.j2"


def render(document: dict[str, Any]) -> str:
    """The page of the full form of an inspection."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = _shown(document)
    return environment.get_template(_TEMPLATE).render(
        d=shown,
        name=shown["program"]["entry"].rpartition(":")[2],
        charts=charts.charts(shown),
        wording=wording,
    )


def _shown(value: Any) -> Any:
    """The same object with texts that only show themselves; line ends stay."""
    if isinstance(value, dict):
        return {_shown(name): _shown(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_shown(part) for part in value]
    if isinstance(value, str):
        return "\n".join(printable(line, 4000) for line in value.split("\n"))
    return value
