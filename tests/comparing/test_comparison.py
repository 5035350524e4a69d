"""Two programs whose difference is known; the captures of one program; what cannot be compared."""

from __future__ import annotations

import io
import itertools
import json
import lzma
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from nsysx.comparing import comparison, differences, renamed_modules, side, side_inputs
from nsysx.comparing.comparison_sentence import _idle_together, real_words
from nsysx.comparing.difference_answer import Comparison, DifferencePart, part_words
from nsysx.errors import NsysxError
from nsysx.model import Capture, Steps, Summary, Unprofiled, Verdict
from nsysx.render import compare_charts, compare_page, compare_view
from nsysx.render.compare_text import markdown, terminal
from nsysx.render.compare_view import shown_parts
from tests.comparing.programs import MS, US, captured, program, summary

NET = {"a": 3 * MS, "b": 2 * MS, "c": 5 * MS}


def compare(before: dict[str, Any], after: dict[str, Any], **options: Any) -> Comparison:
    return comparison.compare(
        side.side("before", [captured(before, "b")]), side.side("after", [captured(after, "a")]), **options
    )


def exact(answer: Comparison) -> None:
    assert sum(p.difference_ns for p in answer.parts) == answer.difference_ns == answer.after_ns - answer.before_ns


def test_a_module_that_got_faster(tmp_path: Path) -> None:
    before = summary(tmp_path, program(NET), "b")
    answer = compare(before, summary(tmp_path, program({**NET, "c": 4 * MS}), "a"))
    exact(answer)
    assert answer.verdict == "faster"
    assert answer.difference_ns == -MS
    assert (answer.parts[0].kind, answer.parts[0].name, answer.parts[0].difference_ns) == ("module", "c", -MS)
    assert answer.sentence.startswith("1.00 ms a step faster (10.0 %")
    assert "1.00 in c kernels" in answer.sentence
    assert "one capture a side" in answer.sentence
    other = compare(summary(tmp_path, program({**NET, "c": 4 * MS}), "a2"), before)
    assert (other.verdict, other.difference_ns) == ("slower", MS)


def test_the_same_program_is_the_same(tmp_path: Path) -> None:
    one, two = (summary(tmp_path, program(NET, noise=20 * US, seed=i), str(i)) for i in (1, 2))
    answer = compare(one, two)
    exact(answer)
    assert answer.verdict == "same"
    for rows in answer.tables.values():
        assert not [r.name for r in rows if r.verdict in ("faster", "slower")]


def test_a_wait_that_goes_is_named_and_counted(tmp_path: Path) -> None:
    answer = compare(summary(tmp_path, program(NET, item_in="a"), "b"), summary(tmp_path, program(NET), "a"))
    exact(answer)
    gone = [r for r in answer.tables["waits"] if r.status == "removed"]
    assert [(r.before_count, r.after_count) for r in gone] == [(1.0, None)]
    assert "in a" in str(gone[0].name)
    assert "cudaMemcpyAsync" in [r.name for r in answer.tables["api_calls"] if r.status == "removed"]


def test_added_and_removed_modules_are_listed(tmp_path: Path) -> None:
    answer = compare(
        summary(tmp_path, program(NET), "b"), summary(tmp_path, program({"a": 3 * MS, "b": 2 * MS, "d.x": 4 * MS}), "a")
    )
    exact(answer)
    assert {r.name: r.status for r in answer.tables["modules"] if r.name in ("c", "d.x")} == {
        "c": "removed",
        "d.x": "added",
    }


def test_wrappers_and_new_names_are_the_same_modules(tmp_path: Path) -> None:
    before = summary(tmp_path, program({"net.one": 3 * MS, "net.two": 2 * MS}, cls="Conv"), "b")
    after = program({"module._orig_mod.net.one": 3 * MS, "module.net.zwei": 2 * MS}, cls="Conv")
    answer = compare(before, summary(tmp_path, after, "a"))
    rows = {r.name: r for r in answer.tables["modules"] if r.cls}
    assert (rows["net.one"].status, rows["net.two"].status) == ("both", "renamed")
    assert rows["net.two"].now == "module.net.zwei"
    assert answer.verdict == "same"


