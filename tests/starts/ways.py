# ruff: noqa: E501 - a program in a line of text stays in a line
"""Ways to start a program, to end it and to talk to it, each from a new process."""

from __future__ import annotations

from dataclasses import replace

from tests.starts.cases import Case

TRAIN = """
from lab import *
def main(steps=8):  # without torch.optim, which imports torch._dynamo and so would double the time of each way
    m = net()
    for i in rounds(steps):
        m.zero_grad(); m(x()).sum().backward()
        with torch.no_grad():
            for p in m.parameters(): p -= .1 * p.grad
    weights(m)
"""
OPTIMIZER = """
from lab import *
m = net(); o = optim.SGD(m.parameters(), .1)
for i in rounds(8): o.zero_grad(); m(x()).sum().backward(); o.step()
weights(m)
"""
MAIN = "import sys\nfrom train import *\nmain()\nprint(sys.argv[1:])\n"
#: Enough steps for two windows; longer ones wait for a signal, of a process that is sent it or of --then stop.
MANY = """
import os, signal, sys, time
from lab import *
stop = []
if "handler" in sys.argv: signal.signal(signal.SIGINT, lambda *_: stop.append(1))
m = net(); o = optim.SGD(m.parameters(), .1); n = 0
while not stop and n < (100_000 if "waits" in sys.argv else 200):
    if n == 20: open(os.environ["OWN_STEPS"] + ".ready", "w").write("%d\\n" % os.getpid())
    o.zero_grad(); m(x()).sum().backward(); o.step(); n += 1; time.sleep(.03)
if not stop: own(n)  # how many come before the signal differs
print("handled" if stop else "trained")
"""
SEARCH = """
import time
from lab import *
class Search(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("base", x(50))
    def forward(self, queries): return torch.topk(queries @ self.base.t(), 3, dim=1)
m = Search()
with torch.no_grad():
    for i in rounds(200):
        y, _ = m(x())
        time.sleep(.03)
weights(y)
"""
#: One of the ranks ends before its first step, and all are started anew. Each start has keys of its own in torchrun's store: gloo
#: sometimes connects to ranks that have ended, and waits for good (torch 2.13; scripts/starts --bare).
ANEW = """
import os, time
from lab import *
dist = torch.distributed
rank, start = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, False)
dist.init_process_group("gloo", store=dist.PrefixStore(start, store), rank=rank, world_size=2)
if start == "0" and rank == 1: os._exit(5)
dist.barrier()
m = nn.parallel.DistributedDataParallel(net()); o = optim.SGD(m.parameters(), .1)
for i in range(300): o.zero_grad(); m(x()).sum().backward(); o.step(); time.sleep(.02)
own(300)
if rank == 0: weights(m); print("start", start)
time.sleep(.5); dist.destroy_process_group()
"""
#: Ranks that no launcher has numbered in a way of its own: they find each other in the store of their process group.
RANKS_OF_ITS_OWN = """
import os, sys, time
from lab import *
dist = torch.distributed
def work(rank, size):
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store.tmp"), rank=rank, world_size=size)
    m = nn.parallel.DistributedDataParallel(net()); o = optim.SGD(m.parameters(), .1)
    for i in range(300): o.zero_grad(); m(x()).sum().backward(); o.step(); time.sleep(.02)
    own(300)
    if rank == 0: weights(m)
    dist.barrier(); time.sleep(.5); dist.destroy_process_group()
if __name__ == "__main__":
    if len(sys.argv) > 1: work(int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"]))
    else: torch.multiprocessing.spawn(work, (2,), nprocs=2)
"""
GUARDED = "import sys\nfrom train import *\nif __name__ == '__main__':\n    main()\n"
WORKERS = """
from lab import *
if __name__ == "__main__":
    m = net(); o = optim.SGD(m.parameters(), .1); n = 0
    for epoch in range(2):
        for a, y in loader(24, 4, num_workers=2, {options}): o.zero_grad(); m(a).sum().backward(); o.step(); n += 1
    own(n); weights(m)
"""
#: Only the main process makes steps: what its workers call prepares data.
TRANSFORMS = """
from lab import *
class Scale(nn.Module):
    def forward(self, u): return u / u.norm()
class Data(torch.utils.data.Dataset):
    scale = Scale()
    def __len__(self): return 24
    def __getitem__(self, i): return self.scale(torch.full((8,), i + 1.))
if __name__ == "__main__":
    m = net(); o = optim.SGD(m.parameters(), .1); n = 0
    for batch in torch.utils.data.DataLoader(Data(), 4, num_workers=2, {options}): o.zero_grad(); m(batch).sum().backward(); o.step(); n += 1
    own(n); weights(m)
"""
POOL = """
import multiprocessing
from train import *
def work(k): own(1); return net(8, 4, seed=k)(torch.ones(8)).sum().item().hex()
if __name__ == "__main__":
    {before}
    with multiprocessing.get_context("{context}").Pool(1) as pool:
        print(pool.map(work, range(4)))
        pool.close(); pool.join()  # or its worker may be ended by a signal, before the probe has written its last counts
    main()
"""
SPAWN = """
import sys
import torch.multiprocessing as mp
from train import *
def work(rank, first):
    if rank: first.wait()  # or their lines come in an order of their own each time
    main(4 + rank); sys.stdout.flush(); first.set()
if __name__ == "__main__": mp.spawn(work, (mp.get_context("spawn").Event(),), nprocs=2)
"""
#: Ranks pause before their end: torch waits for gloo's threads with the GIL in its hand, and they may need it (pytorch issue 56297).
RANK = """
import time
from lab import *
torch.distributed.init_process_group("gloo")
m = nn.parallel.DistributedDataParallel(net()); o = optim.SGD(m.parameters(), .1)
for i in rounds(8): o.zero_grad(); m(x()).sum().backward(); o.step()
if torch.distributed.get_rank() == 0: weights(m)
torch.distributed.barrier(); time.sleep(.5); torch.distributed.destroy_process_group()
"""
ENVIRONMENT = """
import os, sys
from train import *
main()
ours = ("NSYSX_", "NVTX_", "QUADD_", "NSYS_", "PYTHONPATH", "OWN_", "LD_PRELOAD", "LD_LIBRARY_PATH", "CUDA_INJECTION", "CUPTI_", "TRACE_START_IMM", "USE_AGENT_API", "__GL_CONSTANT")  # the last five: of nsys
print(sorted((k, v) for k, v in os.environ.items() if not k.startswith(ours)))
print([p for p in sys.path if "inject" not in p.rsplit("/", 1)[-1] and not os.path.isdir(p + "/nsysx")][1:], sys.flags, sys.argv)
"""

