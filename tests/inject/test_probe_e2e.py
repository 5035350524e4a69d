"""The probe inside real programs: with real ``nsys profile`` (NVTX only, no GPU needed), and bit by bit against a bare run.

NSYSX_TEST_NSYS names the nsys to use; without it these tests fail, because nothing else shows that ranges arrive.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from nsysx_probe import ranges

from tests.light_torch import WITHOUT_DYNAMO, WITHOUT_META

INJECT = Path(__file__).resolve().parents[2] / "nsysx" / "inject"

TRAIN = f"""
{WITHOUT_META}import os, sys
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln, self.fc = nn.LayerNorm(8), nn.Linear(8, 8)
    def forward(self, x):
        return x + torch.relu(self.fc(self.ln(x)))

def main():
    torch.manual_seed(0)
    net = nn.Sequential(Block(), Block(), nn.Linear(8, 2))
    loss_fn = nn.CrossEntropyLoss()
    opt = torch.optim.AdamW(net.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(16, 8), torch.arange(16) % 2)
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=int(os.environ.get("WORKERS", "0")),
                                         multiprocessing_context=os.environ.get("CONTEXT"))
    for x, y in loader:
        opt.zero_grad()
        loss = loss_fn(net(x), y)
        loss.backward()
        opt.step()
        print("loss %.17g" % loss.item())
    return loss.item()

if __name__ == "__main__":
    main()
    print("argv", sys.argv[1:])
