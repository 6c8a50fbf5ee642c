"""`witness inspect`: what the log says, in documented keys; and whatever the trainer wrote, shown as text only."""

import io
import json
import math
import random
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from recorded_run import CONFIG, EVERY, STEPS, TEXTS, record_again, rows
from rich.console import Console

import witness.inspection
from protocol.encoding import f32, f64, parse_float
from protocol.errors import ProtocolError, VerificationError
from protocol.plain import to_plain
from protocol.records import FaultEvent, FinalEvent, ResumeEvent, StepRecord, parse_entry
from witness.cli.inspect import command
from witness.inspection import brief, inspect
from witness.printable import printable
from witness.readable import call_text, readable
from witness.report import charts, terminal, wording
from witness.report.curve import curve
from witness.report.page import render
from witness.report.scale import Scale, floats, label, round_numbers, thin

SCRIPT = "<script>alert(1)</script>"
HOSTILE = f"{SCRIPT}\"'><img src=x onerror=alert(2)>\x1b]0;owned\x07\u202egpj.exe\x00"


def steps_of(run):
    entries = (parse_entry(row.entry) for row in rows(run)[1:])
    return [entry for entry in entries if isinstance(entry, StepRecord)]


def with_losses(run, losses):
    """Records the run again with other losses, a map from step to float."""

    def change(_, entry):
        if isinstance(entry, StepRecord) and entry.step in losses:
            shown = msgspec.structs.replace(entry.fingerprint, loss=f32(losses[entry.step]))
            return msgspec.structs.replace(entry, fingerprint=shown)
        return entry

    record_again(run, change)


# -- the object ---------------------------------------------------------------------------------------


def documented_keys() -> tuple[set[str], set[str], set[str]]:
    """Keys of every form, keys of the full form alone, and keys of a summary: from the module's own text."""
    text = witness.inspection.__doc__
    table = re.findall(r"^\| `([a-z_.]+)`( \*)? \|", text, re.MULTILINE)
    *_, summary = re.split(r"A summary has", text)
    return (
        {key for key, star in table if not star},
        {key for key, star in table if star},
        set(re.findall(r"`([a-z_]+)`", summary)),
    )


def flat_keys(document: dict, nested: set[str]) -> set[str]:
    found = set()
    for name, value in document.items():
        inside = isinstance(value, dict) and name in nested
        found |= {f"{name}.{inner}" for inner in value} if inside else {name}
    return found


def test_every_key_is_documented_and_every_documented_key_is_there(run):
    always, only_full, summary = documented_keys()
    nested = {key.partition(".")[0] for key in always if "." in key}
    document = inspect(run, full=True)
    assert flat_keys(document, nested) == always | only_full
    assert flat_keys(inspect(run), nested) == always
    for part in (document["losses"], document["gradient_norms"], *document["update_norms"]):
        assert set(part) == summary
    assert brief(document) == inspect(run)
    json.dumps(document, allow_nan=False)


def test_the_object_says_what_the_log_says(run):
    document, records, manifest = inspect(run, full=True), steps_of(run), run.manifest()
    assert document["run"] == manifest.run_id.hex()
    assert document["losses"]["values"] == [parse_float(r.fingerprint.loss) for r in records]
    assert document["gradient_norms"]["values"] == [parse_float(r.fingerprint.gradient_norm) for r in records]
    for group, norms in enumerate(document["update_norms"]):
        assert norms["values"] == [parse_float(r.fingerprint.update_norms[group]) for r in records]
    assert document["hyperparameters"]["values"]["learning_rate"] == [
        parse_float(r.hyperparameters["learning_rate"]) for r in records
    ]
    assert document["hyperparameters"]["changing"] == ["learning_rate"]
    assert document["final"]["state_root"] == records[-1].state_root
    assert document["steps"] == {"promised": STEPS, "recorded": STEPS}
    assert document["finished"] is True
    assert document["corpus"]["documents"] == len(TEXTS)
    assert document["corpus"]["stored"] == "copy"
    assert document["coverage"]["kept"] == [0, EVERY, STEPS]
    assert document["coverage"]["fraction"] == 1.0
    assert document["head"]["size"] == document["entries"] == document["heads"][-1]
    assert document["key"] == manifest.key
    assert document["key_in_run"] is True
    assert document["arguments"]["positional"][0]["GPTConfig"]["width"] == CONFIG.width
    assert f"width={CONFIG.width}" in document["arguments"]["text"]
    assert document["operations"]["probed"] == len(manifest.operations.operations) > 10