RUN = ("{python}", "main.py", "a", "b c")


def _way(name: str, *command: str, program: str = MAIN, **how: object) -> Case:
    files = {"train.py": TRAIN, **(how.pop("files", None) or {})}  # type: ignore[dict-item]
    return Case(f"ways: {name}", program, command or RUN, files=files, **how)  # type: ignore[arg-type]


#: As opentelemetry-instrument: its folder comes first in PYTHONPATH, and its sitecustomize does not run the next one.
LAUNCHER = """
import os, shutil, subprocess, sys
paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
if os.getcwd() not in paths: paths.insert(0, os.getcwd())
path = os.pathsep.join([os.path.abspath("auto"), *paths])
program = shutil.which(sys.argv[1])
"""
INSTRUMENTED = {"auto/sitecustomize.py": "import sys; sys.stderr.write('instrumented\\n')\n"}


def _launched(how: str) -> dict[str, str]:
    return {"launch.py": LAUNCHER + how, **INSTRUMENTED}


def _starts() -> list[Case]:
    launch = ("{python}", "launch.py", "{python}", "main.py", "a")
    shell = {"go now.sh": 'cd "$(dirname "$0")" && exec "$PYTHON" main.py a "b c"\n'}
    return [
        _way("script"),
        _way("script with an optimizer", program=OPTIMIZER),
        _way("module", "{python}", "-m", "main", "a"),
        _way("command", "{python}", "-c", "import main"),
        _way("standard input", "{python}", "-", "a", stdin=MAIN),
        _way("standard input of the program", program=MAIN + "print(sys.stdin.read())\n", stdin="one\ntwo\n"),
        _way("shell", "bash", "go now.sh", files=shell),
        _way("shell with a pipe", "bash", "-c", "set -o pipefail; $PYTHON main.py | sort -r"),
        _way("in the background", "bash", "-c", "$PYTHON main.py & wait $!; echo $?"),
        _way("another name", "bash", "-c", "exec -a trainer $PYTHON main.py"),
        _way("shebang", "bash", "-c", '(echo "#!$PYTHON"; cat main.py) > run; chmod +x run; ./run a; rm run'),
        _way("env", "env", "-u", "HOME", "{python}", "main.py"),
        _way("timeout", "timeout", "100", "{python}", "main.py"),
        _way("nice", "nice", "-n", "1", "{python}", "main.py"),
        _way("optimized", "{python}", "-O", "-u", "-B", "main.py"),
        _way("warnings as errors", "{python}", "-W", "error", "-c", "import warnings; import main"),
        _way("development mode", "{python}", "-X", "dev", "-W", "ignore", "main.py"),
        _way("import times", "bash", "-c", "$PYTHON -X importtime main.py 2>/dev/null"),
        _way("isolated", "{python}", "-I", "-c", "import sys; sys.path.insert(0, '.'); import main", told=(0, "-I ignores PYTHONPATH")),
        _way("without environment", "{python}", "-E", "main.py", told=(0, "-E ignores PYTHONPATH")),
        _way("without site", "{python}", "-S", "-c", "import sys; sys.path += {packages}; import main", told=(0, "-S runs no sitecustomize")),
        _way("folder", "{python}", "app", files={"app/__main__.py": "import sys; sys.path.insert(0, '.')\n" + MAIN}),
        _way("zip", "{python}", "-c", "import os, zipapp, subprocess, sys; zipapp.create_archive('app', 'app.pyz'); code = subprocess.call([sys.executable, 'app.pyz']); os.remove('app.pyz'); sys.exit(code)",
             files={"app/__main__.py": "import sys; sys.path.insert(0, '.')\n" + MAIN}, program="", varies=()),
        _way("runpy", program="import runpy, sys; runpy.run_path('inner.py', run_name='__main__')", files={"inner.py": MAIN}),
        _way("exec of text as in a notebook", program="space = {'__name__': '__main__'}\nfor cell in open('inner.py').read().splitlines(True): exec(compile(cell, '<cell>', 'exec'), space)\n", files={"inner.py": MAIN}),
        _way("subprocess", program="import subprocess, sys; sys.exit(subprocess.call([sys.executable, 'inner.py']))", files={"inner.py": MAIN}),
        _way("replaced by another program", program="import os, sys, torch; os.execv(sys.executable, [sys.executable, 'inner.py'])", files={"inner.py": MAIN}),
        _way("environment", program=ENVIRONMENT, env={"MINE": "1"}),
        _way("sitecustomize of the user", program=MAIN + "import sitecustomize; print(sitecustomize.mine, sitecustomize.__file__[-20:])\n", files={"sitecustomize.py": "import sys; mine = 1; '--no-report' in sys.orig_argv or sys.stderr.write('mine\\n')\n"}),  # nsysx is a Python, too
        _way("launcher with its own sitecustomize", *launch, files=_launched("os.environ['PYTHONPATH'] = path; os.execl(program, program, *sys.argv[2:])\n")),
        _way("launcher with its own sitecustomize that waits", *launch, files=_launched("sys.exit(subprocess.call(sys.argv[1:], env={**os.environ, 'PYTHONPATH': path}))\n")),
        _way("launcher of a command with its own sitecustomize", "{python}", "launch.py", "bash", "-c", "$PYTHON main.py; echo $?", files=_launched("os.environ['PYTHONPATH'] = path; os.execvp(program, sys.argv[1:])\n")),
        _way("usercustomize and a startup file", env={"PYTHONSTARTUP": "none.py", "PYTHONUNBUFFERED": "1"}),
    ]  # fmt: skip