def test_a_row_is_judged_by_the_interval_that_it_shows(tmp_path: Path) -> None:
    """What processes may differ by is in both: an interval without zero is never "cannot tell"."""
    before = summary(tmp_path, program(NET, host=9 * MS, noise=5 * US, seed=1), "b")
    answer = compare(before, summary(tmp_path, program({**NET, "c": 4 * MS}, host=8 * MS, noise=5 * US, seed=9), "a"))
    rows = [*answer.parts, answer.gpu_work, *(row for table in answer.tables.values() for row in table)]
    seen = [row for row in rows if row.low_ns is not None and row.high_ns is not None]
    assert [row for row in seen if row.verdict == "cannot_tell"]
    for row in seen:
        if row.verdict == "cannot_tell":
            assert row.low_ns <= 0 <= row.high_ns
        elif row.verdict in ("faster", "slower"):
            assert (row.high_ns < 0) == (row.verdict == "faster") and (row.low_ns > 0) == (row.verdict == "slower")


def test_a_ticket_holds_what_changed_and_names_the_rest(tmp_path: Path) -> None:
    nets = {f"m{i}": MS for i in range(20)}
    before = summary(tmp_path, program(nets), "b")
    answer = compare(before, summary(tmp_path, program({**nets, "m3": 2 * MS}), "a"))
    text = markdown(answer, top=5)
    assert "| m3 kernels | 1.00 ms | 2.00 ms | +1.00 ms |" in text and "&#45;" not in text
    parts = text.partition("difference is made of")[2].partition("\n\n**")[0]
    assert parts.count("\n| ") == 2, "its head and m3: nothing else differs"
    assert not re.search(r"^\| m4 ", text, re.MULTILINE)
    assert "No row that surely changed: " in text
    assert len(text.splitlines()) < 60


def test_what_changes_the_step_by_less_than_one_percent_is_one_row(tmp_path: Path) -> None:
    """Of 20 ms, 0.19 ms is below one percent and 0.21 ms is not: in sentence, lists, pictures and the rows that changed most."""
    nets = {f"m{i}": MS for i in range(20)}
    before = summary(tmp_path, program(nets), "b")
    for more, named in ((190 * US, False), (215 * US, True)):
        after = program({**nets, "m3": 2 * MS, "m5": MS + more, "m7": MS + 50 * US, "m8": MS - 60 * US})
        answer = compare(before, summary(tmp_path, after, f"a{more}"))
        file = io.StringIO()
        terminal(answer, Console(file=file, width=80))
        cards, _, tables = compare_page.render(answer).partition('<section class="more"')
        every_part = tables.partition("</details>")[0]
        waterfall = [row.label for row in compare_charts.waterfall(answer).rows]
        parts = markdown(answer).partition("<details>")[0]
        for text in (answer.sentence, file.getvalue(), cards, "\n".join(waterfall), parts, every_part):
            assert ("m5" in text) is named and not re.search(r"m[78]\b", text), text
        for text in (file.getvalue(), "\n".join(waterfall), parts, every_part):
            assert "others, each below 1\N{NO-BREAK SPACE}%" in text or "others, each below 1 %" in text
        shown, _, others_ns = shown_parts(answer, 8)
        assert sum(p.difference_ns for p in shown) + others_ns == answer.difference_ns
    small = compare(before, summary(tmp_path, program({**nets, "m3": MS + 150 * US, "m5": MS + 50 * US}), "small"))
    assert [p.name for p in shown_parts(small, 8)[0]] == ["m3"], "the largest, where nothing else could be named"


def test_a_module_that_is_called_by_a_number_is_no_number_of_kernels() -> None:
    assert part_words("module", "64") == "module 64 kernels" and part_words("module", "m64") == "m64 kernels"


def test_the_page_writes_microseconds_in_one_way(tmp_path: Path) -> None:
    before = summary(tmp_path, program(NET), "b")
    page = compare_page.render(compare(before, summary(tmp_path, program({**NET, "c": 5 * MS + 200 * US}), "a")))
    prose = re.sub(r"(?s)<(script|style|pre|textarea).*?</\1>|<[^>]*>", " ", page)
    assert "µs" in prose and not re.search(r"\d[ \u00a0]us\b", prose)


def test_names() -> None:
    assert renamed_modules.plain("_orig_mod.module.layers.0._orig_mod.fc") == "layers.0.fc"
    assert renamed_modules.plain("module") == "module"
    have = {"h.10": "B", "h.9": "B", "x": "C"}
    assert renamed_modules.align(have, {"l.1": "B", "l.2": "B", "y": "D"}) == {"h.9": "l.1", "h.10": "l.2", "x": "x"}
    assert renamed_modules.align({"h.1": "B"}, {"l.1": "B", "l.2": "B"}) == {"h.1": "h.1"}


