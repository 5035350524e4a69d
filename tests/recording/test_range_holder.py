"""The process that holds the range of the capture windows: whose they are, and what it sends to the profiler."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsysx.inject.nsysx_probe.at_limit import OPEN
from nsysx.inject.nsysx_probe.capture_range import CUT, STEPPED
from nsysx.recording import range_holder, windows_link
from nsysx.recording.inbox import Inbox


class Bench:
    """Windows over processes that are made up: ``runs`` says which of them run, ``seen`` what nsys sees."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self.runs = {1: "a", 2: "b", 3: "c"}
        self.folder = folder
        monkeypatch.setattr(range_holder, "began", lambda pid: self.runs.get(pid, ""))
        self.windows = range_holder.CaptureWindows(
            str(folder), lambda: self.seen.append("open") or 1, lambda _: self.seen.append("close")
        )
        self.windows.begin()

    def ask(self, pid: int, text: str) -> str:
        return self.windows.answer(pid, text.split())


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_who_makes_steps_first_has_both_windows(bench: Bench) -> None:
    assert [bench.ask(pid, "here") for pid in (1, 2)] == ["open", "open"]
    assert bench.ask(2, "claim 2") == "yes open" and bench.ask(1, "claim 1") == "no 2"
    assert bench.ask(1, "end") == "0" and bench.ask(2, "end") == "1" and bench.ask(2, "end") == "0"
    assert bench.ask(3, "here") == "closed" and bench.ask(3, "claim 3") == "no 2" and bench.ask(1, "begin") == "0"
    assert bench.ask(2, "begin") == "1" and (bench.folder / OPEN).exists() and bench.ask(2, "end") == "1"
    assert bench.seen == ["open", "close"] * 2 and not (bench.folder / OPEN).exists()
    del bench.runs[2]
    assert bench.ask(3, "here") == "over 2" and bench.ask(1, "claim 1") == "no 2" and bench.ask(1, "begin") == "0"


@pytest.mark.parametrize("ends", [True, False])
def test_later_windows_are_of_the_same_process_and_range(bench: Bench, ends: bool) -> None:
    bench.ask(1, "claim 1"), bench.ask(1, "end")
    assert bench.ask(2, "begin") == "0" and bench.ask(1, "begin") == "1" and (bench.folder / OPEN).exists()
    assert bench.ask(2, "here") == "open" and bench.ask(2, "claim 2") == "no 1"
    if ends:
        assert bench.ask(1, "end") == "1" and bench.ask(3, "here") == "over 1"
        assert [bench.ask(1, "begin"), bench.ask(3, "here"), bench.ask(1, "end")] == ["1", "open", "1"]  # one more
    else:  # nobody else can close it
        del bench.runs[1]
    assert bench.ask(3, "here") == "over 1" and bench.ask(3, "claim 3") == "no 1" and not (bench.folder / OPEN).exists()
    assert bench.seen == ["open", "close"] * (3 if ends else 2)


def test_who_ends_in_the_first_window_leaves_it_to_others(bench: Bench) -> None:
    bench.ask(1, "claim 1")
    del bench.runs[1]
    assert bench.ask(2, "here") == "open" and bench.ask(2, "claim 2") == "yes open" and bench.seen == ["open"]


def test_who_ends_between_the_windows_leaves_two_to_the_next_that_comes(bench: Bench) -> None:
    bench.ask(1, "claim 1"), bench.ask(1, "end"), bench.ask(3, "here")
    bench.runs[1] = "another process of the same number"
    assert [bench.ask(2, "here"), bench.ask(2, "claim 2"), bench.ask(3, "claim 3")] == [
        "open",
        "yes open",
        "no 2",
    ]
    assert bench.ask(2, "end") == "1" and bench.seen == ["open", "close"] * 2 and bench.ask(2, "begin") == "1"


def test_a_process_that_was_there_before_gets_them_when_it_makes_steps(bench: Bench) -> None:
    bench.ask(2, "here"), bench.ask(1, "claim 1"), bench.ask(1, "end")
    del bench.runs[1]
    assert bench.ask(2, "claim 2") == "yes open" and bench.seen == ["open", "close", "open"]


def test_ranks_of_a_job_have_one_claim_and_a_new_start_of_them_another(bench: Bench) -> None:
    assert [bench.ask(pid, "claim 9-x-0") for pid in (1, 2)] == ["yes open"] * 2
    bench.ask(1, "end")
    del bench.runs[1]
    assert bench.ask(3, "claim 9-x-1") == "no 1"  # one of them still runs
    del bench.runs[2]
    assert bench.ask(3, "claim 9-x-1") == "yes open" and bench.seen == ["open", "close", "open"]


@pytest.mark.parametrize(("key", "anew"), [("9-x-1", True), ("9-y-1", False), ("8-x-1", False), ("3", False)])
def test_ranks_that_are_started_anew_have_windows_although_those_before_ended_in_their_second(
    bench: Bench, key: str, anew: bool
) -> None:
    bench.ask(1, "claim 9-x-0"), bench.ask(1, "end"), bench.ask(1, "begin")
    del bench.runs[1]
    assert bench.ask(3, f"here {key}") == ("open" if anew else "over 1")
    assert bench.ask(3, f"claim {key}") == ("yes open" if anew else "no 1")
    assert bench.seen == ["open", "close"] * 2 + ["open"] * anew
    if anew:
        assert [bench.ask(3, text) for text in ("end", "begin", "end")] == ["1"] * 3
        del bench.runs[3]
        assert bench.ask(2, "here 9-x-2") == "over 3"  # these were measured as a whole


