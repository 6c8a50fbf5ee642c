"""Figures of an inspection in words, the same on the terminal and on the page."""

from __future__ import annotations

from typing import Any

from witness.report.scale import label, same


def size(count: int | None) -> str:
    """A number of bytes in decimal units."""
    if count is None:
        return "unknown"
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} bytes"


def many(count: int, noun: str) -> str:
    """A count with its noun: `1 step`, `40 steps`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def operations(document: dict[str, Any]) -> str:
    """On what ground the run's operations can be held to the same bits elsewhere."""
    if document["profile"]["name"] != "native":
        return f"defined by {document['profile']['name']}, none probed"
    probed = document["operations"]
    return f"{probed['probed']} probed, {len(probed['unprobed'])} not"


def figure(value: Any) -> str:
    """A value of a summary: a number, or what stands in its place."""
    if value is None:
        return "none"
    return label(value) if isinstance(value, float) else str(value)


def course(summary: dict[str, Any]) -> str:
    """A summary as one line: where it began and ended, its extremes, and what is not a number."""
    if not summary["count"]:
        return "no steps yet"
    constant = summary["min"] is not None and same(summary["min"], summary["max"])
    if constant and not summary["nan"] and not summary["infinite"]:
        exactly = "" if summary["min"] == summary["max"] else ", within one part in ten thousand"
        return f"{figure(summary['last'])} at every step{exactly}"
    parts = [f"first {figure(summary['first'])}, last {figure(summary['last'])}"]
    if summary["min"] is not None:
        parts.append(f"lowest {figure(summary['min'])} at step {summary['min_step']}")
        parts.append(f"highest {figure(summary['max'])} at step {summary['max_step']}")
    if summary["nan"]:
        parts.append(f"NaN at {many(summary['nan'], 'step')}, first at step {summary['first_nan_step']}")
    if summary["infinite"]:
        parts.append(f"infinite at {many(summary['infinite'], 'step')}")
    return "; ".join(parts)


def status(document: dict[str, Any]) -> str:
    """Whether the run is finished, and how many steps it has."""
    recorded, promised = document["steps"]["recorded"], document["steps"]["promised"]
    return f"{'finished' if document['finished'] else 'not finished'}: {recorded:,} of {many(promised, 'step')}"


def data(document: dict[str, Any]) -> str:
    """What the corpus is and how much of it the steps saw."""
    corpus = document["corpus"]
    packing = corpus["packing"]
    cut = "one sample a document"
    if packing["kind"] == "windows":
        cut = f"windows of {packing['length']} tokens every {packing['stride']}"
    parts = [many(corpus["documents"], "document"), f"{many(corpus['tokens'], 'token')} ({corpus['tokenizer']})", cut]
    if corpus["samples"]:
        batches = -(-corpus["samples"] // max(1, document["batch_size"]))
        parts.append(f"{many(corpus['samples'], 'sample')}, seen {document['steps']['recorded'] / batches:.3g} times")
    return "; ".join(parts)


def coverage(document: dict[str, Any]) -> str:
    """How densely the run commits to its states."""
    found = document["coverage"]
    every = "every step" if found["commit_every"] == 1 else f"every {found['commit_every']} steps"
    part = "no steps yet" if found["fraction"] is None else f"{100 * found['fraction']:.4g}% of the recorded steps"
    kept = "every step" if found["checkpoint_every"] == 1 else f"every {found['checkpoint_every']} steps"
    return f"state root at {every} ({part}); {many(len(found['kept']), 'state')} kept, one {kept}"


def state(document: dict[str, Any]) -> str:
    """How large a state is."""
    found = document["state"]
    if found is None:
        return "no kept state can be read"
    return f"{size(found['bytes'])} in {many(found['tensors'], 'tensor')} and {many(found['scalars'], 'other value')}"


def constants(document: dict[str, Any]) -> str:
    """The hyperparameters that stay the same."""
    names = [
        name for name in document["hyperparameters"]["first"] if name not in document["hyperparameters"]["changing"]
    ]
    return ", ".join(f"{name} {figure(document['hyperparameters']['first'][name])}" for name in names)