def _trees() -> list[Case]:
    """Commands whose process that makes steps is not the one that nsysx starts, with enough steps for two windows."""
    run = ("{python}", "main.py")
    wrappers = {
        "env and timeout": ("env", "A=1", "timeout", "300", *run), "nohup": ("nohup", *run), "stdbuf": ("stdbuf", "-oL", *run),
        "taskset": ("taskset", "-c", "0", *run), "setsid": ("setsid", "-w", *run), "time": ("bash", "-c", "time -p $PYTHON main.py"),
        "script of bash": ("bash", "train.sh"), "coverage run": ("{python}", "-m", "coverage", "run", "--data-file=coverage.tmp", "main.py"),
        "uv run": ("{python}", "-m", "uv", "run", "--no-project", "--python", *run),
    }  # fmt: skip
    needs = {"coverage run": "coverage", "uv run": "uv"}
    seconds = ((r"(real|user|sys) [\d.]+", "N s"),)
    trees = [
        _way(f"two windows by {name}", *words, program=MANY, files={"train.sh": "$PYTHON main.py\n"}, varies=seconds, slow=True, windows=True, needs=needs.get(name, ""))
        for name, words in wrappers.items()
    ]  # fmt: skip
    stopped = "$PYTHON main.py waits 2> /dev/null; echo after $?"
    torchrun = "$PYTHON -m torch.distributed.run --standalone --max-restarts 1 --nproc_per_node 2 main.py 2> /dev/null"
    started = "export SLURM_NTASKS=2; SLURM_PROCID=1 $PYTHON main.py rank & SLURM_PROCID=0 $PYTHON main.py rank; wait"
    return [
        *trees,
        _way("two windows of a search", *run, program=SEARCH, slow=True, windows=True),
        _way("ranks that the program spawns", *run, program=RANKS_OF_ITS_OWN, slow=True, windows=True),
        _way("ranks that something else starts", "bash", "-c", started, program=RANKS_OF_ITS_OWN, slow=True, windows=True),
        _way("then stop of a shell's program", "bash", "-c", stopped, program=MANY, options=("--then", "stop"), signal=2, slow=True, ends=False),
        _way("a handler's interrupt in the background", *run, "waits", "handler", program=MANY, signal=2, background=True, slow=True),
        _way("ranks that are started anew", "bash", "-c", torchrun, program=ANEW, slow=True, windows=True, ends=False),
    ]  # fmt: skip


