"""The record of a step without the profiler. Standard library only, like ``model``, which hands it on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Unprofiled:
    """A steady step as it runs without a profiler, of one process on its busiest device. All ns are per step.

    ``source``: ``in_process`` (measured), ``second_run`` (by ``--calibrate``), ``modelled`` (without the measured costs of tracing) or
    ``assumed`` (costs from a table); ``measured_steps`` is 0 for the last two. ``low_ns`` and ``high_ns`` bound it. The rest comes from
    replaying ``steps`` steps: ``idle_causes`` sum to ``gpu_idle_ns``, ``exposed_comm_ns`` has nothing beside it, ``overhead`` is what
    tracing added to the CPU. ``loop_ns``: the measured mean per step with what runs between steps, None if next to nothing does.
    ``rest_ns``: the mean over the ``rest_steps`` steps that followed all of this to the program's end, with what ran between them; None
    if they were not counted.
    """

    step_ns: int
    low_ns: int
    high_ns: int
    source: Literal["in_process", "second_run", "modelled", "assumed"]
    measured_steps: int
    recorded_ns: int
    process: int
    device: int
    steps: int
    gpu_busy: float
    gpu_busy_ns: int
    gpu_idle_ns: int
    idle_causes: Mapping[str, int]
    overhead: Mapping[str, int]
    exposed_comm_ns: int = 0
    loop_ns: int | None = None
    rest_ns: int | None = None
    rest_steps: int = 0
