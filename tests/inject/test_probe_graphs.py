"""A replayed CUDA graph calls no module and no optimizer, and still each replay is a step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

INJECT = Path(__file__).parents[2] / "nsysx" / "inject"

PROGRAM = """
import torch
base = torch.cuda.CUDAGraph.__mro__[1]  # torch without CUDA has a stand-in there, of which none can be made
for name in ("capture_begin", "capture_end", "replay"):
    setattr(base, name, lambda self, **more: None)
graph = (base if torch.version.cuda else object).__new__(torch.cuda.CUDAGraph)
graph._tracker = None
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    optimizer.zero_grad()
    model(torch.ones(3, 2)).sum().backward()
    if OPTIMIZER_INSIDE:
        optimizer.step()

for _ in range(2):
    train()
    optimizer.step()
graph.capture_begin()
train()
graph.capture_end()
for _ in range(5):
    graph.replay()
    if not OPTIMIZER_INSIDE:
        optimizer.step()
"""


@pytest.mark.parametrize("inside", [True, False])
def test_each_replay_is_a_step(tmp_path: Path, inside: bool) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("OPTIMIZER_INSIDE", str(inside)))
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(INJECT), os.environ.get("PYTHONPATH", "")]),
        "NSYSX_PROBE_DIR": str(tmp_path),
        "NSYSX_FORCE": "1",
    }
    subprocess.run([sys.executable, str(program)], env=env, check=True)
    (found,) = (json.loads(f.read_text()) for f in tmp_path.glob("probe-*.json"))
    assert found["errors"] == []
    # Two plain steps. The captured one is a step of its own with an optimizer in it, else it runs into the first replay.
    assert found["ranges"]["step"] == (2 + 1 + 5 if inside else 2 + 5)