def _odd_environments() -> list[Case]:
    ascii = {"LC_ALL": "C", "PYTHONUTF8": "0"}
    return [
        _way("steps that need CUDA", options=("--steps", "auto"), slow=True),
        _way("non-ASCII script in the C locale", "{python}", "tränen.py", files={"tränen.py": MAIN}, env=ascii),
        _way("typer of the user", files={"typer.py": "raise ImportError('the user has a typer.py')\n"}),
        _way("relative folder for temporary files", env={"TMPDIR": "."}),
        _way("inspected", env={"PYTHONINSPECT": "1"}),
    ]  # fmt: skip


def _imports() -> list[Case]:
    lazy = "import importlib.util, sys\ns = importlib.util.find_spec('torch'); l = importlib.util.LazyLoader(s.loader); s.loader = l\nm = importlib.util.module_from_spec(s); sys.modules['torch'] = m; l.exec_module(m); m.nn\n"
    own = {"json.py": "raise ImportError('the user has a json.py')\n"}
    return [
        _way("find_spec first", program="import importlib.util\nprint(importlib.util.find_spec('torch') is not None)\n" + MAIN),
        _way("find_spec of a part first", program="import importlib.util\nprint(importlib.util.find_spec('torch.nn') is not None)\n" + MAIN),
        _way("pkgutil first", program="import pkgutil\nprint(pkgutil.find_loader('torch') is not None if hasattr(pkgutil, 'find_loader') else pkgutil.resolve_name('torch').__name__)\n" + MAIN, env={"PYTHONWARNINGS": "ignore"}),
        _way("metadata first", program="import importlib.metadata\nprint(importlib.metadata.version('torch'))\n" + MAIN),
        _way("lazy", program=lazy + MAIN),
        _way("in a thread", program="import threading\nt = threading.Thread(target=__import__, args=('torch',)); t.start(); t.join()\n" + MAIN),
        _way("failed first", program="import sys\nsys.modules['torch'] = None\ntry: import torch\nexcept ImportError as e: print(e)\ndel sys.modules['torch']\n" + MAIN),
        _way("transformers first", program="from transformers import Trainer\n" + MAIN, needs="transformers", slow=True),
        _way("accelerate first", program="from accelerate import Accelerator\n" + MAIN, needs="accelerate", slow=True),
        _way("lightning first", program="import lightning\n" + MAIN, needs="lightning", slow=True),
        _way("nvtx of the user", program="import nvtx\nprint(nvtx.mine)\n" + MAIN, files={"nvtx.py": "mine = 1\n"}),
        _way("typing of the user beside a part", program=MAIN + "import ranges, names\nprint(ranges.mine, names.mine)\n", files={"ranges.py": "mine = 1\n", "names.py": "mine = 2\n"}),
        _way("steps of the user", program="import probe, steps\nprint(probe.mine, steps.mine)\n" + MAIN, files={"probe.py": "mine = 1\n", "steps.py": "mine = 2\n"}),
        _way("json of the user", "{python}", "-c", "import main", files=own, program="try:\n    import json\nexcept ImportError as e:\n    print(e)\n", told=(0, "no torch is imported")),
        _way("no torch", program="print('hello')\n", told=(0, "no torch is imported")),
        _way("torch that cannot be imported", program="import torch\n", files={"torch/__init__.py": "def broken():\n    raise OSError('libnothing.so')\nbroken()\n"}, told=(0, "torch is broken")),
    ]  # fmt: skip


