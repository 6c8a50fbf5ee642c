"""`witness data`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from witness.cli import data_audit
from witness.cli.data_audit import command as audit
from witness.cli.progress import Progress

if TYPE_CHECKING:
    from protocol.corpus import Packing
    from witness.data import Corpus


@click.group("data")
def command() -> None:
    """Commit to data before a run; audit what a run did with it."""


command.add_command(audit)


def _packing(ctx: click.Context, parameter: click.Parameter, value: str) -> Packing:
    from protocol.corpus import Packing

    del ctx
    kind, *sizes = value.split(":")
    if kind == "documents" and not sizes:
        return Packing("documents")
    if kind == "windows" and len(sizes) == 2 and all(s.isascii() and s.isdigit() and int(s) for s in sizes):
        return Packing("windows", int(sizes[0]), int(sizes[1]))
    raise click.BadParameter("write `documents`, or windows:LENGTH:STRIDE in tokens", param=parameter)


@command.command("commit")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder to write; default: PATH's name with .corpus, here."
)
@click.option(
    "--packing",
    callback=_packing,
    default="documents",
    show_default=True,
    metavar="documents|windows:LENGTH:STRIDE",
    help="How samples are cut, in tokens; a run says so again.",
)
@click.option(
    "--format",
    type=click.Choice(["text", "jsonl", "parquet", "dataset", "tokens", "npy", "safetensors"]),
    help="Of the files; default: by their suffix. `text` takes every file as it is.",
)
@click.option("--field", help="Field of each JSON line that is the document; default: text.")
@click.option("--column", help="Column of the table (parquet, dataset) that holds the documents; default: text.")
@click.option("--split", help="Split of a saved dataset that has several.")
@click.option("--tensor", help="Tensor (safetensors) whose rows are the documents; default: the only one.")
@click.option(
    "--tokens",
    type=click.Choice(["bytes", "uint16", "uint32"]),
    help="What a token is, in arrays and token files.",
)
@click.option("--delimiter", type=click.IntRange(0), help="Token that parts documents (token files, --tokenizer).")
@click.option(
    "--delimiter-at",
    type=click.Choice(["start", "end"]),
    help="Where a document has it; default: start, but end in token files without a header.",
)
@click.option("--header/--no-header", default=None, help="Whether token files have one; default: look.")
@click.option("--tokenizer", type=click.Path(), help="File of a tokenizer (.json, .tiktoken): commit to its tokens.")
@click.option(
    "--pattern",
    type=click.Choice(["r50k_base", "cl100k_base", "o200k_base"]),
    help="Encoding whose rule splits text, for a .tiktoken file (GPT-2: r50k_base).",
)
@click.option("--workers", type=click.IntRange(1), help="Processes that read files; default: the cores at hand.")
@click.option("--copy", is_flag=True, help="Copy the documents into the folder, however large.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def commit(
    path: Path, out: Path | None, packing: Packing, workers: int | None, copy: bool, as_json: bool, **options: Any
) -> None:
    """Commit to the documents of PATH, so that `witness train --data` takes the folder.

    PATH is a file or a folder of shards: text, JSON lines (also .gz and .zst), parquet, token files (.bin), .npy,
    .safetensors, or a dataset saved with save_to_disk. A commit that was interrupted goes on when it is called again.
    """
    from witness.data import DataOptions, commit_folder

    folder = out or Path(path.resolve().name + ".corpus")
    began = time.monotonic()
    with Progress(quiet=as_json) as progress:
        progress.stage(f"reading {path}")
        more: dict[str, Any] = {"workers": workers or len(os.sched_getaffinity(0))}
        more |= {"copy_limit": 1 << 63} if copy else {}

        def tell(done: int, total: int | None) -> None:
            progress.advance(done >> 20, (total or done) >> 20, "MiB")

        corpus = commit_folder(path, folder, packing, DataOptions(**options), tell, **more)
    _show(corpus, folder, time.monotonic() - began, as_json)


def _show(corpus: Corpus, folder: Path, seconds: float, as_json: bool) -> None:
    from protocol.encoding import encode

    claim = corpus.claim()
    where = corpus.location.path if corpus.location else ""
    if as_json:
        document = {
            "claim": json.loads(encode(claim)),
            "folder": str(folder),
            "data": where,
            "samples": corpus.documents.samples,
            "bytes": corpus.documents.size,
            "seconds": round(seconds, 3),
        }
        click.echo(json.dumps(document, sort_keys=True))
        return
    click.echo(f"root        {claim.root}")
    click.echo(f"documents   {claim.documents}, {claim.tokens} tokens ({claim.tokenizer})")
    click.echo(f"samples     {corpus.documents.samples}")
    click.echo(f"data        {where}")
    click.echo(f"next        witness train PROGRAM --data {folder} --out RUN   ({seconds:.1f} s)")


command.add_command(data_audit.command)
