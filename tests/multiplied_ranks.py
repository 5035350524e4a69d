"""Reports of a large job, made from those of a small one: ranks, hosts and clocks are other ones, every event is a recorded one."""

from __future__ import annotations

import json
import lzma
import re
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

#: Ranks of one made host: they share its name and its clock.
RANKS_PER_HOST = 8
#: How far the clocks of neighboring hosts are apart, and the sessions of neighboring ranks begin (ns).
HOSTS_APART_NS, RANKS_APART_NS = 37_000_000, 1_000


def _of_rank(payload: str, rank: int, size: int) -> str:
    """Return NCCL's note of a communicator of all ranks with the rank of this process and the size of the job."""
    payload = re.sub(r'("No\. of ranks":)\d+', rf"\g<1>{size}", payload)
    return re.sub(r'("Rank":)\d+', rf"\g<1>{rank}", payload)


def _write_report(recorded: Path, target: Path, rank: int, size: int) -> None:
    with lzma.open(recorded) if recorded.suffix == ".xz" else recorded.open("rb") as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink)
    host = rank // RANKS_PER_HOST
    with closing(sqlite3.connect(target)) as report, report:
        report.create_function("of_rank", 1, lambda payload: _of_rank(payload, rank, size))
        later_ns = host * HOSTS_APART_NS + rank * RANKS_APART_NS
        report.execute("UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + ?", (later_ns,))
        report.execute("UPDATE NVTX_EVENTS SET jsonText = of_rank(jsonText) WHERE jsonText IS NOT NULL")
        report.execute("DELETE FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'")
        named = (0, "Hostname", "Hostname", 0, f"node{host}")
        report.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (?, ?, ?, ?, ?)", named)


def _write_rank(recorded: Path, target: Path, rank: int, size: int) -> None:
    stem = recorded.name.partition(".sqlite")[0]
    notes = json.loads(recorded.with_name(f"{stem}.run.json").read_text())
    _write_report(recorded, target, rank, size)
    if cold := notes["files"].get("cold"):  # the first window of a recording of two
        notes["files"]["cold"] = target.with_suffix(".cold.sqlite").name
        _write_report(
            recorded.with_name(recorded.name.replace(f"{stem}.sqlite", cold)),
            target.with_suffix(".cold.sqlite"),
            rank,
            size,
        )
    for process in notes["probe"]:
        process["rank"] = str(rank)
    target.with_suffix(".run.json").write_text(json.dumps(notes))


def write_ranks(peers: Sequence[Path], late: Path, folder: Path, size: int, late_rank: int) -> list[Path]:
    """Write ``size`` reports, each of one rank, and return their paths.

    ``peers`` are recorded reports of equal ranks of one job and ``late`` that of the rank for which they wait: it becomes
    ``late_rank``. The hosts have other clocks.
    """
    paths = [folder / f"job.rank{rank}.sqlite" for rank in range(size)]
    for rank, path in enumerate(paths):
        _write_rank(late if rank == late_rank else peers[rank % len(peers)], path, rank, size)
    return paths