def test_a_program_in_the_place_of_another_goes_on_in_its_open_window_and_has_none_later(bench: Bench) -> None:
    bench.ask(1, "here"), bench.ask(1, "claim 1")
    assert bench.ask(1, "here") == "open" and bench.ask(1, "claim 1") == "yes open"
    bench.ask(1, "end")
    assert bench.ask(1, "here") == "replaced" and bench.seen == ["open", "close"]


def test_a_window_at_the_limit_is_closed_when_nsysx_run_asks_for_it(bench: Bench) -> None:
    (bench.folder / STEPPED).touch()
    bench.ask(1, "here")
    bench.windows.look()
    assert bench.windows.open and bench.ask(1, "end") == "0"  # it has made no step
    (bench.folder / CUT).touch()
    bench.windows.look()
    assert not bench.windows.open and not (bench.folder / STEPPED).exists() and bench.seen == ["open", "close"]
    bench.windows.look()
    assert bench.seen == ["open", "close"]


LIBRARY = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef int (*tables_t)(int, void ****, unsigned *);
struct callbacks { size_t size; tables_t tables; };
struct attributes { uint16_t version, size; uint32_t category; int32_t color_type; uint32_t color; int32_t payload_type, reserved;
  uint64_t payload; int32_t message_type; char *message; };
static void note(const char *what, const char *text) {
  FILE *f = fopen(getenv("SEEN"), "a"); fprintf(f, "%s %s\\n", what, text); fclose(f); }
static void *create(const char *name) { return strdup(name); }
static void *registered(void *domain, const char *text) { return strdup(text); }
static uint64_t start(char *domain, struct attributes *a) {
  char said[99]; snprintf(said, 99, "%s@%s %d %d", a->message, domain, a->version, a->size == sizeof *a && a->message_type == 3);
  note("start", said); return 7; }
static void end(char *domain, uint64_t id) { char said[99]; snprintf(said, 99, "%s %d", domain, (int)id); note("end", said); }
int InitializeInjectionNvtx2(const void *(*get)(uint32_t)) {
  const struct callbacks *c = get(1); void ***slots; unsigned n;
  if (!c || !get(3) || !c->tables(1, &slots, &n) || n != 16 || c->tables(9, &slots, &n) || !c->tables(5, &slots, &n)) return 0;
  *slots[2] = start; *slots[3] = end; *slots[10] = registered; *slots[12] = create; return 1; }
"""


@pytest.fixture
def library(tmp_path: Path) -> Iterator[dict[bytes, bytes]]:
    """Yield the environment of a profiler whose library writes down what it is sent."""
    (tmp_path / "seen.c").write_text(LIBRARY)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "seen.so", "seen.c"], cwd=tmp_path, check=True)
    yield {
        **os.environb,
        b"NVTX_INJECTION64_PATH": os.fsencode(tmp_path / "seen.so"),
        b"SEEN": os.fsencode(tmp_path / "seen"),
    }


START = "start capture-window@nsysx 3 1"


def test_the_range_is_sent_as_nvtx_is_before_the_program_begins(tmp_path: Path, library: dict[bytes, bytes]) -> None:
    link = windows_link.WindowsLink()
    with Inbox() as inbox:
        assert link.open(library, tmp_path, inbox)
        assert (tmp_path / "seen").read_text().splitlines() == [START] and (tmp_path / OPEN).exists()

        def ask(text: str) -> str:
            with socket.socket(socket.AF_UNIX) as asking:
                asking.connect("\0" + link.address)
                asking.sendall(text.encode() + b"\n")
                return asking.recv(99).decode().strip()

        assert [ask(t) for t in ("here", "claim x", "end", "begin", "nonsense", "")] == [
            "open",
            "yes open",
            "1",
            "1",
            "0",
            "0",
        ]
        assert (tmp_path / "seen").read_text().splitlines() == [START, "end nsysx 7", START]
        link.close()
        with pytest.raises(ConnectionRefusedError):
            ask("here")


@pytest.mark.parametrize("path", [b"", b"/no/such.so", os.fsencode(socket.__file__)])
def test_a_library_that_takes_no_ranges_opens_nothing(tmp_path: Path, path: bytes) -> None:
    link = windows_link.WindowsLink()
    with Inbox() as inbox:
        assert not link.open({**os.environb, b"NVTX_INJECTION64_PATH": path}, tmp_path, inbox)
    assert not link.address


def test_it_runs_the_command_where_nobody_else_does(tmp_path: Path, library: dict[bytes, bytes]) -> None:
    command = [sys.executable, "-c", f"import os; print(os.path.exists({str(tmp_path / OPEN)!r})); raise SystemExit(5)"]
    words = [*windows_link.holder_words(f"nsysx-test-{os.getpid()}", tmp_path), *command]
    done = subprocess.run(words, env=library, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (5, "True\n", "")
