"""Lines of the program as nested ranges, in each Python of this machine: by ``sys.monitoring`` or by ``sys.settrace``."""

from __future__ import annotations

import json
import linecache
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

INJECT = Path(__file__).resolve().parents[2] / "nsysx" / "inject"

#: Runs ``main`` of case.py with lines, and prints what was sent: of the main thread as a tree, of other threads as a list.
HARNESS = """
import json, os, sys, threading, types
sys.path[:0] = [INJECT]
from nsysx_probe import line_ranges, monitoring, output, sources
from nsysx_probe.backend import Backend

tree, others, depth, spans, faults = [], [], [0], {}, []
main_thread = threading.get_ident()
def push(text):
    assert threading.get_ident() == main_thread
    tree.append("  " * depth[0] + text); depth[0] += 1
def pop():
    depth[0] -= 1
    if depth[0] < 0: faults.append("popped too often")
def start(text):
    others.append(text); spans[len(others)] = text; return len(others)
def end(token): spans.pop(token)
tape = Backend("tape", str, push, pop, None, start, end)
environ = dict(os.environ)
out = output.Output(tape, environ, lambda: None)
told = line_ranges.LineRanges(out, tape, sources.Sources(types.SimpleNamespace(__file__=TORCH), environ))
import case
def run(f):
    told.begin(10**9)
    try: f()
    finally: told.end()
result = case.main(run, told)
print("\\n" + json.dumps({"tree": tree, "others": others, "open": depth[0] + len(spans), "errors": out.errors, "faults": faults,
    "why_not": told.why_not, "stopped": told.stopped, "texts": told.sources.texts(), "result": result, "trace": repr(sys.gettrace()),
    "kind": type(told._engine).__name__}))
"""


def _pythons() -> list[str]:
    """Return one interpreter of each version from 3.10 on that is here."""
    found = {sys.version_info[:2]: sys.executable}
    for minor in range(10, 15):
        path = shutil.which(f"python3.{minor}")
        words = [path, "-c", "import sys; print(sys.executable)"]
        if (
            path
            and (3, minor) not in found
            and (done := subprocess.run(words, capture_output=True, text=True)).returncode == 0
        ):
            found[3, minor] = done.stdout.strip()
    return [found[version] for version in sorted(found)]


@pytest.fixture(params=_pythons(), ids=lambda path: Path(path).parents[1].name if "versions" in path else "this")
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(python: str, folder: Path, case: str, *, checked: bool = True, **environ: str) -> dict[str, Any]:
    """Return what the harness says of a program; the names of its files are shortened to those in ``folder``."""
    (folder / "case.py").write_text(textwrap.dedent(case).lstrip("\n"))
    (folder / "harness.py").write_text(f"INJECT = {str(INJECT)!r}; TORCH = '/nowhere/torch/__init__.py'\n{HARNESS}")
    words = [python, "-B", str(folder / "harness.py")]
    done = subprocess.run(words, env={"PATH": "", **environ}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1].replace(f"{folder}/", ""))
    if checked:
        assert (told["open"], told["errors"], told["faults"], told["trace"]) == (0, [], [], "None")
        assert told["why_not"] is None
    return told


def inside(told: dict[str, Any], file: str = "case.py") -> list[str]:
    """Return the tree of one file's lines, as "  LINE FUNCTION", from the line on that calls the program."""
    tree = [line for line in told["tree"] if line.strip().startswith(f"{file}:")]
    most = min(len(line) - len(line.lstrip()) for line in tree)
    return [line[most:].replace(f"{file}:", "").replace("main.<locals>.", "") for line in tree]


def test_lines_are_nested_as_calls_are(python: str, tmp_path: Path) -> None:
    told = run(
        python,
        tmp_path,
        """
        import json
        def inner(x):
            y = x + 1
            return y
        def outer():
            a = inner(1)
            json.dumps([a])
            return [inner(n) for n in
                    (1, 2)]
        def main(run, told):
            run(outer)
        """,
    )
    lines = inside(told)
    assert lines[:5] == ["11 main", "    6 outer", "      3 inner", "      4 inner", "    7 outer"]
    assert sum(line.endswith("4 inner") for line in lines) == 3, "each call of the comprehension"
    assert not [line for line in told["tree"] if "json" in line or "nsysx_probe" in line]
    assert told["texts"]["case.py"]["7"] == "    json.dumps([a])"


