"""Findings against programs whose truth is set: a small simulation writes the report that such a program leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from nsysx import findings
from nsysx.analyses.helpers.tables import Tables
from nsysx.model import Finding, Summary
from nsysx.pipeline import ReadingOptions, gather_job, summarize
from nsysx.replay.engine import replay_of
from tests.builder import Report
from tests.typed import untyped, untyped_tables

US = 1_000
#: A sample of the stack is taken every so many us.
SAMPLED = 50
DOMAIN = "nsysx"


class Program:
    """One CPU thread and one GPU: a launch takes 5 us, its kernel starts 8 us after it or when the stream is free.

    Times are given in us. Every method moves the clock ``t`` (ns) of the CPU on.
    """

    def __init__(self) -> None:
        self.report = Report()
        self.report.gpu(pids=[(100, 0)])
        self.process = self.report.process(100)
        self.process.context()
        self.main = self.process.thread(100, "python")
        self.t = 0
        self.free: dict[int, int] = {}

    def steps(self, body: Callable[[Program, int], None], count: int = 8) -> Program:
        """Run ``body`` as steps of the probe, and wait for the device at the end."""
        for number in range(count):
            begin = self.t
            body(self, number)
            self.main.add_range(f"step {number}", begin, self.t, domain=DOMAIN)
        self.sync("cudaDeviceSynchronize_v3020")
        return self

    @contextmanager
    def range(self, text: str) -> Iterator[None]:
        begin = self.t
        yield
        self.main.add_range(text, begin, self.t, domain=DOMAIN)

    def host(self, us: float) -> None:
        """Spend time in Python."""
        self.t += round(us * US)

    def python(self, us: float, *frames: str) -> None:
        """Spend time in Python, with a sample of the stack every ``SAMPLED`` us: "file:line function", innermost first."""
        end, every = self.t + round(us * US), SAMPLED * US
        for at in range(-(-self.t // every) * every, end, every):
            self.main.sample(at, frames)
        self.t = end

    def queue(self, us: float, stream: int) -> int:
        """Return when work that is launched now starts, and take the stream for as long as it runs."""
        start = max(self.free.get(stream, 0), self.t + 8 * US)
        self.free[stream] = start + round(us * US)
        return start

    def launch(self, us: float, kernel: str = "gemm", *, stream: int = 7, cost: float = 5, blocks: int = 1056) -> None:
        start = self.queue(us, stream)
        duration = round(us * US)
        call = self.main.launch(
            self.t, round(cost * US), kernel=kernel, gpu_start=start, gpu_dur=duration, stream=stream
        )
        call.ops[-1]["gridX"] = blocks
        self.host(cost + 1)

    def memset(self, us: float, *, stream: int = 7) -> None:
        start = self.queue(us, stream)
        self.main.memset(self.t, 5 * US, gpu_start=start, gpu_dur=round(us * US), stream=stream)
        self.host(6)

    def copy(
        self, us: float, kind: str = "HtoD", *, pageable: bool = True, bytes: int = 1 << 20, stream: int = 7
    ) -> None:
        """Copy; from or to pageable memory the call returns when the copy is done."""
        start = self.queue(us, stream)
        dur = self.free[stream] + US - self.t if pageable else 5 * US
        self.main.memcpy(
            self.t,
            dur,
            kind=kind,
            gpu_start=start,
            gpu_dur=round(us * US),
            pageable=pageable,
            bytes=bytes,
            stream=stream,
        )
        self.t += dur + US

    def sync(self, api: str = "cudaStreamSynchronize_v3020") -> None:
        """Wait until everything that was launched is done."""
        end = max(self.t + US, max(self.free.values(), default=0) + US)
        self.main.sync(api, at=self.t, dur=end - self.t)
        self.t = end + US

    def call(self, api: str, us: float) -> None:
        self.main.call(api, self.t, round(us * US))
        self.host(us + 1)

    def write(self, folder: Path) -> Path:
        """Write the report that the program leaves."""
        return self.report.write(folder / "r.sqlite")

    def summary(self, folder: Path, **options: Any) -> Summary:
        """Return the Summary, whose tables are made when they are read: rules read half of them, and tests/analyses all."""
        summary = summarize([self.write(folder)], every_table=False, **options)
        assert isinstance(summary.tables, Tables)
        made = replace(summary, tables=dict(summary.tables.made))
        assert not untyped(made), untyped(made)
        return summary

    def findings(self, folder: Path, code: str, **options: Any) -> list[Finding]:
        """Return what one rule says, which is asked alone: the others take half the time of a Summary."""
        return findings_alone(code, self.write(folder), **options)

    def finding(self, folder: Path, code: str, **options: Any) -> Finding:
        """Return the only thing that a rule says."""
        (found,) = self.findings(folder, code, **options)
        return found


def findings_alone(code: str, *reports: Path, **options: Any) -> list[Finding]:
    """Return what one rule says about the reports of a job, which is asked alone.

    No table is made that it does not read, and no verdict, no check and no answer, which take a fifth of the time of such a Summary.
    """
    with rule_alone(code):
        said = said_of(*reports, **options)
    return [f for f in said if f.code == code]


def said_of(*reports: Path, **options: Any) -> tuple[Finding, ...]:
    """Return the findings of the Summary of these reports, without the rest of it."""
    job = gather_job(reports, ReadingOptions(**options))
    assert not job.profile.trace.tried  # an answer leaves out what was tried in vain
    tables = Tables(job.profile, lambda _: None)
    said = findings.judge(job.profile, tables, replay_of(job.profile), job.rank_table, job.shown)
    made = {**tables.made, job.rank_table.key: job.rank_table}
    assert not untyped_tables(made), untyped_tables(made)
    return said


def only_finding(code: str, *reports: Path) -> Finding:
    """Return the only such thing."""
    (finding,) = findings_alone(code, *reports)
    return finding


@contextmanager
def rule_alone(code: str) -> Iterator[None]:
    """Ask no rule but one for what Summaries say meanwhile: how rules share time and lines is not seen then."""
    (asked,) = (rule for rule in findings.rules() if rule.RULE.code == code)
    findings.rule_of(code)  # keeps all rules by their codes, for good
    with patch.object(findings, "rules", lambda: (asked,)):
        yield


def healthy(program: Program, number: int) -> None:
    """A step that the GPU limits: 20 kernels of 200 us, launched in 120 us."""
    with program.range("forward"), program.range("net:Net"):
        for _ in range(20):
            program.launch(200)


def empty() -> Program:
    """A capture of ranges alone."""
    program = Program()
    for number in range(4):
        program.main.add_range(f"step {number}", number * US, (number + 1) * US, domain=DOMAIN)
    return program


def stepless(body: Callable[[Program, int], None]) -> Program:
    """The work of one step, once, without a range."""
    program = Program()
    body(program, 0)
    program.sync()
    program.report.rows["NVTX_EVENTS"].clear()
    return program
