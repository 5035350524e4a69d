"""The MCP server with a real client: the package's own, over stdin and stdout of a real process."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nsysx.cli.check import check
from nsysx.cli.compare import compare
from nsysx.cli.declared_options import typed_only
from nsysx.errors import NsysxError
from nsysx.serving import actions, tools
from tests.recording.test_capture import FakeNsys
from tests.samples import Samples, unpack

if TYPE_CHECKING:
    from mcp import ClientSession

# Imported where a client is made: each worker collects all tests.
if importlib.util.find_spec("mcp") is None:
    pytest.skip("the extra mcp is not installed", allow_module_level=True)

pytestmark = pytest.mark.traced  # the server is a process of its own
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
SERVER = [sys.executable, "-m", "nsysx", "mcp"]
#: The most that a list of tools and an answer are long, in bytes.
LIST, ANSWER = 3000, 2500

Call = Callable[..., Any]


@contextlib.asynccontextmanager
async def server(*options: str, folder: Path | None = None) -> AsyncIterator[ClientSession]:
    """A client of a server of its own."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    words = StdioServerParameters(command=SERVER[0], args=[*SERVER[1:], *options], env=ENVIRONMENT, cwd=folder)
    async with stdio_client(words) as (replies, requests), ClientSession(replies, requests) as client:
        await client.initialize()
        yield client


async def text_of(client: ClientSession, tool: str, **arguments: Any) -> tuple[str, bool]:
    """Return an answer and whether it is an error."""
    result = await client.call_tool(tool, arguments)
    return result.content[0].text, bool(result.is_error)


async def answer_of(client: ClientSession, tool: str, **arguments: Any) -> dict[str, Any]:
    text, failed = await text_of(client, tool, **arguments)
    assert not failed, text
    assert len(text.encode()) <= ANSWER
    return json.loads(text)


def test_a_client_reads_a_report(tmp_path: Path) -> None:
    report = unpack("masked_nonzero", tmp_path)

    async def questions() -> None:
        async with server() as client:
            listed = (await client.list_tools()).model_dump_json(by_alias=True, exclude_none=True)
            assert len(listed.encode()) <= LIST
            assert [tool["name"] for tool in json.loads(listed)["tools"]] == [
                "load", "answer", "insight", "table", "act",
            ]  # fmt: skip
            loaded = await answer_of(client, "load", path=str(report))
            assert "NSX120@MaskedLoss" in loaded["findings"]
            first = await answer_of(client, "answer")
            written = report.stat()
            report.write_bytes(bytes(written.st_size))
            os.utime(report, ns=(written.st_atime_ns, written.st_mtime_ns))
            assert await answer_of(client, "load", path=str(report)) == loaded, "it is kept"
            assert await answer_of(client, "answer") == first
            whole = await answer_of(client, "insight", id=first["causes"][0]["id"])
            assert whole["id"] == "NSX120@MaskedLoss"
            rows = await answer_of(client, "table", name="waits", top="2", columns="api,total_ns", filter="calls>0")
            assert [*rows["rows"][0]] == ["api", "total_ns_per_step"] and len(rows["rows"]) == 2
            less = await answer_of(client, "act", what="whatif", changes={"remove_module": "MaskedLoss"})
            assert less["saving_ns"] == less["now_ns"] - less["step_ns"] > 20_000_000

    asyncio.run(questions())


def test_two_reports_are_compared(recorded: Samples) -> None:
    async def questions() -> None:
        async with server() as client:
            await answer_of(client, "load", path=str(recorded.report("masked_nonzero")))
            told = []

            async def progress(done: float, _total: float | None, message: str | None) -> None:
                told.append((done, message))

            after = str(recorded.report("masked_ignore_index"))
            result = await client.call_tool("act", {"what": "compare", "after": after}, progress_callback=progress)
            assert json.loads(result.content[0].text)["verdict"] == "faster"
            assert told

    asyncio.run(questions())


