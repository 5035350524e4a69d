"""Messages of nsys: each known text has its cause and remedy, and every output that needs them takes them from the one table."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx import nsys_messages
from nsysx.errors import EXIT_EMPTY, NsysxError
from nsysx.pipeline import summarize
from nsysx.recording import machine_checks
from tests.builder import Report

#: (what nsys writes, the message's name): texts of real reports and of nsys' own libraries.
WRITTEN = (
    ("The system is running in Protected Memory mode. CUDA tracing data was not collected.", "protected-memory"),
    ("CUDA trace collection disabled due to Confidential Compute mode.", "protected-memory"),
    ("CUDA tracing is not supported on NVIDIA Crypto Mining Processors (CMP).", "mining-card"),
    ("A client is already subscribed to CUPTI. CUPTI does not support multiple concurrent subscriber.", "multiple-subscribers"),
    ("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", "multiple-subscribers"),
    ("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES", "no-permission"),
    ("ERR_NVGPUCTRPERM", "no-permission"),
    ("Subscribe returned 999: CUPTI_ERROR_UNKNOWN", "subscribe-failed"),
    ("libX.so library is missing from the LD_PRELOAD environment variable of the process.", "library-not-loaded"),
    ("CUDA injection initialization failed.", "library-not-loaded"),
    ("The CUDA driver is configured to inject all processes using the library specified by /x.", "driver-injects-another"),
    ("Could not parse 2 CUPTI activity records. Please try updating the CUDA driver", "could-not-parse"),
    ("Installed CUDA driver version (12.6) is not supported by this build of Nsight Systems.", "driver-newer"),
    ("Number of incomplete CUPTI events dropped: 28", "hardware-dropped"),
    ("CUPTI dropped 12 records. Some CUPTI events might be missing.", "records-dropped"),
    ("Number of CUPTI events produced: 31, CUPTI buffers: 49 of 50. Some CUPTI events might be missing.", "events-cut"),
    ("CUDA profiling stopped unexpectedly: out of memory.", "stopped-early"),
    ("Ignored 3 times because cudaProfilerStart API was not called yet;", "range-never-opened"),
    ("Unable to collect CPU kernel IP/backtrace samples. perf event paranoid level is 2.", "perf-paranoid"),
    ("No CUDA events collected. Does the process use CUDA?", "no-cuda"),
    ("CUDA profiling might have not been started correctly.", "no-cuda"),
    ("Not all CUDA events might have been collected.", "cuda-might-lack"),
    ("Not all NVTX events might have been collected.", "ranges"),
)  # fmt: skip


@pytest.mark.parametrize(("text", "name"), WRITTEN)
def test_each_text_has_its_own_cause_and_remedy(text: str, name: str) -> None:
    found = nsys_messages.recognized(text)
    assert found is not None
    assert (found.message.name, found.message.hides)[name == "ranges"] == name
    assert found.cause and found.remedy and "{" not in found.cause + found.remedy
    assert not (found.cause + found.remedy).endswith(".")


def test_what_the_message_counts_stands_in_its_cause() -> None:
    """Versions and numbers come from nsys' own words."""
    driver = nsys_messages.recognized("Installed CUDA driver version (13.3) is not supported by this build of X.")
    parse = nsys_messages.recognized("Could not parse 7 CUPTI activity records.")
    assert driver is not None and parse is not None
    assert "13.3" in driver.cause and "CUDA 13.3" in driver.remedy
    assert "7 activity records" in parse.cause


def test_what_nsys_says_of_every_program_explains_nothing() -> None:
    for text in ("Profiling has started.", "No OpenGL events collected. Does the process use OpenGL?", ""):
        assert nsys_messages.recognized(text) is None


def empty(tmp_path: Path, *lines: tuple[int, str]) -> Report:
    """Return a report without CUDA and ranges, with these lines of nsys: (severity, text)."""
    report = Report()
    report.process(1).thread(1).osrt("poll", 0, 10)
    for severity, text in lines:
        report.diagnostic(text, severity=severity)
    return report


BEGUN = ((1, "Process was launched by the profiler, see x"), (1, "Profiling has started."))
LOADED = (*BEGUN, (1, "Common injection library initialized successfully."))
NO_CUDA = (2, "No CUDA events collected. Does the process use CUDA?")


@pytest.mark.parametrize(
    ("lines", "cause", "remedy"),
    [
        ((*LOADED, NO_CUDA, (3, WRITTEN[0][0])), "protected memory", "conf-compute"),
        ((*LOADED, NO_CUDA, (2, WRITTEN[12][0])), r"driver \\(12.6\\) is newer", "as new as the driver"),
        ((*LOADED, NO_CUDA, (1, WRITTEN[3][0])), "one at a time", "torch.profiler"),
        ((*LOADED, NO_CUDA), "made no CUDA call", "is_available"),
        ((*BEGUN, NO_CUDA), "no program loaded the library", "inside the container"),
        (BEGUN[:1], "never started", "torch.cuda.profiler.start"),
        # A mere possibility does not hide what the lines that are not there prove.
        ((BEGUN[0], (2, WRITTEN[12][0])), "never started", "torch.cuda.profiler.start"),
        ((), "no NVTX rows", "nsysx run"),
    ],
)
def test_an_empty_report_says_why_it_is_empty(
    tmp_path: Path, lines: tuple[tuple[int, str], ...], cause: str, remedy: str
) -> None:
    with pytest.raises(NsysxError, match=cause.replace("\\\\", "\\")) as caught:
        summarize([empty(tmp_path, *lines).write(tmp_path / "r.sqlite")])
    assert caught.value.exit_code == EXIT_EMPTY
    assert remedy in caught.value.hint