def test_the_number_of_samples_is_that_of_the_corpus(run):
    from witness.data import open_stored

    assert inspect(run)["corpus"]["samples"] == open_stored(run.corpus).documents.samples


def test_the_size_of_a_state_is_that_of_its_bytes(run):
    _, buffers = run.read_checkpoint(STEPS, run.manifest().pieces)
    state = inspect(run)["state"]
    assert state["bytes"] == sum(map(len, buffers.values()))
    assert state["tensors"] + state["scalars"] == len(buffers)


def test_inspecting_changes_nothing_and_needs_no_torch(run, tmp_path):
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    code = (
        "import sys, pathlib\n"
        "from witness.inspection import inspect\n"
        "from witness.report.page import render\n"
        "from witness.rundir import RunDir\n"
        "render(inspect(RunDir(pathlib.Path(sys.argv[1])), full=True))\n"
        "sys.exit('torch' in sys.modules)"
    )
    root = Path(witness.inspection.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code, str(run.path)], check=True, cwd=root)
    assert {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()} == before


def test_a_loss_that_is_no_number_is_counted_and_said(run):
    with_losses(run, {3: math.nan, 4: math.nan, 6: math.inf})
    document = inspect(run, full=True)
    losses = document["losses"]
    assert (losses["nan"], losses["first_nan_step"], losses["infinite"]) == (2, 3, 1)
    assert losses["values"][2:6] == ["nan", "nan", losses["values"][4], "inf"]
    assert math.isfinite(losses["max"])
    assert any("NaN at 2 steps, first at step 3" in remark for remark in document["remarks"])
    json.dumps(document, allow_nan=False)


def test_an_unfinished_run_with_events_says_so(run):
    def change(number, entry):
        if isinstance(entry, FinalEvent):
            return None
        if isinstance(entry, StepRecord) and entry.step > EVERY + 1:
            return {EVERY + 2: ResumeEvent(EVERY + 1, EVERY), EVERY + 3: FaultEvent(2, HOSTILE)}.get(entry.step)
        return entry if number < 2 + EVERY + 2 else None

    record_again(run, change)
    document = inspect(run)
    assert (document["finished"], document["final"]) == (False, None)
    assert document["steps"] == {"promised": STEPS, "recorded": EVERY + 1}
    assert document["resumes"] == [{"step": EVERY + 1, "checkpoint": EVERY}]
    assert document["faults"] == [{"step": 2, "note": HOSTILE}]
    assert any("not finished" in remark for remark in document["remarks"])
    assert SCRIPT not in render(inspect(run, full=True))


@pytest.mark.parametrize("entries", [1, 2])
def test_a_run_without_a_step_can_be_shown(run, entries):
    record_again(run, lambda number, entry: entry if number < entries else None)
    for size in run.head_sizes():
        if size > entries:
            (run.heads / f"{size:012}.note").unlink()
    document = inspect(run, full=True)
    assert document["steps"]["recorded"] == 0
    assert (document["init"] is None) == (entries == 1)
    assert "no finite number" in render(document)
    assert "not finished: 0 of" in shown(document)


def test_a_damaged_log_or_head_is_refused_and_leads_to_fsck(run):
    sizes = run.head_sizes()
    path = run.heads / f"{sizes[-1]:012}.note"
    path.write_bytes(path.read_bytes().replace(b"\n%d\n" % sizes[-1], b"\n%d\n" % (sizes[-1] + 1)))
    with pytest.raises(VerificationError) as caught:
        inspect(run)
    assert "witness fsck" in caught.value.next_action
    run.log_path.write_bytes(run.log_path.read_bytes()[:5000])
    with pytest.raises(ProtocolError) as broken:
        inspect(run)
    assert "witness fsck" in broken.value.next_action


# -- hostile text -------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Everything in a page that could act."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]


def hostile_run(run):
    def manifest(old):
        arguments = to_plain([[HOSTILE], {HOSTILE: {"a": HOSTILE}}])
        return msgspec.structs.replace(
            old,
            corpus=msgspec.structs.replace(old.corpus, source=HOSTILE),
            program=msgspec.structs.replace(old.program, arguments=arguments),
            package=HOSTILE,
        )

    def change(_, entry):
        if isinstance(entry, StepRecord):
            name = "<script>x</script>"
            return msgspec.structs.replace(
                entry, hyperparameters=entry.hyperparameters | {name: f64(float(entry.step))}
            )
        return entry

    record_again(run, change, manifest)
    return run


