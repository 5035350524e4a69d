"""Reports for comparisons: a step of known modules, kernels and waits."""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nsysx.comparing import side
from nsysx.comparing.side import Captured
from nsysx.model import Summary
from nsysx.pipeline import summarize
from tests.builder import Report

US, MS = 1_000, 1_000_000


def program(
    modules: Mapping[str, int],
    *,
    steps: int = 12,
    item_in: str | None = None,
    host: int = 0,
    noise: int = 0,
    seed: int = 0,
    cls: str = "Linear",
    utc: int = 1_795_228_332_660_273_255,
    named: bool = True,
) -> Report:
    """``modules``: path -> ns of its only kernel. ``item_in``: this module copies 4 bytes to the host and waits for them.

    ``host`` is idle time of the device after each step, because the host works; ``noise`` jitters each kernel by up to so much.
    Without ``named`` no range says what a step is.
    """
    rng = random.Random(seed)
    report = Report(utc_epoch_ns=utc)
    report.gpu(pids=[(100, 0)])
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    t = MS
    for i in range(steps):
        begin, gpu = t, t + 30 * US
        call = t + 5 * US
        for path, ns in modules.items():
            ns += rng.randrange(-noise, noise + 1) if noise else 0
            enter = call
            main.launch(call + US, kernel=f"kernel_of_{path}", gpu_start=gpu, gpu_dur=ns)
            gpu += ns
            call += 4 * US
            if path == item_in:
                main.memcpy(
                    call, gpu + 8 * US - call, kind="DtoH", gpu_start=gpu + 3 * US, gpu_dur=2 * US, pageable=True
                )
                gpu += 5 * US
                call = gpu + 10 * US
                gpu += 20 * US
            main.add_range(f"{path}:{cls}", enter, call, domain="nsysx")
            call += US
        t = max(gpu, call) + host
        if named:
            main.add_range(f"step {i}", begin, t - US, domain="nsysx")
    return report


def captured(values: dict[str, Any], label: str = "x") -> Captured:
    """Return a capture from its JSON."""
    return side.captured(Summary.from_json(values, label), label)


#: JSON of the Summaries of reports that were written before, by their bytes, name and options.
_summaries: dict[tuple[bytes, str, str], bytes] = {}


def summary(folder: Path, report: Report, name: str = "r", **options: Any) -> dict[str, Any]:
    """Return the JSON of a report's Summary; that of a report like one before it names the folder of that one."""
    path = report.write(folder / f"{name}.sqlite")
    key = hashlib.sha256(path.read_bytes()).digest(), name, repr(options)
    if key not in _summaries:
        _summaries[key] = pickle.dumps(summarize([path], **options).to_json())
    return pickle.loads(_summaries[key])  # type: ignore[no-any-return]
