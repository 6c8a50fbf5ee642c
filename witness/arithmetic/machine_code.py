"""Where the machine code of compiled kernels is kept between processes. Imports neither torch nor numba."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_IMPORT = re.compile(r"^from witness\.arithmetic((?:\.\w+)*) import ([\w, ]*)", re.MULTILINE)


def missing() -> bool:
    """Whether the next process that imports the kernels will have to compile them, for about half a minute."""
    place = folder()
    return place is None or not any(place.iterdir())


@contextmanager
def kept() -> Iterator[Path | None]:
    """The folder for machine code, one for each text that it is made from; None where nothing can be written.

    numba looks for changes in the file of the kernel itself only, and a kernel is made of definitions in other files:
    it would go on using what was compiled from their earlier text.
    """
    import numba

    place, settings = folder(), vars(numba.config)
    before = settings["CACHE_DIR"]
    if place is not None:
        settings["CACHE_DIR"] = str(place)
    try:
        yield place
    finally:
        settings["CACHE_DIR"] = before


def _sources(here: Path) -> set[Path]:
    """The files of all kernels, and of every module of this package that they import, directly or not."""
    found, waiting = set[Path](), set((here / "kernels").glob("*.py"))
    while waiting:
        path = waiting.pop()
        found.add(path)
        for package, names in _IMPORT.findall(path.read_text()):
            for name in ("", *(word.strip() for word in names.split(","))):
                module = here.joinpath(*package.split("."), name).with_suffix(".py")
                if module.is_file() and module not in found:
                    waiting.add(module)
    return found


@functools.cache
def folder() -> Path | None:
    """Where it is kept, beside this package or in the user's cache; None where neither can be written."""
    here = Path(__file__).resolve().parent
    text = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(_sources(here))))
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    for parent in (here / "__pycache__", Path(cache) / "training-witness"):
        place = parent / f"kernels-{text.hexdigest()[:16]}"
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        # A confined process may read what was compiled before it was confined, and numba writes only what is missing.
        if os.access(place, os.W_OK):
            return place
    return None