@pytest.mark.parametrize("options", [(), ("--allow", "record")])
def test_programs_run_only_where_that_is_allowed(options: tuple[str, ...], recorded: Samples, tmp_path: Path) -> None:
    async def questions() -> None:
        async with server(*options) as client:
            await answer_of(client, "load", path=str(recorded.report("copies")))
            text, failed = await text_of(client, "act", what="try", command=["touch", str(tmp_path / "ran")])
            assert failed and "nsysx mcp --allow try" in text and "\n" not in text
            assert not (tmp_path / "ran").exists()

    asyncio.run(questions())


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("answers", {}, "no such tool"),
        ("load", {}, "load needs path"),
        ("load", {"file": "a"}, "load: no argument file. load takes: path"),
        ("table", {"name": "waits", "filters": "a=1"}, "Did you mean filter?"),
        ("table", {"name": "waits", "top": "many"}, "top: many is not a number"),
        ("act", {"what": "run"}, "There are: whatif, compare, check, try, record"),
        ("act", {"what": "whatif", "changes": "graph"}, "is not an object"),
    ],
)
def test_a_wrong_question_is_answered_with_the_right_name(name: str, arguments: Any, message: str) -> None:
    with pytest.raises(NsysxError) as error:
        tools.checked(name, arguments)
    assert message in str(error.value)


@pytest.mark.parametrize("option", ["--html=x.html", "--json", "--junit", "-f", "--force", "--", "-vf"])
def test_an_action_that_reads_writes_no_file(option: str) -> None:
    with pytest.raises(NsysxError, match=r"writes files|begins a command"):
        actions.words_of("compare", None, {"after": "a.sqlite", "options": [option, "x"]})


def test_every_option_that_writes_is_refused() -> None:
    """Those that no file of options may set are those that name outputs, but for --change, which an argument gives."""
    declared = {option for command in (compare, check) for option in typed_only(command)} - {"change"}
    assert {f"--{name}" for name in declared} <= {*tools.WRITES, "--json-schema", "--init"}, declared


def test_texts_are_taken_for_what_they_mean() -> None:
    assert tools.checked("table", {"name": "waits", "top": "25", "columns": "api, calls", "filter": "calls>1"}) == {
        "name": "waits", "top": 25, "columns": ["api", "calls"], "filter": ["calls>1"],
    }  # fmt: skip


def test_bad_files_are_one_line(recorded: Samples, tmp_path: Path) -> None:
    whole = recorded.report("copies").read_bytes()
    spaced = tmp_path / "my runs"
    spaced.mkdir()
    (spaced / "a report.sqlite").write_bytes(whole)
    (tmp_path / "half.sqlite").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.sqlite").write_text("hello")

    async def questions() -> None:
        async with server() as client:
            for name in ("missing.sqlite", "half.sqlite", "text.sqlite", "."):
                text, failed = await text_of(client, "load", path=str(tmp_path / name))
                assert failed and "\n" not in text and "Traceback" not in text, (name, text)
            text, failed = await text_of(client, "answer")
            assert failed and "load(path)" in text
            assert (await answer_of(client, "load", path=str(spaced / "a report.sqlite")))["loaded"]
            assert str(spaced) in (await answer_of(client, "answer"))["commands"]["table"]

    asyncio.run(questions())