def test_generators_exceptions_and_recursion(python: str, tmp_path: Path) -> None:
    told = run(
        python,
        tmp_path,
        """
        def numbers():
            for n in range(2):
                yield n
        def fails(depth):
            if depth:
                fails(depth - 1)
            raise ValueError
        def work():
            total = 0
            for n in numbers():
                total += n
            try:
                fails(1)
            except ValueError:
                total += 1
            left = numbers()
            next(left)
            left.close()
            del left
            return total
        def main(run, told):
            run(work)
        """,
    )
    assert [line for line in inside(told) if line.endswith(" work")] == [
        f"    {n} work" for n in (9, 10, 11, 10, 11, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20)
    ]
    depths = {line.strip(): line.index(line.strip()) for line in inside(told)}
    assert depths["5 fails"] == 8 and depths["7 fails"] == 8 and depths["3 numbers"] == 6


def test_async_code_and_a_generator_that_is_thrown_into(python: str, tmp_path: Path) -> None:
    told = run(
        python,
        tmp_path,
        """
        import asyncio, contextlib
        @contextlib.contextmanager
        def managed():
            try:
                yield 1
            except KeyError:
                pass
        async def child(n):
            await asyncio.sleep(0)
            return n
        async def parent():
            return sum(await asyncio.gather(child(1), child(2)))
        def work():
            with managed():
                raise KeyError
            return asyncio.run(parent())
        def main(run, told):
            run(work)
        """,
    )
    tree = inside(told)
    assert sum("9 child" in line for line in tree) >= 2 and sum("10 child" in line for line in tree) == 2
    assert [line for line in tree if line.endswith(" work")][-1] == "    16 work"
    assert {line.index("10 child") for line in tree if "10 child" in line} <= {6, 8}, (
        "below the line that runs the loop"
    )


def test_lines_end_where_the_step_ends_in_the_middle_of_functions(python: str, tmp_path: Path) -> None:
    told = run(
        python,
        tmp_path,
        """
        def deep(told, on):
            if on:
                told.begin(10**9)
            else:
                told.end()
            return 1
        def step(told, on):
            a = deep(told, on)
            return a
        def main(run, told):
            for i in range(2):
                step(told, True)
                b = 1
                step(told, False)
                c = 1
            told.begin(10**9)
            told.end()
        """,
    )
    lines = inside(told)
    assert lines[:3] == ["12 main", "  8 step", "    3 deep"], "the frames that run when lines are turned on"
    assert [line.strip() for line in lines].count("13 main") == 2 and "15 main" not in lines


def test_other_threads(python: str, tmp_path: Path) -> None:
    told = run(
        python,
        tmp_path,
        """
        import threading
        def load(go, ready):
            x = 1
            ready.set()
            go.wait()
            return x
        def work():
            go, ready = threading.Event(), threading.Event()
            thread = threading.Thread(target=load, args=(go, ready))
            thread.start()
            ready.wait()
            return go, thread
        def main(run, told):
            kept = []
            run(lambda: kept.append(work()))
            kept[0][0].set()
            kept[0][1].join()
            run(lambda: 1)
        """,
    )
    if told["kind"] == "Monitoring":
        assert [text for text in told["others"] if "load" in text] == [f"case.py:{n} load" for n in (3, 4, 5)]
    else:
        assert told["others"] == []


def test_generated_code_and_what_is_left_out_or_added(python: str, tmp_path: Path) -> None:
    installed = tmp_path / "lib" / "site-packages"
    for name in ("transformers", "torch", "extra"):
        (installed / name).mkdir(parents=True)
        (installed / name / "__init__.py").write_text("def call(f):\n    return f()\n")
    case = f"""
        import sys
        sys.path.insert(0, {str(installed)!r})
        import transformers, torch, extra
        exec("def generated():\\n    return 1")
        def mine():
            return 2
        def work():
            transformers.call(mine)
            torch.call(mine)
            extra.call(mine)
            return generated()
        def main(run, told):
            run(work)
    """
    files = {line.strip().partition(":")[0] for line in run(python, tmp_path, case)["tree"]} - {"harness.py"}
    assert files == {"case.py", *(f"lib/site-packages/{p}/__init__.py" for p in ("transformers", "extra"))}
    other = run(python, tmp_path, case, NSYSX_SOURCE="torch:!transformers:-extra", NSYSX_NO_SOURCE="1")
    files = {line.strip().partition(":")[0] for line in other["tree"]} - {"harness.py"}
    assert files == {"case.py", "lib/site-packages/torch/__init__.py"} and other["texts"] == {}


