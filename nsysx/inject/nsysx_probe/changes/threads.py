"""How many threads torch takes on the CPU, and on which cores the program runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import Change, Watch

#: Holds OMP_NUM_THREADS as it was without the change.
_BEFORE = "NSYSX_THREADS_BEFORE"


def _cores() -> int:
    """Return how many physical cores this process may use: hardware threads of one core share their siblings file."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = Path("/sys/devices/system/cpu")
    cores = set()
    for cpu in cpus:
        try:
            cores.add((siblings / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text(encoding="ascii"))
        except OSError:
            return len(cpus)
    return max(1, len(cores))


def _threads(number: Callable[[], int]) -> tuple[Callable[[Any, Watch], None], Callable[[str], str]]:
    """Return what checks that torch has the threads, and what sets OMP_NUM_THREADS before it is imported."""

    def arm(torch: Any, watch: Watch) -> None:
        wanted = number()
        if os.environ.get(_BEFORE) == str(wanted):
            watch.why_not = f"OMP_NUM_THREADS is {wanted} already"
            return
        if torch.get_num_threads() != wanted:
            watch.why_not = f"torch takes {torch.get_num_threads()} threads whatever OMP_NUM_THREADS says"
            return
        watch.took(here=False)

        def look() -> None:
            if torch.get_num_threads() != wanted:
                watch.count, watch.why_not = 0, "the program sets the number of threads itself"

        watch.at_end.append(look)

    return arm, lambda _before: str(number())


def _near(torch: Any, watch: Watch) -> None:
    watch.why_not = "the program made no second step"

    def move() -> None:
        if not torch.cuda.is_initialized():
            watch.why_not = "the program used no GPU"
            return
        cpus, why_not = near_gpu(torch)
        if why_not:
            watch.why_not = why_not
            return
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(thread.name), cpus)
        watch.took(here=False)

    watch.at_step.setdefault(1, []).append(move)


def near_gpu(torch: Any, devices: Path = Path("/sys/bus/pci/devices")) -> tuple[set[int], str]:
    """Return the CPUs of the current GPU's NUMA node that this process may use, or none and why not."""
    card = torch.cuda.get_device_properties(torch.cuda.current_device())
    if not hasattr(card, "pci_bus_id"):
        return set(), f"torch {torch.__version__} does not say where the GPU is"
    address = f"{getattr(card, 'pci_domain_id', 0):04x}:{card.pci_bus_id:02x}:{getattr(card, 'pci_device_id', 0):02x}.0"
    try:
        text = (devices / address / "local_cpulist").read_text(encoding="ascii")
    except OSError:
        return set(), "the system does not say which CPUs are near the GPU"
    allowed = os.sched_getaffinity(0)
    cpus = cpus_of(text) & allowed
    if not cpus:
        return set(), "the process may use no CPU near the GPU"
    return (cpus, "") if cpus != allowed else (set(), "all CPUs that the process may use are near the GPU already")


def cpus_of(text: str) -> set[int]:
    """Return the numbers in a list such as 0-3,8."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def _change(name: str, number: Callable[[], int], words: str) -> Change:
    arm, value = _threads(number)
    variables = {_BEFORE: lambda _: os.environ.get("OMP_NUM_THREADS", ""), "OMP_NUM_THREADS": value}
    return Change(
        name, f"{words} on the CPU", f"OMP_NUM_THREADS={value('')} python train.py  # {words}", arm,
        alters="numerics", group="threads", environment=variables,
        beware="sums on the CPU round in another order",
    )  # fmt: skip


CHANGES = (
    _change("threads-1", lambda: 1, "one thread"),
    _change("threads-cores", _cores, "as many threads as cores"),
    Change(
        "near-gpu", "only CPUs near the GPU", "numactl --cpunodebind=NODE --membind=NODE python train.py  # NODE: that of the GPU",
        _near, needs="cuda",
    ),
)  # fmt: skip
