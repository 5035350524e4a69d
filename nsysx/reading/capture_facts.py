"""Facts about a capture that may be shown: devices, processes, options, and what nsys says went wrong."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl

from nsysx import ids, nsys_messages
from nsysx.frames import lookup
from nsysx.gpus import UNKNOWN_GPU, Gpu
from nsysx.model import Capture
from nsysx.reading import decoding
from nsysx.reading.reading_bounds import MOST_CLOCK_MHZ, SINCE_1970_NS

#: Losses that change what can be concluded, beside the messages that `nsys_messages` explains; others are about features that
#: were not asked for.
_LOSS = re.compile(r"might (not )?have been|dropped|lost|overflow", re.IGNORECASE)
#: What nsys says when CUPTI has left the program at a window's end.
CUPTI_LEFT = re.compile("CUPTI was finalized", re.IGNORECASE)
#: How CUDA was traced, and that CUPTI left the program: nsys reports them as mere information.
_MODE = re.compile(rf"legacy \(software|Hardware tracing used|{CUPTI_LEFT.pattern}", re.IGNORECASE)


#: The thread that the CUDA driver makes in a program that sets it up, and the one that nsys makes where it records.
_DRIVER_THREAD, _NSYS_THREAD = "cuda-EvtHandlr", "[NSys]"
#: Capture options that may be shown: none of them can hold a path, a name or a secret.
_OPTIONS = re.compile(
    r"(?:PROCESS_\d+:)?(COLLECT_\w+|CUDA_\w+(?:OPTIONS:MODE)?|RUN_DURATION_MS|RATE_HZ|START_TRIGGER|STOP_TRIGGER)$"
)


def query(
    connection: sqlite3.Connection, tables: dict[str, set[str]], table: str, *columns: str
) -> list[tuple[Any, ...]]:
    """Return the rows of a small table, [] if it is absent; a missing column reads as None."""
    if table not in tables:
        return []
    selected = ", ".join(f'"{c}"' if c in tables[table] else "NULL" for c in columns)
    return connection.execute(f'SELECT {selected} FROM "{table}"').fetchall()


def time_zero(connection: sqlite3.Connection, tables: dict[str, set[str]]) -> int:
    """Return the start of the session in the export's own time (ns): 0, or its UTC time if times count from 1970."""
    epoch = query(connection, tables, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    zero = epoch[0][0] if epoch else None
    if not isinstance(zero, int) or zero < SINCE_1970_NS:
        return 0
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"):
        if "start" in tables.get(table, ()):
            row = connection.execute(f'SELECT start FROM "{table}" WHERE start > 0 LIMIT 1').fetchone()
            if row:
                return zero if isinstance(row[0], int) and row[0] >= SINCE_1970_NS else 0
    return 0


def _limit(value: Any) -> int | None:
    """Return a limit of a device, None if the report does not state it."""
    return value if isinstance(value, int) and value > 0 else None


#: (pid, CUDA ordinal) -> the number by which nsys knows the GPU.
Numbers = dict[tuple[int, int], int]


def gpu_numbers(connection: sqlite3.Connection, tables: dict[str, set[str]]) -> Numbers:
    """Return which GPU each CUDA ordinal of a process is; {} if the report does not say (before schema 3.17)."""
    rows = query(connection, tables, "TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid")
    return {(pid, cuda): gpu for gpu, cuda, pid in rows}


def card_of(cards: list[tuple[Any, ...]], numbers: Numbers, pid: int, device: int) -> tuple[Any, ...] | None:
    """Return a device's row of TARGET_INFO_GPU (id, deviceId, cuDevice, ...), None if the report does not tell which it is."""
    gpu = numbers.get((pid, device))
    card = next((c for c in cards if gpu is not None and c[0] == gpu), None)
    if card is None and not numbers:
        card = next((c for c in cards if device in (c[2], c[1])), None)
    return card


def _gpus(connection: sqlite3.Connection, tables: dict[str, set[str]], used: list[tuple[int, int]]) -> tuple[Gpu, ...]:
    """Return one Gpu per (process, device) that did work, with the card's name and limits if the report tells which card it is."""
    columns = ("id", "deviceId", "cuDevice", "name", "l2CacheSize", "totalMemory", "memoryBandwidth", "smCount")
    cards = query(connection, tables, "TARGET_INFO_GPU", *columns)
    numbers = gpu_numbers(connection, tables)
    result = []
    for process, device in used:
        pid = ids.pid_of(process)
        card = card_of(cards, numbers, pid, device)
        if card is None:
            result.append(Gpu(process, pid, device, UNKNOWN_GPU))
        else:
            named, (l2, memory, bandwidth, sms) = decoding.text_of(card[3]) or UNKNOWN_GPU, map(_limit, card[4:])
            result.append(Gpu(process, pid, device, named, l2, memory, bandwidth, sms, card[0]))
    return tuple(result)


def host_of(connection: sqlite3.Connection, tables: dict[str, set[str]]) -> str | None:
    """Return a hash of the machine's name, which itself must not be shown; None if the report has no name."""
    named = [v for n, v in query(connection, tables, "TARGET_INFO_SYSTEM_ENV", "name", "value") if n == "Hostname"]
    return hashlib.sha256(str(named[0]).encode("utf-8", "replace")).hexdigest()[:16] if named and named[0] else None


def _program(path: str | None) -> str:
    """Return the file name of a program, also of a Windows path; the rest of the path must not be shown."""
    return re.split(r"[/\\\\]", path or "")[-1]


def _version_of(value: object) -> str | None:
    """Return ``value`` if it is a version, else None."""
    return value if isinstance(value, str) and re.fullmatch(r"[\d.]{1,40}", value) else None


def _clock_of(clocks: object) -> int | None:
    """Return the highest of the devices' median SM clocks (MHz), None without samples. Unused devices run at idle clocks."""
    devices = clocks.get("devices") if isinstance(clocks, dict) else None
    if not isinstance(devices, list):
        return None
    columns = [d.get("sm_mhz") for d in devices if isinstance(d, dict)]
    sampled = [[v for v in c if isinstance(v, int) and 0 < v < MOST_CLOCK_MHZ] for c in columns if isinstance(c, list)]
    return max((round(median(values)) for values in sampled if values), default=None)


def content_id(frames: Mapping[str, pl.DataFrame], utc_epoch_ns: int | None) -> str:
    """Return an id of the capture that is the same for every export of it and does not depend on the file's name.

    It has 16 hex digits and hashes, for each table of events, the number of rows and the sums of their times, ids and threads.
    """
    identity: list[object] = [utc_epoch_ns]
    for name, frame in sorted(frames.items()):
        if not {"start_ns", "time_ns"} & set(frame.columns):  # tables about the machine differ between versions of nsys
            continue
        identity += [name, frame.height]
        for column in ("start_ns", "end_ns", "time_ns", "process", "thread", "correlation_id"):
            if column in frame.columns:
                identity.append(frame[column].sum())
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:16]


