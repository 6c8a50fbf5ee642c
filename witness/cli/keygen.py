"""`witness keygen`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from protocol.errors import UsageError
from protocol.keys import is_name
from witness import keys


@click.command("keygen")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--name", default="trainer", show_default=True, help="Name in the public key: who or what signs with it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(file: Path, name: str, as_json: bool) -> None:
    """Make an Ed25519 key pair: the private key goes to FILE (mode 0600), the public key is printed.

    The public key is a C2SP verifier key, `name+id+base64`; give it to everybody. One key a role: a trainer, a
    verifier.
    """
    if not is_name(name):
        raise UsageError("key-name", f"{name!r} cannot name a key: no spaces, no '+'")
    key = keys.generate(name)
    keys.write_key(file, key)
    public = {"public": key.public.vkey, "private_file": str(file), "name": name}
    click.echo(json.dumps(public, sort_keys=True) if as_json else key.public.vkey)
