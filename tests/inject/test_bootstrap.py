"""Ways to come to torch: asked for before it is imported, loaded by hand, lazily, in a thread, at the second try.

Each runs in a process of its own, bare and with the probe, and says in its probe file that every step was found.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.inject.test_probe_e2e import compare

STEPS = """
torch.manual_seed(0)
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
    "asked before": """
import importlib.util
a, b = importlib.util.find_spec("torch"), importlib.util.find_spec("torch")
print(a == b, type(a.loader).__name__)
import torch
""",
    "asked by pkgutil": """
import pkgutil
print(next(m.name for m in pkgutil.iter_modules() if m.name == "torch"))
print(type(pkgutil.resolve_name("importlib.util").find_spec("torch").loader).__name__)
import importlib
torch = importlib.import_module("torch")
""",
    "loaded by hand": """
import importlib.util
spec = importlib.util.find_spec("torch")
importlib.util.find_spec("torch")
torch = sys.modules["torch"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(torch)
""",
    "copied and pickled": """
import copy, importlib.util, pickle
spec = importlib.util.find_spec("torch")
print(copy.deepcopy(spec).loader == spec.loader, pickle.loads(pickle.dumps(spec.loader)) == spec.loader)
import torch
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
    "reloaded later": """
import importlib, importlib.util
importlib.util.find_spec("torch")
import torch
import torch.version
importlib.reload(torch.version)
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


def steps_of(files: dict[int, Any]) -> tuple[int, int, list[str]]:
    """Return steps, module ranges and errors of the one process of a program."""
    (file,) = files.values()
    return file["ranges"]["step"], file["ranges"]["module"], file["errors"]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_torch_arms_the_probe(tmp_path: Path, way: str) -> None:
    (tmp_path / "program.py").write_text(f"import sys\n{WAYS[way]}\n{STEPS}")
    _, files = compare(tmp_path, [sys.executable, "program.py"])
    assert steps_of(files) == (5, 15, [])


def test_a_program_that_only_asks_says_that_torch_was_not_imported(tmp_path: Path) -> None:
    code = "import importlib.util as u; print(u.find_spec('torch').name, u.find_spec('there_is_no_torch'))"
    _, files = compare(tmp_path, [sys.executable, "-c", code])
    assert [f["reason"] for f in files.values()] == ["torch was not imported"]