def test_a_report_that_is_still_written_is_read_again_when_it_is_whole(recorded: Samples, tmp_path: Path) -> None:
    whole, report = recorded.report("copies").read_bytes(), tmp_path / "r.sqlite"

    async def questions() -> None:
        async with server() as client:
            report.write_bytes(whole[: len(whole) // 3])
            text, failed = await text_of(client, "load", path=str(report))
            assert failed and "\n" not in text
            report.write_bytes(whole)
            assert (await answer_of(client, "load", path=str(report)))["limit"]

    asyncio.run(questions())


def test_four_clients_at_once(recorded: Samples) -> None:
    async def one(report: Path) -> str:
        async with server() as client:
            await answer_of(client, "load", path=str(report))
            return json.dumps((await answer_of(client, "answer"))["limit"])

    async def all_of_them() -> list[str]:
        report = recorded.report("custom_add")
        return await asyncio.gather(*(one(report) for _ in range(4)))

    assert len(set(asyncio.run(all_of_them()))) == 1


#: A client that starts a server, asks it to try a program, and says which process the server is.
CLIENT = """
import asyncio, os, sys
sys.path.insert(0, {root!r})
from tests.serving.test_server import answer_of, server
async def main():
    async with server("--allow", "try", folder={folder!r}) as client:
        await answer_of(client, "load", path={report!r})
        print("ready", flush=True)
        await client.call_tool("act", {{"what": "try", "command": [{python!r}, "program.py"]}})
asyncio.run(main())
"""


def of_group(word: str) -> list[int]:
    """Return the processes in whose command line a word stands."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word.encode() in (folder / "cmdline").read_bytes() and int(folder.name) != os.getpid():
                pids.append(int(folder.name))
    return pids


def waited_for(condition: Callable[[], bool], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False


def waiting_program(folder: Path) -> tuple[str, Path]:
    """A program that says that it runs, and a Python of a name that no other process has."""
    (folder / "program.py").write_text("import time\nopen('running', 'w').close()\ntime.sleep(300)\n")
    python = folder / f"mark-{folder.name}-{os.getpid()}"
    python.symlink_to(sys.executable)
    return python.name, python


@pytest.mark.parametrize(
    ("killed", "number"),
    [("client", signal.SIGKILL), ("server", signal.SIGKILL), ("server", signal.SIGINT)],
)
def test_nothing_is_left_of_a_client_or_a_server_that_is_ended(
    killed: str, number: signal.Signals, recorded: Samples, tmp_path: Path
) -> None:
    mark, python = waiting_program(tmp_path)
    code = CLIENT.format(
        root=str(ROOT), folder=str(tmp_path), report=str(recorded.report("copies")), python=str(python)
    )
    client = subprocess.Popen(
        [sys.executable, "-c", code], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert client.stdout is not None and client.stdout.readline() == "ready\n"
    servers = children_of(client.pid)
    assert servers and waited_for((tmp_path / "running").exists)
    for pid in [client.pid] if killed == "client" else servers:
        os.kill(pid, number)
    try:
        assert waited_for(lambda: not of_group(mark)), "a program is left"
        client.kill()
        client.wait()
        assert waited_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in servers)), "a server is left"
    finally:
        client.stdout.close()
        for pid in (*of_group(mark), *servers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_program_that_asks_is_answered_by_nobody(recorded: Samples, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import torch\ninput('Go on? ')\n")

    async def questions() -> None:
        async with server("--allow", "try", folder=tmp_path) as client:
            await answer_of(client, "load", path=str(recorded.report("copies")))
            text, failed = await text_of(client, "act", what="try", command=[sys.executable, "program.py"])
            assert failed and "EOFError" in text and "\n" not in text, text

    asyncio.run(questions())


@pytest.mark.parametrize(("mode", "code"), [("", 0), ("", 3), ("no-report", 0)])
def test_a_recording_names_the_files_that_it_wrote_whatever_its_program_returns(
    mode: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer stands below that line. A program that fails leaves a report; nsys may leave none, which is an error."""
    nsys = FakeNsys(tmp_path / "fake").does(mode)
    monkeypatch.setenv("PATH", f"{nsys.folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    async def tell(_seconds: float, _line: str) -> None:
        return None

    words = ["run", "-o", "r", "--", sys.executable, "-c", f"raise SystemExit({code})"]
    if mode:
        with pytest.raises(NsysxError, match="nsys wrote no report"):
            asyncio.run(actions.run("record", words, tmp_path, tell))
        return
    result = json.loads(asyncio.run(actions.run("record", words, tmp_path, tell)))
    assert result["said"].startswith("wrote r.nsys-rep") and result["exit_code"] == code


def test_a_request_that_is_cancelled_ends_what_it_started(recorded: Samples, tmp_path: Path) -> None:
    mark, python = waiting_program(tmp_path)

    async def questions() -> None:
        async with server("--allow", "try", folder=tmp_path) as client:
            await answer_of(client, "load", path=str(recorded.report("copies")))
            told: list[tuple[float, str]] = []

            async def progress(done: float, _total: float | None, message: str | None) -> None:
                told.append((done, str(message)))

            question = {"what": "try", "command": [str(python), "program.py"]}
            asked = asyncio.create_task(client.call_tool("act", question, progress_callback=progress))
            assert await asyncio.to_thread(waited_for, (tmp_path / "running").exists)
            asked.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asked
            assert await asyncio.to_thread(waited_for, lambda: not of_group(mark)), "the program is left"
            assert (await answer_of(client, "answer"))["limit"], "the server answers on"
            assert told and told == sorted(told, key=lambda line: line[0]), "progress goes on, in seconds"

    asyncio.run(questions())


def test_other_commands_start_without_the_package() -> None:
    code = textwrap.dedent(
        """
        import sys
        from nsysx.cli.app import COMMANDS, command_line
        for name in COMMANDS:
            command_line([name])
        assert not {"mcp", "anyio", "pydantic", "starlette"} & {*sys.modules}
        """
    )
    subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=True)
