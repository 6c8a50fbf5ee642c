"""What a run says of itself, as one plain object: for a glance, for scripts, and for the pages that show it.

This is the trainer's word, strictly parsed, with the newest head's signature checked; nothing is
derived again (`witness fsck`) and nothing is replayed (`witness verify`). Reading changes nothing,
executes nothing of the run, and needs no torch.

The keys below are stable: new ones may be added, none will be renamed or change its meaning.
Numbers that JSON cannot say are the texts `"nan"`, `"inf"` and `"-inf"`. A key marked * is there
only in the full form, `inspect(run, full=True)`.

| key | value |
| --- | --- |
| `run` | the run's id: 64 hexadecimal digits |
| `folder` | as given |
| `version` | of the protocol |
| `package` | version of the package that recorded |
| `program.entry` | `module:Class` |
| `program.kind` | `reference` or `files` |
| `program.digest` | what a verifier consents to run |
| `program.files` | list of `path`, `digest`, `length` |
| `arguments.text` | how the program was made, as one would write it |
| `arguments.positional` | list of readable values |
| `arguments.keyword` | object of readable values |
| `corpus.source` | what the trainer calls the data; not checked |
| `corpus.root` | root over the documents |
| `corpus.documents` | how many |
| `corpus.tokens` | in all |
| `corpus.tokenizer` | `bytes` |
| `corpus.samples` | that the packing cuts |
| `corpus.packing` | `kind`, `length`, `stride` |
| `corpus.stored` | `copy`, or the kind of data that lies at `corpus.path`; null when the run's file on it is damaged |
| `corpus.path` | where the data lay when the run began; null for a copy inside the run |
| `seed.value` | 64 hexadecimal digits |
| `seed.source` | `own` or `registered` |
| `steps.promised` | in the manifest |
| `steps.recorded` | in the log |
| `batch_size` | samples a step |
| `finished` | whether the end is announced |
| `entries` | of the log |
| `head.size` | entries under the newest signed head; `head` is null when there is none |
| `head.root` | of those entries |
| `head.note` | the signed note |
| `heads` | sizes of all stored heads |
| `init.state_root` | of the state before step 1; `init` is null before it is recorded |
| `final.state_root` | of the last state; `final` is null while the run is not finished |
| `final.released` | root of the published weights |
| `checkpoints` | announced states, the initial one first: list of `step`, `state_root`, `kept` (here), `bytes` |
| `resumes` | list of `step`, `checkpoint` |
| `faults` | list of `step`, `note` |
| `coverage.commit_every` | a state root every so many steps |
| `coverage.checkpoint_every` | a kept state every so many steps |
| `coverage.roots` | recorded steps with a state root |
| `coverage.fraction` | of the recorded steps; null when there are none |
| `coverage.kept` | steps whose states are there |
| `losses` | summary, see below |
| `gradient_norms` | summary |
| `update_norms` | list of summaries, one for each parameter group |
| `hyperparameters.first` | object of the first step's values |
| `hyperparameters.last` | object of the last step's values |
| `hyperparameters.changing` | names of those that are not the same at every step |
| `hyperparameters.values` * | object of lists, one value for each step |
| `profile.name` | full name of the numeric profile: `native`, or an exact arithmetic like `exact-14` |
| `profile.summary` | a few lines for people |
| `profile.lines` | object of all lines |
| `operations.probed` | how many; 0 under an exact arithmetic, which defines them |
| `operations.unprobed` | list of `operation`, `reason` |
| `state.step` | of the newest kept state whose list of entries can be read; `state` is null when there is none |
| `state.bytes` | in all |
| `state.tensors` | how many |
| `state.scalars` | how many values that are no tensors |
| `key` | the trainer's public key |
| `key_in_run` | whether the private key lies in the run's folder: then it was made for this run, and names nobody |
| `remarks` | what a reader should know, a sentence each |

A summary has `count`, `first`, `last`, `min`, `min_step`, `max`, `max_step` (smallest and largest
finite value, null when there is none), `nan`, `infinite` (how many), `first_nan_step`, and `values`
* (one for each step).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors

from protocol.corpus import CorpusClaim
from protocol.encoding import decode
from protocol.errors import UsageError, WitnessError
from protocol.manifest import Manifest
from protocol.notes import open_head
from protocol.statetree import JSON, MAX_TABLE, Entry
from witness.data.stored import INDEX, MAX_INDEX, StoredCorpus
from witness.declared import differing, sentence
from witness.logreader import require_file
from witness.profile_summary import summary
from witness.readable import call_text, number, readable, split_arguments
from witness.rundir import RunDir, trainer_key
from witness.story import Progress, Story, read_story, same

_MAX_SETTING = 1 << 12
"""Bytes of one setting of a parameter group that is looked at."""
FSCK = "run `witness fsck` on it: it names everything that is damaged"


def inspect(run: RunDir, *, full: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """The object described above.

    Args:
        run: the directory; it may be written at the moment.
        full: with one value for each step.
        progress: told as the log is read.

    Raises:
        ProtocolError, VerificationError: when log or newest head are damaged; `witness fsck` then says more.
        UsageError: `file-unreadable`.
    """
    try:
        story = read_story(run, progress)
        manifest = story.manifest
        document = {
            "run": manifest.run_id.hex(),
            "folder": str(run.path),
            "version": manifest.version,
            "package": manifest.package,
            **_program(manifest),
            "corpus": _corpus(run, manifest.corpus),
            "seed": {"value": manifest.seed.value, "source": manifest.seed.source},
            "steps": {"promised": manifest.steps, "recorded": len(story.losses)},
            "batch_size": manifest.batch_size,
            "finished": story.final is not None,
            "entries": story.entries,
            "head": _head(run, manifest),
            "heads": run.head_sizes(),
            "init": {"state_root": story.init} if story.init else None,
            "final": {"state_root": story.final.state_root, "released": story.final.released} if story.final else None,
            "checkpoints": [_checkpoint(run, step, root) for step, root in story.states],
            "resumes": [{"step": event.step, "checkpoint": event.checkpoint} for event in story.resumes],
            "faults": [{"step": event.step, "note": event.note} for event in story.faults],
            "coverage": _coverage(run, story),
            "losses": _summary(story.losses, full),
            "gradient_norms": _summary(story.gradients, full),
            "update_norms": [_summary(norms, full) for norms in story.updates],
            "hyperparameters": _hyperparameters(story, full),
            "profile": {
                "name": manifest.profile.full_name,
                "summary": summary(manifest.profile),
                "lines": manifest.profile.lines(),
            },
            "operations": {
                "probed": len(manifest.operations.operations),
                "unprobed": [{"operation": u.operation, "reason": u.reason} for u in manifest.operations.unprobed],
            },
            "state": _state(run, story),
            "key": manifest.key,
            "key_in_run": run.key.exists(),
        }
    except WitnessError as error:
        error.next_action = FSCK
        raise
    except OSError as error:
        raise UsageError("file-unreadable", f"cannot read {error.filename or run.path}: {error.strerror}") from error
    document["remarks"] = _remarks(document) + _misdeclared(run, story)
    return document


def brief(document: dict[str, Any]) -> dict[str, Any]:
    """The full form without the keys that hold one value for each step."""

    def without(part: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in part.items() if name != "values"}

    single = {name: without(document[name]) for name in ("losses", "gradient_norms", "hyperparameters")}
    return document | single | {"update_norms": [without(norms) for norms in document["update_norms"]]}


# -- parts of the object -------------------------------------------------------------------------


def _program(manifest: Manifest) -> dict[str, Any]:
    program = manifest.program
    positional, keyword = split_arguments(program.arguments)
    return {
        "program": {
            "entry": program.entry,
            "kind": program.kind,
            "digest": program.digest.hex(),
            "files": [{"path": f.path, "digest": f.digest, "length": f.length} for f in program.files],
        },
        "arguments": {
            "text": call_text(program.entry.rpartition(":")[2], program.arguments),
            "positional": [readable(item) for item in positional],
            "keyword": {str(readable(name)): readable(value) for name, value in keyword},
        },
    }


def _corpus(run: RunDir, claim: CorpusClaim) -> dict[str, Any]:
    packing = claim.packing
    samples = claim.documents
    if packing.kind == "windows":
        samples = max(0, (claim.tokens - packing.length) // packing.stride + 1)
    stored, path = _location(run)
    return {
        "source": claim.source,
        "root": claim.root,
        "documents": claim.documents,
        "tokens": claim.tokens,
        "tokenizer": claim.tokenizer,
        "samples": samples,
        "packing": {"kind": packing.kind, "length": packing.length, "stride": packing.stride},
        "stored": stored,
        "path": path,
    }


def _location(run: RunDir) -> tuple[str | None, str | None]:
    try:
        require_file(run.corpus / INDEX)
        with (run.corpus / INDEX).open("rb") as file:
            index = decode(file.read(MAX_INDEX + 1), StoredCorpus, limit=MAX_INDEX)
    except WitnessError:
        return None, None
    return index.kind, index.path


def _head(run: RunDir, manifest: Manifest) -> dict[str, Any] | None:
    sizes = run.head_sizes()
    if not sizes:
        return None
    require_file(run.heads / f"{sizes[-1]:012}.note")
    note = run.read_head(sizes[-1])
    head = open_head(note, [trainer_key(manifest)], manifest.origin)
    return {"size": head.size, "root": head.root.hex(), "note": note.decode()}


def _checkpoint(run: RunDir, step: int, root: str) -> dict[str, Any]:
    path = run.checkpoint_path(step)
    size = path.stat().st_size if path.is_file() else None
    return {"step": step, "state_root": root, "kept": size is not None, "bytes": size}


def _coverage(run: RunDir, story: Story) -> dict[str, Any]:
    recorded = len(story.losses)
    return {
        "commit_every": story.manifest.commit_every,
        "checkpoint_every": story.manifest.checkpoint_every,
        "roots": story.roots,
        "fraction": story.roots / recorded if recorded else None,
        "kept": [step for step, _ in story.states if run.checkpoint_path(step).is_file()],
    }


def _summary(values: Sequence[float], full: bool) -> dict[str, Any]:
    smallest = largest = nan = infinite = 0
    first_nan = None
    low, high = math.inf, -math.inf
    for step, value in enumerate(values, 1):
        if value != value:
            nan += 1
            first_nan = first_nan or step
        elif math.isinf(value):
            infinite += 1
        else:
            if value < low:
                low, smallest = value, step
            if value > high:
                high, largest = value, step
    summary: dict[str, Any] = {
        "count": len(values),
        "first": number(values[0]) if values else None,
        "last": number(values[-1]) if values else None,
        "min": low if smallest else None,
        "min_step": smallest or None,
        "max": high if largest else None,
        "max_step": largest or None,
        "nan": nan,
        "infinite": infinite,
        "first_nan_step": first_nan,
    }
    if full:
        summary["values"] = [number(value) for value in values]
    return summary


def _hyperparameters(story: Story, full: bool) -> dict[str, Any]:
    columns = dict(sorted(story.hyperparameters.items()))
    shown: dict[str, Any] = {
        "first": {name: readable(values[0]) for name, values in columns.items()},
        "last": {name: readable(values[-1]) for name, values in columns.items()},
        "changing": [name for name, values in columns.items() if any(not same(value, values[0]) for value in values)],
    }
    if full:
        shown["values"] = {name: _readable_column(values) for name, values in columns.items()}
    return shown


def _readable_column(values: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for step, value in enumerate(values):
        found.append(found[-1] if step and value is values[step - 1] else readable(value))
    return found


def _state(run: RunDir, story: Story) -> dict[str, Any] | None:
    for step, _ in reversed(story.states):
        try:
            require_file(run.checkpoint_path(step))
            with safetensors.safe_open(run.checkpoint_path(step), "numpy") as file:
                listed = file.get_tensor("@entries").tobytes()
            entries = decode(listed, tuple[Entry, ...], limit=MAX_TABLE)
            size = sum(entry.size for entry in entries)
        except (WitnessError, safetensors.SafetensorError, KeyError, ValueError, OSError):
            continue
        tensors = sum(entry.dtype != JSON for entry in entries)
        return {"step": step, "bytes": size, "tensors": tensors, "scalars": len(entries) - tensors}
    return None


def _misdeclared(run: RunDir, story: Story) -> list[str]:
    """Where the program declares another learning rate, say, than an early kept state's optimisers hold.

    A scheduler may have set the next step's already: the state after a step is held to what is declared for either.
    """
    steps = [step for step, _ in story.states if 0 < step < len(story.losses)]
    for step in steps:
        groups = _groups(run.checkpoint_path(step))
        if groups is None:
            continue
        this, following = (
            {name: readable(values[at]) for name, values in story.hyperparameters.items()} for at in (step - 1, step)
        )
        names = {name for name, _, _ in differing(following, groups)}
        return [sentence(step, *found) for found in differing(this, groups) if found[0] in names]
    return []


def _groups(path: Path) -> list[dict[str, Any]] | None:
    """The parameter groups of a kept state, as plain values; None where it cannot be read."""
    found: dict[str, dict[str, Any]] = {}
    try:
        require_file(path)
        with safetensors.safe_open(path, "numpy") as file:
            entries = decode(file.get_tensor("@entries").tobytes(), tuple[Entry, ...], limit=MAX_TABLE)
            for entry in entries:
                group, _, name = entry.name.rpartition("/")
                if "/@groups/" not in entry.name or entry.size > _MAX_SETTING:
                    continue
                value = file.get_tensor(entry.name)
                plain = readable(json.loads(value.tobytes())) if entry.dtype == JSON else value.reshape(-1).tolist()
                found.setdefault(group, {})[name] = plain[0] if entry.dtype != JSON and len(plain) == 1 else plain
    except (WitnessError, safetensors.SafetensorError, KeyError, ValueError, TypeError, OSError, RecursionError):
        return None
    return list(found.values())


def _remarks(document: dict[str, Any]) -> list[str]:
    losses, steps = document["losses"], document["steps"]
    found = []
    if not document["finished"]:
        found.append(
            f"The run is not finished: {steps['recorded']} of {steps['promised']} promised steps are recorded."
        )
    if losses["nan"]:
        found.append(f"The loss is NaN at {losses['nan']} steps, first at step {losses['first_nan_step']}.")
    if losses["infinite"]:
        found.append(f"The loss is infinite at {losses['infinite']} steps.")
    if document["resumes"]:
        found.append(f"The run was stopped and continued after {_at(document['resumes'])}.")

    if document["faults"]:
        found.append(f"The trainer declares a fault at {_at(document['faults'])}.")

    gone = sum(not state["kept"] for state in document["checkpoints"])
    if gone:
        found.append(f"{gone} announced states are not in the folder.")
    if document["operations"]["unprobed"]:
        found.append(f"{len(document['operations']['unprobed'])} operations could not be probed.")
    head = document["head"]
    if head is None or head["size"] < document["entries"]:
        found.append(f"{document['entries'] - (head['size'] if head else 0)} log entries are under no signed head yet.")
    if document["seed"]["source"] == "own":
        found.append("The trainer chose the seed and could have tried many.")
    if document["key_in_run"]:
        found.append("The signing key was made for this run and lies in its folder: it names nobody.")
    return found


def _at(events: list[dict[str, Any]]) -> str:
    steps = sorted({event["step"] for event in events})
    more = f" and {len(steps) - 20} more" if len(steps) > 20 else ""
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps[:20]))}{more}"
