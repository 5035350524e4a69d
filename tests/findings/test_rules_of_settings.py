"""Each condition of the rules that read settings and batches where it alone decides, on either side of its bound."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from nsysx.catalogue import DeviceActivity
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings import _costly_when, _held_clocks, _launch_blocking, _names, _padding, _transform_lengths
from nsysx.model import Row


class Settings:
    """Settings that a test states: switches, variables, rows of tables, facts of the card, numbers, and autocast."""

    def __init__(self, record: Mapping[str, Any] | None = None, **given: Any) -> None:
        self.record, self._given = record or {}, given

    def switch(self, name: str) -> Any:
        return self._given.get(name)

    card = autocast = number = rows = switch

    def variable(self, name: str) -> str:
        return str(self._given.get(name, ""))


def case(*classes: DeviceActivity, **facts: Any) -> Any:
    return SimpleNamespace(ops=pl.DataFrame({"cls": [c.value for c in classes]}, schema={"cls": pl.String}), **facts)


def told(rule: Any, _case: Any = None, **given: Any) -> str:
    return str(rule(_case, Settings(**given)))


NETWORK = {"networks": [{"convolutions": 3}, {"convolutions": True}]}


def _of_the_driver(_case: Any, settings: RecordedSettings) -> str:
    """What the driver tells of the clocks, where nothing was sampled."""
    return _held_clocks.words(None, settings)


@pytest.mark.parametrize(
    ("value", "on"),
    [("1", True), ("", False), ("0", False), (" False ", False), ("no", False), ("OFF", False), ("2", True)],
)
def test_a_variable_is_on_unless_it_says_that_it_is_off(value: str, on: bool) -> None:
    assert _costly_when.on(value) == on
    assert bool(told(_launch_blocking.in_environment, CUDA_LAUNCH_BLOCKING=value)) == on


@pytest.mark.parametrize(
    ("name", "value", "communicates", "costs"),
    [
        ("TRITON_INTERPRET", "1", False, True), ("TRITON_INTERPRET", "0", False, False), ("NCCL_DEBUG", "INFO ", True, True),
        ("NCCL_DEBUG", "warn", True, False), ("NCCL_DEBUG", "info", False, False), ("NCCL_P2P_DISABLE", "1", False, False),
        ("NCCL_P2P_DISABLE", "1", True, True), ("TORCH_CPP_LOG_LEVEL", "1", False, False),
    ],
)  # fmt: skip
def test_variables_cost_by_their_values_and_some_in_jobs_alone(
    name: str, value: str, communicates: bool, costs: bool
) -> None:
    (variable,) = (each for each in _costly_when.VARIABLES if each.name == name)
    here = case(*[DeviceActivity.COMM] * communicates, DeviceActivity.COMPUTE)
    words = told(_costly_when.variable_costs(variable), here, **{name: value})
    assert words == (f"{name}={value}: {variable.does}" if costs else "")


@pytest.mark.parametrize(
    ("rule", "given", "words"),
    [
        (_costly_when.anomaly, {"anomaly": True}, "each gradient is read by the host"),
        (_costly_when.anomaly, {"anomaly": True, "anomaly_check_nan": False}, "keeps a Python traceback"),
        (_costly_when.anomaly, {"anomaly": False}, ""),
        (_costly_when.anomaly, {}, ""),
        (_costly_when.profiler, {"torch_profiler": True}, "torch.profiler is on"),
        (_costly_when.profiler, {"autograd_profiler": True}, "the profiler of autograd is on"),
        (_costly_when.profiler, {"autograd_profiler": True, "torch_profiler": True}, "torch.profiler is on"),
        (_costly_when.profiler, {"autograd_profiler": False}, ""),
        (_costly_when.deterministic, {"deterministic": True}, "deterministic algorithms are asked for"),
        (_costly_when.deterministic, {"cudnn_deterministic": True, **NETWORK}, "cudnn.deterministic is on"),
        (_costly_when.deterministic, {"cudnn_deterministic": True}, ""),
        (_costly_when.deterministic, {"cudnn_deterministic": False, **NETWORK}, ""),
        (_costly_when.no_cudnn, {"cudnn": False, **NETWORK}, "torch.backends.cudnn is off"),
        (_costly_when.no_cudnn, {"cudnn": False}, ""),
        (_costly_when.no_cudnn, {"cudnn": True, **NETWORK}, ""),
        (_costly_when.slow_attention, {"sdpa": {"flash": False, "efficient": False}}, "only the plain one"),
        (_costly_when.slow_attention, {"sdpa": {"flash": False, "efficient": False, "cudnn": False}}, "only the plain one"),
        (_costly_when.slow_attention, {"sdpa": {"flash": False, "efficient": False, "cudnn": True}}, ""),
        (_costly_when.slow_attention, {"sdpa": {"flash": True, "efficient": False}}, ""),
        (_costly_when.slow_attention, {"sdpa": {"flash": False}}, ""),
        (_costly_when.slow_attention, {"sdpa": None}, ""),
        (_costly_when.scaler, {"scalers": [{"enabled": True}], "dtypes": {"torch.bfloat16": 3}}, "a GradScaler scales"),
        (_costly_when.scaler, {"scalers": [{"enabled": True}], "dtypes": {"torch.bfloat16": 3, "torch.float16": 1}}, ""),
        (_costly_when.scaler, {"scalers": [{"enabled": True}], "dtypes": {"torch.float16": 1}}, ""),
        (_costly_when.scaler, {"scalers": [{"enabled": False}], "dtypes": {"torch.bfloat16": 3}}, ""),
        (_costly_when.scaler, {"scalers": [{"enabled": True}]}, ""),
        (_costly_when.low_power, {"power_limit_w": 89, "default_power_limit_w": 100}, "may draw 89 W, and 100 W is its own limit"),
        (_costly_when.low_power, {"power_limit_w": 100, "default_power_limit_w": 100}, ""),
        (_costly_when.low_power, {"power_limit_w": 50}, ""),
        (_costly_when.low_power, {"default_power_limit_w": 50}, ""),
        (_of_the_driver, {"clock_mhz": 500, "most_clock_mhz": 1980, "held_by": ["temperature", "power"]},
         "500 of 1980 MHz: held down by temperature"),
        (_of_the_driver, {"clock_mhz": 1980, "most_clock_mhz": 1980, "held_by": ["temperature"]}, ""),
        (_of_the_driver, {"clock_mhz": 500, "most_clock_mhz": 1980, "held_by": ["power"]}, ""),
        (_of_the_driver, {"clock_mhz": 500, "most_clock_mhz": 1980}, ""),
        (_of_the_driver, {"clock_mhz": None, "most_clock_mhz": 1980, "held_by": ["temperature"]}, ""),
        (_of_the_driver, {"clock_mhz": 500, "held_by": ["temperature"]}, ""),
    ],
)  # fmt: skip
def test_a_setting_costs_where_all_that_it_takes_holds(rule: Any, given: dict[str, Any], words: str) -> None:
    found = told(rule, **given)
    assert words in found and bool(found) == bool(words)


LOADER = {"iterators": 3, "first_step": 10, "last_step": 30, "workers": 4, "persistent_workers": False}


@pytest.mark.parametrize(
    ("changes", "every"),
    [({}, 10), ({"iterators": 2}, None), ({"workers": 0}, None), ({"persistent_workers": True}, None), ({"persistent_workers": None}, None),
     ({"last_step": 10 + 2 * _costly_when.LOADER_RESTART_STEPS}, _costly_when.LOADER_RESTART_STEPS),
     ({"last_step": 12 + 2 * _costly_when.LOADER_RESTART_STEPS}, None)],
)  # fmt: skip
def test_a_loader_that_starts_its_workers_anew_is_told_with_how_often(changes: Row, every: float | None) -> None:
    settings: Any = Settings(loaders=[{**LOADER, "iterators": 1}, {**LOADER, **changes}])
    row = _costly_when.restarted_loader(settings)
    assert row == (None if every is None else {"workers": 4, "every": every, "made": None})


@pytest.mark.parametrize(
    ("again", "persistent", "anew"), [(2, True, True), (2, False, True), (0, False, False), (0, True, None)]
)
def test_a_loader_that_is_made_anew_keeps_no_workers_whatever_its_option(
    again: int, persistent: bool, anew: bool | None
) -> None:
    settings: Any = Settings(loaders=[{**LOADER, "made_again": again, "persistent_workers": persistent}])
    row = _costly_when.restarted_loader(settings)
    assert (row.get("anew", False) if row else None) is anew


BATCH = {"rows": 10, "length": 100, "longest": 100, "real": 700, "name": "tokens"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "30 % of the batch that was looked at is padding (tokens): "
             "its 10 rows are 100 long, the longest sample 100, the usual one 70"),
        ({"real": 701}, ""),
        ({"real": 890, "longest": 89}, "11 % of the batch"),
        ({"real": 890, "longest": 91}, ""),
        ({"real": 1001}, ""),  # more than fits
        ({"rows": 0}, ""), ({"length": None}, ""), ({"longest": 0}, ""), ({"real": "many"}, ""),
    ],
)  # fmt: skip
def test_padding_is_told_from_three_tenths_on_or_where_no_sample_is_so_long(
    monkeypatch: pytest.MonkeyPatch, changes: Row, words: str
) -> None:
    monkeypatch.setattr(_padding, "_leaves_out", lambda _: False)
    settings: Any = Settings({"padding": {**BATCH, **changes}})
    found = _padding.padded(None, settings)  # type: ignore[arg-type]
    assert found.startswith(words) and bool(found) == bool(words)
    monkeypatch.setattr(_padding, "_leaves_out", lambda _: True)
    assert _padding.padded(None, settings) == ""  # type: ignore[arg-type]
    assert _padding._counts(None) is None and _padding._counts(Settings({"padding": [1]})) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("longest", "worth"), [(89, True), (91, False)])
def test_shorter_rows_are_worth_something_where_no_sample_is_so_long(
    monkeypatch: pytest.MonkeyPatch, longest: int, worth: bool
) -> None:
    asked = []

    def priced(edit: Any, **_: Any) -> Any:
        asked.append(edit.factor if hasattr(edit, "factor") else edit)
        return _padding.Saving(5, most_ns=7)

    settings: Any = Settings({"padding": {**BATCH, "longest": longest}})
    here: Any = SimpleNamespace(worth=priced)
    monkeypatch.setattr(_padding, "taken", lambda _: SimpleNamespace(ops=frozenset({1})))
    assert (_padding.shorter(here, settings) is not None) == worth and len(asked) == 2 * worth
    monkeypatch.setattr(_padding, "taken", lambda _: SimpleNamespace(ops=frozenset()))
    assert _padding.shorter(here, settings) is None and _padding.shorter(here, None) is None


@pytest.mark.parametrize(
    ("number", "primes"),
    [(1, []), (2, [2]), (12, [2, 2, 3]), (49, [7, 7]), (127, [127]), (262, [2, 131]), (16129, [127, 127])],
)
def test_prime_factors(number: int, primes: list[int]) -> None:
    assert _transform_lengths.factors(number) == primes


@pytest.mark.parametrize(
    ("shapes", "ns", "words"),
    [
        ("[[8, 262], []]", 50, "262 is 2 x 131; pad to 270"),
        ("[[1, 254]]", 50, "5.0 us"),  # 127 has a kernel of its own
        ("[[8, 262]]", 49, ""),
        (None, 50, "makes longer ones of it"),
    ],
)  # fmt: skip
def test_a_length_that_cufft_has_no_kernel_for_is_named(
    monkeypatch: pytest.MonkeyPatch, shapes: str | None, ns: int, words: str
) -> None:
    rows = [
        {"name": "aten::add", "shapes": "[[7, 131]]"},
        {"name": None, "shapes": None},
        {"name": "aten::_fft_r2c", "shapes": shapes},
    ]
    monkeypatch.setattr(_transform_lengths, "kernels", lambda _: pl.DataFrame({"ns": [ns * 100, 0]}))
    here: Any = SimpleNamespace(
        per_step=lambda n: n, per="per step", typed_rows=lambda _: rows, notable=lambda n, share: n >= share * 100_000
    )
    found = _transform_lengths.seen(here)
    assert words in found and bool(found) == bool(words) and ("pad to" in found) == ("pad to" in words)


@pytest.mark.parametrize(
    ("networks", "called"),
    [
        ((), ""),
        (("GPT",), "GPT"),
        (("A", "B"), "A and B"),
        (("A", "B", "C"), "A, B and C"),
        (("A", "B", "C", "D"), "A, B and 2 more"),
    ],
)
def test_networks_are_named_as_far_as_there_are_few(
    monkeypatch: pytest.MonkeyPatch, networks: tuple[str, ...], called: str
) -> None:
    program = SimpleNamespace(networks=networks, trains=True, optimizer_class="Adam")
    monkeypatch.setattr(_names, "program_of", lambda _: program)
    profile: Any = None
    assert _names.networks_called(profile) == called
    whole = _names.launched_by(profile)["module"]
    assert whole == (f"{called}.forward and backward, Adam.step" if called else "Adam.step")
    program.trains, program.optimizer_class = False, None
    assert _names.launched_by(profile)["module"] == (f"{called}.forward" if called else "")


def test_the_calls_beside_are_those_of_the_same_thread() -> None:
    chosen = np.array([True, False, False, True, False, True, False])
    thread = np.array([1, 1, 1, 1, 2, 2, 2])
    before, behind = _names._nearest_calls(chosen, thread, np.array([1, 2, 4, 6]))
    assert before.tolist() == [0, 0, -1, 5] and behind.tolist() == [3, 3, 5, -1]
