"""An inspection on a terminal: readable at eighty columns, and as plain text where there is no terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from witness.printable import printable
from witness.report import wording
from witness.report.curve import curve
from witness.report.scale import floats


def show(document: dict[str, Any], console: Console, *, full: bool = False) -> None:
    """Prints the full form of an inspection.

    Args:
        document: from `witness.inspection.inspect(run, full=True)`.
        console: where to.
        full: with every kept state, source file and line of the numeric profile.
    """
    if console.is_terminal:
        _show(document, console, full)
        return
    with console.capture() as captured:
        _show(document, console, full)
    for line in captured.get().split("\n")[:-1]:  # where lines are wrapped or stand in columns, blanks fill them up
        console.file.write(line.rstrip() + "\n")


def _show(document: dict[str, Any], console: Console, full: bool) -> None:
    name = document["program"]["entry"].rpartition(":")[2]
    style = "bold green" if document["finished"] else "bold yellow"
    console.print(Text.assemble((printable(name), "bold"), "  ", (wording.status(document), style)))
    console.print(Text(f"run {document['run']}", "dim"))
    _section(console, "Loss")
    unicode = (console.encoding or "").lower().startswith("utf")
    width = max(40, min(console.width, 120))
    for line in curve(floats(document["losses"]["values"]), width, unicode=unicode):
        console.print(Text(line), no_wrap=True, crop=False)
    console.print(Text(wording.course(document["losses"])))
    _section(console, "What it is")
    _rows(console, _facts(document))
    _section(console, "Steps")
    _rows(console, _steps(document))
    _section(console, "Numeric profile")
    for line in document["profile"]["summary"]:
        console.print(Text(printable(line, 2000)))
    if full:
        _everything(document, console)
    if document["remarks"]:
        _section(console, "Remarks")
        for remark in document["remarks"]:
            console.print(Text(f"- {printable(remark)}"))
    console.print()
    console.print(
        Text("This is the trainer's word. `witness fsck` derives it again, `witness verify` replays it.", "dim")
    )


def _facts(document: dict[str, Any]) -> list[tuple[str, str]]:
    program, corpus, head = document["program"], document["corpus"], document["head"]
    where = f"; data at {printable(corpus['path'])}" if corpus["path"] else ""
    return [
        ("program", f"{program['entry']} ({program['kind']}, {wording.many(len(program['files']), 'file')})"),
        ("made by", document["arguments"]["text"]),
        ("digest", program["digest"]),
        ("data", f"{printable(corpus['source']) or 'without a name'}{where}"),
        ("", wording.data(document)),
        ("batch", f"{wording.many(document['batch_size'], 'sample')} a step"),
        ("state", wording.state(document)),
        ("roots", wording.coverage(document)),
        ("key", document["key"]),
        ("head", f"over {head['size']:,} of {document['entries']:,} log entries" if head else "none"),
        ("", head["root"] if head else ""),
        ("initial", document["init"]["state_root"] if document["init"] else "not recorded yet"),
        ("final", document["final"]["state_root"] if document["final"] else "not reached yet"),
        ("released", document["final"]["released"] if document["final"] else "nothing yet"),
        ("seed", f"{document['seed']['value']} ({document['seed']['source']})"),
    ]


def _steps(document: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("gradient", wording.course(document["gradient_norms"]))]
    updates = document["update_norms"]
    for number, norms in enumerate(updates):
        rows.append(("update" if len(updates) == 1 else f"update, parameter group {number}", wording.course(norms)))
    hyper = document["hyperparameters"]
    for name in hyper["changing"]:
        first, last = wording.figure(hyper["first"][name]), wording.figure(hyper["last"][name])
        rows.append((name, f"{first} at step 1, {last} at step {document['steps']['recorded']}"))
    rows += [("constant", wording.constants(document))]
    rows += [
        ("resumed", f"after step {e['step']}, from the state of step {e['checkpoint']}") for e in document["resumes"]
    ]
    rows += [("fault", f"step {event['step']}: {event['note']}") for event in document["faults"]]
    rows.append(("operations", wording.operations(document)))
    return [(name, text) for name, text in rows if text]


def _everything(document: dict[str, Any], console: Console) -> None:
    _section(console, "Announced states")
    for state in document["checkpoints"]:
        kept = wording.size(state["bytes"]) if state["kept"] else "not in the folder"
        console.print(Text(f"{state['step']:>10}  {state['state_root']}  {kept}"), soft_wrap=True)
    _section(console, "Source files")
    for file in document["program"]["files"]:
        console.print(Text(f"{file['digest']}  {file['length']:>8}  {printable(file['path'])}"), soft_wrap=True)
    _section(console, "Every line of the numeric profile")
    _rows(console, [(name, str(value)) for name, value in document["profile"]["lines"].items() if value is not None])
    if document["operations"]["unprobed"]:
        _section(console, "Operations that could not be probed")
        _rows(console, [(entry["operation"], entry["reason"]) for entry in document["operations"]["unprobed"]])


def _section(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, "bold"))


def _rows(console: Console, rows: list[tuple[str, str]]) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(Text(printable(name, 60)), Text(printable(text, 4000)))
    console.print(table)