def test_a_function_of_many_lines_is_one_range_from_there_on_and_what_follows_has_its_lines(
    python: str, tmp_path: Path
) -> None:
    """Twice a loop in a function of its own, then one that calls another function in each round, and one beside calls."""
    case = """
        def loop(n):
            total = 0
            for i in range(n):
                total += 1
                total -= 1
            return total
        def after():
            return 1
        def helped(n):
            return n + 1
        def calling(n):
            for i in range(n):
                helped(i)
                n -= 1
            return n
        def work():
            loop(30_000)
            after()
            calling(100_000)
            after()
            for i in range(10_000):
                i += 1
                i -= 1
            after()
            return 2
        def main(run, told):
            run(work)
            first = told.stopped
            run(lambda: loop(3))
            return [first, told.stopped, told.folds]
    """
    told = run(python, tmp_path, case)
    tree = [line.strip() for line in told["tree"]]
    assert told["result"][:2] == [None, None] and 3 <= told["result"][2] <= 8
    assert told["open"] == 0 and not told["faults"]
    assert 15_000 < len(tree) < 45_000
    assert tree.count("case.py:-1 loop") == 1, "from its 20,000th line on"
    assert tree.index("case.py:-1 loop") < tree.index("case.py:8 after")
    assert tree.count("case.py:8 after") == 3 and "case.py:22 work" in tree[:-10], "functions and lines behind it"
    assert "case.py:6 loop" in tree[-4:], "the next step has its lines"
    assert not any(int(number) < 0 for numbers in told["texts"].values() for number in numbers)


def test_many_functions_of_many_lines_end_the_lines_of_a_step(python: str, tmp_path: Path) -> None:
    loops = "".join(
        f"        def loop{k}(n):\n            for i in range(n):\n                i += 1\n                i -= 1\n"
        for k in range(12)
    )
    case = f"""
{loops}
        def work():
            for loop in ({", ".join(f"loop{k}" for k in range(12))}):
                loop(30_000)
        def main(run, told):
            run(work)
            return told.stopped
    """
    told = run(python, tmp_path, case)
    assert told["result"] in ("20,000 lines in one step", "lines had taken as long as a step")
    assert told["open"] == 0 and not told["faults"]
    assert len(told["tree"]) < 50_000


def test_lines_may_take_as_long_as_the_step_itself_before_any_step_was_timed(python: str, tmp_path: Path) -> None:
    case = """
        import time
        from nsysx_probe import line_ranges
        line_ranges.LINES_LEAST_NS = 0
        def loop(n):
            total = 0
            for i in range(n):
                total += 1
            return total
        def slow(n):
            time.sleep(0.5)
            loop(n)
        def main(run, told):
            begin, folds = told.begin, []
            told.begin = lambda usual_ns: begin(0)
            for work in (slow, *[loop] * 5):
                run(lambda: work(2_000))
                folds.append(told.folds)
            return folds
    """
    slow, *loops = run(python, tmp_path, case)["result"]
    assert slow == 0 and max(loops) == 1, "a busy machine may make one step long, not each"


def test_a_loop_in_one_line_is_one_range(python: str, tmp_path: Path) -> None:
    told = run(
        python,
        tmp_path,
        """
        def work():
            return [n for n in range(10_000)]
        def main(run, told):
            run(work)
        """,
    )
    assert told["stopped"] is None and len(told["tree"]) < 10


