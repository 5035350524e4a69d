"""``nsysx doctor``: tries what works on this machine, and says how to fix what does not.

Standard library only, like everything in this package. The Python under test is run; nothing is imported from it.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nsysx import nsys_messages
from nsysx.errors import NsysxError
from nsysx.recording import clock_sampler
from nsysx.recording.commands import export_command, profile_command
from nsysx.recording.find_nsys import IDLE, Nsys, ask, find_nsys
from nsysx.recording.recording_bounds import LOW_DISK_BYTES
from nsysx.recording.run_options import RunOptions

_GPU = "GPU and driver"
#: Starts the CUDA driver, if there is one: only then does nsys write what keeps it from tracing CUDA here.
_DRIVER = """
import ctypes
try:
    ctypes.CDLL("libcuda.so.1").cuInit(0)
except OSError:
    pass
"""
#: The small program that is profiled. nvtx >= 0.2.12 hides its domain from nsys 2023.4; like the probe, this makes it visible.
_RANGE = """
import nvtx
domain = nvtx.get_domain("nsysx")
if type(domain).__name__ == "DummyDomain":
    library = nvtx._lib.lib
    domain = object.__new__(library.Domain)
    domain.handle = library.DomainHandle("nsysx")
    domain.__init__("nsysx")
domain.push_range(domain.get_event_attributes(message="nsysx doctor"))
domain.pop_range()
"""

#: Files of an nsys that was killed hold up every later one for 30 s, until it gives up.
_HELD_UP = "An nsys that was killed may hold up all others: pkill -f 'nsys --start-agent', then remove /tmp/nvidia/nsight_systems"
_TORCH = """
import json, torch
print(json.dumps([torch.__version__, torch.version.cuda, torch.cuda.is_available(),
    [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]]))
"""


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """One thing that was tried; ``needed`` means that ``nsysx run`` does not work without it."""

    what: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    fix: str = ""
    needed: bool = False


def python() -> str:
    """Return the Python that a user's ``python train.py`` would start, or else the one that runs nsysx."""
    return shutil.which("python") or shutil.which("python3") or sys.executable


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def _driver() -> MachineCheck:
    code, output = ask(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], 30)
    if code == 0 and output:
        return MachineCheck(_GPU, "ok", "; ".join(output.splitlines()))
    detail = _last_line(output) if shutil.which("nvidia-smi") else "no nvidia-smi here"  # a hanging one gives 127, too
    return MachineCheck(_GPU, "warn", detail, "Without an NVIDIA GPU a capture holds CPU ranges only")


def _disk() -> Iterator[MachineCheck]:
    for what, folder in (
        ("disk space here", Path.cwd()),
        ("disk space for temporary files", Path(tempfile.gettempdir())),
    ):
        free = shutil.disk_usage(folder).free
        low = free < LOW_DISK_BYTES
        fix = "A minute of training easily takes 100 MB; free some space or use another folder" if low else ""
        yield MachineCheck(what, "warn" if low else "ok", f"{free / (1 << 30):.1f} GiB free", fix)


def clocks() -> MachineCheck:
    """Try whether the GPUs' clocks can be sampled."""
    try:
        clock_sampler.Nvml().close()
    except OSError as error:
        return MachineCheck("GPU clocks (--clocks)", "warn", str(error))
    return MachineCheck("GPU clocks (--clocks)", "ok", "NVML answers")


def _torch(python: str) -> MachineCheck:
    code, output = ask([python, "-c", _TORCH])
    if code != 0:
        return MachineCheck(
            "torch", "warn", f"not in {python}: {_last_line(output)}", "Run doctor in the script's environment"
        )
    version, cuda, available, names = json.loads(_last_line(output))
    if available:
        return MachineCheck("torch", "ok", f"{version}, CUDA {cuda}, sees {', '.join(names)}")
    detail = f"{version}, a CPU build" if cuda is None else f"{version}, built for CUDA {cuda}, sees no GPU"
    return MachineCheck("torch", "warn", detail, "GPU work needs a CUDA build of torch, a driver and a visible GPU")


