"""The links between the GPUs of a job: what keeps NCCL from them, what they move, and messages that move far slower."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from nsysx import units
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._finding_bounds import (
    LARGE_MESSAGE_BYTES,
    LIKE_SIZE_TIMES,
    NAMED_RANKS,
    SLOW_NVLINK_SHARE,
    SLOWER_GROUP_TIMES,
)
from nsysx.model import Row

_AROUND = "GPUs then exchange data through the host's memory, not directly"
_FEW_BLOCKS = "NCCL then has so few blocks of threads for a message that they move a part of what the links could"
#: Variables that keep NCCL off the fast way between GPUs, or hold back what it moves there: the values that do so, and what they do.
SLOW_WAYS = {
    "NCCL_P2P_DISABLE": (("1",), _AROUND),
    "NCCL_P2P_LEVEL": (("loc", "0"), _AROUND),
    "NCCL_SHM_DISABLE": (("1",), _AROUND),
    "NCCL_NET": (("socket",), _AROUND),
    "NCCL_MAX_NCHANNELS": (("1", "2", "3", "4"), _FEW_BLOCKS),
    "NCCL_MAX_CTAS": (("1", "2", "3", "4"), _FEW_BLOCKS),
    "NCCL_NTHREADS": (("64", "128"), _FEW_BLOCKS),
    "NCCL_PROTO": (
        ("ll",),
        "LL sends a flag beside each 4 bytes, for small messages: large ones move at less than half of the links' rate",
    ),
}
#: What NVLink of a card moves one way (bytes a second), by the card's name: half of what NVIDIA's data sheets give for both ways. Cards
#: with PCIe, parts of a card, and those whose bridges may be missing are none of them.
_NVLINK_BYTES_PER_S = {
    r"A800|H800": 200e9,
    r"A100": 300e9,
    r"H100|H200|H20": 450e9,
    r"B200|B300|GB\d00": 900e9,
}
_WITHOUT_NVLINK = r"PCIe|NVL|MIG"


def slow_way(settings: RecordedSettings) -> str:
    """Return the variable that keeps NCCL from the links between the GPUs, or from most of their rate; "" without one."""
    return next(
        (n for n, (values, _) in SLOW_WAYS.items() if settings.variable(n).strip().lower() in values),
        "",
    )


class _Moved(NamedTuple):
    """Large messages of one kind in one communicator: their bytes, their bus bandwidth (bytes a second), and the ranks that were seen."""

    kind: str
    communicator: int | None
    bytes: float
    bandwidth: float
    ranks: tuple[int, ...]


def large_messages(rows: Sequence[Row]) -> list[_Moved]:
    """Return what was moved in large messages, by communicator and kind: the fastest of its ranks."""
    moved: dict[tuple[str, int | None], list[_Moved]] = {}
    for row in rows:
        for each in row["by_collective"] or ():
            rate, size = each["bus_bytes_per_s"], (each["bytes"] or 0) / max(each["calls"], 1)
            if rate and size >= LARGE_MESSAGE_BYTES:
                key = each["kind"], each["communicator"]
                moved.setdefault(key, []).append(_Moved(*key, size, rate, (row["rank"],)))
    return [
        max(same, key=lambda m: m.bandwidth)._replace(ranks=tuple(sorted({r for m in same for r in m.ranks})))
        for same in moved.values()
    ]


def nvlink_bytes_per_s(card: str) -> float | None:
    """Return what NVLink of a card moves one way (bytes a second), None where it has none or that is not known."""
    if re.search(_WITHOUT_NVLINK, card, re.IGNORECASE):
        return None
    return next((rate for names, rate in _NVLINK_BYTES_PER_S.items() if re.search(names, card)), None)


def slowest(rows: Sequence[Row]) -> str | None:
    """Return what to look at where large messages of ranks on one host are far slower than what is known to be possible; else None.

    That is what messages of the same kind and size reach among other ranks of the same job, or what NVLink of the cards moves.
    """
    moved = large_messages(rows)
    if len({row["host"] for row in rows}) != 1 or not moved:
        return None
    fastest = max(moved, key=lambda m: m.bandwidth)
    links = [nvlink_bytes_per_s(row["gpu"]) for row in rows]
    nvlink = min((rate for rate in links if rate is not None), default=0.0) if None not in links else 0.0
    if fastest.bandwidth < SLOW_NVLINK_SHARE * nvlink:
        return (
            f"Find out why NCCL does not use NVLink: large messages move at {units.bandwidth(fastest.bandwidth)} at most, and NVLink of "
            f"this card moves {units.bandwidth(nvlink)} each way (data sheet). NCCL_DEBUG=INFO says which way each pair takes (P2P is "
            "right, SHM and NET are not), nvidia-smi topo -m which there is"
        )
    for slow in sorted(moved, key=lambda m: m.bandwidth):
        for other in moved:
            alike = slow.kind == other.kind and 1 / LIKE_SIZE_TIMES <= slow.bytes / other.bytes <= LIKE_SIZE_TIMES
            apart = slow.communicator != other.communicator and None not in (slow.communicator, other.communicator)
            if alike and apart and other.bandwidth >= SLOWER_GROUP_TIMES * slow.bandwidth:
                return _unlike(slow, other)
    return None


def _unlike(slow: _Moved, other: _Moved) -> str:
    return (
        f"Find out what slows {slow.kind} among ranks {_listed(slow.ranks)}: it moves at {units.bandwidth(slow.bandwidth)}, and with "
        f"messages of like size among ranks {_listed(other.ranks)} at {units.bandwidth(other.bandwidth)} in this report. nvidia-smi topo "
        "-m says which GPUs are joined by NVLink: the group that sends most belongs on these"
    )


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:NAMED_RANKS])) + (" and others" if len(ranks) > NAMED_RANKS else "")