def _pid_of(global_pid: object) -> int | None:
    return ids.pid_of(ids.process_of(global_pid)) if isinstance(global_pid, int) else None


def _message_matters(severity: object, text: str) -> bool:
    """Return whether a message of nsys (severity 1 info, 2 warning, 3 error) changes what can be concluded."""
    message = nsys_messages.recognized(text)
    if severity == 1:
        return bool(_MODE.search(text)) or (message is not None and message.message.always)
    explained = message is not None and message.message.hides != "samples"
    return severity in (2, 3) and (explained or bool(_LOSS.search(text) or _MODE.search(text)))


def own_processes(run: Mapping[str, Any]) -> set[object]:
    """Return nsysx's own processes beside the program: they use no GPU, and what nsys says about that does not matter."""
    nsys = run.get("nsys")
    return (
        {nsys[name] for name in ("stand_in", "range_holder") if isinstance(nsys.get(name), int)}
        if isinstance(nsys, dict)
        else set()
    )


def _sets_cuda_up(threads: pl.DataFrame) -> bool:
    """Return whether a process that nsys is loaded into has the CUDA driver's thread; nsys' own processes have one, too."""
    driver, nsys = (set(threads.filter(threads["name"] == name)["process"]) for name in (_DRIVER_THREAD, _NSYS_THREAD))
    return bool(driver & nsys)


