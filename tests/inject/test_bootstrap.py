"""Ways to come to torch: asked for before it is imported, loaded by hand, lazily, in a thread, at the second try.

Each runs in a process of its own, bare and with the probe, and says in its probe file that every step was found.
"""

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.inject.test_probe_e2e import INJECT, compare
from tests.light_torch import WITHOUT_META

STEPS = f"""
{WITHOUT_META}torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(5):
    optimizer.zero_grad()
    loss = net(torch.ones(2, 4)).sum()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
print(sorted(vars(torch.__loader__)), [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path])
"""
WAYS = {
    "asked before, copied and pickled": """
import copy, importlib.util, pickle
a, b = importlib.util.find_spec("torch"), importlib.util.find_spec("torch")
print(a == b, type(a.loader).__name__)
print(copy.deepcopy(a).loader == a.loader, pickle.loads(pickle.dumps(a.loader)) == a.loader)
import torch
""",
    "asked by pkgutil, reloaded later": """
import pkgutil
print(next(m.name for m in pkgutil.iter_modules() if m.name == "torch"))
print(type(pkgutil.resolve_name("importlib.util").find_spec("torch").loader).__name__)
import importlib
torch = importlib.import_module("torch")
import torch.version
importlib.reload(torch.version)
""",
    "loaded by hand": """
import importlib.util
spec = importlib.util.find_spec("torch")
importlib.util.find_spec("torch")
torch = sys.modules["torch"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(torch)
""",
    "lazily": """
import importlib.util
spec = importlib.util.find_spec("torch")
spec.loader = importlib.util.LazyLoader(spec.loader)
torch = sys.modules["torch"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(torch)
import json, wave
print("nn" in object.__getattribute__(torch, "__dict__"))
torch.nn
""",
    "in a thread": """
import threading
thread = threading.Thread(target=__import__, args=("torch",))
thread.start(); thread.join()
import torch
""",
    "at the second try": """
sys.modules["torch._utils_internal"] = None  # before anything of C++ is loaded
try:
    import torch
except ImportError as error:
    print(type(error).__name__)
for name in [n for n in sys.modules if n.partition(".")[0] == "torch"]:
    del sys.modules[name]
import torch
""",
    "past the finder": """
from importlib.machinery import PathFinder
class Mine:
    def find_spec(self, name, path=None, target=None):
        return PathFinder.find_spec(name, path, target) if name == "torch" else None
sys.meta_path.insert(0, Mine())
import torch
sys.meta_path.pop(0)
import wave
""",
}


def lazy_modules_may_delete(folder: Path) -> bool:
    """Return whether a module that this Python loads lazily may delete a name of its own, as torch does: from 3.13 on it recurses."""
    (folder / "deletes.py").write_text("import sys\nname = 1\ndelattr(sys.modules[__name__], 'name')\n")
    spec = importlib.util.spec_from_file_location("deletes", folder / "deletes.py")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        sys.modules["deletes"] = module
        return not hasattr(module, "name")
    except RecursionError:
        return False
    finally:
        del sys.modules["deletes"]


def steps_of(files: dict[int, Any]) -> tuple[int, int, list[str]]:
    """Return steps, module ranges and errors of the one process of a program."""
    (file,) = files.values()
    return file["ranges"]["step"], file["ranges"]["module"], file["errors"]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_torch_arms_the_probe(tmp_path: Path, way: str) -> None:
    if way == "lazily" and not lazy_modules_may_delete(tmp_path):
        pytest.skip("without the probe, too, torch cannot be loaded lazily by this Python")
    (tmp_path / "program.py").write_text(f"import sys\n{WAYS[way]}\n{STEPS}")
    _, files = compare(tmp_path, [sys.executable, "program.py"])
    assert steps_of(files) == (5, 15, [])


def test_a_program_that_only_asks_says_that_torch_was_not_imported(tmp_path: Path) -> None:
    code = "import importlib.util as u; print(u.find_spec('torch').name, u.find_spec('there_is_no_torch'))"
    _, files = compare(tmp_path, [sys.executable, "-c", code])
    assert [f["reason"] for f in files.values()] == ["torch was not imported"]


