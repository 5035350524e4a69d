"""Launchers that put their own sitecustomize first, as ``opentelemetry-instrument`` does: the probe starts in the program nevertheless."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.inject.test_probe_e2e import INJECT, compare, environment

#: What a launcher does first: its folder comes first in PYTHONPATH, and its sitecustomize runs no other.
LAUNCHER = """
import os, subprocess, sys
here = os.path.abspath("auto")
program = [sys.executable, "program.py"]
first = here + os.pathsep + os.environ.get("PYTHONPATH", "")
"""
IN_ENVIRON = "os.environ['PYTHONPATH'] = first\nassert os.environ['PYTHONPATH'] == first\n"
GIVEN = "env = {**os.environ, 'PYTHONPATH': first}\nsys.stdout.flush()\n"
WAIT = "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
WAYS = {
    "execl": IN_ENVIRON + "os.execl(program[0], *program)",
    "execvp": IN_ENVIRON + "os.execvp(program[0], program)",
    "put": "os.putenv('PYTHONPATH', first)\nos.execv(program[0], program)",
    "call": IN_ENVIRON + "sys.exit(subprocess.call(program))",
    "system": IN_ENVIRON + "sys.exit(os.waitstatus_to_exitcode(os.system(' '.join(program))))",
    "multiprocessing": IN_ENVIRON + "import multiprocessing as m\nif __name__ == '__main__':\n"
    "    p = m.get_context('spawn').Process(target=print)\n    p.start(); p.join()\n"
    "    sys.exit(subprocess.call(program))",
    "execve": GIVEN + "os.execve(program[0], program, env)",
    "execle": GIVEN + "os.execle(program[0], *program, env)",
    "call with an environment": GIVEN + "sys.exit(subprocess.call(program, env=env))",
    "call that keeps descriptors": GIVEN + "sys.exit(subprocess.call(program, env=env, close_fds=False))",
    "posix_spawn": GIVEN + "pid = os.posix_spawn(program[0], program, env)\n" + WAIT,
    "posix_spawnp of environ": IN_ENVIRON + "pid = os.posix_spawnp(program[0], program, os.environ)\n" + WAIT,
    "spawnve": GIVEN + "sys.exit(os.spawnve(os.P_WAIT, program[0], program, env))",
}
PROGRAM = "import sys, sitecustomize\nprint('program', sys.instrumented, sitecustomize.__file__)\nsys.exit(3)\n"


@pytest.mark.parametrize("way", WAYS)
def test_the_probe_starts_behind_a_launcher(tmp_path: Path, way: str) -> None:
    (tmp_path / "auto").mkdir()
    (tmp_path / "auto" / "sitecustomize.py").write_text("import sys\nsys.instrumented = True\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "launch.py").write_text(LAUNCHER + WAYS[way])
    asked = "import nsysx_probe.bootstrap, sys; sys.stderr.write('probe')"
    done, _ = compare(tmp_path, [sys.executable, "launch.py"])
    assert done.returncode == 3
    (tmp_path / "program.py").write_text(PROGRAM.replace("sys.exit", f"exec({asked!r}); sys.exit"))
    probed = subprocess.run(
        [sys.executable, "launch.py"],
        cwd=tmp_path, env=environment(tmp_path, NSYSX_FORCE="1"), text=True, capture_output=True, timeout=600,
    )  # fmt: skip
    assert (probed.returncode, probed.stderr) == (3, "probe"), probed.stderr
    assert probed.stdout == done.stdout


def test_who_passes_nothing_on_or_has_ours_in_front_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "auto").mkdir()
    (tmp_path / "plain").mkdir()
    code = (
        "import os\nfrom nsysx_probe import ahead\n"
        "for path in ('', 'plain', 'plain:OURS', 'OURS:auto', 'auto', 'auto:OURS:x', ':OURS'):\n"
        "    print(ahead.ahead(path.replace('OURS', ahead._HERE)).replace(ahead._HERE, 'OURS'))\n"
        "ahead.start()\n"
        "for wrong in (lambda: os.putenv('a'), lambda: os.execve('a'), lambda: os.putenv('a\\0', 'b'),\n"
        "              lambda: os.execve('/none', ['a'], {}), lambda: os.posix_spawn('/none', ['a'], {1: 2})):\n"
        "    try: wrong()\n"
        "    except Exception as error: print(type(error).__name__)\n"
    )
    (tmp_path / "auto" / "sitecustomize.py").touch()
    (tmp_path / "plain" / "other.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(tmp_path), text=True, capture_output=True
    )
    lines = done.stdout.splitlines()
    assert lines[:7] == ["", "plain", "plain:OURS", "OURS:auto", "auto", "OURS:auto:x", ":OURS"], done.stderr
    assert lines[7:] == ["TypeError", "TypeError", "ValueError", "FileNotFoundError", "TypeError"]


LOOKS = """
import copy, os, pickle, subprocess
def look():
    import _posixsubprocess
    mine = [os.putenv, os.execve, os.posix_spawn, os.posix_spawnp, _posixsubprocess.fork_exec]
    print([repr(f) for f in mine], [f.__name__ for f in mine], os.execve in os.supports_fd, copy.deepcopy(os.execve) == os.execve)
    print(pickle.loads(pickle.dumps(os.execve)) == os.execve, os.putenv.__doc__[:20], len({*mine}))
    return {type(f).__name__ for f in [*mine, subprocess._fork_exec if hasattr(subprocess, "_fork_exec") else mine[-1]]}
before = look()
"""


def test_functions_look_as_pythons_own_and_are_once_torch_is_there(tmp_path: Path) -> None:
    (tmp_path / "torch.py").touch()
    (tmp_path / "a.py").write_text(LOOKS)
    done, _ = compare(tmp_path, [sys.executable, "-c", "import sys, os; sys.path.insert(0, os.getcwd()); import a"])
    assert "execve" in done.stdout
    (tmp_path / "a.py").write_text(LOOKS + "import torch\nprint(before, look())\n")
    env = environment(tmp_path, NSYSX_FORCE="1") | {"PYTHONPATH": f"{INJECT}{os.pathsep}{tmp_path}"}
    probed = subprocess.run([sys.executable, "a.py"], cwd=tmp_path, env=env, text=True, capture_output=True)
    assert probed.stdout.splitlines()[-1] == "{'_Passes'} {'builtin_function_or_method'}", probed.stderr