def _processes() -> list[Case]:
    pools = [
        _way(f"pool by {context}{' after torch' if before else ''}",
             program=POOL.format(context=context, before=before), slow=context != "fork", told=None if context == "spawn" else (8, "children that are forked are not recorded"))
        for context, before in (("fork", ""), ("fork", "main(0)"), ("spawn", ""), ("forkserver", ""))
    ]  # fmt: skip
    return [
        *pools,
        _way("loader workers", program=WORKERS.format(options="")),
        _way("loader workers that persist", program=WORKERS.format(options="persistent_workers=True, prefetch_factor=3")),
        _way("loader workers by spawn", program=WORKERS.format(options="multiprocessing_context='spawn'"), slow=True),
        _way("transforms in loader workers", program=TRANSFORMS.format(options="")),
        _way("transforms in loader workers by spawn", program=TRANSFORMS.format(options="multiprocessing_context='spawn'"), slow=True),
        _way("spawned ranks", program=SPAWN, slow=True),
        _way("torchrun", "{python}", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "main.py", program=RANK, slow=True, env={"OMP_NUM_THREADS": "1"}),
        _way("accelerate launch", "{python}", "-m", "accelerate.commands.launch", "--cpu", "--num_processes=1", "main.py", program=MAIN, slow=True, needs="accelerate", varies=((r"(?s)The following values were not passed.*?--config_file`?\.?\n?", ""),)),
        _way("unittest", "{python}", "-m", "unittest", "-q", "main", program="import unittest\nfrom train import *\nclass T(unittest.TestCase):\n    def test(self): main()\n    def test_fails(self): self.assertEqual(net()(x()).shape, (4, 5))\n", varies=((r"in [\d.]+s", "in Ns"),), told=(8, "the one call of the failing test is no step")),
        _way("pytest", "{python}", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "main.py", program="from train import *\ndef test(): main()\ndef test_fails(): assert net()(torch.ones(4, 8)).shape == (4, 5)\n", varies=((r"in [\d.]+s", "in Ns"),), told=(8, "the one call of the failing test is no step")),
        _way("fork and exit", program="import os, sys\nfrom train import *\nmain()\nsys.stdout.flush()\nif os.fork() == 0: print('child'); sys.stdout.flush(); os._exit(3)\nprint(os.wait()[1])\n"),
        _way("fork and train", program="import os, sys\nfrom train import *\nmain()\nsys.stdout.flush()\nif os.fork() == 0: main(); sys.exit(3)\nprint(os.wait()[1])\n", told=(8, "a forked child is not recorded")),
    ]  # fmt: skip