"""

STEPS = [f"step {i}" for i in range(4)]
PATHS = {"", "0", "0.ln", "0.fc", "1", "1.ln", "1.fc", "2", "CrossEntropyLoss"}


@dataclass
class Run:
    code: int
    out: str
    err: str
    texts: dict[int, list[str]]  # by pid, of our domain
    marks: int
    files: dict[int, Any]

    def labels(self) -> list[ranges.Label]:
        return [ranges.decode(t) for texts in self.texts.values() for t in texts]

    def check(self, processes: int = 1, *, ended_workers: bool = False) -> None:
        """Every range that the probes counted is in the report, kind by kind and process by process.

        ``ended_workers``: a loader may end its workers with a signal, and such a process loses the last range of each name.
        """
        armed = {pid: f for pid, f in self.files.items() if f["backend"] != "off"}
        with_ranges = {pid: f for pid, f in armed.items() if f["ranges"]["module"]}
        assert len(with_ranges) == processes, self.files
        for pid, file in armed.items():
            found = collections.Counter(ranges.decode(t).kind for t in self.texts.get(pid, ()))
            counted = collections.Counter({k: v for k, v in file["ranges"].items() if v})
            lost = counted - found
            assert not found - counted
            assert not lost or (ended_workers and pid not in with_ranges and set(lost.values()) == {1}), lost
            assert file["ranges_pushed"] == sum(counted.values())
            assert file["errors"] == []
            assert 20 < file["pair_cost_ns"] < 100_000
            assert file["nvtx"] and file["torch"] and file["ppid"]


@pytest.fixture
def nsys() -> str:
    path = os.environ.get("NSYSX_TEST_NSYS", "")
    assert path and Path(path).exists(), "NSYSX_TEST_NSYS must name a working nsys: these tests are about real reports"
    return path


def environment(folder: Path, **extra: str) -> dict[str, str]:
    base = {k: v for k, v in os.environ.items() if not k.startswith(("NSYSX_", "PYTHON"))}
    (folder / "probe").mkdir(exist_ok=True)
    path = os.pathsep.join([str(INJECT), extra.pop("PYTHONPATH", str(folder))])
    probe = {"NSYSX_PROBE_DIR": str(folder / "probe"), "NSYSX_MARKS": "all"}
    return {**base, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **probe, **extra}


def profile(nsys: str, folder: Path, command: list[str], stop_after: str = "", **extra: str) -> Run:
    """Run a command under nsys, export, and read back what is in our domain.

    nsys 2023.4 now and then does not reach its own agent or importer, once in thousands of runs, and then there is no
    report: such a run is repeated. What the probe breaks, it breaks every time.
    """
    report = folder / "r.nsys-rep"
    start = [nsys, "profile", "-t", "nvtx", "--sample=none", "--cpuctxsw=none", "-f", "true", "-o", str(folder / "r")]
    export = [nsys, "export", "--type", "sqlite", "-f", "true", "-o", str(folder / "r.sqlite"), str(report)]
    for _ in range(3):
        process = subprocess.Popen(
            [*start, *command], cwd=folder, env=environment(folder, **extra), text=True, stdout=-1, stderr=-1, bufsize=1
        )
        reached = not stop_after or stop_at(folder / stop_after, process)
        out, err = ended(process, folder)
        exported = subprocess.run(export, capture_output=True, text=True, timeout=600)
        if reached and exported.returncode == 0:
            break
        said = "\n".join((f"nsys profile ended with {process.returncode}", out, err, exported.stdout, exported.stderr))
        print(said)
        shutil.rmtree(folder / "probe")
        (folder / (stop_after or "r.sqlite")).unlink(missing_ok=True)
    assert reached and exported.returncode == 0, said
    texts: dict[int, list[str]] = collections.defaultdict(list)
    marks = 0
    db = sqlite3.connect(folder / "r.sqlite")
    if db.execute("select count(*) from sqlite_master where name = 'NVTX_EVENTS'").fetchone()[0]:
        name = (
            "coalesce(n.text, (select value from StringIds where id = n.textId)) || coalesce(' ' || n.int64Value, '')"
        )
        domains = db.execute(f"select n.globalTid >> 24, n.domainId, {name} from NVTX_EVENTS n where eventType = 75")
        ours = {(process_id, domain) for process_id, domain, text in domains if text == ranges.DOMAIN}
        rows = db.execute(
            f"select n.globalTid, n.domainId, {name}, n.eventType, n.end from NVTX_EVENTS n where eventType in (34, 59, 60)"
        )
        for tid, domain, text, kind, end in rows:
            if (tid >> 24, domain) in ours:
                texts[(tid >> 24) & 0xFFFFFF].append(text)
                marks += kind == 34
                assert kind == 34 or end is not None
    db.close()
    return Run(process.returncode, out, err, texts, marks, probe_files(folder))


def ended(process: subprocess.Popen[str], folder: Path) -> tuple[str, str]:
    """Return what a program wrote; one that has not ended in five minutes is killed with all its processes, and that is an error."""
    try:
        return process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        waiting = [p for p in Path("/proc").glob("[0-9]*/environ") if str(folder).encode() in readable(p)]
        said = [f"{p.parent.name}: {readable(p.with_name('cmdline'))!r}" for p in waiting]
        for path in waiting:
            with contextlib.suppress(OSError):
                os.kill(int(path.parent.name), signal.SIGKILL)
        process.kill()
        out, err = process.communicate(timeout=600)
        raise AssertionError("\n".join(("did not end in 300 s:", *said, out, err))) from None


def readable(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # ended, or somebody else's
        return b""


def stop_at(ready: Path, process: subprocess.Popen[str]) -> bool:
    """Terminate the program that writes its pid into ``ready`` there; false where it ended before it came that far."""
    while not ready.exists():
        if process.poll() is not None and not ready.exists():
            return False
        time.sleep(0.05)
    pid = int(ready.read_text())
    wait_for_sleep(pid)
    os.kill(pid, signal.SIGTERM)
    return True


def wait_for_sleep(pid: int) -> None:
    """Wait until all threads of a process sleep, at 20 looks in a row: on a loaded machine nsys's own in it may be late."""
    asleep = 0
    while asleep < 20:
        time.sleep(0.05)
        states = [
            (task / "stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()
        ]
        asleep = asleep + 1 if set(states) == {"S"} else 0


def probe_files(folder: Path) -> dict[int, Any]:
    return {f["pid"]: f for f in (json.loads(p.read_text()) for p in (folder / "probe").glob("probe-*.json"))}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def full(run: Run, times: int = 1) -> None:
    labels = run.labels()
    assert {label.name for label in labels if label.kind == "module"} == PATHS
    assert sorted(label.name for label in labels if label.kind == "step") == sorted(STEPS * times)
    phases = collections.Counter(label.name for label in labels if label.kind == "phase")
    for name in ("forward", "loss", "backward", "optimizer", "zero_grad"):
        assert phases[name] == 4 * times, name
    backward = {label.name for label in labels if label.kind == "backward_module"}
    assert {"0.ln", "0.fc", "1.fc", "2", "CrossEntropyLoss"} <= backward


@pytest.mark.parametrize("way", ["script", "module", "command", "bash"])
def test_every_way_to_start_a_program(nsys: str, tmp_path: Path, script: Path, way: str) -> None:
    wrapper = tmp_path / "go now.sh"
    wrapper.write_text(f'cd "$(dirname "$0")" && exec {sys.executable} train.py a "b c"\n')
    command = {
        "script": [sys.executable, str(script), "a", "b c"],
        "module": [sys.executable, "-m", "train", "a", "b c"],
        "command": [sys.executable, "-c", "import train, sys; train.main(); print('argv', sys.argv[1:])", "a", "b c"],
        "bash": ["bash", str(wrapper)],
    }[way]
    if way == "script":
        script.write_text(TRAIN.replace(WITHOUT_META, ""))
    run = profile(nsys, tmp_path, command)
    assert run.code == 0, run.err
    assert "argv ['a', 'b c']" in run.out
    run.check()
    full(run)


def test_torchrun_two_ranks(nsys: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        TRAIN.replace(WITHOUT_META, "")
        .replace("    loss_fn = nn", "    net = nn.parallel.DistributedDataParallel(net)\n    loss_fn = nn")
        .replace(
            "    main()\n",
            "    torch.distributed.init_process_group('gloo')\n    main()\n    __import__('time').sleep(0.5)\n"
            "    torch.distributed.destroy_process_group()\n",
        )
    )
    run = profile(
        nsys,
        tmp_path,
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "train.py"],
    )
    assert run.code == 0, run.err
    run.check(processes=2)
    full(run, times=2)
    assert sorted(f["rank"] for f in run.files.values() if f["ranges"]["module"]) == ["0", "1"]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_loader_workers(nsys: str, tmp_path: Path, script: Path, context: str) -> None:
    script.write_text(TRAIN.replace(WITHOUT_META, WITHOUT_DYNAMO))
    run = profile(nsys, tmp_path, [sys.executable, str(script)], WORKERS="2", CONTEXT=context)
    assert run.code == 0, run.err
    run.check(ended_workers=True)
    full(run)
    assert len(run.files) >= (1 if context == "fork" else 3)