def test_a_host_that_drifts_is_no_change(tmp_path: Path) -> None:
    """A third of idle time is what a process may differ by: one capture a side cannot tell, several can."""
    one = [summary(tmp_path, program(NET, host=9 * MS, noise=5 * US, seed=i), f"b{i}") for i in range(3)]
    two = [summary(tmp_path, program(NET, host=6 * MS, noise=5 * US, seed=9 + i), f"a{i}") for i in range(3)]
    single = compare(one[0], two[0])
    assert single.verdict == "cannot_tell"
    assert "capture each side several times" in single.sentence
    sides = [side.side(n, [captured(s, str(i)) for i, s in enumerate(x)]) for n, x in (("before", one), ("after", two))]
    assert comparison.compare(*sides).verdict == "faster"
    quiet = side.side("noise", [captured(s, "n") for s in one[1:]])
    assert comparison.compare(*(side.side(s.name, s.captures[:1]) for s in sides), quiet).verdict == "faster"


def test_the_step_without_the_profiler_is_said_too(tmp_path: Path) -> None:
    before, after = summary(tmp_path, program(NET), "b"), summary(tmp_path, program({**NET, "c": 4 * MS}), "a")
    before["unprofiled"] = asdict(
        Unprofiled(9 * MS, 9 * MS - 9000, 9 * MS + 9000, "in_process", 9, 10 * MS, 1, 0, 9, 0.9, 8 * MS, MS, {}, {})
    )
    after["unprofiled"] = None
    assert compare(before, after).real is None
    after["unprofiled"] = {**before["unprofiled"], "step_ns": 8 * MS, "low_ns": 8 * MS, "high_ns": 8 * MS}
    answer = compare(before, after)
    assert answer.real is not None
    assert (answer.real.verdict, answer.real.difference_ns) == ("faster", -MS)
    assert "Without the profiler: 1.00 ms a step faster" in answer.sentence
    after["unprofiled"] = {**before["unprofiled"], "step_ns": 12 * MS, "low_ns": 12 * MS, "high_ns": 12 * MS}
    assert compare(before, after).verdict == "cannot_tell"


def test_steps_without_the_profiler_that_tell_more_say_what_their_interval_leaves_out(tmp_path: Path) -> None:
    """And the smallest change that could have been seen is said once: by the sentence, or by what stands below."""
    before, after = (
        summary(tmp_path, program(NET, host=host, noise=5 * US, seed=host), name)
        for host, name in ((9 * MS, "b"), (6 * MS, "a"))
    )
    for values, step in ((before, 9 * MS), (after, 6 * MS)):
        values["unprofiled"] = asdict(
            Unprofiled(step, step - 9000, step + 9000, "in_process", 9, 10 * MS, 1, 0, 9, 0.9, 8 * MS, MS, {}, {})
        )
    answer = compare(before, after)
    assert (answer.verdict, answer.real and answer.real.verdict) == ("cannot_tell", "faster")
    assert "; an interval of these runs alone); 9.00 ms before" in answer.sentence
    assert "would have been seen" in answer.sentence and "could have been seen" not in compare_view.basis(answer)
    assert compare_view.worth(answer) == "Not significant"


def test_two_programs_of_other_modules_are_called_so(tmp_path: Path) -> None:
    one = summary(tmp_path, program(NET), "one")
    two = summary(tmp_path, program({f"x{path}": ns for path, ns in NET.items()}, cls="Conv2d"), "two")
    [check] = [x for x in compare(one, two).comparability if x.check == "modules"]
    assert check.status == "differs" and check.detail.startswith("Other modules: those on both sides take 0 %")
    assert not any(x.check == "modules" for x in compare(one, one).comparability)


def test_reports_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("old/r.sqlite", "new/r.sqlite", "new/other.sqlite")]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        program(NET).write(path)
    assert [c.label for c in side_inputs.captures(paths, workers=1)] == ["old/r.sqlite", "new/r.sqlite", "other.sqlite"]


def test_ranks_of_one_job_are_one_capture(tmp_path: Path) -> None:
    ranks = [summary(tmp_path, program({**NET, "c": ns}), f"rank{i}") for i, ns in enumerate((4 * MS, 5 * MS))]
    found = side.side("before", [captured(s, f"rank{i}.sqlite") for i, s in enumerate(ranks)])
    assert len(found.captures) == 1
    assert found.captures[0].series("module")["c"].mean_ns == 4.5 * MS
    later = summary(tmp_path, program(NET, utc=1_795_228_332_660_273_255 + 10**12), "rank1b")
    apart = side.side("before", [captured(ranks[0], "rank0.sqlite"), captured(later, "rank1.sqlite")])
    assert len(apart.captures) == 2


