"""The brief answers what people ask of a profile, from its JSON alone, and its answers are what is known to be true.

What is true was measured beside nsysx: steps that the programs timed themselves, with and without the profiler and before and after a
change, readings that they printed, the number of their ranks and lines of their source, and counts in SQL.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from nsysx.errors import NsysxError
from nsysx.model import Column, Table
from nsysx.render import brief, brief_schema, finding_ids, insight, invocation, table_json
from tests.render import factory
from tests.samples import NAMES, PAIR_NAMES, SAMPLES, Samples

MS, US = 1_000_000, 1_000

Brief = dict[str, Any]

PROGRAMS = json.loads((SAMPLES / "make_samples.json").read_text(encoding="utf-8"))["programs"]


def program_of(name: str) -> dict[str, Any]:
    return PROGRAMS[name.partition(".")[0]]


@dataclass(frozen=True)
class Told:
    """What a program reads of a report: the brief, and the layers below it where it asks for them."""

    brief: Brief
    table: Callable[..., list[Brief]]
    insight: Callable[[str], Brief]


@pytest.fixture(scope="module")
def said(recorded: Samples) -> Callable[[str], Told]:
    """A function from a sample's name to its brief and what is below it, as a program reads them."""

    @cache
    def of(name: str) -> Told:
        summary = recorded.summary(name)
        return Told(
            json.loads(brief.answer_json(summary)),
            lambda table, **asked: json.loads(table_json.rows_json(summary, table, **asked))["rows"],
            lambda wanted: json.loads(insight.insight_json(summary, wanted)),
        )

    return of


# ---------------------------------------------------------------- the questions, each answered from the JSON alone


def step_ns(said: Told) -> int:
    """How long is a step without the profiler?"""
    return said.brief["step"]["now_ns"]


def step_after_ns(said: Told) -> int:
    """How long will it be after the change?"""
    return said.brief["after"]["step_ns"]


def gpu_waits_for(said: Told, what: str) -> int:
    """How long does the GPU wait for this in each step?"""
    return sum(row["ns"] for row in said.table("parts") if row["idle"] and row["what"] == what)


def wait(said: Told) -> Brief:
    """Which call waits longest, where, and what does it save to remove it?"""
    columns = ("api", "module", "file", "line", "total_ns", "saving_ns", "moves_to")
    return max(said.table("waits", columns=columns), key=lambda row: row["total_ns_per_step"])


def launches(said: Told) -> float:
    """How many launches has a step?"""
    return sum(row["launches_per_step"] for row in said.table("launches", columns=("launches",)))


def rank(said: Told) -> int:
    """For which rank do the others wait?"""
    return int(re.search(r"[Rr]ank (\d+)", said.insight("NSX111")["what"])[1])


# ---------------------------------------------------------------- and what is true

#: Programs with steps; those of varlen are of random lengths, so that the recorded ones are no measure of others.
STEPPED = [n for n in NAMES if n not in ("custom_add", "event_linear", "varlen", "varlen_memory")]

#: Step of the program with the change made, as it timed itself.
AFTER_MS = {"masked_nonzero": 45.84, "masked_lines": 45.84, "masked_slow_loader": 47.35}
#: The same where a bound stands behind: no program may be better than it, within the error of timing.
BEST_MS = {"copies": 4.10}


def within(answer: float, truth: float, tolerance: float = 0.02, clock: float = 0.0) -> bool:
    return abs(answer - truth) <= tolerance * truth + clock


@pytest.mark.parametrize("name", STEPPED)
def test_which_step_time_is_real(name: str, said: Callable[[str], Told]) -> None:
    """Within 2 % of what the program takes without a profiler; where a profiler changes the step, within the bounds given."""
    bare = [run["step_ms"] * MS for run in program_of(name)["bare"]]
    step = said(name).brief["step"]
    if within(step["recorded_ns"], sum(bare) / len(bare)):
        assert within(step_ns(said(name)), sum(bare) / len(bare))
    assert step["low_ns"] <= sum(bare) / len(bare) <= step["high_ns"]


