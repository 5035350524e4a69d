"""NSX127: tokens that all ranks of a group have, and that each of them sends to the experts of a larger group."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsysx.findings import _alike_exchanges
from nsysx.model import Finding
from tests.findings.lined import all_is_transfer
from tests.findings.recorded_programs import from_host, recorded
from tests.findings.test_branches_behind import Exchanged, Expert
from tests.findings.test_layer_messages import SETTINGS
from tests.findings.test_whole_tokens import RANKS, WIDTH, Summed, ranks
from tests.torch_networks import Residual

__all__ = ["ranks"]
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # newer names of the same collectives
SHARING = 2


class Layer(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.attn, self.router, self.experts = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8), Expert()

    def forward(self, x: Tensor) -> Tensor:
        h = self.attn(x)
        if self.form == "statistics":
            h = h - Summed.apply(h.mean(0, keepdim=True))
        elif self.form != "not shared":
            h = Summed.apply(h)
        h = F.layer_norm(x + h, (WIDTH,))
        if self.form == "own part":
            h = h.chunk(SHARING)[1]
        _, number = self.router(h).topk(2)
        order = number.flatten().argsort()
        y = Exchanged.apply(self.experts(Exchanged.apply(h.repeat_interleave(2, 0)[order])))
        out = torch.zeros_like(h).index_add(0, order // 2, y)
        return torch.cat([out] * SHARING) if self.form == "own part" else out


def told(
    form: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    groups: list[list[int]] | None = None,
    backwards: int = 1,
) -> Finding | None:
    """``groups``: all is sent among as many ranks as add up."""
    net = Residual(Layer(form) for _ in range(3))

    def step() -> None:
        net(from_host(torch.randn(64, WIDTH))).square().mean().backward()
        net.zero_grad()

    all_is_transfer(monkeypatch, _alike_exchanges)
    many = {"ranks": SHARING} if groups else {"ranks": RANKS, "adding_up": SHARING}
    program = recorded(step, net, __file__, folder, slow=("linear", "alltoall_base_"), **many)
    sharing = [0, 2] if form == "apart" else [0, 1]
    others = [1, 3, 5, 7] if form == "apart" else list(range(RANKS))
    told_groups = [{"ranks": each} for each in groups or (sharing, others)]
    program.settings = {**SETTINGS, "groups": told_groups, "backwards": backwards, "optimizers": []}
    found = [each for each in program.found(folder, "NSX127") if each.evidence]
    return next((each for each in found if each.evidence[0]["setting"] == "tokens sent by each"), None)


def test_ranks_with_the_same_tokens_each_send_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = told("shared", tmp_path, monkeypatch)
    assert found is not None and "2 ranks have the same tokens" in found.detail
    assert [way.name for way in found.remedies] == ["own-tokens-to-experts"]
    assert "Exchanged.apply(self.experts(" in Path(__file__).read_text().splitlines()[found.where["line"] - 1]
    # Half of what experts compute goes: of six linear layers of 60 us, and of their gradients.
    assert 0.5 * 6 * 60_000 < (found.saving_ns_per_step or 0) < 0.5 * 9 * 120_000


@pytest.mark.parametrize("form", ["own part", "not shared", "apart"])
def test_ranks_that_send_their_own(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(form, tmp_path, monkeypatch) is None


def test_experts_may_be_on_the_ranks_that_share_the_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = told("shared", tmp_path, monkeypatch, groups=[[0, 1], [0, 1]])
    assert found is not None and "all of them to experts, " in found.detail and "OwnTokens" in found.paste


def test_what_is_not_trained_needs_no_function_of_autograd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = told("shared", tmp_path, monkeypatch, groups=[[0, 1]], backwards=0)
    assert found is not None and "OwnTokens" not in found.paste and "all_gather_into_tensor(y, out" in found.paste


@pytest.mark.parametrize(
    ("form", "groups"),
    [
        ("own part", [[0, 1]]),
        ("not shared", [[0, 1]]),
        ("statistics", [[0, 1]]),
        ("shared", [[0, 1], [0, 2]]),  # the experts may be on the other one
    ],
)
def test_ranks_of_one_group_that_send_their_own(
    form: str, groups: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(form, tmp_path, monkeypatch, groups=groups) is None