@pytest.mark.parametrize(
    ("ending", "codes"), [("raise SystemExit(7)", (7,)), ("raise KeyboardInterrupt", (130, -signal.SIGINT))]
)
def test_exit_code_and_tail_of_a_failing_program(
    nsys: str, tmp_path: Path, script: Path, ending: str, codes: tuple[int, ...]
) -> None:
    script.write_text(TRAIN.replace('    print("argv"', f'    {ending}\n    print("argv"'))
    run = profile(nsys, tmp_path, [sys.executable, str(script)])
    assert run.code in codes
    run.check()
    full(run)


def wait_in(script: Path, program: str) -> None:
    """Let a program of ``{wait}`` go that far and say so; there it waits to be killed."""
    wait = 'open("pid", "w").write(str(os.getpid())); os.rename("pid", "ready"); __import__("time").sleep(60)'
    script.write_text(program.replace("{wait}", wait))


def test_sigterm_that_nobody_handles_loses_nothing_behind_the_steps(nsys: str, tmp_path: Path, script: Path) -> None:
    """The probe installs no handler: the program ends as it would without it, and what it did until it waited is there."""
    wait_in(script, TRAIN.replace('    print("argv"', '    {wait}\n    print("argv"'))
    run = profile(nsys, tmp_path, [sys.executable, str(script)], stop_after="ready")
    assert run.code in (143, -signal.SIGTERM), "as without us: nobody handles the signal"
    (file,) = run.files.values()
    assert file["ended"] is False and file["ranges_pushed"] == 1, "nobody had time to write the final count"
    full(run)