def records(nsys: Nsys, python: str) -> Iterator[MachineCheck]:
    """Profile a small program, export the report and look for its range: the only proof that the whole chain works."""
    with tempfile.TemporaryDirectory(prefix="nsysx-doctor-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        options = RunOptions()
        has_nvtx, output = ask([python, "-c", "import nvtx"])
        program = [python, "-c", _DRIVER + _RANGE * (has_nvtx == 0)]
        code, output = ask(profile_command(nsys, options, folder / "report", program))
        report = folder / "report.nsys-rep"
        if code != 0 or not report.is_file():
            by_hand = f"Try by hand: {nsys.path} profile true"
            fix = f"{_HELD_UP}. {by_hand}" if IDLE in output else by_hand
            yield MachineCheck("nsys records", "fail", _last_line(output), fix, needed=True)
            return
        yield MachineCheck("nsys records", "ok", f"{report.stat().st_size:,} bytes")
        sqlite = folder / "report.sqlite"
        code, output = ask(export_command(nsys, report, sqlite))
        if code != 0 or not sqlite.is_file():
            fix = "The importer lacks a library, or host-linux-* is not beside target-linux-*"
            yield MachineCheck("nsys exports", "fail", _last_line(output), fix, needed=True)
            return
        yield MachineCheck("nsys exports", "ok", f"{sqlite.stat().st_size:,} bytes of SQLite")
        yield from hindrances(sqlite)
        if has_nvtx != 0:
            fix = f"{python} -m pip install nvtx (a CUDA build of torch brings its own ranges)"
            yield MachineCheck("nvtx", "warn", f"not in {python}", fix)
        elif ranges_named(sqlite, "nsysx doctor") == 1:
            yield MachineCheck("nvtx", "ok", "the export contains a test range")
        else:
            fix = "This nvtx and this nsys do not work together: try another nvtx, such as nvtx==0.2.11"
            yield MachineCheck("nvtx", "warn", "the export lacks the test range", fix)


def hindrances(sqlite: Path) -> Iterator[MachineCheck]:
    """Yield what nsys wrote into a report that keeps it from tracing CUDA on this machine.

    That the test program made no CUDA call and has few ranges is no hindrance.
    """
    with closing(sqlite3.connect(f"{sqlite.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        try:
            texts = [str(text) for (text,) in connection.execute("SELECT text FROM DIAGNOSTIC_EVENT")]
        except sqlite3.OperationalError:
            return
    for hindrance in nsys_messages.in_order(texts, "cuda", "some"):
        if hindrance.message.name not in ("no-cuda", "cuda-might-lack", "events-cut"):
            yield MachineCheck("nsys traces CUDA", "warn", hindrance.cause, hindrance.remedy)


def ranges_named(sqlite: Path, text: str) -> int:
    """Return how many NVTX ranges of an export have the text ``text``; 0 if it has no NVTX table."""
    query = (
        "SELECT count(*) FROM NVTX_EVENTS AS event LEFT JOIN StringIds AS name ON name.id = event.textId"
        " WHERE event.eventType = 59 AND coalesce(event.text, name.value) = ?"
    )
    with closing(sqlite3.connect(f"{sqlite.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        try:
            return int(connection.execute(query, (text,)).fetchone()[0])
        except sqlite3.OperationalError:
            return 0


def checks(explicit: Path | None = None) -> Iterator[MachineCheck]:
    """Yield the result of each check as soon as it is known, nsys first."""
    interpreter = python()
    try:
        nsys = find_nsys(explicit)
    except NsysxError as error:
        yield MachineCheck("nsys", "fail", error.message, error.hint, needed=True)
    else:
        yield MachineCheck("nsys", "ok", f"{nsys.version} at {nsys.path}")
        yield from records(nsys, interpreter)
    yield _driver()
    yield clocks()
    yield _torch(interpreter)
    yield from _disk()


def main(explicit: Path | None = None, write: Callable[[str], object] = sys.stdout.write) -> int:
    """Print all checks; return 0 if ``nsysx run`` will work here, else 1."""
    works, gpu = True, True
    for check in checks(explicit):
        write(f"{check.status:<5} {check.what}: {check.detail}\n")
        if check.fix:
            write(f"      -> {check.fix}\n")
        works = works and not (check.needed and check.status == "fail")
        gpu = gpu and not (check.what == _GPU and check.status != "ok")
        sys.stdout.flush()
    without = "" if gpu else ", but there is no GPU to record"
    write(f"nsysx run will work here{without}\n" if works else "nsysx run will not work here yet\n")
    return 0 if works else 1
