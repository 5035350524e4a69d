"""What the probe tells of how many targets of a loss count, on CPU torch: it is read behind the window, and the program notices nothing."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from nsysx_probe import held_memory, loss_targets, saved_tensors
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tests.inject.saved import assert_unnoticed, losses_of, recorded
from tests.inject.test_probe import armed
from tests.inject.test_probe_e2e import nsys, profile
from tests.inject.test_settings_reader import settings

__all__ = ["nsys"]
pytestmark = pytest.mark.filterwarnings("ignore")

ROWS, LENGTH, WORDS = 4, 10, 16
TOKENS = torch.randint(WORDS, (ROWS, LENGTH))
BEHIND = torch.where(torch.arange(LENGTH) < 6, -100, TOKENS)
SCATTERED = torch.full_like(TOKENS, -100).scatter_(1, torch.tensor([[0, 3], [1, 2], [8, 9], [4, 6]]), TOKENS[:, :2])
Loss = Callable[[Tensor, Tensor], Tensor]


class Net(nn.Module):
    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.table, self.head, self.loss = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS), loss

    def forward(self, labels: Tensor) -> Tensor:
        return self.loss(self.head(self.table(TOKENS)), labels)


def flat(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def of_255(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.masked_fill(labels < 0, 255).flatten(), ignore_index=255)


def transposed(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.transpose(1, 2), labels, label_smoothing=0.1)


def shifted(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].reshape(-1, WORDS), labels[:, 1:].reshape(-1))


def times_mask(logits: Tensor, labels: Tensor) -> Tensor:
    each = F.cross_entropy(logits.flatten(0, 1), labels.clamp(min=0).flatten(), reduction="none").view(ROWS, LENGTH)
    mask = (labels != -100).float()
    return (mask * each).sum() / mask.sum()


def beside_another(logits: Tensor, labels: Tensor) -> Tensor:
    return flat(logits, labels) + 0.1 * flat(logits, TOKENS)


def trained(net: nn.Module, labels: Tensor, steps: int = 8) -> list[float]:
    return losses_of(net, lambda: net(labels), 0.01, steps)


def told(net: nn.Module, labels: Tensor) -> Any:
    return recorded(lambda: trained(net, labels), "targets")


def row(counts: float, kind: str = "loss", targets: int = ROWS * LENGTH, **more: Any) -> dict[str, Any]:
    classes = WORDS if kind == "loss" else 0
    return {"kind": kind, "targets": targets, "classes": classes, "tensors": 1, "looked": 1, "counts": counts, **more}


@pytest.mark.parametrize("loss", [flat, of_255, transposed])
@pytest.mark.parametrize(("labels", "counts", "first"), [(BEHIND, 4, 6), (SCATTERED, 2, 0), (TOKENS, LENGTH, 0)])
def test_targets_that_are_not_ignored_count(loss: Loss, labels: Tensor, counts: int, first: int) -> None:
    (noted,) = told(Net(loss), labels)
    rows = {"least": counts, "most": counts, "length": LENGTH, "first": first}
    assert noted in (row(counts / LENGTH, **rows), row(counts / LENGTH)), "as one row, or three dimensions"
    assert loss is not flat or "first" in noted


def test_a_copy_of_targets_tells_their_share_alone() -> None:
    assert told(Net(shifted), BEHIND) == [row(round(4 / 9, 4), targets=ROWS * (LENGTH - 1))]


def test_a_mask_of_losses_tells_what_it_keeps() -> None:
    noted = {each["kind"]: each for each in told(Net(times_mask), SCATTERED)}
    assert noted["mask"] == row(0.2, "mask", least=2, most=2, length=LENGTH, first=0)
    assert noted["loss"]["counts"] == 1.0


def test_losses_of_one_size_are_told_together() -> None:
    (noted,) = told(Net(beside_another), BEHIND)
    assert (noted["tensors"], noted["looked"], noted["counts"], noted["least"], noted["most"]) == (2, 2, 0.7, 4, 10)


def test_of_targets_that_are_too_large_the_weight_of_all_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_targets, "HELD_TENSOR_BYTES", 100)
    assert told(Net(flat), BEHIND) == [row(0.4)]
    assert told(Net(times_mask), BEHIND) is None, "losses of each position have no such weight"


def test_nothing_is_held_that_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_memory, "HELD_BYTES", 0)
    assert told(Net(flat), BEHIND) is None


@pytest.mark.parametrize("tells", [True, False], ids=["hooks told", "older torch"])
def test_what_a_hook_has_packed_is_not_unpacked(tells: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not tells:
        monkeypatch.setattr(saved_tensors, "hasattr", lambda o, n: n != "unpack_hook" and hasattr(o, n), raising=False)

    class Packed(Net):
        def forward(self, labels: Tensor) -> Tensor:
            inner = super().forward
            return checkpoint(inner, labels, use_reentrant=False)  # type: ignore[no-any-return]

    assert told(Packed(flat), BEHIND) is None
    assert told(Net(flat), BEHIND) == [row(0.4, least=4, most=4, length=LENGTH, first=6)]


def test_compiled_programs_show_no_targets() -> None:
    assert told(torch.compile(Net(flat), backend="aot_eager"), BEHIND) is None


def test_without_a_window_nothing_is_looked_at() -> None:
    with armed() as lab:
        trained(Net(flat), BEHIND)
        assert settings(lab)["targets"] is None


def test_the_step_runs_not_one_operator_more_and_holds_targets_to_the_windows_end() -> None:
    class Counts(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Counts.count += 1
            return func(*args, **(kwargs or {}))

    targets, net = loss_targets.LossTargets(torch, saved_tensors.SavedTensors(torch, Mock())), Net(flat)
    monkey = targets.saved
    monkey.may_be_read = lambda: True  # type: ignore[method-assign]  # though this test follows the operators
    for close in (True, False):
        labels = BEHIND.clone()
        targets.begin(last=True)
        loss = net(labels)
        with Counts():
            targets.backward(loss)
        assert Counts.count == 0
        loss.backward()
        held = [weakref.ref(each.tensor) for some in targets._held.values() for each in some]
        del loss
        assert held and all(ref() is not None for ref in held)
        targets.window_closed() if close else targets.begin(last=False)
        gc.collect()
        assert not any(ref() for ref in held)


def test_targets_that_were_written_into_are_not_read() -> None:
    targets, labels = loss_targets.LossTargets(torch, saved_tensors.SavedTensors(torch, Mock())), BEHIND.clone()
    targets.begin(last=True)
    loss = Net(flat)(labels)
    targets.backward(loss)
    labels.add_(0)
    targets.window_closed()
    assert targets.rows is not None and [each["looked"] for each in targets.rows] == [0]


def test_the_program_computes_what_it_computes_without_the_probe() -> None:
    assert_unnoticed(lambda: trained(Net(times_mask), BEHIND))


def test_of_a_long_graph_the_nodes_near_the_loss_are_looked_at() -> None:
    class Deep(Net):
        def forward(self, labels: Tensor) -> Tensor:
            hidden = self.table(TOKENS)
            for _ in range(400):
                hidden = hidden + 0.0
            return flat(self.head(hidden), labels) + hidden.sum() * 0.0

    (noted,) = told(Deep(flat), BEHIND)
    assert noted["counts"] == 0.4


PROGRAM = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
net = nn.Sequential(nn.Embedding(32, 8), nn.Linear(8, 32))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(6):
    ids = torch.randint(32, (4, 20))
    where = torch.rand(4, 20).topk(3, dim=1).indices
    labels = torch.full_like(ids, -1).scatter_(1, where, ids.gather(1, where))
    opt.zero_grad()
    loss = F.cross_entropy(net(ids).flatten(0, 1), labels.flatten(), ignore_index=-1)
    loss.backward()
    opt.step()
    print("loss %.17g" % loss.item())
"""


def test_a_program_under_nsys_tells_how_many_count(nsys: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    run = profile(nsys, tmp_path, [sys.executable, "train.py"], NSYSX_STEPS="2:5")
    assert run.code == 0 and run.out.count("loss ") == 6
    (file,) = run.files.values()
    rows = {"least": 3, "most": 3, "length": 20, "first": file["settings"]["targets"][0]["first"]}
    assert file["settings"]["targets"] == [{**row(0.15, targets=80, **rows), "classes": 32}]
