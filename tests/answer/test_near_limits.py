"""Nothing to gain is told with its figures: what runs at which share of which limit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nsysx.answer import near_limits, unnamed
from tests.analyses.test_operators import GEMM, Torch, summary
from tests.analyses.test_roofline import ADD, LARGE
from tests.findings import Program


def of(product_us: float, add_us: float, unknown_us: float = 0):  # type: ignore[no-untyped-def]
    def body(program: Program, number: int) -> None:
        assert isinstance(program, Torch)
        with program.range("forward"), program.range("net:Net"):
            for _ in range(4):
                with program.op("aten::addmm", "[[4096], [4096, 4096], [4096, 4096], [], []]"):
                    program.launch(product_us, GEMM)
            with program.op("aten::add", f"[{LARGE}, {LARGE}, []]"):
                program.launch(add_us, ADD)
            if unknown_us:
                program.launch(unknown_us, "triton_mine")

    return Torch().steps(body)


def test_work_near_its_limits_has_nothing_to_gain(tmp_path: Path) -> None:
    # On an H200 the limits are 174 and 178 us, of which the cache may hold some.
    found = summary(of(190, 200), tmp_path)
    assert near_limits.near(found)
    text = near_limits.sentence(found)
    assert text == (
        "Of the GPU time, 79 % is compute-bound (at 92 % of peak) and 21 % is memory-bound (at 89 % of peak bandwidth). "
        "Kernels at full rates would take 84.5 us less than 960 us."
    )
    assert found.answer is not None and found.answer.do[0].text.startswith(
        "Nothing: the GPU works near its limits. Of the GPU time"
    )


def test_where_no_replay_can_price_a_change_the_limits_are_told_all_the_same(tmp_path: Path) -> None:
    full = replace(summary(of(190, 200), tmp_path), replay={"trusted": False})
    limits = (
        "Of the GPU time, 79 % is compute-bound (at 92 % of peak) and 21 % is memory-bound (at 89 % of peak bandwidth). "
        "Kernels at full rates would take 84.5 us less than 960 us."
    )
    assert unnamed.to_record(full) == f"Nothing: the GPU works near its limits. {limits}"
    idle = replace(full, verdict=replace(full.verdict, parts={"work": 900_000, "pause": 60_000}))
    assert unnamed.to_record(idle).endswith(f"so no change can be priced. {limits}")


def test_work_far_from_them_says_what_could_go_and_where(tmp_path: Path) -> None:
    found = summary(of(190, 1500), tmp_path)
    assert not near_limits.near(found)
    assert "less than 2.26 ms, 1.32 ms of it in add" in near_limits.sentence(found)


def test_nothing_is_told_of_work_without_limits(tmp_path: Path) -> None:
    found = summary(of(190, 200, unknown_us=2000), tmp_path)
    assert "compute-bound" not in near_limits.sentence(found) and not near_limits.near(found)
    some = summary(of(190, 200, unknown_us=300), tmp_path)
    assert near_limits.sentence(some).endswith("for 24 % no limit is known.")


def test_a_kernel_of_the_programs_own_that_nothing_is_known_of_is_named(tmp_path: Path) -> None:
    found = summary(of(190, 200, unknown_us=20_000), tmp_path)
    assert found.answer is not None
    text = found.answer.do[0].text
    assert text.startswith("Look at the GPU work itself. The kernel triton_mine takes 9")
    assert text.endswith(
        "nsysx run --gpu-metrics -- CMD, or nsysx ncu REPORT. No other change that was looked for saves 1 % of the step."
    )
    taken = "It takes 20.00 ms of 20.96 ms: no change of it saves more."
    assert found.answer.worth == f"Not known: how near that kernel is to the device's limits. {taken}"


def test_near_the_limits_a_change_that_saves_little_is_no_first_line(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        assert isinstance(program, Torch)
        with program.range("forward"), program.range("net:Net"):
            for _ in range(4):
                with program.op("aten::addmm", "[[4096], [4096, 4096], [4096, 4096], [], []]"):
                    program.launch(190, GEMM)
            program.sync()
            program.host(gap_us)
            with program.op("aten::add", f"[{LARGE}, {LARGE}, []]"):
                program.launch(200, ADD)

    texts = {}
    for gap_us in (20, 400):
        folder = tmp_path / str(gap_us)
        folder.mkdir()
        found = summary(Torch().steps(body), folder)
        assert near_limits.near(found) and found.answer is not None
        texts[gap_us] = found.answer.do[0].text
    assert texts[20].startswith("Nothing: the GPU works near its limits.")
    assert not texts[400].startswith("Nothing")


def test_an_operator_that_only_moves_memory_is_looked_at_first(tmp_path: Path) -> None:
    """That nothing was found says little where most of the step computes nothing."""
    found = summary(of(190, 1500), tmp_path)
    assert found.answer is not None
    text = found.answer.do[0].text
    assert text.startswith(
        "Look at add first: it takes 66 % of the GPU time and multiplies nothing, at 12 % of the memory's bandwidth. "
        "Less of it, or none, would help. No change that was looked for saves 1 % of the step. Of the GPU time"
    )
    assert found.answer.worth.startswith("Not known: how much of it the program needs. It takes 66 % of the GPU time")


def test_products_or_a_part_of_the_step_are_left_to_their_limits(tmp_path: Path) -> None:
    for name, product_us, add_us in (("products", 500, 200), ("part", 500, 900)):
        folder = tmp_path / name
        folder.mkdir()
        found = summary(of(product_us, add_us), folder)
        assert found.answer is not None and found.answer.do[0].text.startswith("Nothing: no change")
        assert found.answer.worth == "Nothing found to gain."