@pytest.mark.parametrize(
    "who", ["sys.settrace(lambda *_: None)", "sys.setprofile(lambda *_: None)", "sys.monitoring.use_tool_id(1, 'x')"]
)
def test_beside_a_tracer_there_are_none(python: str, tmp_path: Path, who: str) -> None:
    case = f"""
        import sys
        def work():
            return 1
        def main(run, told):
            try:
                {who}
            except AttributeError:
                return True
            run(work)
            sys.settrace(None), sys.setprofile(None)
            return not told.why_not
    """
    told = run(python, tmp_path, case, checked=False)
    assert told["result"] or ("active" in told["why_not"] and told["tree"] == [])


def test_sources_that_changed_vanished_or_are_not_utf8(python: str, tmp_path: Path) -> None:
    for name, text in (("changed", b"x = 1"), ("vanished", b"x = 1"), ("latin", b"x = '\xe9" + b"." * 100_000 + b"'")):
        (tmp_path / f"{name}.py").write_bytes(b"# -*- coding: latin-1 -*-\ndef call():\n    " + text + b"\n")
    told = run(
        python,
        tmp_path,
        """
        import os, time, pathlib
        import changed, vanished, latin
        def work():
            changed.call(); vanished.call(); latin.call()
        def main(run, told):
            run(work)
            here = pathlib.Path(__file__).parent
            (here / "vanished.py").unlink()
            os.utime(here / "changed.py", (time.time() + 5, time.time() + 5))
        """,
    )
    assert set(told["texts"]) == {"harness.py", "case.py", "latin.py"}
    text = told["texts"]["latin.py"]["3"].strip()
    assert text.startswith("x = '\xe9.") and len(text) == 200, "as the file says that it is encoded"


def test_a_forked_child_sends_nothing(python: str, tmp_path: Path) -> None:
    told = run(
        python,
        tmp_path,
        """
        import os
        def work(told):
            pid = os.fork()
            if not pid:
                try:
                    told._push = told._pop = lambda *_: os._exit(3)
                    told.end()
                    x = 1
                    y = 2
                finally:
                    os._exit(0)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        def main(run, told):
            codes = []
            run(lambda: codes.append(work(told)))
            return codes
        """,
    )
    assert told["result"] == [0] or told["result"] == [3]


def test_a_program_with_a_timer_has_lines_and_every_exception_of_its_handler(tmp_path: Path, python: str) -> None:
    """Python drops what is raised where a generator is given up, so generators have no lines of their own there."""
    told = run(
        python,
        tmp_path,
        """
        import random, signal
        class Ended(Exception): pass
        raised = reached = 0
        def handler(number, frame):
            global raised
            raised += 1
            raise Ended
        def numbers():
            number = 0
            while True:
                number += 1
                yield number
        def work():
            for number in numbers():
                return number
        def until(before):
            while raised == before:
                work()
        def main(run, told):
            global reached
            random.seed(3)
            sent = []  # by calls of C, as those of nvtx are: nothing strikes in them
            told._push, told._pop = sent.append, sent.pop
            told._backend.pop = sent.pop
            signal.signal(signal.SIGALRM, handler)
            for _ in range(600):
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.0008))
                    run(lambda before=raised: until(before))
                except Ended:
                    reached += 1
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            functions = {text.split()[-1] for texts in told._texts.values() for text, _ in texts.values()}
            return [raised, reached, len(sent), "work" in functions, "numbers" in functions]
        """,
    )
    assert told["result"] == [600, 600, 0, True, False]


@pytest.mark.parametrize(
    ("name", "shown"),
    [("/tmp/tr\udcc3\udca4nen.py", "/tmp/tränen.py"), ("/tmp/ä.py", "/tmp/ä.py"), ("/\ud800", "/\\ud800")],
)
def test_a_file_has_a_name_that_can_be_sent_in_any_locale(tmp_path: Path, name: str, shown: str) -> None:
    from nsysx_probe.sources import Sources

    sources = Sources(None, {})
    path = sources.path(compile("", name, "exec"))
    assert path == shown and path.encode()
    sources.seen(str(tmp_path / "ä.py"), 1, package=False)
    (tmp_path / "ä.py").write_text("x = 1\n")
    sources._began = time.time() + 60
    assert sources.texts() == {str(tmp_path / "ä.py"): {"1": "x = 1"}}