@pytest.mark.parametrize("name", AFTER_MS)
def test_what_the_step_will_be(name: str, said: Callable[[str], Told]) -> None:
    """Within 2 % of the step that was measured with the change made, the error that is given with the saving included."""
    saving = said(name).brief["causes"][0]["saving"]
    assert within(step_after_ns(said(name)), AFTER_MS[name] * MS, clock=saving["high_ns"] - saving["likely_ns"])
    assert within(step_after_ns(said(name)), AFTER_MS[name] * MS, 0.03)


@pytest.mark.parametrize("name", BEST_MS)
def test_what_the_step_will_be_at_best(name: str, said: Callable[[str], Told], recorded: Samples) -> None:
    """What is told is what is likely: the step that was measured lies between its bounds, and is not better than the best."""
    after, tried = said(name).brief["after"], BEST_MS[name] * MS
    assert not after["bound"] and after["at_best_ns"] <= after["step_ns"]
    assert after["at_best_ns"] <= 1.02 * tried
    answer = recorded.summary(name).answer
    assert (answer.then_low_ns or 0) / 1.02 <= tried <= 1.02 * (answer.then_high_ns or 0)


def test_a_saving_of_unknown_size_is_null_with_its_reason(said: Callable[[str], Told]) -> None:
    """Nobody timed the steps of tiny_stack in its process: without the profiler they take 3.7 to 15 ms."""
    told = said("tiny_stack")
    (first, *_) = told.brief["causes"]
    assert told.brief["after"]["step_ns"] is None and told.brief["after"]["sure"] == "unknown"
    assert first["saving"] is None and first["saving_unknown"]
    whole = told.insight(first["id"])
    assert whole["saving"] is None and whole["saving_reason"]


def test_how_long_the_gpu_waits_for_data(said: Callable[[str], Told]) -> None:
    """The same program with and without a loader that is late, each timed by itself; it also copies what the other has there."""
    slow, fast = (
        sum(r["step_ms"] for r in PROGRAMS[n]["bare"]) / 2 for n in ("masked_slow_loader", "masked_ignore_index")
    )
    loading = said("masked_slow_loader")
    copies = sum(row["ns"] for row in loading.table("parts") if row["what"] == "exposed copies")
    assert within(gpu_waits_for(loading, "waiting for input data") + copies, (slow - fast) * MS, 0.01)


@pytest.mark.parametrize("name", ["masked_nonzero", "masked_lines"])
def test_what_a_giant_wait_costs_and_where_it_moves(name: str, said: Callable[[str], Told]) -> None:
    """Without nonzero the program takes 68.69 ms for 68.85: a wait of 55 ms is worth less than half a millisecond."""
    longest = wait(said(name))
    assert longest["api"] == "cudaStreamSynchronize"
    assert longest["module"] == "MaskedLoss"
    assert longest["total_ns_per_step"] > step_ns(said(name)) / 2
    saving = longest["saving_ns_per_step"]
    assert saving is None or within(68.85 * MS - saving, 68.69 * MS)
    if name == "masked_lines":
        source = (SAMPLES / "masked_loss.py").read_text(encoding="utf-8").splitlines()
        assert re.search(r"nonzero|unique|\[", source[longest["line"] - 1])
        assert longest["file"].endswith("masked_loss.py")


@pytest.mark.parametrize(("name", "late"), [("ddp", 1)])
def test_which_rank_the_others_wait_for(name: str, late: int, said: Callable[[str], Told]) -> None:
    """The program gives its last rank twice the batch."""
    assert rank(said(name)) == late


def test_what_clocks_read_around_a_kernel(said: Callable[[str], Told]) -> None:
    """The program printed the medians of its own clocks while it was recorded. Reading a clock takes up to 0.7 us."""
    printed = {way: us * US for way, us in PROGRAMS["custom_add"]["captured"]["median_us"].items()}
    columns = ("name", "kernel_ns", "both_ns", "before_ns", "after_ns", "none_ns")
    (row,) = said("custom_add").table("stopwatch", columns=columns, where=("both_from=measured", "custom=true"))
    assert "custom_add_kernel" in row["name"]
    for key, way in (
        ("both_ns", "sync_before_and_after"),
        ("before_ns", "sync_before"),
        ("after_ns", "sync_after"),
        ("none_ns", "no_sync"),
    ):
        assert within(row[key], printed[way], clock=0.7 * US), (key, row[key], printed[way])