def capture_of(
    path: Path,
    connection: sqlite3.Connection,
    tables: dict[str, set[str]],
    frames: dict[str, pl.DataFrame],
    run: dict[str, Any],
) -> Capture:
    """Return the facts about a capture that may be shown: no paths, host names or environment."""
    meta = dict(
        query(connection, tables, "META_DATA_EXPORT", "name", "value")
        or query(connection, tables, "EXPORT_META_DATA", "name", "value")
    )
    options, traced = {}, set()
    for name, value in query(connection, tables, "META_DATA_CAPTURE", "name", "value"):
        if name == "CAPTURE_EVENT_TYPE":
            traced.add(str(value))
        if match := _OPTIONS.match(str(name)):
            options[match[1]] = str(value)
    works = [frames[f] for f in ("kernel", "memcpy", "memset", "graph")]
    keys = {key for f in works for key in lookup.parted(f["process", "device"], "process", "device")}
    used = sorted((process, device) for process, device in keys)
    making = {p for f in (frames["runtime"], frames["nvtx"], *works) for p in lookup.present(f["process"])}
    names = dict(query(connection, tables, "PROCESSES", "pid", "name"))
    nsysx_pids = own_processes(run)
    processes = tuple(
        {"process": p, "pid": ids.pid_of(p), "name": _program(decoding.text_of(names.get(ids.pid_of(p))))}
        for p in sorted(making)
        if ids.pid_of(p) not in nsysx_pids
    )
    written = query(connection, tables, "DIAGNOSTIC_EVENT", "severity", "text", "globalPid")
    messages = [row for row in written if _pid_of(row[2]) not in nsysx_pids]
    never = None
    if not frames["runtime"].height and not used:
        texts = (str(text) for _, text, _ in messages)
        never = nsys_messages.absent(texts, traced, set_up=_sets_cuda_up(frames["thread_name"]))
    diagnostics = tuple(
        {"severity": {1: "info", 2: "warning", 3: "error"}.get(severity, "other"), "text": " ".join(str(text).split())}
        for severity, text, _ in messages
        if _message_matters(severity, str(text))
    )
    duration = [d for (d,) in query(connection, tables, "ANALYSIS_DETAILS", "duration") if isinstance(d, int)]
    epoch = [
        e for (e,) in query(connection, tables, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs") if isinstance(e, int)
    ]
    exit_code = (
        None if run.get("stopped") is True else run.get("exit_code")
    )  # --then stop ended it when all was recorded
    return Capture(
        files=(path.name,),
        nsys_version=decoding.text_of(meta.get("EXPORT_PRODUCT_VERSION")),
        schema_version=decoding.text_of(meta.get("EXPORT_SCHEMA_VERSION")),
        gpus=_gpus(connection, tables, used),
        processes=processes,
        duration_ns=duration[0] if duration else None,
        diagnostics=diagnostics,
        utc_epoch_ns=epoch[0] if epoch else None,
        content_id=content_id(frames, epoch[0] if epoch else None),
        options=options,
        probe=tuple(run.get("probe", ())),
        exit_code=exit_code if isinstance(exit_code, int) else None,
        driver_version=_version_of(run.get("driver_version")),
        sm_clock_mhz=_clock_of(run.get("clocks")),
        cupti_left=tuple(_pid_of(pid) for _, text, pid in written if CUPTI_LEFT.search(str(text))),
        never=never.name if never else None,
    )
