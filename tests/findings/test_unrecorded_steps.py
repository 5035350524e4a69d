"""NSX109 and the verdict, of steps that are long only while nothing was recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nsysx.findings import _unrecorded_steps
from nsysx.findings._made_between import Rollout
from nsysx.model import Summary
from tests.findings import Program, healthy

MS = 1_000_000
#: Of 60 steps, ten take 8 ms longer, as they do that wait for the workers of a loader.
MORE = 8 * MS
LATE = (3, 11, 12, 20, 25, 33, 34, 41, 47, 56)


def summary(
    folder: Path,
    late: tuple[int, ...] = LATE,
    *,
    workers: int = 12,
    usual_ms: float = 4,
    body: Callable[[Program, int], None] = healthy,
    **noted: object,
) -> Summary:
    """Return the summary of equal recorded steps of 4 ms, and of steps without the profiler of which some are long."""
    lengths = [round(usual_ms * MS) + MORE * (i in late) for i in range(60)]
    timed = {"lengths_ns": lengths, "after_ns": [], "clock": "gpu", "where": "between the windows", "detached": False}
    settings = {"loaders": [{"workers": workers, "iterators": 1}]} if workers else {}
    record = {"pid": 100, "unrecorded_steps": timed, "window_pauses_ns": [MS, MS], "settings": settings, **noted}
    (folder / "r.run.json").write_text(json.dumps({"probe": [record]}))
    return Program().steps(body, 12).summary(folder)


def test_long_steps_that_no_window_holds_are_those_of_a_loader_that_falls_behind(tmp_path: Path) -> None:
    found = summary(tmp_path)
    finding = next(f for f in found.findings or () if f.code == "NSX109")
    assert finding.verdict == "found" and finding.title.startswith("10 of 60 steps take 12")
    assert finding.saving.likely_ns == pytest.approx(10 * MORE / 60, rel=0.01)
    assert finding.fix.startswith("Make the loader keep up") and "num_workers" in finding.paste
    assert found.answer is not None and found.answer.do[-1].code == "NSX109"


def loading(program: Program, number: int) -> None:
    """A healthy step; before the ninth the host pauses for 8 ms and loads code, as it does for a shape that is new."""
    if number == 8:
        program.host(8_000)
        program.call("cuLibraryLoadData", 15)
    healthy(program, number)


def pausing(program: Program, number: int) -> None:
    """The same pause, and nothing is loaded."""
    if number == 8:
        program.host(8_000)
    healthy(program, number)


@pytest.mark.parametrize(("body", "paid"), [(loading, True), (pausing, False)])
def test_long_steps_that_are_as_long_as_first_calls_are_no_cause(
    body: Callable[[Program, int], None], paid: bool, tmp_path: Path
) -> None:
    finding = next(f for f in summary(tmp_path, body=body).findings or () if f.title.startswith("10 of 60 steps"))
    assert ("code was loaded for the first time" in finding.detail) is paid
    assert (finding.saving.likely_ns is None) is paid and ("num_workers" in finding.paste) is not paid


def test_what_only_long_steps_take_is_no_gap_between_kernels(tmp_path: Path) -> None:
    parts = summary(tmp_path).verdict.parts
    assert parts["longer"] == pytest.approx(10 * MORE / 60, rel=0.1)
    assert sum(parts.values()) == pytest.approx(4 * MS + 10 * MORE / 60, rel=0.01)
    assert parts.get("pause", 0) < MS


def launching(program: Program, number: int) -> None:
    """A step of 4 ms that the host limits: 40 launches with 95 us of Python before each."""
    with program.range("forward"), program.range("net:Net"):
        for _ in range(40):
            program.host(95)
            program.launch(10)


@pytest.mark.parametrize("usual_ms", [3.5, 2.0], ids=["a shorter mean", "a mean below the recorded step"])
def test_steps_that_tracing_stretches_take_nothing_from_what_long_ones_add(usual_ms: float, tmp_path: Path) -> None:
    """The recorded steps take 4 ms, and as many of the others are long as ever."""
    found = summary(tmp_path, usual_ms=usual_ms, body=launching)
    assert found.verdict.parts["longer"] == pytest.approx(10 * MORE / 60, rel=0.1)
    assert sum(found.verdict.parts.values()) == pytest.approx(found.step.shown_ns or 0, rel=0.01)
    finding = next(f for f in found.findings or () if f.code == "NSX109")
    assert finding.saving.likely_ns == pytest.approx(10 * MORE / 60, rel=0.01)


@pytest.mark.parametrize(
    ("late", "workers"), [(LATE, 0), (tuple(range(5, 60, 6)), 12)], ids=["without a loader", "every sixth step"]
)
def test_other_long_steps_are_told_without_a_size(tmp_path: Path, late: tuple[int, ...], workers: int) -> None:
    """A fixed rhythm is something that the program does."""
    found = summary(tmp_path, late, workers=workers)
    finding = next(f for f in found.findings or () if f.code == "NSX109")
    assert finding.verdict == "found" and finding.saving.likely_ns is None and not finding.paste


@pytest.mark.parametrize(
    ("every", "options", "told"),
    [
        (20, {}, "persistent-workers"),
        (20, {"made_again": 2, "persistent_workers": True}, "loader-once"),  # what is made anew keeps nothing
        (20, {"persistent_workers": True}, ""),
        (20, {"last_step": 20 + 2 * 30}, ""),  # epochs do not begin as often as steps are long
        (20, {"iterators": 1}, ""),
        (20, {"workers": 0}, ""),
    ],
)
def test_long_steps_in_which_short_epochs_begin_are_those_of_workers_that_start_anew(
    every: int, options: dict[str, object], told: str, tmp_path: Path
) -> None:
    """Of 80 steps every 20th is long: in a window of 24 there may be none."""
    loader = {
        "workers": 8,
        "persistent_workers": False,
        "iterators": 3,
        "first_step": 20,
        "last_step": 60,
        "made": "/job/train.py:7",
    }
    found = summary(tmp_path, tuple(range(every - 1, 60, every)), settings={"loaders": [{**loader, **options}]})
    finding = next(f for f in found.findings or () if f.code == "NSX109")
    assert [way.name for way in finding.remedies] == ([told] if told else [])
    assert found.answer is not None
    if told:
        assert finding.where["line"] == 7 and finding.saving.likely_ns == pytest.approx(3 * MORE / 60, rel=0.05)
        assert "every 20 steps" in found.answer.do[0].text and "persistent_workers=True" in found.answer.do[0].paste


SOURCE = {"/job/train.py": {"71": "np.histogram(w.cpu().numpy())", "9": "for batch in loader:"}}


@pytest.mark.parametrize(
    ("line", "samples", "known"), [(71, 60, True), (71, 40, False), (9, 60, False)], ids=["", "few", "the loader"]
)
def test_the_line_of_long_steps_is_what_to_change(line: int, samples: int, known: bool, tmp_path: Path) -> None:
    """As the probe noted it; not where it took less than half of them, nor where the program waits for its loader."""
    places = [["/job/train.py", line, "watch", samples, False], ["/job/train.py", 12, "step", 20, True]]
    noted = {"steps": 10, "samples": 100, "every_ns": 10 * MS, "places": places}
    found = summary(tmp_path, workers=0, long_steps=noted, source=SOURCE)
    finding = next(f for f in found.findings or () if f.code == "NSX109")
    assert (finding.where.get("line") == 71) is known and (
        "Or run watch less often, or in another thread or process" in finding.fix
    ) is known
    if known:
        assert finding.saving.likely_ns == pytest.approx(0.6 * 10 * MORE / 60, rel=0.01)
        assert found.answer is not None and found.answer.do[0].code == "NSX109"


@pytest.mark.parametrize(("busy_us", "priced"), [(50, True), (20_000, False)], ids=["launches", "the GPU works"])
def test_a_rollout_in_long_steps_is_made_faster_not_rarer(
    busy_us: int, priced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Rollout(16, 6, busy_us * 1_000, 0.75, drawn=True, wrapped=False)
    monkeypatch.setattr(_unrecorded_steps, "rollout_of", lambda _: told)
    places = [["/job/train.py", 71, "watch", 60, False], ["/job/train.py", 12, "step", 20, True]]
    noted = {"steps": 10, "samples": 100, "every_ns": 10 * MS, "places": places}
    found = summary(tmp_path, workers=0, long_steps=noted, source=SOURCE)
    finding = next(f for f in found.findings or () if f.code == "NSX109")
    assert [way.name for way in finding.remedies] == ["rollout-compiled"] and finding.where.get("line") == 71
    assert "It is a rollout, no evaluation" in finding.detail and "rarely" not in finding.fix
    assert (finding.saving.likely_ns is not None and finding.saving.bound) is priced
    if priced:
        assert finding.saving.likely_ns == pytest.approx(0.75 * 10 * MORE / 60, rel=0.01)


@pytest.mark.parametrize(("entered", "known"), [(60, True), (40, False)])
@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("scores = self.validate(loader)", "Evaluate more rarely"),
        ("torch.save(net.state_dict(), path)", "Or run what train.py:33 calls less often"),
        ("torch.cuda.synchronize()", "Run what train.py:33 calls less often"),
    ],
)
def test_where_many_functions_run_the_line_that_enters_them_is_what_to_change(
    entered: int, known: bool, text: str, advice: str, tmp_path: Path
) -> None:
    """As a network in evaluation, none of whose functions takes most of the time. What the line calls may say what to do."""
    places = [["/job/train.py", 80 + i, f"forward{i}", 15, False] for i in range(4)]
    entries = [["/job/train.py", 33, "step", entered, False]]
    noted = {"steps": 10, "samples": 100, "places": places, "entries": [row[:4] for row in entries]}
    found = summary(tmp_path, workers=0, long_steps=noted, source={"/job/train.py": {"33": text}})
    finding = next(f for f in found.findings or () if f.code == "NSX109")
    assert (finding.where.get("line") == 33) is known
    assert (advice in finding.fix) is known


@pytest.mark.parametrize(
    ("text", "samples", "line"),
    [
        ("dist.all_gather_object(parcels, rollout)", 40, 71),
        ("dist.all_gather_object(parcels, rollout)", 20, 33),  # little of their time
        ("logits = net(observation)", 40, 33),  # no more host work than any other part of a round
    ],
)
def test_host_work_with_a_remedy_is_told_before_the_line_that_enters_a_whole_round(
    text: str, samples: int, line: int, tmp_path: Path
) -> None:
    places = [["/job/train.py", 71, "share", samples, False], ["/job/train.py", 80, "collect", 60 - samples, False]]
    noted = {"steps": 2, "samples": 100, "places": places, "entries": [["/job/train.py", 33, "main", 90]]}
    source = {"/job/train.py": {"33": "learner.step()", "71": text}}
    found = summary(tmp_path, workers=0, long_steps=noted, source=source)
    finding = next(f for f in found.findings or () if f.code == "NSX109")
    assert finding.where["line"] == line
    if line == 71:
        assert finding.remedies[0].name == "tensors-gathered"
        assert finding.saving.error_ns is not None and finding.saving.error_ns >= 0.09 * 10 * MORE / 60


def test_equal_steps_have_none(tmp_path: Path) -> None:
    found = summary(tmp_path, ())
    assert [f.verdict for f in found.findings or () if f.code == "NSX109"] == ["clear"]
    assert "longer" not in found.verdict.parts


def scoring(program: Program, number: int) -> None:
    """A healthy step; before the ninth, the only recorded one of each twelfth, the host works until the GPU has idled for 8 ms."""
    if number == 8:
        program.host(40_000)
    healthy(program, number)


def computing(program: Program, number: int) -> None:
    """A healthy step; the ninth computes for 8 ms more."""
    healthy(program, number)
    if number == 8:
        program.launch(8_000)


SCORING = [["/job/train.py", 81, "auc", 70, False], ["/job/train.py", 84, "auc", 20, False]]
EVERY_12TH = tuple(range(4, 60, 12))


@pytest.mark.parametrize(
    ("places", "body", "late", "known"),
    [
        (SCORING, scoring, EVERY_12TH, True),
        ([["/job/train.py", 12, "step", 90, True]], scoring, EVERY_12TH, False),  # a line of usual steps
        (SCORING, computing, EVERY_12TH, False),  # the GPU works for longer
        (SCORING, scoring, (), False),  # no long step came while nothing was recorded
    ],
    ids=["", "usual", "computes", "once"],
)
def test_a_long_step_that_was_recorded_is_told_with_the_line_of_those_that_were_not(
    places: list[list[object]], body: Callable[[Program, int], None], late: tuple[int, ...], known: bool, tmp_path: Path
) -> None:
    noted = {"steps": 5, "samples": 100, "every_ns": 10 * MS, "places": places}
    texts = {"/job/train.py": {"81": "order = np.argsort(-score)", "84": "np.cumsum(label)[edge]"}}
    found = summary(tmp_path, late, workers=0, body=body, long_steps=noted, source=texts)
    finding = next(f for f in found.findings or () if f.code == "NSX109")
    assert (finding.where.get("line") == 81) is known
    assert ("train.py:81 auc" in finding.title) is known
    if known:
        assert finding.title.startswith("Every 12th step takes 12.")
        assert finding.fix.startswith("Compute this curve on the GPU") and "torch.sort" in finding.paste
        assert finding.saving.likely_ns == pytest.approx(0.9 * 5 * MORE / 60, rel=0.05) and not finding.saving.bound
        assert found.answer is not None and found.answer.do[0].code == "NSX109"


def test_a_recorded_step_that_is_far_longer_than_those_is_another(tmp_path: Path) -> None:
    def once(program: Program, number: int) -> None:
        if number == 8:
            program.host(90_000)
        healthy(program, number)

    noted = {"steps": 5, "samples": 100, "every_ns": 10 * MS, "places": SCORING}
    found = summary(tmp_path, EVERY_12TH, workers=0, body=once, long_steps=noted)
    finding = next(f for f in found.findings or () if f.code == "NSX109")
    assert finding.title.startswith("Step 7 takes 6") and finding.where.get("line") != 81