def test_what_a_trainer_wrote_is_text_on_the_page(run):
    page = render(inspect(hostile_run(run), full=True))
    found = Page(page)
    assert not {"script", "img", "iframe", "object", "embed", "link", "base", "form", "a"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name.startswith("on") or name in ("src", "href", "style")]
    assert SCRIPT not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "&lt;script&gt;x&lt;/script&gt;" in page
    assert all(c.isprintable() or c == "\n" for c in page)


def test_the_page_fetches_nothing_and_runs_nothing(run):
    page = render(inspect(run, full=True))
    found = Page(page)
    assert any("default-src 'none'" in (value or "") for name, value in found.attributes if name == "content")

    assert not re.search(r"https?://|//[a-z]|url\(|@import", page.replace("<!doctype html>", ""))
    assert len(found.ids) == len(set(found.ids))


def test_the_page_is_the_same_for_the_same_run(run):
    assert render(inspect(run, full=True)) == render(inspect(run, full=True))


def test_every_chart_has_a_title_and_says_in_words_what_it_shows(run):
    with_losses(run, {3: math.nan})
    page = render(inspect(run, full=True))
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == 4  # loss, gradient, updates, learning rate
    for drawing in drawings:
        (labels,) = re.findall(r'aria-labelledby="([^"]+)"', drawing)
        for key in labels.split():
            assert f'id="{key}"' in drawing
        for path in re.findall(r'class="line[^"]*" d="([^"]*)"', drawing):
            assert re.fullmatch(r"(?:M[0-9.]+ [0-9.]+(?:h0)?(?:L[0-9.]+ [0-9.]+)*)+", path)
    assert "NaN at 1 step, first at step 3" in drawings[0]
    assert drawings[0].count('class="gap"') == 1
    (path,) = re.findall(r'class="line[^"]*" d="([^"]*)"', drawings[0])
    assert path.count("M") == 2  # a gap


def shown(document, **options) -> str:
    file = io.StringIO()
    terminal.show(document, Console(file=file, width=80, highlight=False, emoji=False, markup=False), **options)
    return file.getvalue()


@pytest.mark.parametrize("full", [False, True])
def test_what_a_trainer_wrote_commands_no_terminal(run, full):
    text = shown(inspect(hostile_run(run), full=True), full=full)
    assert "alert(1)" in text
    assert all(c.isprintable() or c == "\n" for c in text)
    assert full or max(map(len, text.splitlines())) <= 80


@given(st.text())
def test_printable_text_is_one_line_that_shows_itself(text):
    found = printable(text, 50)
    assert found.isprintable()
    assert len(found) <= 53


# -- readable values ----------------------------------------------------------------------------------


def test_plain_forms_become_values_that_json_and_people_can_read():
    value = [None, True, 3, 2**60, 0.1, math.inf, "text", b"\x01\xff", (1, (2,)), {"k": [1.5]}, {1: "one"}, {4}]
    assert readable(to_plain(value)) == [
        *(None, True, 3, 2**60, 0.1, "inf", "text", "0x01ff"),
        *([1, [2]], {"k": [1.5]}, [[1, "one"]], [4]),
    ]
    assert call_text("Net", to_plain([[8, (1,), "a'b"], {"rate": 0.5}])) == "Net(8, (1,), 'a'b', rate=0.5)"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_arguments_of_any_form_can_be_shown(form):
    json.dumps(readable(form), allow_nan=False)
    assert call_text("P", form).isprintable()


# -- curves and scales --------------------------------------------------------------------------------

VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=300)


@given(VALUES, st.integers(1, 40))
def test_thinning_keeps_extremes_ends_and_gaps(values, columns):
    points = thin(values, columns)
    assert len(points) <= max(len(values), 5 * columns)
    assert [step for step, _ in points] == sorted({step for step, _ in points})
    finite = [value for value in values if math.isfinite(value)]
    kept = [value for _, value in points if not math.isnan(value)]
    if finite:
        assert (min(kept), max(kept)) == (min(finite), max(finite))
        assert (kept[0], kept[-1]) == (finite[0], finite[-1])
    else:
        assert kept == []
    assert (len(finite) < len(values)) == any(math.isnan(value) for _, value in points)
    assert all(math.isnan(value) or value == values[step - 1] for step, value in points)


@given(VALUES, st.integers(30, 120), st.booleans())
def test_a_curve_fits_its_width_and_marks_what_is_not_finite(values, width, unicode):
    lines = curve(values, width, unicode=unicode)
    assert all(line.isprintable() and len(line) <= max(width, 30) for line in lines)
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        axis = lines[-2].partition("\u2514" if unicode else "+")[2]
        assert (len(finite) < len(values)) == (("\u00d7" if unicode else "x") in axis)
        drawn = "".join(lines[:-2])
        assert any(0x2800 < ord(c) <= 0x28FF or c == "*" for c in drawn)