def test_sigterm_in_a_step_loses_only_that_step(nsys: str, tmp_path: Path, script: Path) -> None:
    """Ranges that nsys keeps in the process are sent now and then."""
    long = """        opt.step()
        if len(losses) == 3:
            {wait}
        begin = time.monotonic()
        while time.monotonic() < begin + 0.15:
            pass
        losses.append(loss.item())
"""
    # No loader: its end would be that of the last step.
    loop = TRAIN.replace("        opt.step()\n", long).replace("import os, sys", "import os, sys, time")
    loop = loop.replace(
        "    for x, y in loader", "    losses = []\n    for x, y in [data[i : i + 4] for i in range(0, 16, 4)]"
    )
    wait_in(script, loop)
    run = profile(nsys, tmp_path, [sys.executable, str(script)], stop_after="ready")
    assert run.code in (143, -signal.SIGTERM)
    found = collections.Counter((label.kind, label.name) for label in run.labels())
    # The open one may be there, too: now and then nsys's own thread is quick enough to end what is open.
    assert [found["step", step] for step in STEPS[:3]] == [1, 1, 1]
    assert all(found["module", name] >= 3 for name in PATHS)
    assert all(found["phase", name] >= 3 for name in ("zero_grad", "forward", "loss", "backward", "optimizer"))


GROWS = f"""
{WITHOUT_META}import torch
from torch import nn

def used():
    lines = open("/proc/self/status").readlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024

net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
opt, x = torch.optim.SGD(net.parameters(), lr=0.01), torch.randn(4, 4)

def steps(count):
    for _ in range(count):
        opt.zero_grad()
        net(x).sum().backward()
        opt.step()

steps(1000)
at = [used()]
for _ in range(5):
    steps(600)
    at.append(used())
print("bytes a step", sorted(b - a for a, b in zip(at, at[1:]))[2] // 600)  # what is allocated once is in one of the five
"""


def test_memory_of_a_long_program(nsys: str, tmp_path: Path, script: Path) -> None:
    """A step takes what nsys's buffer takes for five ranges (64 bytes each, 32 MB at most), and no text of its own (0.8 kB)."""
    script.write_text(GROWS)
    run = profile(nsys, tmp_path, [sys.executable, str(script)], NSYSX_MARKS="few")
    assert run.code == 0, run.err
    assert sum(label.kind == "step" for label in run.labels()) == 4000
    assert int(re.findall(r"bytes a step (\d+)", run.out)[0]) < 750


FORKS = """
import os, sys, multiprocessing as mp
from concurrent.futures import ProcessPoolExecutor

def work(n):
    import torch
    net = torch.nn.Linear(2, 2)
    return float(net(torch.ones(2) * n).sum() * 0) + n * n

if __name__ == "__main__":
    way = sys.argv[1]
    if way == "pool":
        with mp.get_context("fork").Pool(2) as pool:
            assert pool.map(work, range(4)) == [0, 1, 4, 9]
        with ProcessPoolExecutor(2, mp_context=mp.get_context("fork")) as pool:
            print(list(pool.map(work, range(4))))
    elif way == "forkserver":
        with mp.get_context("forkserver").Pool(2) as pool:
            print(pool.map(work, range(4)))
    else:
        sys.stdout.flush()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                found = work(3)
                with open("daemon.new", "w") as file:
                    file.write(str(found))
                os.rename("daemon.new", "daemon")
                os._exit(0)
            os._exit(0)
        os.wait()
        import time
        for _ in range(6000):
            if os.path.exists("daemon"):
                break
            time.sleep(0.1)
        print(open("daemon").read())
    print(work(2))
"""


@pytest.mark.parametrize("way", ["pool", "forkserver", "daemon"])
def test_children_forked_before_torch_was_imported_live(nsys: str, tmp_path: Path, way: str) -> None:
    """A range sent from a child that nsys did not follow ends it: there the probe must keep out."""
    program = tmp_path / "forks.py"
    program.write_text(FORKS)
    run = profile(nsys, tmp_path, [sys.executable, str(program), way])
    assert run.code == 0, run.err
    assert "Traceback" not in run.err
    expected = "9.0" if way == "daemon" else "[0.0, 1.0, 4.0, 9.0]"
    assert run.out.split("Generating")[0].splitlines() == [expected, "4.0"]
    forked = [f for f in run.files.values() if "forked" in str(f["reason"])]
    assert forked, "it says why there is nothing of them"
    run.check(processes=1)


def test_window_of_steps(nsys: str, tmp_path: Path, script: Path) -> None:
    run = profile(nsys, tmp_path, [sys.executable, str(script)], NSYSX_STEPS="1:3")
    assert run.code == 0, run.err
    assert [label.name for label in run.labels() if label.kind == "step"] == ["step 1", "step 2"]
    (file,) = [f for f in run.files.values() if f["backend"] != "off"]
    assert file["ranges_pushed"] == sum(map(len, run.texts.values()))
    assert file["capture_steps"] == [1, 3]
    assert all("CUDA" in e for e in file["errors"])


