"""Programs of set truth whose last steps are an X-ray: each line of the program is noted in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nsysx.findings import _exposed_transfer
from nsysx.findings._case import Case
from nsysx.model import Finding
from tests.findings import DOMAIN, Program, said_of

FILE = "/job/train.py"


class Lined(Program):
    """``source``: line -> what stands there."""

    def __init__(self, source: Mapping[int, str] | None = None, settings: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self.source = {str(line): text for line, text in (source or {}).items()}
        self.settings = settings
        self.noted: list[tuple[str, int, int]] | None = None
        self.xrayed: list[int] = []
        self.begins: list[int] = []  # of each step
        self.probe: dict[str, object] = {}  # what its file holds besides

    @contextmanager
    def line(self, number: int, function: str = "step") -> Iterator[None]:
        """Run a line of the program."""
        begin = self.t
        yield
        if self.noted is not None:
            self.noted.append((f"{FILE}:{number} {function}", begin, self.t))

    def run(self, body: Callable[[Lined, int], None], count: int = 8, xray: int = 3, early: int = 0) -> Lined:
        """Run ``body`` as plain steps, the first ``early`` ones as steps of an X-ray, then as steps of another one, and wait for the device
        at the end.
        """
        for number in range(count + xray):
            if number in (0, early, count):
                is_on = number < early or number >= count
                on = json.dumps({"marks": is_on, "xray": is_on})
                self.main.mark(on, self.t, domain=DOMAIN)
                row = self.report.rows["NVTX_EVENTS"][-1]
                row["text"] = f"info {row['text']}"
                self.t += 10
            begin, self.noted = self.t, [] if number < early or number >= count else None
            self.begins.append(begin)
            body(self, number)
            for place, start, end in self.noted or ():
                self.main.line(place, start, end)
            if self.noted is not None:
                self.xrayed.append(number)
            self.main.add_range(f"step {number}", begin, self.t, domain=DOMAIN)
        self.sync("cudaDeviceSynchronize_v3020")
        return self

    def write(self, folder: Path) -> Path:
        probe = {"pid": 100, "xray": {"steps": self.xrayed, "lines": True}, "source": {FILE: self.source}}
        probe |= self.probe
        if self.settings is not None:
            probe["settings"] = dict(self.settings)
        (folder / "r.run.json").write_text(json.dumps({"probe": [probe]}))
        return super().write(folder)

    def found(self, folder: Path, code: str, *, among_all: bool = False) -> list[Finding]:
        """Return what one rule found, asked alone or among all: what others say about a line is told with the line."""
        said = said_of(self.write(folder)) if among_all else self.findings(folder, code)
        return [f for f in said if f.code == code and f.verdict == "found"]


def all_is_transfer(monkeypatch: pytest.MonkeyPatch, room: ModuleType = _exposed_transfer, share: float = 1.0) -> None:
    """Let this share of the communication be exposed transfer, as a room asks: one rank alone does not tell transfer from waiting."""

    def transfer(case: Case, chosen: Any) -> int:
        comm = _exposed_transfer.communication(case).filter(chosen)
        return round(share * case.per_step(int((comm["end_ns"] - comm["start_ns"]).sum())))

    monkeypatch.setattr(room, "exposed_transfer_ns", transfer)


def forward(program: Lined, launches: int = 40, kernel_us: float = 4) -> None:
    """Many short kernels of a network, launched by line 20 with 10 us of Python before each."""
    with program.line(20), program.range("forward"), program.range("net:Net"):
        for _ in range(launches):
            program.host(10)
            program.launch(kernel_us)
