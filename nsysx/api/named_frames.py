"""The frames of a report by name, for type checkers and editors: a frame that does not exist is an error before the program runs."""

from __future__ import annotations

import polars as pl


class NamedFrames:
    """Every frame that `Report` makes when it is first read; what each holds says ``report.columns(name)``."""

    alloc_flushes: pl.DataFrame
    allocator: pl.DataFrame
    api_bill: pl.DataFrame
    api_calls: pl.DataFrame
    blocking_calls: pl.DataFrame
    communication_places: pl.DataFrame
    compilations: pl.DataFrame
    copies: pl.DataFrame
    copy_sites: pl.DataFrame
    cpu_ledger: pl.DataFrame
    cpu_steps: pl.DataFrame
    data_loader: pl.DataFrame
    event_windows: pl.DataFrame
    events: pl.DataFrame
    first_calls: pl.DataFrame
    flops: pl.DataFrame
    garbage_collection: pl.DataFrame
    gil_waits: pl.DataFrame
    gpu_idle: pl.DataFrame
    gpu_ledger: pl.DataFrame
    gpu_metrics: pl.DataFrame
    gpu_steps: pl.DataFrame
    host_communication: pl.DataFrame
    host_lines: pl.DataFrame
    job_ledger: pl.DataFrame
    kernel_families: pl.DataFrame
    kernel_limits: pl.DataFrame
    kernel_spread: pl.DataFrame
    launches: pl.DataFrame
    lines: pl.DataFrame
    loader_lines: pl.DataFrame
    memory: pl.DataFrame
    memory_events: pl.DataFrame
    module_stopwatch: pl.DataFrame
    operators: pl.DataFrame
    os_waits: pl.DataFrame
    own_ranges: pl.DataFrame
    phase_spans: pl.DataFrame
    phases: pl.DataFrame
    ranges: pl.DataFrame
    rank_waits: pl.DataFrame
    ranks: pl.DataFrame
    roofline: pl.DataFrame
    settings: pl.DataFrame
    stacks: pl.DataFrame
    step_parts: pl.DataFrame
    stopwatch: pl.DataFrame
    threads: pl.DataFrame
    wait_chain: pl.DataFrame