OWN_MODULES = (
    "ast", "atexit", "contextlib", "copy", "heapq", "inspect", "json", "nvtx", "output", "probe", "ranges", "statistics",
    "steps", "textwrap", "timing", "weakref",
)  # fmt: skip


def test_the_programs_modules_of_the_same_names_are_its_own(tmp_path: Path) -> None:
    """Neither run nor replaced by the probe: what it imports late, and what the program imports after it, is each one's own."""
    for name in OWN_MODULES:
        (tmp_path / f"{name}.py").write_text(f"print('mine', __name__)\nmine = {name!r}\n")
    imports = "\n".join(f"import {n}; print(getattr({n}, 'mine', None))" for n in OWN_MODULES)
    late = "import sys; here = sys.path.pop(0); import torch; sys.path.insert(0, here)\n"
    (tmp_path / "program.py").write_text(f"{late}{STEPS}\n{imports}\n")
    done, files = compare(tmp_path, [sys.executable, "program.py"], PYTHONPATH=str(tmp_path / "nowhere"))
    assert done.stdout.count("mine nvtx") == 1
    assert steps_of(files) == (5, 15, [])
    assert next(iter(files.values()))["backend"].startswith("nvtx")
    shutil.rmtree(tmp_path / "probe")
    # From the start: what torch does not import before the probe comes.
    for name in ("json", "heapq", "contextlib", "copy", "inspect", "ast", "textwrap", "atexit", "weakref"):
        (tmp_path / f"{name}.py").unlink()
    rest = "\n".join(f"import {n}; print({n}.mine)" for n in ("nvtx", "output", "probe", "statistics", "steps"))
    (tmp_path / "program.py").write_text(f"import sys, torch\n{STEPS}\n{rest}\n")
    done, files = compare(tmp_path, [sys.executable, "program.py"], PYTHONPATH=str(tmp_path / "nowhere"))
    assert done.stdout.count("mine statistics") == 1
    assert steps_of(files) == (5, 15, [])


def test_a_private_copy_is_taken_where_the_program_has_its_own_first(tmp_path: Path) -> None:
    """The program's json is loaded before the probe's parts are: they use Python's, and sys.modules stays as it was."""
    (tmp_path / "json.py").write_text("mine = 1\n")
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(INJECT)!r}]; import json\n"
        "from nsysx_probe import import_places\n"
        "out = import_places.load('output'); print(out.json.dumps([1]), json.mine, sys.modules['json'] is json)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.stdout, done.stderr) == ("[1] 1 True\n", "")


def test_a_sitecustomize_that_runs_the_next_one_is_run_once(tmp_path: Path) -> None:
    """Some tools' own sitecustomize looks for the next on the path, and finds ours: nothing runs twice."""
    (tmp_path / "tool").mkdir()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('own')\n")
    (tmp_path / "tool" / "sitecustomize.py").write_text(
        "import os, sys\nprint('tool')\nhere = os.path.dirname(__file__)\npath = sys.path[:]\n"
        "sys.path[:] = [p for p in path if p != here]\ndel sys.modules['sitecustomize']\n"
        "import sitecustomize\nsys.path[:] = path\n"
    )
    path = f"{tmp_path / 'tool'}:{tmp_path / 'own'}"
    code = "import sys; print([getattr(f, '__name__', type(f).__name__) for f in sys.meta_path][-3:])"
    done, _ = compare(tmp_path, [sys.executable, "-c", code], PYTHONPATH=path)
    assert done.stdout.startswith("tool\nown\n[")


@pytest.mark.parametrize("path", sorted(INJECT.rglob("*.py")), ids=lambda path: path.stem)
def test_the_probe_is_written_for_python_39(path: Path) -> None:
    """It runs in the program's Python. ``zip`` takes no ``strict`` there: the cores that a program may use were never known."""
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
    zips = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "zip"]
    assert not any(node.keywords for node in zips)