def _endings() -> list[Case]:
    end = {
        "exit 3": ("sys.exit(3)", True), "exit with a text": ("sys.exit('that is all')", True), "exit None": ("sys.exit(None)", True),
        "exit at once": ("sys.stdout.flush(); os._exit(5)", False), "abort": ("sys.stdout.flush(); os.abort()", False),
        "killed": ("sys.stdout.flush(); os.kill(os.getpid(), 9)", False), "ended": ("sys.stdout.flush(); os.kill(os.getpid(), 15)", False),
        "hang-up": ("sys.stdout.flush(); os.kill(os.getpid(), 1)", False), "segmentation fault": ("sys.stdout.flush(); import ctypes; ctypes.string_at(0)", False),
        "broken pipe": ("import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL); sys.stdout.flush(); os.kill(os.getpid(), 13)", False),
        "interrupt": ("raise KeyboardInterrupt", True), "interrupt by a signal": ("os.kill(os.getpid(), 2)", True),
        "exception": ("raise ValueError('ä')", True), "exception without a class of Exception": ("class Stop(BaseException): pass\nraise Stop('now')", True),
        "exception at exit": ("import atexit; atexit.register(lambda: 1 / 0)", True), "exception in a thread": ("import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()", True),
        "exception hook": ("sys.excepthook = lambda *a: print('hook', a[1])\nraise ValueError(1)", True), "atexit that trains": ("import atexit; atexit.register(print, 'the end')", True),
        "handler that ends": ("import signal\ndef h(*a): print('handled'); sys.exit(7)\nsignal.signal(15, h); os.kill(os.getpid(), 15)", True),
        "handler at an alarm": ("import signal\nclass Late(Exception): pass\ndef h(*a): raise Late\nsignal.signal(signal.SIGALRM, h); signal.setitimer(signal.ITIMER_REAL, .2)\ntry:\n    while True: net()(x())\nexcept Late: print('late')", True),
        "faulthandler": ("import faulthandler; faulthandler.enable(); sys.stdout.flush(); os.abort()", False), "recursion": ("def f(): f()\nf()", True),
        "non-daemonic thread": ("import threading, time; threading.Thread(target=lambda: (time.sleep(.2), print('thread'))).start()", True),
        "daemonic thread": ("import threading, time; threading.Thread(target=lambda: time.sleep(60), daemon=True).start()", True),
        "closed output": ("sys.stdout.flush(); sys.stdout.close()", True), "closed descriptors": ("sys.stdout.flush(); os.closerange(3, 100)", True),
    }  # fmt: skip
    hidden = (
        # A dump of all threads shows the one that looks for the limit, as documented (nsysx/docs/recording.md).
        (r"Thread 0x[^\n]*\n  File \"[^\n]*at_limit\.py\", line \d+ in _watch\n\n", ""),
        (r"Thread 0x[0-9a-f]+|0x[0-9a-f]{6,}|Current thread \S+", "ADDRESS"),
        (r"\(pid[ =]\d+\)|Process \d+|Thread-\d+", "NUMBER"),
    )
    calls = (0, "a call that an alarm ends is one of many")
    endings = [
        _way(
            f"ends by {name}",
            program="import os, sys\nfrom train import *\nmain()\n" + text + "\n",
            ends=ends,
            varies=hidden,
        )
        for name, (text, ends) in end.items()
    ]
    hang = "the library that nsys loads waits for ever for a connection that the program has closed"
    changed = {"alarm": {"told": (8, calls[1]), "struck": True}, "closed descriptors": {"not_under_nsys": hang}}
    return [replace(c, **next((how for word, how in changed.items() if word in c.name), {})) for c in endings]


def _talk() -> list[Case]:
    return [
        _way("binary output", program=MAIN + "sys.stdout.flush(); sys.stdout.buffer.write(bytes(range(256))); sys.stderr.buffer.write(bytes(range(256)) + b'\\n')\n"),
        _way("large output", program=MAIN + "for i in range(20000): print(i, 'x' * 80)\n"),
        _way("large error output", program=MAIN + "for i in range(20000): print(i, 'x' * 80, file=sys.stderr)\n"),
        _way("terminal", program=MAIN + "import os; print(sys.stdout.isatty(), sys.stdin.isatty(), os.get_terminal_size())\n", terminal=True),
        _way("no terminal", program=MAIN + "print(sys.stdout.isatty(), sys.stdout.line_buffering, sys.stdout.encoding)\n"),
        _way("output without newline", program=MAIN + "sys.stdout.write('no newline')\n"),
        _way("files", program=MAIN + "m = net(); torch.save(m.state_dict(), 'w.pt'); open('log.txt', 'w').write('x'); import os; os.makedirs('a/b'); os.symlink('log.txt', 'link')\n"),
        _way("deleted folder", program="import os, shutil\nfrom train import *\nd = os.getcwd() + '/gone'; os.mkdir(d); os.chdir(d); os.rmdir(d)\nmain()\n"),
        _way("another folder", program="import os\nos.chdir('/')\n" + MAIN),
        _way("umask and limits", program=MAIN + "import os, resource; print(os.umask(0), [resource.getrlimit(r) for r in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_STACK)])\n"),
        _way("signals", program=MAIN + "import signal; print([(s.name, str(signal.getsignal(s))) for s in signal.valid_signals() if isinstance(s, signal.Signals)], signal.pthread_sigmask(signal.SIG_BLOCK, []))\n", varies=((r"0x[0-9a-f]+", "ADDRESS"),)),
        _way("threads", program=MAIN + "import threading, os; print(threading.active_count(), threading.enumerate()[0].name)\n"),
        _way("warnings", program=MAIN + "import warnings; warnings.warn('shown'); print(warnings.filters[:3] == warnings.filters[:3])\n"),
        _way("locale", env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONHASHSEED": "5"}, program=MAIN + "print(hash('a'), sys.getfilesystemencoding())\n"),
    ]  # fmt: skip


def cases() -> list[Case]:
    """Return all of them."""
    return [*_starts(), *_trees(), *_odd_environments(), *_imports(), *_processes(), *_endings(), *_talk()]