def test_lines_that_may_take_a_rank_s_share_are_kept_also_if_they_never_ran(tmp_path: Path) -> None:
    from nsysx_probe.sources import Sources

    file, package, silent = tmp_path / "data.py", tmp_path / "library.py", tmp_path / "quiet.py"
    text = "rank = get_rank()\n# own = x[rank:]\nown = order[rank * n:(rank + 1) * n]\nx = y[0]\nfor i in range(RANK, n):\n    pass\n"
    for each in (file, package, silent):
        each.write_text(text)
    sources = Sources(None, {})
    sources._began = time.time() + 60
    sources.seen(str(file), 6, package=False)
    sources.seen(str(package), 6, package=True)
    noted = {"3": "own = order[rank * n:(rank + 1) * n]", "5": "for i in range(RANK, n):"}
    assert sources.of_ranks() == {str(file): noted}
    sources.seen(str(silent), 6, package=False)
    assert sources.of_ranks() == {str(file): noted, str(silent): noted}
    assert Sources(None, {"NSYSX_NO_SOURCE": "1"}).of_ranks() == {}


def test_lines_that_may_cut_a_network_in_stages_are_kept(tmp_path: Path) -> None:
    from nsysx_probe.sources import Sources

    file = tmp_path / "stages.py"
    cuts = [
        "return [depth * s // stages for s in range(stages + 1)]",
        "per_stage = c.layers // num_stages",
        "mine = blocks[edges[stage] : edges[stage + 1]]",
        'spec = {"layers.6": SplitPoint.BEGINNING}',
        "layers_per_stage=(6, 6), microbatch=1,",
    ]
    others = ["stage = PipelineStage(module, rank, world, device)", "# n = layers // stages", "half = n // 2"]
    file.write_text("\n".join([*cuts, *others]))
    sources = Sources(None, {})
    sources._began = time.time() + 60
    sources.seen(str(file), 1, package=False)
    assert sources.of_ranks() == {str(file): {str(n): text for n, text in enumerate(cuts, 1)}}


def test_lines_that_wrap_parts_in_checkpoints_are_kept(tmp_path: Path) -> None:
    from nsysx_probe.sources import Sources

    file = tmp_path / "parallel.py"
    wraps = ["    apply_activation_checkpointing(model, check_fn=is_stage,", "layer = ptd_checkpoint_wrapper(layer)"]
    others = ["from torch import apply_activation_checkpointing, checkpoint_wrapper", "# checkpoint_wrapper(layer)"]
    file.write_text("\n".join([*wraps, *others]))
    sources = Sources(None, {})
    sources._began = time.time() + 60
    sources.seen(str(file), 4, package=False)
    assert sources.of_ranks() == {str(file): {str(n): text.strip() for n, text in enumerate(wraps, 1)}}


def test_what_a_library_writes_into_a_temporary_folder_and_runs_is_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's own script may lie there: it was there before. What a notebook runs has a text and no file."""
    from nsysx_probe import sources as room

    script, made = tmp_path / "train.py", tmp_path / "layer_propagate_lamq2n5w.py"
    for file, later_s in ((script, -1), (made, 1)):
        file.write_text("x = 1\n")
        os.utime(file, (0, room._BEGAN + later_s))
    cell = str(tmp_path / "ipykernel_1" / "2.py")
    linecache.cache[cell] = (6, None, ["x = 1\n"], cell)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    kinds = [room.Sources(None, {}).kind(compile("x = 1", str(f), "exec")) for f in (script, cell, made)]
    del linecache.cache[cell]
    assert kinds == ["user", "user", ""]


def test_lines_of_a_source_are_those_that_python_counts_in_the_encoding_that_it_declares() -> None:
    from nsysx_probe.sources import _lines_of

    assert _lines_of("# -*- coding: latin-1 -*-\nx = 'ä'  \x85 y\nz".encode("latin-1"))[1:] == ["x = 'ä'  \x85 y", "z"]
    assert _lines_of("a\x0cb\r\nc\u2028d\re".encode()) == ["a\x0cb", "c\u2028d", "e"]
    assert _lines_of(b"# coding: nowhere\n\xff = 1")[1] == "\ufffd = 1"
