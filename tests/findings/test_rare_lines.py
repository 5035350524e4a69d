"""What is done about lines that make steps long now and then: states that go through one rank, and groups that are made anew."""

from __future__ import annotations

import pytest

from nsysx.findings._long_step_lines import LongStepLine

REDUCES = "dist.all_reduce(stats, group=g)"


@pytest.mark.parametrize(
    ("text", "beside", "told"),
    [
        ("opt.consolidate_state_dict(to=0)", "", "own-state-saved"),
        ("torch.optim.swa_utils.update_bn(loader, swa)", "", "statistics-averaged"),
        ("g = dist.new_group([r for r, f in enumerate(flags) if f])", REDUCES, "groups-once"),
        (REDUCES, "g = dist.new_group(active)", "groups-once"),  # NCCL connects the ranks here
        (REDUCES, "flags = all_gather_flag(n_conf > MIN)", ""),  # the group is there
        ("dist.all_reduce(stats)", "g = dist.new_group(active)", ""),  # another group's
        ("state = opt.state_dict()", "", ""),
        ("ev = torch.linalg.eigvals(s1 @ s2)", "", "symmetric-eigenvalues"),
        ("ev = torch.linalg.eigvalsh(a @ s2 @ a)", "", ""),
        ("net = Policy(size).to(device)", "net.load_state_dict(torch.load(path))", "networks-kept"),
        ("weights = torch.load(path, map_location='cpu')", "net.load_state_dict(weights)", "networks-kept"),
        ("net = Policy(size).to(device)", "net.load_state_dict(other.state_dict())", ""),
        ("self.model = DDP(self.net, device_ids=[local])", "", "wrapped-once"),
    ],
)
def test_what_is_done_about_a_line_of_long_steps(text: str, beside: str, told: str) -> None:
    line = LongStepLine("/job/train.py", 40, "step", text, 0.9, usual=False, samples=90, beside=beside, steps=2)
    first, *_ = line.fix("run-rarely").ways
    others = ("own-state-saved", "groups-once", "symmetric-eigenvalues", "networks-kept")
    assert (first.name == told) if told else first.name not in others
