"""The GPU's counters in every run with two windows, where the driver gives them: sampled seldom, and few of them kept.

What repeats has its share of a counter from many samples together (``events.gpu_samples``), so 2,000 samples a second are enough, and of
what nsys writes for each sample six counters. Asked for (``--gpu-metrics``), they are sampled ten times as often, and all are kept.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nsysx.inject.nsysx_probe import capture_range
from nsysx.recording.recording_bounds import (
    ASKED_COUNTERS_HZ,
    COUNTER_ROW_BYTES,
    COUNTERS_OF_EXPORT_SHARE,
    DEFAULT_COUNTERS_HZ,
    KEPT_COUNTERS_NS,
    LEAST_COUNTERS_NS,
    LINK_SAMPLES_APART,
    SYS_ADMIN_BIT,
)

if TYPE_CHECKING:  # a report reads the counters of a run, and has no options of one
    from nsysx.recording.run_options import RunOptions

#: Column and pattern of nsys's name for its counter. Shares are in percent of the device's maximum.
COUNTERS = (
    ("sm_active", re.compile(r"^SMs? Active\b.*%", re.IGNORECASE)),
    ("sm_issue", re.compile(r"^SM Issue\b.*%", re.IGNORECASE)),
    ("tensor_active", re.compile(r"^Tensor Active\b.*%", re.IGNORECASE)),
    ("dram_read", re.compile(r"^DRAM Read\b.*%", re.IGNORECASE)),
    ("dram_write", re.compile(r"^DRAM Write\b.*%", re.IGNORECASE)),
    ("clock_hz", re.compile(r"^GPC Clock Frequency\b", re.IGNORECASE)),
)
#: Likewise of the links: what comes to the device and what leaves it. They are no kernel's, so that a few samples are enough. From 2025.3
#: on nsys counts NVLink's requests (what is written to a peer) and responses (what is read from one) apart, and user data apart from
#: protocol. On two H100s 100 % of both directions' user data are 478 GB/s, by known bytes of five kinds of transfers within 0.3 %.
LINKS = (
    ("pcie_rx", re.compile(r"^PCIe (RX Throughput|bytes received)\b.*%", re.IGNORECASE)),
    ("pcie_tx", re.compile(r"^PCIe (TX Throughput|bytes transmitted)\b.*%", re.IGNORECASE)),
    (
        "nvlink_rx",
        re.compile(r"^NVLink (RX (Throughput|(Requests|Responses) User Data)|bytes received)\b.*%", re.IGNORECASE),
    ),
    (
        "nvlink_tx",
        re.compile(r"^NVLink (TX (Throughput|(Requests|Responses) User Data)|bytes transmitted)\b.*%", re.IGNORECASE),
    ),
)
#: The samples, the names of their counters, and the kernels.
_SAMPLES, _NAMES, _KERNELS = "GPU_METRICS", "TARGET_INFO_GPU_METRICS", "CUPTI_ACTIVITY_KIND_KERNEL"
_PARAMETERS, _STATUS = Path("/proc/driver/nvidia/params"), Path("/proc/self/status")


def decided(options: RunOptions) -> tuple[RunOptions, str]:
    """Return the options with ``counters`` off where they are not sampled by default, and why the driver refuses them, else ""."""
    of_user = options.gpu_metrics or any("--gpu-metrics" in word for word in options.nsys_args)
    # Each rank has an nsys of its own, and only one nsys can sample a device.
    if of_user or not options.counters or options.per_rank or options.steps != capture_range.MODE:
        return replace(options, counters=False), ""
    why = refused()
    return (options, "") if why == "" else (replace(options, counters=False), why or "")


def refused(parameters: Path = _PARAMETERS, status: Path = _STATUS) -> str | None:
    """Return why this process may not have the counters and how to get them, "" if it may, None without a driver that says so."""
    numbers = []
    for path, pattern in ((parameters, r"^RmProfilingAdminOnly:\s*(\d)"), (status, r"^CapEff:\s*([0-9a-fA-F]+)")):
        with contextlib.suppress(OSError):
            if match := re.search(pattern, path.read_text(errors="replace"), re.MULTILINE):
                numbers.append(int(match[1], 16))
    if len(numbers) < 2:
        return None
    if not numbers[0] or numbers[1] & SYS_ADMIN_BIT:
        return ""
    return (
        "the driver gives its counters to administrators only: run it by sudo, or load the kernel module nvidia with "
        "NVreg_RestrictProfilingToAdminUsers=0 (https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
    )


def frequency(options: RunOptions) -> int:
    """Return how often nsys samples the counters (Hz), 0 for never."""
    if options.gpu_metrics:
        return ASKED_COUNTERS_HZ
    return DEFAULT_COUNTERS_HZ if options.counters and options.steps == capture_range.MODE else 0


def keep_few(sqlite: Path, *, cold: bool) -> None:
    """Leave of an export's samples those of the counters that are read, from its last seconds of kernels; of a cold start none.

    Raises sqlite3.Error, with the file as it was.
    """
    with contextlib.closing(sqlite3.connect(sqlite, isolation_level=None)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {_SAMPLES, _NAMES} <= tables:
            return
        names = connection.execute(f"SELECT DISTINCT metricId, metricName FROM {_NAMES}").fetchall()
        kept, links = (
            [int(number) for number, name in names if any(p.search(str(name)) for _, p in counters)]
            for counters in (COUNTERS, LINKS)
        )
        ends = None, None
        if _KERNELS in tables and not cold:
            ends = connection.execute(f'SELECT min("start"), max("end") FROM {_KERNELS}').fetchone()
        first, last = (
            (-1, -1) if ends[1] is None else (max(ends[0], ends[1] - _kept_ns(connection, len(kept))), ends[1])
        )
        connection.execute("BEGIN")
        of_links, of_all = (", ".join(map(str, numbers)) or "-1" for numbers in (links, [*kept, *links]))
        connection.execute(
            f'DELETE FROM {_SAMPLES} WHERE "timestamp" NOT BETWEEN ? AND ? OR metricId NOT IN ({of_all}) '
            f'OR (metricId IN ({of_links}) AND ("timestamp" * {DEFAULT_COUNTERS_HZ} / 1000000000) % {LINK_SAMPLES_APART} <> 0)',
            (first, last),
        )
        connection.execute("COMMIT")
        connection.execute("VACUUM")


def _kept_ns(connection: sqlite3.Connection, counters: int) -> int:
    """Return of how long the samples are kept (ns)."""
    (pages,), (page,), (rows,) = (
        connection.execute(query).fetchone()
        for query in ("PRAGMA page_count", "PRAGMA page_size", f"SELECT count(*) FROM {_SAMPLES}")
    )
    others = max(pages * page - rows * COUNTER_ROW_BYTES, 0)
    of_share = int(
        COUNTERS_OF_EXPORT_SHARE * others / (COUNTER_ROW_BYTES * max(counters, 1) * DEFAULT_COUNTERS_HZ) * 1e9
    )
    return min(KEPT_COUNTERS_NS, max(of_share, LEAST_COUNTERS_NS))