COLUMNS = ("windows", "first_ns", "median_ns", "kernel_median_ns")


def test_what_events_read_and_what_the_kernels_take(said: Callable[[str], Told], recorded: Samples) -> None:
    """The program printed what elapsed_time gave; what its kernels take is counted in SQL."""
    captured = PROGRAMS["event_linear"]["captured"]
    (row, *_) = said("event_linear").table("events", where=(f"windows={captured['steps'] // 3}",), columns=COLUMNS)
    assert within(row["median_ns"], captured["median_us"]["cpu_inputs"] * US)
    assert within(row["first_ns"], captured["ways"][0]["us"][0] * US)
    con = sqlite3.connect(recorded.report("event_linear"))
    try:
        each = con.execute(
            "SELECT avg(end - start) * 2 FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName "
            "WHERE value LIKE '%gemm%' OR value LIKE '%splitK%'"
        ).fetchone()[0]
    finally:
        con.close()
    assert within(row["kernel_median_ns"], each, 0.05)


@pytest.mark.parametrize("name", ["tiny_stack", "gpt", "masked_nonzero", "copies"])
def test_how_many_launches_a_step_has(name: str, said: Callable[[str], Told], recorded: Samples) -> None:
    """As SQL counts them: the median over the steps, each from the begin of its range to that of the next one."""
    con = sqlite3.connect(recorded.report(name))
    try:
        text = "coalesce(n.text, (SELECT value FROM StringIds WHERE id = n.textId))"
        begins = [
            t for (t,) in con.execute(f"SELECT start FROM NVTX_EVENTS n WHERE {text} GLOB 'step [0-9]*' ORDER BY 1")
        ]
        calls = con.execute(
            "SELECT start FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON id = nameId WHERE value GLOB 'cu*LaunchKernel*'"
        ).fetchall()
    finally:
        con.close()
    counts = [sum(a <= t < b for (t,) in calls) for a, b in pairwise(begins)]
    assert within(launches(said(name)), median(counts))


def test_what_is_paid_once(said: Callable[[str], Told], recorded: Samples) -> None:
    """Loading code is paid once; the only cudaHostAlloc of the program too."""
    con = sqlite3.connect(recorded.report("custom_add"))
    try:
        rows = con.execute(
            "SELECT sum(end - start) FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON id = nameId "
            "WHERE value LIKE 'cuLibraryLoadData%'"
        ).fetchone()
    finally:
        con.close()
    first = max(said("custom_add").table("first_calls"), key=lambda row: row["one_time_ns"])
    assert first["name"] == "cuLibraryLoadData"
    assert within(first["one_time_ns"], rows[0])


# ---------------------------------------------------------------- and its form


VALID = Draft202012Validator(brief_schema.schema())


@pytest.mark.parametrize("name", [*NAMES, *(f"pairs/{pair}" for pair in PAIR_NAMES)])
def test_every_layer_is_small_and_as_its_schema_says(name: str, recorded: Samples, pairs: Samples) -> None:
    samples = pairs if name.startswith("pairs/") else recorded
    summary, report = samples.summary(name.removeprefix("pairs/")), samples.report(name.removeprefix("pairs/"))
    typed = invocation.of_files([report])
    ids = finding_ids.ids_of(summary)
    assert len(ids) == len(set(ids)) == len(summary.findings or ())
    layers = [brief.answer_json(summary, typed), *(insight.insight_json(summary, wanted, typed) for wanted in ids)]
    layers += [
        table_json.rows_json(summary, table, top=top) for table in table_json.names(summary) for top in (10, 100)
    ]
    for text in layers:
        assert len(text.encode()) <= 2500, text
        VALID.validate(json.loads(text))
    for cause in json.loads(layers[0])["causes"]:
        saving = cause["saving"]
        if saving and "low_ns" in saving:
            assert 0 <= saving["low_ns"] <= saving["likely_ns"] <= saving["high_ns"] <= summary.step.shown_ns
        assert cause["id"] is None or cause["id"] in ids


@pytest.mark.parametrize("name", NAMES)
def test_what_the_gpu_does_sums_to_the_step(name: str, said: Callable[[str], Told], recorded: Samples) -> None:
    assert sum(row["ns"] for row in said(name).table("parts")) == recorded.summary(name).verdict.step_ns