def test_captures_without_steps_are_compared_as_they_are(tmp_path: Path) -> None:
    """What is known is said, and that it is no answer; a capture with steps is nothing to hold it against."""
    files = [
        program(n, steps=1, named=False).write(tmp_path / f"{i}.sqlite")
        for i, n in enumerate((NET, {**NET, "c": 9 * MS}))
    ]
    before, after = side_inputs.sides([("before", files[:1]), ("after", files[1:])])
    answer = comparison.compare(before, after)
    exact(answer)
    assert (answer.verdict, answer.whole, answer.difference_ns) == ("cannot_tell", True, 4 * MS)
    assert "no steps were found" in answer.sentence and "4.00 ms longer" in answer.sentence
    assert next(x for x in answer.comparability if x.check == "what a step is").status == "unknown"
    assert "a step" not in markdown(answer).replace("what a step is", "") and "per step" not in markdown(answer)
    stepped = program(NET).write(tmp_path / "stepped.sqlite")
    with pytest.raises(NsysxError) as error:
        side_inputs.sides([("before", files[:1]), ("after", [stepped])])
    assert (error.value.slug, error.value.exit_code) == ("no-steps", 4)


def test_what_is_not_comparable_is_refused(tmp_path: Path) -> None:
    good = summary(tmp_path, program(NET), "g")
    whole = summary(tmp_path, program(NET, steps=1), "w", steps="all")
    with pytest.raises(NsysxError) as error:
        compare(good, whole)
    assert (error.value.slug, error.value.exit_code) == ("no-steps", 4)
    for bad, slug in (
        ({}, "not-a-summary"),
        ([], "not-a-summary"),
        ({**good, "schema": "nsysx.summary/2"}, "other-schema"),
        ({**good, "steps": {**good["steps"], "count": "4"}}, "bad-summary"),
        ({**good, "step_parts": [{"part": "step"}]}, "bad-summary"),
    ):
        with pytest.raises(NsysxError) as error:
            side.captured(Summary.from_json(bad), "x")
        assert error.value.slug == slug


def test_differences_of_the_captures_are_said(tmp_path: Path) -> None:
    one, two = summary(tmp_path, program(NET), "b"), summary(tmp_path, program(NET, steps=80), "a")
    two["capture"]["gpus"][0]["name"] = "Other GPU"
    said = {x.check: x.status for x in compare(one, two).comparability}
    assert (said["gpu"], said["steps"], said["kernels"]) == ("differs", "differs", "same")


def test_drivers_and_clocks_are_held_against_each_other(tmp_path: Path) -> None:
    one = summary(tmp_path, program(NET), "one")
    assert next(x for x in compare(one, one).comparability if x.check == "driver").status == "unknown"
    assert all(x.check != "clock" for x in compare(one, one).comparability), "nobody noted it"

    def noted(driver: str, mhz: int) -> dict[str, Any]:
        return {**one, "capture": {**one["capture"], "driver_version": driver, "sm_clock_mhz": mhz}}

    for other, driver, clock in ((noted("580.95", 1975), "same", "same"), (noted("570.1", 1500), "differs", "differs")):
        lines = {x.check: x for x in compare(noted("580.95", 1980), other).comparability}
        assert (lines["driver"].status, lines["clock"].status) == (driver, clock)
    assert "1980 MHz before, 1500 after" in lines["clock"].detail


def test_one_kernel_or_a_collective_is_no_other_clock(tmp_path: Path) -> None:
    """All but one run as fast as before; the one that does not holds most of the time."""
    names = ("ncclDevKernel_AllReduce", "b", "c", "d", "e", "f", "g")
    fast = {n: 5 * MS if "nccl" in n else MS for n in names}

    def speeds(**changed: int) -> list[str]:
        one, two = summary(tmp_path, program(fast), "one"), summary(tmp_path, program({**fast, **changed}), "two")
        return [x.detail for x in compare(one, two).comparability if x.check == "speed of kernels"]

    assert speeds(ncclDevKernel_AllReduce=9 * MS) == []
    assert speeds(b=9 * MS) == []
    (said,) = speeds(**{n: round(ns * 1.39) for n, ns in fast.items()})
    assert "take 39" in said and "longer" in said
    # Equal kernels that take less than 0.3 of the time tell nothing about a clock.
    for collective, lines in ((16, 0), (12, 1)):
        fast["ncclDevKernel_AllReduce"] = collective * MS
        slower = {n: round(1.39 * MS) for n in names[1:]}
        assert len(speeds(**slower)) == lines, f"{6 / (6 + collective):.2f} of the time"


