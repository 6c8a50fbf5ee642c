"""A program's source: which files it is made of, and making the program again from them.

The files are found by following the imports of the program's module that lead to its own folder; installed packages are
covered by the numeric profile's versions. A script that trains at import is fine: when it is loaded for replay,
`witness.record` stops the import at that line, and what was defined above it is the program.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from protocol.errors import IncompleteError, UsageError
from protocol.manifest import MAX_FILES, MAX_SOURCE, ProgramClaim, SourceFile, is_entry

REFERENCE_PACKAGE = "witness.programs"


class StopLoading(BaseException):
    """Raised by `witness.record` while a program is being loaded: everything above the call is defined."""


_loading = False


@contextmanager
def loading() -> Iterator[None]:
    """Within it, `witness.record` ends the import of the script that calls it."""
    global _loading
    before, _loading = _loading, True
    try:
        yield
    except StopLoading:
        pass
    finally:
        _loading = before


def stop_when_loading() -> None:
    """Called first by `witness.record`: stops the import of a script that is only being loaded."""
    if _loading:
        raise StopLoading


def collect(kind: type) -> tuple[ProgramClaim, dict[str, bytes]]:
    """The claim on a program class (without arguments) and the bytes of its files by relative path.

    Raises:
        UsageError: `program-source-missing`, for a class that lives in no file.
    """
    module = sys.modules[kind.__module__]
    if kind.__module__.startswith(REFERENCE_PACKAGE + "."):
        files = reference_files()
        return _claim(f"{kind.__module__}:{kind.__qualname__}", "reference", files), files
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file() or "<locals>" in kind.__qualname__:
        raise UsageError(
            "program-source-missing",
            f"{kind.__qualname__} is not defined at the top level of a file, so no one could load it again",
            next_action="put the class into a .py file and import it from there",
        )
    path = Path(file).resolve()
    package = (
        module.__spec__.parent if module.__name__ == "__main__" and module.__spec__ else module.__package__
    ) or ""
    root = path.parent
    for _ in filter(None, package.split(".")):
        root = root.parent
    files = _closure(path, root)
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    return _claim(f"{name}:{kind.__qualname__}", "files", files), files


def claim_of_reference(entry: str) -> ProgramClaim:
    """What this installation's copy of a reference program is."""
    return _claim(entry, "reference", reference_files())


def reference_files() -> dict[str, bytes]:
    """The installed reference programs, by file name."""
    spec = find_spec(REFERENCE_PACKAGE)
    folder = Path(spec.origin if spec and spec.origin else "").parent
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.py"))}


def _claim(entry: str, kind: str, files: Mapping[str, bytes]) -> ProgramClaim:
    if not is_entry(entry):
        raise UsageError(
            "program-source-missing",
            f"{entry!r} could not be named in a manifest",
            next_action="name the file, its folders and the class by ASCII letters, digits and underscores",
        )
    if len(files) > MAX_FILES:
        raise UsageError(
            "program-source-missing",
            f"the program imports {len(files)} files of its own; at most {MAX_FILES} can be bound",
        )
    listed = []
    for path in sorted(files):
        if len(files[path]) > MAX_SOURCE:
            raise UsageError("program-source-missing", f"{path} is larger than {MAX_SOURCE} bytes")
        listed.append(SourceFile(path, hashlib.sha256(files[path]).hexdigest(), len(files[path])))
    return ProgramClaim(entry, kind, tuple(listed), None)  # type: ignore[arg-type]


def _closure(start: Path, root: Path) -> dict[str, bytes]:
    """`start` and every file below `root` that its imports lead to, package `__init__` files included."""
    found: dict[Path, bytes] = {}
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found[path] = path.read_bytes()
        parents = [p for p in path.parents if p != root and root in p.parents]
        waiting += [p / "__init__.py" for p in parents]
        package = ".".join(path.relative_to(root).parts[:-1])
        for name in _imports(found[path], package):
            waiting += _own_files(name, root)
    return {path.relative_to(root).as_posix(): data for path, data in found.items()}


def _imports(source: bytes, package: str) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*filter(None, above), *filter(None, [base])])
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return [name for name in names if name]


def _own_files(name: str, root: Path) -> list[Path]:
    """The file of module `name` if it lies below `root` and is not an installed package."""
    base = root.joinpath(*name.split("."))
    candidates = [base.with_suffix(".py"), base / "__init__.py"]
    if not any(c.is_file() for c in candidates) or "site-packages" in base.parts:
        return []
    top = name.partition(".")[0]
    if top not in sys.modules and find_spec(top) is not None and top in sys.stdlib_module_names:
        return []
    return [c for c in candidates if c.is_file()]


def load(claim: ProgramClaim, folder: Path | None) -> tuple[type, Mapping[str, Any]]:
    """Imports a committed program: only in the sandbox, unless it is one's own or a reference program.

    Args:
        claim: from the manifest.
        folder: where the files were laid out; None for a reference program.

    Returns:
        The class, and the globals of its module.

    Raises:
        IncompleteError: `program-load`.
    """
    from witness.program import Program

    name, _, qualname = claim.entry.partition(":")
    if claim.kind == "reference":
        if not name.startswith(REFERENCE_PACKAGE + "."):
            raise IncompleteError("program-load", f"{name[:80]} is not a reference program")
        namespace: Mapping[str, Any] = vars(importlib.import_module(name))
    else:
        if folder is None:
            raise IncompleteError("program-load", "the program's files are not there")
        namespace = execute(name, folder)
    kind: Any = namespace.get(qualname.partition(".")[0])
    for attribute in qualname.split(".")[1:]:
        kind = getattr(kind, attribute, None)
    if not (isinstance(kind, type) and issubclass(kind, Program)):
        raise IncompleteError("program-load", f"{claim.entry} is not a Program")
    return kind, namespace


def execute(name: str, folder: Path) -> Mapping[str, Any]:
    """Imports module `name` from `folder` and returns its globals; a call of `witness.record` ends the import.

    Raises:
        IncompleteError: `program-load`.
    """
    path = folder.joinpath(*name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    module = types.ModuleType(name)
    module.__file__ = str(file)
    module.__package__ = name if path.is_dir() else name.rpartition(".")[0]
    sys.path.insert(0, str(folder))
    sys.modules[name] = module
    try:
        code = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
        with loading():
            if module.__package__ and module.__package__ != name:
                importlib.import_module(module.__package__)
            exec(code, vars(module))  # noqa: S102 - running the committed program is what a replay is; see witness.sandbox
    except (Exception, SystemExit) as error:
        raise IncompleteError(
            "program-load", f"{file.name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    return vars(module)