def test_names_of_findings_do_not_hang_on_their_order() -> None:
    summary = factory.summary()
    turned = factory.changed(summary, findings=tuple(reversed(summary.findings)))
    ids = [set(finding_ids.ids_of(s)) for s in (summary, turned)]
    assert ids[0] == ids[1]


def test_a_brief_of_a_bare_report_says_what_is_missing() -> None:
    whole = json.loads(brief.answer_json(factory.bare()))
    assert whole["step"]["now_ns"] is None and whole["step"]["reason"]
    missing = json.loads(table_json.rows_json(factory.bare(), "waits"))
    assert missing["rows"] is None and missing["reason"]


def test_homes_are_hidden_unless_that_is_not_wanted() -> None:
    made = factory.summary()
    finding = replace(made.findings[0], where={"module": "loss", "file": "/home/alice/train.py", "line": 7})
    summary = factory.changed(made, findings=(finding, *made.findings[1:]))
    wanted = finding_ids.ids_of(summary)[0]
    assert "alice" not in insight.insight_json(summary, wanted)
    assert json.loads(insight.insight_json(summary, wanted))["where"]["line"] == 7
    assert "/home/alice/train.py" in insight.insight_json(summary, wanted, redact=False)


@pytest.mark.parametrize(
    ("name", "where", "kept"),
    [
        ("kernels", ("name~BETA",), {"beta"}),
        ("kernels", ("count>=2", "count<3"), {"beta"}),
        ("kernels", ("name!=beta", "count!=3"), {"gamma"}),
    ],
)
def test_conditions_choose_rows(name: str, where: tuple[str, ...], kept: set[str]) -> None:
    rows = [{"name": "alpha", "count": 3}, {"name": "beta", "count": 2}, {"name": "gamma", "count": 1}]
    columns = (Column("name", "String", "", "its name"), Column("count", "Int64", "", "how many"))
    table = Table("kernels", "Kernels", columns, tuple(rows))
    summary = factory.changed(factory.summary(), tables={"kernels": table})
    told = json.loads(table_json.rows_json(summary, name, where=where))
    assert {row["name"] for row in told["rows"]} == kept and told["rows_in_all"] == len(kept)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"name": "kernel"}, "Did you mean kernels?"),
        ({"name": "kernels", "columns": ("total",)}, "no such column"),
        ({"name": "kernels", "where": ("total_ns>much",)}, "not a number"),
        ({"name": "kernels", "where": ("name>3",)}, "holds texts"),
        ({"name": "kernels", "where": ("hello",)}, "not a condition"),
    ],
)
def test_a_wrong_question_is_told_the_right_one(asked: Brief, message: str, recorded: Samples) -> None:
    with pytest.raises(NsysxError, match=re.escape(message)) as error:
        table_json.rows_json(recorded.summary("copies"), **asked)
    assert error.value.exit_code == 2
    with pytest.raises(NsysxError, match="Found: NSX"):
        insight.insight_json(recorded.summary("copies"), "NSX1O1")


def test_rows_that_do_not_fit_are_counted(recorded: Samples) -> None:
    told = json.loads(table_json.rows_json(recorded.summary("gpt"), "kernels", top=200))
    assert told["left_out"] == told["rows_in_all"] - len(told["rows"]) > 0 and told["narrow"]


def test_commands_have_the_place_of_the_report_and_the_recorded_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my runs"
    folder.mkdir()
    (folder / "a.run.json").write_text(json.dumps({"command": ["python", "train.py", "--name", "a b"]}))
    typed = invocation.of_files([folder / "a.sqlite.xz"], redact=False)
    quoted = f"'{folder}/a.sqlite.xz'"
    assert typed.run("nsysx whatif REPORT") == f"nsysx whatif {quoted}"
    assert typed.run("nsysx try REPORT -- CMD") == f"nsysx try {quoted} -- python train.py --name 'a b'"
    (folder / "train.py").touch()
    typed = invocation.of_files([folder / "a.sqlite.xz"], redact=False)
    assert typed.run("nsysx run -- CMD") == f"cd '{folder}' && nsysx run -- python train.py --name 'a b'"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert invocation.of_files([folder / "a.sqlite.xz"]).reports == "~/'my runs/a.sqlite.xz'"