def test_no_torch_and_turned_off(nsys: str, tmp_path: Path, script: Path) -> None:
    (tmp_path / "plain.py").write_text("print('hello')")
    run = profile(nsys, tmp_path, [sys.executable, "plain.py"])
    assert run.code == 0
    assert [f["reason"] for f in run.files.values()] == ["torch was not imported"]
    shutil.rmtree(tmp_path / "probe")
    run = profile(nsys, tmp_path, [sys.executable, str(script)], NSYSX_PROBE="0")
    assert run.texts == {}
    assert [f["reason"] for f in run.files.values()] == ["turned off by NSYSX_PROBE=0"]


# ---- against a bare run, without nsys --------------------------------------------------------------------------------


def compare(folder: Path, command: list[str], **extra: str) -> tuple[subprocess.CompletedProcess[str], dict[int, Any]]:
    """Run a command bare and with the probe forced on; everything that can be seen from outside must be the same."""
    probed = environment(folder, NSYSX_FORCE="1", **extra)
    bare = {**probed, "PYTHONPATH": extra.get("PYTHONPATH", str(folder)), "NSYSX_FORCE": ""}
    results = [
        subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, timeout=600)
        for env in (bare, probed)
    ]
    first, second = results
    assert second.stdout == first.stdout
    assert second.stderr == first.stderr
    assert second.returncode == first.returncode
    return second, probe_files(folder)


