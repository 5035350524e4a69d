"""What the ranks of a real job note of their evaluations, by gloo on the CPU under a real nsys."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.light_torch import TWO_RANKS, WITHOUT_META
from tests.recording.test_run_e2e import nsys, profile  # noqa: F401

EVALUATING = f"""
{WITHOUT_META}import time, torch
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
net, other = torch.nn.Linear(8, 8), torch.nn.Sequential(torch.nn.Linear(8, 8))
copy = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
held_out = torch.randn(64, 8)
for i in range(30):
    optimizer.zero_grad()
    copy(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    if i % 10 == 9:
        with torch.inference_mode():
            for x in held_out.split(8): net(x)
            for x in held_out[dist.get_rank() :: 2].split(8): other(x)
time.sleep(0.5); dist.destroy_process_group()  # gloo's threads may need the GIL: test_frameworks
"""


def test_ranks_note_whether_they_evaluate_the_same(profile: Any, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "job.py").write_text(EVALUATING)
    run = profile(sys.executable, "-c", TWO_RANKS, "job.py")
    noted = [p["settings"] for p in run.facts["probe"] if p.get("settings")]
    ranks = [settings["evaluations"] for settings in noted if settings["evaluations"]]
    assert run.code == 0 and len(ranks) == 2
    whole, shard = (
        [[row for row in rows if row["class"] == name] for rows in ranks] for name in ("Linear", "Sequential")
    )
    assert whole[0] == whole[1] and [row["calls"] for row in whole[0]][:2] == [8, 8]
    assert [row["step"] for row in shard[0]][:2] == [9, 19] and not {*shard[0][0]["sums"]} & {*shard[1][0]["sums"]}
