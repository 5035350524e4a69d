"""Compiled autograd under the probe: it traces the hooks of each node, so while it is on there must be none of ours."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.inject.test_probe_e2e import compare

PROGRAM = """
import torch, torch._dynamo.utils as du, torch._dynamo.compiled_autograd as ca
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
def step(compiled):
    optimizer.zero_grad()
    loss = net(torch.ones(3, 4)).pow(2).sum()
    if compiled:
        with ca._enable(torch.compile(backend="eager", fullgraph=FULL)):
            loss.backward()
    else:
        loss.backward()
    optimizer.step()
    print(loss.item().hex(), dict(du.counters["compiled_autograd"]), dict(du.counters["stats"]))
for FULL in (True, False):
    torch._dynamo.reset()
    du.counters.clear()
    for _ in range(3):
        step(False)
    for _ in range(3):
        step(True)
    if not FULL:
        with ca._enable(torch.compile(backend="eager")):
            for _ in range(3):
                step(True)
    step(False)
"""


def test_as_many_graphs_and_the_same_numbers_as_bare(tmp_path: Path) -> None:
    """Marks come before it is turned on, stay away while it is on, and come back with the next forward; also where graphs may break."""
    (tmp_path / "program.py").write_text(PROGRAM)
    done, files = compare(tmp_path, [sys.executable, "program.py"])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [("'unique_graphs': 1" in line) for line in (lines[6], lines[-1])] == [True, True], lines
    (file,) = files.values()
    assert (file["errors"], file["ranges"]["backward_module"]) == ([], 2 * (3 * 3 + 3))
