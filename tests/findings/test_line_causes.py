"""Why a line holds the CPU, by what an X-ray counts: each cause with its advice, and none where the count says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nsysx.events.beat import beat_ns
from tests.findings import US
from tests.findings.lined import FILE, Lined, forward

CPU = {"cores": 16, "allowed": 16, "torch_threads": 16}


def single_items(program: Lined, number: int, items: int = 400) -> None:
    """Line 12 calls a function whose loop runs two lines for each item."""
    with program.line(12):
        for _ in range(items):
            with program.line(30, "SumTree.put"):
                with program.line(37, "SumTree.raise_by"):
                    program.host(5)
                with program.line(38, "SumTree.raise_by"):
                    program.host(6)
    rest(program)


def few_items(program: Lined, number: int) -> None:
    single_items(program, number, items=80)


def micro_batches(program: Lined, number: int) -> None:
    """Line 12 runs a network 32 times, whose line 38 calls 12 layers: their launches are noted at line 50."""
    for _ in range(32):
        with program.line(12), program.range("forward"), program.range("net:Net"):
            for _ in range(12):
                with program.line(37, "Net.forward"):
                    program.host(1)
                with program.line(38, "Net.forward"):
                    program.host(6)
                    with program.line(50, "Layer.forward"):
                        program.launch(2)
    rest(program)


def one_call(program: Lined, number: int) -> None:
    with program.line(12):
        program.host(4_000)
    rest(program)


def rest(program: Lined) -> None:
    with program.line(13):
        program.copy(20)
    forward(program)
    with program.line(40):
        program.sync()


CASES: list[tuple[str, Callable[[Lined, int], None], str, dict[str, str], tuple[str, int]]] = [
    ("a loop over items", single_items, "self.raise_by(i // 2, d)", {}, ("vectorized", 38)),
    ("a short one", few_items, "self.raise_by(i // 2, d)", {}, ("out-of-the-loop", 38)),
    ("one call", one_call, "codes = engine.prepare(pages)", {}, ("call-ahead", 12)),
    ("a loop within the line", one_call, "codes = [tok.encode(p) for p in pages]", {}, ("out-of-the-loop", 12)),
    ("threads off", one_call, "codes = tok.encode_batch(pages)", {"TOKENIZERS_PARALLELISM": "false"}, ("threads-of-library", 12)),
    ("threads on", one_call, "codes = tok.encode_batch(pages)", {"TOKENIZERS_PARALLELISM": "true"}, ("call-ahead", 12)),
    ("those of another library", one_call, "codes = tok.encode_batch(pages)", {"OMP_NUM_THREADS": "1"}, ("call-ahead", 12)),
    ("one thread of BLAS", one_call, "u = np.linalg.svd(a)", {"OPENBLAS_NUM_THREADS": "1"}, ("threads-of-library", 12)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "text", "values", "told"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_what_to_do_follows_from_what_was_counted(
    body: Callable[[Lined, int], None], text: str, values: dict[str, str], told: tuple[str, int], tmp_path: Path
) -> None:
    settings = {"environment": {"values": values}, "cpu": CPU}
    found = Lined({12: text, 38: text}, settings).run(body).found(tmp_path, "NSX123")[0]
    assert ([way.name for way in found.remedies], found.where["line"]) == ([told[0]], told[1])
    if told[0] == "vectorized":
        assert "SumTree.put runs 1,200 lines of Python in each step" in found.fix
        assert 3_800 * US < (found.saving.likely_ns or 0) < 4_600 * US, "both lines of the loop"
    if told[0] == "threads-of-library":
        assert next(iter(values)) in found.fix and next(iter(values)) in found.paste


def test_a_loop_that_launches_is_no_loop_over_items(tmp_path: Path) -> None:
    found = Lined({38: "x = block(x)"}).run(micro_batches).findings(tmp_path, "NSX123")
    assert not [f for f in found for way in f.remedies if way.name == "vectorized"]


@pytest.mark.parametrize(("function", "told"), [("Layer.forward", False), ("parse", True)])
def test_a_line_that_calls_layers_does_not_leave_the_loop(function: str, told: bool, tmp_path: Path) -> None:
    """Line 38 of a network calls something 12 times, which holds the host between its own lines."""

    def body(program: Lined, number: int) -> None:
        with program.line(20), program.range("forward"), program.range("net:Net"):
            for _ in range(12):
                with program.line(38, "Net.forward"):
                    program.host(300)
                    with program.line(50, function):
                        program.launch(2)
        rest(program)

    found = Lined({38: "x = each(x)"}).run(body).findings(tmp_path, "NSX123")
    assert bool([f for f in found if f.where.get("line") == 38]) == told


def test_one_thread_that_runs_ahead_leaves_the_longer_of_the_call_and_the_rest(tmp_path: Path) -> None:
    """The step is 4 ms of the call and 678 us of all else."""
    program = Lined({12: "codes = engine.prepare(pages)"}, {"cpu": CPU}).run(one_call)
    (found,) = program.found(tmp_path, "NSX123")
    assert found.saving.bound and 3_800 * US < (found.saving.likely_ns or 0) < 4_100 * US
    assert "one thread that runs ahead saves 678 us" in found.saving.confidence


@pytest.mark.parametrize("logs", [False, True])
def test_a_line_that_holds_the_steps_is_no_place_but_what_its_trainer_logs_is(logs: bool, tmp_path: Path) -> None:
    inner = "/env/lib/site-packages/pytorch_lightning/"
    called = "loggers/csv_logs.py:9 CSVLogger.save" if logs else "loops/fit_loop.py:9 FitLoop.advance"

    def body(program: Lined, number: int) -> None:
        begin = program.t
        program.host(600)
        if program.noted is not None:
            program.noted.append((inner + called, begin, program.t))
        rest(program)

    program = Lined({50: "trainer.fit(net, loader)"})
    program.run(body)
    program.main.line(f"{FILE}:50 main", program.begins[8] - 1, program.t)
    found = [f for f in program.found(tmp_path, "NSX123") if f.where["line"] == 50]
    assert [way.name for f in found for way in f.remedies] == ["callbacks-rarely"] * logs


def test_steps_keep_to_a_beat_if_a_late_one_is_made_up_for() -> None:
    draw = np.random.default_rng(0)
    late = draw.uniform(0, 2e5, 49)
    assert beat_ns((40e6 + np.diff(late)).astype(int).tolist()) == pytest.approx(40e6, rel=0.01)
    own_work = (40e6 + draw.uniform(-2e5, 2e5, 48)).astype(int).tolist()
    assert beat_ns(own_work) is None, "each is longer or shorter by itself"
    assert beat_ns([40_000_000] * 48) is None, "nothing to make up for"
    assert beat_ns([5_000_000] * 7 + [240_000_000] + ([5_000_000] * 7 + [240_000_000]) * 5) is None, "bursts"
    assert beat_ns((40e6 + np.diff(late[:12])).astype(int).tolist()) is None, "too few"


def test_what_comes_by_a_clock_leaves_nothing_to_do(tmp_path: Path) -> None:
    def body(program: Lined, number: int) -> None:
        with program.line(12):
            program.host(30_000)
        rest(program)

    late = np.random.default_rng(1).uniform(0, 2e5, 97)
    for beats in (True, False):
        folder = tmp_path / str(beats)
        folder.mkdir()
        lengths = np.diff(late) if beats else np.random.default_rng(2).uniform(-2e5, 2e5, 96)
        program = Lined({12: "hear(studio.pieces.get())"})
        program.probe = {"unrecorded_steps": {"lengths_ns": (31e6 + lengths).astype(int).tolist(), "count": 96}}
        summary = program.run(body).summary(folder)
        assert summary.answer is not None
        do = summary.answer.do[0]
        assert do.where["line"] == 12
        assert do.text.startswith("Nothing: the program waits here for what comes by a clock, every 31.0") == beats


@pytest.mark.parametrize(("walker", "findings"), [("SumTree.find", 1), ("Env.find", 2), ("find", 2)])
def test_loops_of_one_class_over_single_items_are_one_thing_to_do(walker: str, findings: int, tmp_path: Path) -> None:
    """The loop of line 12 takes 4.4 ms, that of line 14 3.6 ms; line 52 launches nothing and is short."""

    def body(program: Lined, number: int) -> None:
        with program.line(14):
            for _ in range(400):
                with program.line(50, walker):
                    with program.line(51, walker):
                        program.host(8)
                    with program.line(52, walker):
                        program.host(1)
        single_items(program, number)

    found = [f for f in Lined({38: "up(i)", 51: "down(i)"}).run(body).findings(tmp_path, "NSX123") if f.remedies]
    looped = [f for f in found if f.remedies[0].name == "vectorized"]
    assert len(looped) == findings
    saved = sum(f.saving.likely_ns or 0 for f in looped)
    assert 7_600 * US < saved < 8_400 * US
    if findings == 1:
        assert looped[0].fix.endswith(". The same for SumTree.put")


@pytest.mark.parametrize(("often", "more_us"), [(400, 40), (10, 0)])
def test_lines_of_the_loops_own_body_go_with_it(often: int, more_us: float, tmp_path: Path) -> None:
    """Line 30 runs 400 times, and line 31 of its function as often, or ten times, without a loop below it."""

    def body(program: Lined, number: int) -> None:
        single_items(program, number)
        with program.line(12):
            for _ in range(often):
                with program.line(31, "SumTree.put"):
                    program.host(0.1)

    (looped,) = [
        f
        for f in Lined({38: "up(i)"}).run(body).findings(tmp_path, "NSX123")
        if f.remedies and f.remedies[0].name == "vectorized"
    ]
    assert abs((looped.saving.likely_ns or 0) - (4_400 + more_us) * US) < 15 * US


@pytest.mark.parametrize(
    ("text", "function", "more_us"),
    [
        ("return np.stack(batch.obs)", "Memory.sample", 500),
        ("return self.view(batch)", "Memory.sample", 0),  # it makes no array
        ("return np.stack(batch.obs)", "Env.observe", 0),  # of something else
    ],
)
def test_what_is_picked_one_by_one_takes_its_arrays_with_it(
    text: str, function: str, more_us: float, tmp_path: Path
) -> None:
    def body(program: Lined, number: int) -> None:
        with program.line(12, "Memory.sample"):
            program.host(3_000)
        with program.line(13, function):
            program.host(500)
        rest(program)

    source = {12: "batch = Transition(*zip(*random.sample(self.memory, n)))", 13: text}
    found = Lined(source).run(body).findings(tmp_path, "NSX123")
    (finding,) = [f for f in found if f.remedies and f.remedies[0].name == "arrays-for-objects"]
    assert abs((finding.saving.likely_ns or 0) - (3_000 + more_us) * US) < 100 * US


@pytest.mark.parametrize(
    ("text", "function", "more_us"),
    [
        ("probs = scaled / scaled.sum()", "Replay.draw", 800),
        ("stats = scaled / scaled.sum()", "Replay.draw", 0),  # no weights of this draw
        ("probs = scaled / scaled.sum()", "Replay.update", 0),  # a name of another function's
    ],
)
def test_a_draw_by_weights_takes_what_computes_them_with_it(
    text: str, function: str, more_us: float, tmp_path: Path
) -> None:
    def body(program: Lined, number: int) -> None:
        with program.line(12, function):
            program.host(500)
        with program.line(13, "Replay.draw"):
            program.host(3_000)
        with program.line(14, function):
            program.host(300)
        rest(program)

    source = {
        12: text,
        13: "index = np.random.choice(self.size, batch, p=probs)",
        14: "weight = (self.size * probs[index]) ** -self.beta",
    }
    found = Lined(source).run(body).findings(tmp_path, "NSX123")
    (finding,) = [f for f in found if f.remedies and f.remedies[0].name == "drawn-by-weight"]
    assert abs((finding.saving.likely_ns or 0) - (3_000 + more_us) * US) < 100 * US
