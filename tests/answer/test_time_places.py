"""Where most of the time is, by the function that kernels run, and what that bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsysx.analyses.helpers.module_names import kernel_called
from nsysx.answer import remarks, time_places
from nsysx.answer.change_savings import After
from nsysx.catalogue import StepLimit
from nsysx.model import Summary
from tests.render import factory
from tests.render.factory import MS, US


def run(function: str, place: int) -> str:
    """Return the name of a kernel that one wrapper makes of a lambda of a function."""
    return f"void ns::ranged_kernel<ns::{function}(int, double)::[lambda(unsigned long) (instance {place})]>(T1)"


def of_kernels(**ms: float) -> Summary:
    """Return a Summary with two kernels of each function, half of its time each (ms in each of 10 steps)."""
    full = factory.summary()
    rows = tuple(
        {**factory.kernel_row(run(name, place), int(time * 5_000 * US)), "step_ns": time * 500 * US}
        for name, time in ms.items()
        for place in (1, 2)
    )
    return replace(full, tables={**full.tables, "kernels": replace(full.tables["kernels"], rows=rows)})


def test_a_kernel_is_called_by_the_function_whose_lambda_it_runs() -> None:
    assert kernel_called(run("advance", 1)) == "the kernel advance"
    assert kernel_called("void ns::softmax<float>(int)") == "the kernel softmax"


def test_kernels_of_one_function_are_one() -> None:
    longest = time_places.longest_kernel(of_kernels(advance=6, reduce=4))
    assert longest is not None
    assert (longest.name, longest.step_ns, round(longest.share, 3)) == ("advance", 6 * MS, 0.6)
    full = factory.summary()
    none = replace(full, tables={**full.tables, "kernels": replace(full.tables["kernels"], rows=())})
    assert time_places.longest_kernel(none) is None


@pytest.mark.parametrize("sampled", [False, True])
def test_a_kernel_of_which_nothing_is_known_bounds_what_can_go(sampled: bool) -> None:
    summary = of_kernels(advance=6, reduce=4)
    unseen = replace(
        (summary.findings or ())[0],
        code="NSX128",
        verdict="clear" if sampled else "cannot_tell",
        fix="look",
        detail="it",
    )
    told = remarks.worth(replace(summary, findings=(unseen,)), None, After())
    assert ("It takes 6.00 ms of " in told) != sampled
    assert told.startswith("Nothing found to gain." if sampled else "Not known: how near that kernel is")


@pytest.mark.parametrize(("code", "said"), [(StepLimit.GPU, True), (StepLimit.WARMUP, False)])
def test_idle_time_bounds_what_a_capture_without_steps_can_gain(code: StepLimit, said: bool) -> None:
    full = factory.bare()
    row = dict(factory.summary().tables["gpu_ledger"].rows[0])
    ledger = replace(factory.summary().tables["gpu_ledger"], rows=(row,))
    verdict = replace(full.verdict, code=code.value, parts={"work": 6 * MS, "host": 3 * MS, "copy": 1 * MS})
    steps = replace(full.steps, source="capture")
    told = remarks.worth(
        replace(full, verdict=verdict, steps=steps, tables={**full.tables, "gpu_ledger": ledger}), None, After()
    )
    assert ("Without idle time the GPU's 10.00 ms would be 7.00 ms." in told) == said