#: What a program may do and go on: each prints what came of it.
TROUBLES = """
def in_forward():
    nn.Sequential(Block())(torch.randn(3, 3))

def in_backward():
    torch.ones(1).backward()

def in_a_hook():
    t = torch.ones(1, requires_grad=True)
    t.register_hook(lambda g: 1 / 0)
    (t * 2).backward()

def warns():
    torch.nn.utils.clip_grad_norm_(iter([]), 1.0)

def prints_its_stack():
    class Stack(nn.Module):
        def forward(self):
            traceback.print_stack()
    nn.Sequential(Stack())[0]()

import logging, traceback
for trouble in (in_forward, in_backward, in_a_hook, warns, prints_its_stack):
    try:
        trouble()
    except Exception:
        traceback.print_exc()
        logging.exception(trouble.__name__)
"""
ENDINGS = {
    "after all kinds of trouble": f"exec({TROUBLES!r}, globals())",
    "raises": "nn.Sequential(Block())(torch.randn(3, 3))",
    "exits": "sys.exit(3)",
    "kills itself": "sys.stdout.flush(); os.kill(os.getpid(), 9)",
    "interrupted": "raise KeyboardInterrupt",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_output_and_exit_code_are_identical(tmp_path: Path, script: Path, ending: str) -> None:
    script.write_text(TRAIN.replace('    print("argv"', f'    {ENDINGS[ending]}\n    print("argv"'))
    result, files = compare(tmp_path, [sys.executable, str(script)])
    assert "loss" in result.stdout
    if ending == "after all kinds of trouble":
        said = [line for line in result.stderr.splitlines() if line.startswith("ERROR:root:")]
        assert said == [f"ERROR:root:{trouble}" for trouble in ("in_forward", "in_backward", "in_a_hook")]
    if ending != "kills itself":
        (file,) = files.values()
        assert file["ranges"]["module"] >= 9 * 4
        assert file["errors"] == []


def test_compiled_and_checkpointed_programs_are_identical(tmp_path: Path, script: Path) -> None:
    """Both in one program: the compiler takes as long to import as all the rest."""
    real = TRAIN.replace(WITHOUT_META, "").replace("net(x)", "run(x)")
    script.write_text(
        real.replace("import torch\n", "import torch\nfrom torch.utils.checkpoint import checkpoint\n")
        .replace("def main():", "def main(compiled):")
        .replace("    main()", "    main(True)\n    main(False)")
        .replace(
            "    loss_fn = nn",
            "    if compiled:\n        net = torch.compile(net, backend='aot_eager', fullgraph=True)\n"
            "    run = net if compiled else lambda x: checkpoint(net, x, use_reentrant=False)\n    loss_fn = nn",
        )
    )
    _, files = compare(tmp_path, [sys.executable, str(script)])
    (file,) = files.values()
    compiled, checkpointed = 4 * 2, 4 * (2 * (len(PATHS) - 1) + 1)
    assert file["ranges"]["module"] == compiled + checkpointed, (
        "the region and the loss; every module twice and the loss once"
    )


def test_torch_that_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("def broken():\n    raise OSError('libnothing.so')\nbroken()\n")
    result, _ = compare(tmp_path, [sys.executable, "-c", "import torch"])
    assert "libnothing" in result.stderr
    (tmp_path / "torch" / "__init__.py").write_text("import not_there\n")
    compare(tmp_path, [sys.executable, "-c", "import torch"])
    compare(tmp_path, [sys.executable, "-c", "import torch_is_missing"])


def test_a_torch_that_is_not_torch_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("x = 1\n")
    code = "import torch, inspect; print(torch.x, type(torch.__loader__).__name__, len(inspect.getsource(torch)))"
    _, files = compare(tmp_path, [sys.executable, "-c", code])
    (file,) = files.values()
    assert file["errors"] or file["reason"]


def test_the_users_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    own = tmp_path / "my folder"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nsys.mine = __file__\nprint('mine', __name__)\n")
    result, _ = compare(
        tmp_path,
        [sys.executable, "-c", "import sys, sitecustomize; print(sys.mine == sitecustomize.__file__)"],
        PYTHONPATH=str(own),
    )
    assert result.stdout == "mine sitecustomize\nTrue\n"
    (own / "sitecustomize.py").write_text("raise RuntimeError('in my own')\n")
    result, _ = compare(tmp_path, [sys.executable, "-c", "print(1)"], PYTHONPATH=str(own))
    assert "in my own" in result.stderr


def test_isolated_python_is_untouched_and_not_attached_means_nothing_is_patched(tmp_path: Path) -> None:
    env = environment(tmp_path, NSYSX_FORCE="1")
    subprocess.run([sys.executable, "-I", "-c", "print(1)"], env=env, check=True, capture_output=True)
    assert probe_files(tmp_path) == {}
    env["NSYSX_FORCE"] = ""
    env.pop("NVTX_INJECTION64_PATH", None)
    code = "import torch, sys; print(torch.nn.Module.__call__.__code__.co_names[0], 'nsysx_probe.probe' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
    assert done.stdout == "_compiled_call_impl False\n"
    (file,) = probe_files(tmp_path).values()
    assert file["reason"].startswith("no profiler is attached")


def test_without_nvtx_and_without_torchs_own_there_is_a_reason(tmp_path: Path, script: Path) -> None:
    script.write_text("import sys; sys.modules['nvtx'] = None\n" + script.read_text())
    _, files = compare(tmp_path, [sys.executable, str(script)])
    (file,) = files.values()
    if not torch.backends.cuda.is_built():
        assert file["backend"] == "off"
        assert "ModuleNotFoundError: import of nvtx halted" in file["reason"]


def test_forks_do_not_touch_the_parents_file(tmp_path: Path) -> None:
    code = """
    import os, sys, torch
    net = torch.nn.Linear(2, 2)
    net(torch.ones(2))
    child = os.fork()
    if child == 0:
        for _ in range(50):
            net(torch.ones(2))
        sys.exit(0)
    os.waitpid(child, 0)
    net(torch.ones(2))
    """
    _, files = compare(tmp_path, [sys.executable, "-c", textwrap.dedent(code)])
    (file,) = files.values()
    assert file["ranges"]["module"] == 2


def test_the_bootstrap_is_cheap(tmp_path: Path) -> None:
    """Median of pairs, in time of the processor: a busy machine makes everything else of a start longer."""

    def start(path: str) -> float:
        env = {**environment(tmp_path), "PYTHONPATH": path}
        begun = subprocess.Popen([sys.executable, "-c", "pass"], env=env)
        _, status, used = os.wait4(begun.pid, 0)
        begun.returncode = os.waitstatus_to_exitcode(status)
        assert begun.returncode == 0
        return used.ru_utime + used.ru_stime

    start(str(INJECT))
    differences = sorted(start(str(INJECT)) - start("") for _ in range(15))
    assert differences[7] < 0.010