def test_whole_numbers_sum() -> None:
    assert differences.whole([1.6, 1.6, -0.9], 2) == [2, 1, -1]
    assert sum(differences.whole([0.4] * 10, 4)) == 4
    assert differences.whole([], 0) == []


@pytest.fixture(scope="module")
def measured() -> dict[str, side.Captured]:
    """Captures of three programs on one H200 with a busy host, each several times, in turn: gpt, gpt with one module 1.8 %
    of the step slower, and a launch-bound one.
    """
    packed = (Path(__file__).parent / "data" / "aa.json.xz").read_bytes()
    return {name: captured(whole(s), name) for name, s in json.loads(lzma.decompress(packed)).items()}


def whole(kept: dict[str, Any]) -> dict[str, Any]:
    """Return a Summary of which only what a comparison reads was kept."""
    capture = Capture((), None, None, (), (), None, ())
    steps = Steps("", "", 0, None, None, None, ())
    values = Summary("0.1.0", capture, (), {}, steps, Verdict("unknown", ""), {}, None, None).to_json()
    parts = {key: {**asdict(record), **kept[key]} for key, record in (("capture", capture), ("steps", steps))}
    return {**values, **kept, **parts}


def pair(measured: Mapping[str, side.Captured], one: str, two: str) -> Comparison:
    return comparison.compare(side.side("before", [measured[one]]), side.side("after", [measured[two]]))


def test_captures_of_one_program_give_no_alarm(measured: Mapping[str, side.Captured]) -> None:
    for kind in ("gpt", "slow", "tiny"):
        for one, two in itertools.combinations([n for n in measured if n.startswith(kind)], 2):
            answer = pair(measured, one, two)
            exact(answer)
            assert answer.verdict in ("same", "cannot_tell"), (one, two, answer.sentence)
            wrong = [r.name for r in answer.tables["modules"] if r.verdict in ("faster", "slower")]
            assert not wrong, (one, two)


def test_a_slower_module_is_found_in_every_pair(measured: Mapping[str, side.Captured]) -> None:
    for one, two in itertools.product(*([n for n in measured if n.startswith(k)] for k in ("gpt", "slow"))):
        answer = pair(measured, one, two)
        exact(answer)
        assert answer.verdict == "slower", (one, two, answer.sentence)
        slower = [p.name for p in answer.parts if p.kind == "module" and p.verdict == "slower"]
        assert slower and str(slower[0]).startswith("blocks.3.mlp"), (one, two)


def test_compute_is_split_by_module_only_where_modules_account_for_it_in_every_capture(tmp_path: Path) -> None:
    known = captured(summary(tmp_path, program(NET), "a"), "a")
    modules = {**known.parts["module_compute"]}
    largest = max((s for k, s in modules.items() if k is not None), key=lambda s: int(s.ns.sum()))
    unknown = replace(known, parts={**known.parts, "module_compute": {**modules, None: replace(largest, cls=None)}})
    share = comparison._attributed(side.Side("before", (unknown,)))
    assert 0 < share < comparison._attributed(side.Side("before", (known,)))
    assert comparison._attributed(side.Side("before", (known, unknown))) == share


def test_words_of_one_nanosecond() -> None:
    for difference, way in ((1, "slower"), (-1, "faster")):
        said = real_words(1_000, 1_000 + difference, difference, difference, way)
        assert f"1.00 ns a step {way} (0.1 %, 0.1 to 0.1)" in said
    assert "no difference shows" in real_words(1_000, 1_000, -9, 9, "cannot_tell")


def test_small_causes_of_idle_time_are_told_as_one() -> None:
    def part(kind: str, name: str, difference: int) -> DifferencePart:
        return DifferencePart(kind, name, difference, MS, MS + difference, None, None, "cannot_tell", "both")

    large, small = part("ledger", "compute", 900 * US), part("module", "a", 20 * US)
    parts = [large, part("idle", "sync", 40 * US), part("idle", "alloc", 30 * US), small]
    merged = _idle_together(parts, MS)
    assert [(p.kind, p.difference_ns) for p in merged] == [
        ("ledger", 900 * US),
        ("ledger", 70 * US),
        ("module", 20 * US),
    ]
    assert sum(p.before_ns for p in merged) == 4 * MS and sum(p.after_ns for p in merged) == 4 * MS + 990 * US
    assert _idle_together(parts[:2], MS) == parts[:2], "a single one keeps its name"