@pytest.mark.parametrize(
    ("kinds", "lines", "cause", "remedy"),
    [
        (("NvtxEvents", "OpenACC"), (), "CUDA was not traced", "-t cuda"),
        (("NvtxEvents", "Cuda"), (), "made no CUDA call", "is_available"),
        # What is written and certain is stronger than what nsys was told to record, and what may be, than that no call was made.
        (("NvtxEvents",), (WRITTEN[0],), "protected memory", "conf-compute"),
        (("NvtxEvents", "Cuda"), (WRITTEN[12],), "is newer than this nsys knows", "as new as the driver"),
        (("Cuda",), BEGUN, "no program loaded the library", "inside the container"),
    ],
)
def test_an_empty_report_in_which_nsys_wrote_nothing_says_what_was_traced(
    tmp_path: Path, kinds: tuple[str, ...], lines: tuple[tuple[int | str, str], ...], cause: str, remedy: str
) -> None:
    report = empty(tmp_path, *(line if isinstance(line[0], int) else (3, line[0]) for line in lines))
    for kind in kinds:
        report.capture("CAPTURE_EVENT_TYPE", kind)
    with pytest.raises(NsysxError, match=cause) as caught:
        summarize([report.write(tmp_path / "r.sqlite")])
    assert remedy in caught.value.hint


@pytest.mark.parametrize(
    ("threads", "lines", "cause"),
    [
        (("[NSys]", "cuda-EvtHandlr"), (*LOADED, NO_CUDA), "none of its calls is in the report"),
        (
            ("cuda-EvtHandlr",),
            (*LOADED, NO_CUDA),
            "made no CUDA call",
        ),  # a process of nsys itself, or one that it does not record
        (("[NSys]", "solver"), (*LOADED, NO_CUDA), "made no CUDA call"),
        (("[NSys]", "cuda-EvtHandlr"), (*LOADED, NO_CUDA, (2, WRITTEN[12][0])), "newer than this nsys"),
    ],
)
def test_a_program_that_set_cuda_up_is_not_said_to_have_made_no_call(
    tmp_path: Path, threads: tuple[str, ...], lines: tuple[tuple[int, str], ...], cause: str
) -> None:
    """Seen in programs that crashed, that were stopped, and under WSL: the driver's own thread stands in their reports."""
    report = empty(tmp_path, *lines)
    process = report.process(2)
    for number, name in enumerate(threads):
        process.thread(20 + number, name)
    report.process(3).thread(30, "[NSys]")
    report.capture("CAPTURE_EVENT_TYPE", "Cuda")
    with pytest.raises(NsysxError, match=cause):
        summarize([report.write(tmp_path / "r.sqlite")])


def test_why_there_is_no_cuda_is_asked_only_where_there_is_none(tmp_path: Path) -> None:
    for launched in (True, False):
        report = Report()
        thread = report.process(1).thread(1)
        thread.add_range("all", 0, 50)
        if launched:
            thread.launch(10, 10, gpu_start=30)
        report.capture("CAPTURE_EVENT_TYPE", "NvtxEvents")
        summary = summarize([report.write(tmp_path / f"{launched}.sqlite")])
        assert summary.capture.never == (None if launched else "not-traced")
        assert ("CUDA was not traced" in summary.verdict.sentence) != launched


def test_launches_without_kernels_are_explained_by_nsys_words(tmp_path: Path) -> None:
    """Records that could not be parsed are no other tool's fault."""
    report = Report()
    report.process(1).thread(1).launch(20, 10)
    report.diagnostic(WRITTEN[11][0], severity=3)
    summary = summarize([report.write(tmp_path / "r.sqlite")])
    assert "could not read what CUPTI wrote (2 activity records)" in summary.verdict.sentence
    fix = next(c.fix for c in summary.quality if c.check == "gpu work")
    assert "newer nsys" in fix and "torch.profiler" not in fix


def test_a_newer_driver_whose_work_is_all_there_is_no_doubt(tmp_path: Path) -> None:
    for kernel_at, doubted in ((40, False), (None, True)):
        report = Report()
        main = report.process(1).thread(1)
        for i in range(4):
            main.launch(i * 1000, 10, gpu_start=None if i == 3 and kernel_at is None else i * 1000 + 40)
        report.diagnostic(WRITTEN[12][0])
        summary = summarize([report.write(tmp_path / f"{doubted}.sqlite")])
        assert any(c.check == "diagnostics" for c in summary.quality) is doubted


def test_doctor_names_what_keeps_nsys_from_tracing_here(tmp_path: Path) -> None:
    report = empty(tmp_path, *LOADED, NO_CUDA, (1, WRITTEN[0][0]), (2, WRITTEN[18][0]))
    found = list(machine_checks.hindrances(report.write(tmp_path / "r.sqlite")))
    assert [(c.status, "protected memory" in c.detail) for c in found] == [("warn", True)]
    assert "conf-compute" in found[0].fix
    report.drop("DIAGNOSTIC_EVENT")
    assert not list(machine_checks.hindrances(report.write(tmp_path / "without.sqlite")))
