"""Imports torch once, then forks a process for each program that is asked for, with or without the probe.

Reads one JSON object a line from the file descriptor that it is told: folder, environment, sitecustomize ("" for a bare run),
outputs, seconds. Answers with the wait status and the maximum of resident memory. The program then runs as the main module of the
fork.
"""

import atexit
import json
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch._dynamo  # every optimizer imports it at its first step, which takes longer than all else

torch.set_num_threads(1)


def wait(pid, seconds):
    """Wait for the child and return its status; it is killed when its time is over."""
    until = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def become(task):
    """Be the process that the task describes, up to its first line."""
    os.chdir(task["folder"])
    os.environ.clear()
    os.environ.update(task["environment"])
    for number, path in enumerate(("/dev/null", task["out"], task["err"])):
        file = os.open(path, os.O_RDONLY if not number else os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    os.closerange(3, 64)
    sys.argv[:] = ["main.py"]
    sys.path[0] = task["folder"]


commands, answers = (os.fdopen(int(number), mode) for number, mode in zip(sys.argv[1:], "rw", strict=True))
for line in commands:
    task = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    answers.write(f"{wait(child, task['seconds'])}\n")
    answers.flush()
else:
    os._exit(0)
del child, line
become(task)
if task["sitecustomize"]:
    sys.path.insert(0, str(Path(task["sitecustomize"]).parent))
    runpy.run_path(task["sitecustomize"])
    del sys.path[0]
del task, commands, answers
code = 0
try:
    runpy.run_path("main.py", run_name="__main__")
except SystemExit as end:
    code = end.code if isinstance(end.code, int) else int(end.code is not None)
except BaseException:
    sys.excepthook(*sys.exc_info())
    code = 1
# What Python does at its end, but for taking all of torch to pieces, which takes ten times as long as most of the programs.
threading._shutdown()
atexit._run_exitfuncs()
sys.stdout.flush()
os._exit(code)
