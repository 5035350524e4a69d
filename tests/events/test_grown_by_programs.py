"""What torch's own operators say of tensors that grow in programs, and of those that only look like it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsysx.events.grown_tensors import GrownTensor, grown_in
from tests.events.traced import traced

B, D, T = 4, 16, 12
layer, key, cell, pair = nn.Linear(D, D), nn.Linear(D, D), nn.GRUCell(D, D), nn.Linear(2 * D, D)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.bmm(torch.bmm(q.unsqueeze(1), k.transpose(1, 2)).softmax(-1), v).squeeze(1)


def grown(step: Callable[[], object], folder: Path, model: nn.Module | None = None) -> list[GrownTensor]:
    return grown_in(*traced(step, folder, model))


def rounds(
    add: Callable[[Tensor, Tensor, int], Tensor], first: Callable[[Tensor], Tensor], *, trained: bool = False
) -> Callable[[], object]:
    """Return a step whose rounds read a memory and then ``add`` a state to it."""

    def step() -> object:
        with torch.set_grad_enabled(trained):
            state = torch.randn(B, D)
            memory = first(state)
            for n in range(T):
                state = cell(attend(state, memory, memory), state)
                memory = add(memory, state, n)
            loss = state.sum() + memory.sum()
            return loss.backward() if trained else loss

    return step


def row(state: Tensor) -> Tensor:
    return state.unsqueeze(1)


def room(_: Tensor) -> Tensor:
    return torch.zeros(B, T + 1, D)


def padded(memory: Tensor, state: Tensor, _: int) -> Tensor:
    memory = F.pad(memory, (0, 0, 0, 1))
    memory[:, -1] = state
    return memory


def copied(memory: Tensor, state: Tensor, _: int) -> Tensor:
    longer = memory.new_zeros(B, memory.shape[1] + 1, D)
    longer[:, :-1] = memory
    longer[:, -1] = state
    return longer


def cloned(memory: Tensor, state: Tensor, n: int) -> Tensor:
    memory = memory.clone()
    memory[:, n] = state
    return memory


def scattered(memory: Tensor, state: Tensor, n: int) -> Tensor:
    return torch.slice_scatter(memory, row(state), 1, n, n + 1)


def indexed(memory: Tensor, state: Tensor, n: int) -> Tensor:
    return memory.index_copy(1, torch.tensor([n]), row(state))


def joined(memory: Tensor, state: Tensor, _: int) -> Tensor:
    return torch.cat([memory, row(state)], 1)


def detached(memory: Tensor, state: Tensor, _: int) -> Tensor:
    return torch.cat([memory, row(state.detach())], 1)


@pytest.mark.parametrize(
    ("add", "first", "form"),
    [
        (joined, row, "cat"),
        (padded, row, "pad"),
        (copied, row, "room"),
        (cloned, room, "written"),
        (scattered, room, "written"),
        (indexed, room, "written"),
    ],
)
def test_forms_of_growth(
    add: Callable[[Tensor, Tensor, int], Tensor], first: Callable[[Tensor], Tensor], form: str, tmp_path: Path
) -> None:
    (tensor,) = grown(rounds(add, first), tmp_path)
    assert (tensor.form, tensor.read, tensor.differentiated, tensor.saved) == (form, True, False, False)
    assert tensor.size == (B, T + 1, D) and T - 1 <= tensor.versions <= T


@pytest.mark.parametrize(("add", "differentiated"), [(joined, True), (detached, False), (padded, True), (copied, True)])
def test_growth_that_gradients_read(
    add: Callable[[Tensor, Tensor, int], Tensor], differentiated: bool, tmp_path: Path
) -> None:
    (tensor,) = grown(rounds(add, row, trained=True), tmp_path)
    assert (tensor.read, tensor.differentiated, tensor.saved) == (True, differentiated, True)
    assert (tensor.size, tensor.dimension) == ((B, T + 1, D), 1)


@pytest.mark.parametrize("stack", [lambda h: torch.stack(h, 1), lambda h: torch.cat([row(each) for each in h], 1)])
def test_a_list_that_is_stacked_anew_under_autograd(stack: Callable[[list[Tensor]], Tensor], tmp_path: Path) -> None:
    def step() -> None:
        state = torch.randn(B, D)
        history = [state]
        for _ in range(T):
            memory = stack(history)
            state = cell(attend(state, memory, memory), state)
            history.append(state)
        state.sum().backward()

    (tensor,) = grown(step, tmp_path)
    assert tensor.read and tensor.differentiated and tensor.versions == T - 1  # of one part nothing is copied again


def test_single_rows_that_are_read(tmp_path: Path) -> None:
    def step() -> None:
        out, state = torch.randn(B, 1, D), torch.zeros(B, D)
        for _ in range(T):
            state = cell(out[:, -1], state)
            out = torch.cat([out, row(layer(state))], 1)
        out.square().sum().backward()

    (tensor,) = grown(step, tmp_path)
    assert not tensor.read and tensor.differentiated and len(tensor.read_alone or ()) == T - 1


def test_rows_that_a_layer_computes_again(tmp_path: Path) -> None:
    def step() -> None:
        state = torch.randn(B, D)
        memory = row(state)
        for _ in range(T):
            state = cell(attend(state, layer(memory), key(memory)), state)
            memory = torch.cat([memory, row(state)], 1)
        state.sum().backward()

    (tensor,) = grown(step, tmp_path)
    assert [round(share, 2) for share in tensor.computed_again.values()][-2:] == [0.92, 0.92]
    assert len(tensor.computed_again) == 2 * (T - 2)  # nothing reads the last one


def test_a_queue_that_a_loss_reads(tmp_path: Path) -> None:
    queue = torch.randn(64, D)

    def step() -> None:
        nonlocal queue
        z = layer(torch.randn(8, D))
        (z @ queue.T).logsumexp(1).sum().backward()
        queue = torch.cat([queue, z.detach()])[-64:]

    (tensor,) = grown(step, tmp_path)
    assert tensor.kept and tensor.bounded and tensor.read and tensor.saved and not tensor.differentiated


# ---- what only looks like it


class Dense(nn.Module):
    """Layers that each add channels."""

    def __init__(self, *, listed: bool) -> None:
        super().__init__()
        self.listed = listed
        self.layers = nn.ModuleList(nn.Conv2d(8 + 4 * n, 4, 3, padding=1) for n in range(10))

    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        for each in self.layers:
            parts.append(each(torch.cat(parts, 1) if self.listed else x).relu())
            x = torch.cat([x, parts[-1]], 1)
        return x


@pytest.mark.parametrize("listed", [False, True])
def test_dense_connections_are_the_network(listed: bool, tmp_path: Path) -> None:
    model = Dense(listed=listed)
    assert not grown(lambda: model(torch.randn(2, 8, 8, 8)).sum().backward(), tmp_path, model)


def dense_functions() -> None:
    x = torch.randn(8, 32)
    for weight in weights:
        x = torch.cat([x, F.linear(x, weight).relu()], -1)
    x.sum().backward()


weights = [torch.randn(16, 32 + 16 * n, requires_grad=True) for n in range(10)]


def window() -> None:
    state = torch.randn(B, D)
    history = deque([torch.zeros(B, D)] * 4, maxlen=4)
    for _ in range(T):
        history.append(state)
        memory = torch.stack(list(history), 1)
        state = cell(attend(state, memory, memory), state)
    state.sum().backward()


def rolled() -> None:
    state, memory = torch.randn(B, D), torch.zeros(B, 4, D)
    for _ in range(T):
        memory = torch.roll(memory, -1, 1)
        memory[:, -1] = state
        state = cell(attend(state, memory, memory), state)
    state.sum().backward()


def two_parts() -> None:
    context, state = torch.randn(B, D), torch.zeros(B, D)
    for _ in range(T):
        state = pair(torch.cat([state, context], 1)).tanh()
    state.sum().backward()


def skips() -> None:
    x, kept = torch.randn(B, D), list[Tensor]()
    for _ in range(8):
        x = layer(x)
        kept.append(x)
    for _ in range(8):
        x = pair(torch.cat([x, kept.pop()], 1))
    x.sum().backward()


def batches() -> None:
    for n in range(T):
        x = F.pad(torch.randn(B, n + 5, D), (0, 0, 0, 3))
        layer(torch.cat([torch.zeros(B, 1, D), x], 1)).sum().backward()


def padded_convolutions() -> None:
    x = torch.randn(2, 4, 32)
    for _ in range(10):
        x = F.conv1d(F.pad(x, (4, 0)), kernel).relu()
    x.sum().backward()


kernel = torch.randn(4, 4, 3, requires_grad=True)


def in_place() -> None:
    with torch.no_grad():
        rounds(lambda memory, state, n: memory.index_copy_(1, torch.tensor([n]), row(state)), room)()


def states_that_stay() -> None:
    with torch.no_grad():
        board, boards = torch.zeros(B, T, D), list[Tensor]()
        for n in range(T):
            board = board.clone()
            board[:, n] = 1
            boards.append(board)
        torch.stack(boards).sum()


def saved_states() -> None:
    rounds(cloned, room, trained=True)()


@pytest.mark.parametrize(
    "step",
    [
        dense_functions, window, rolled, two_parts, skips, batches, padded_convolutions, in_place, states_that_stay, saved_states,
    ],
)  # fmt: skip
def test_what_has_to_be_made(step: Callable[[], object], tmp_path: Path) -> None:
    assert not grown(step, tmp_path)