@given(VALUES)
def test_a_scale_maps_what_it_was_made_of_into_the_unit_interval(values):
    scale = Scale.over(values)
    if scale is None:
        assert not any(map(math.isfinite, values))
        return
    for value in filter(math.isfinite, values):
        assert -1e-9 <= scale.at(value) <= 1 + 1e-9
    ticks = scale.ticks(5)
    assert all(-1e-6 <= scale.at(tick) <= 1 + 1e-6 and label(tick) for tick in ticks)
    assert len(ticks) <= 12


def test_a_clipped_norm_is_no_curve():
    """Rounding of the last bits is neither drawn as jitter nor told as extremes."""
    clipped = [1.0 - (step % 5) * 6e-8 for step in range(40)]
    scale = Scale.over(clipped)
    drawn = [scale.at(value) for value in clipped]
    assert max(drawn) - min(drawn) < 1e-3
    labels = [label(tick) for tick in scale.ticks(5)]
    assert len(set(labels)) == len(labels)
    summary = {"count": 40, "first": 1.0, "last": 1.0, "min": min(clipped), "max": 1.0, "nan": 0, "infinite": 0}
    told = wording.course({**summary, "min_step": 5, "max_step": 1})
    assert told.startswith("1 at every step") and "lowest" not in told
    falling = Scale.over([1.0, 0.999])
    assert falling.at(1.0) - falling.at(0.999) > 0.5


def test_no_axis_title_lies_on_tick_labels(run):
    document = inspect(run, full=True)
    rates = [0.00029985 - 1e-8 * step for step in range(STEPS)]
    document["hyperparameters"]["first"] = {"lr": rates[0]}
    document["hyperparameters"]["values"] = {"lr": rates}
    for rate in (rates, [-1.2345e-15, 9.8765e-15]):
        document["hyperparameters"]["values"]["lr"] = rate
        for chart in charts.charts(document):
            widest = max(len(tick.text) for tick in chart.rows)
            assert chart.frame.left - 8 - 6.8 * widest > 20, chart.title
            assert all(tick.at >= chart.frame.left for tick in chart.columns)


def test_ticks_are_round():
    assert round_numbers(0.3, 5.4, 5) == [2.0, 4.0]
    assert [label(tick) for tick in round_numbers(3.21, 5.5, 5)] == ["3.5", "4", "4.5", "5", "5.5"]
    assert [label(tick) for tick in Scale.over([1e-3, 2.0]).ticks(5)] == ["0.001", "0.01", "0.1", "1"]


def test_a_curve_of_text_falls_where_the_loss_falls():
    lines = curve([10.0 - step / 10 for step in range(100)], 60, 10, unicode=False)
    columns = [line.index("*") for line in lines[:10]]
    assert columns == sorted(columns)
    assert columns[0] < columns[-1] - 30


def test_what_is_no_number_is_drawn_as_a_gap():
    assert [math.isnan(value) for value in floats([1, "nan", "inf", None, "x", 10**400])] == [
        *(False, True, False, True, True, True)
    ]


# -- the command --------------------------------------------------------------------------------------


def test_json_is_one_object_and_nothing_else(run, tmp_path):
    result = CliRunner().invoke(command, [str(run.path), "--json"])
    assert result.exit_code == 0
    assert result.stderr == ""
    document = json.loads(result.stdout)
    assert document == json.loads(json.dumps(inspect(run)))
    assert result.stdout == json.dumps(document, sort_keys=True) + "\n"
    full = json.loads(CliRunner().invoke(command, [str(run.path), "--json", "--full"]).stdout)
    assert full["losses"]["values"] == inspect(run, full=True)["losses"]["values"]


def test_the_page_is_written_and_the_terminal_shows_the_run(run, tmp_path):
    page = tmp_path / "page.html"
    result = CliRunner().invoke(command, [str(run.path), "--html", str(page)])
    assert result.exit_code == 0
    assert page.read_text() == render(inspect(run, full=True))
    assert "GPT  finished: 8 of 8 steps" in result.stdout
    assert run.manifest().run_id.hex() in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert not [line for line in result.stdout.splitlines() if line != line.rstrip()]
    assert "update 0" not in result.stdout


def test_an_order_of_steps_that_cannot_be_is_not_shown(run):
    draw = random.Random(3)
    left_out = draw.randrange(2, STEPS)
    record_again(run, lambda _, e: None if isinstance(e, StepRecord) and e.step == left_out else e)
    with pytest.raises(VerificationError) as caught:
        inspect(run)
    assert caught.value.code == "step-order"
