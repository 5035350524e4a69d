"""Work on copies of rows, from the operators that torch really runs: what could come before the copying, and what could not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nsysx.events.copied_rows import CopiedRows, copied_rows
from tests.events.traced import traced

EDGES, NODES, WIDE = 640, 40, 16
SOURCE = torch.randint(0, NODES, (EDGES,), generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(NODES, WIDE, generator=torch.Generator().manual_seed(1))
LAYER, WIDER, NORM = nn.Linear(WIDE, WIDE, bias=False), nn.Linear(WIDE, 4 * WIDE), nn.LayerNorm(WIDE)
NARROWER, BATCH_NORM, TABLE = nn.Linear(4 * WIDE, WIDE), nn.BatchNorm1d(WIDE), nn.Embedding(NODES, WIDE)
TOKENS, CONDITION = torch.randn(4, 24, WIDE), torch.randn(4, WIDE)
KEYS, COSINES = torch.randn(4, 2, 24, WIDE), torch.randn(24, WIDE)
PER_EDGE = torch.randn(EDGES, WIDE)


def found(body: Callable[[], Any], folder: Path) -> list[tuple[CopiedRows, list[str]]]:
    """Return the copies of a step, each with the names of the operators on them but for views and conversions."""

    def step() -> None:
        (body().square().mean() * torch.ones((), requires_grad=True)).backward()

    flow, _, _ = traced(step, folder)
    skipped = ("view", "reshape", "transpose", "to", "slice")
    return [
        (each, [name for row in each.work if (name := flow.names[row].removeprefix("aten::")) not in skipped])
        for each in copied_rows(flow)
    ]


def passed(h: Any) -> Any:
    """What sums the messages of edges: nothing of it is work on single rows."""
    return torch.zeros(NODES, h.shape[1]).index_add(0, SOURCE, h)


def rotated(keys: Any) -> Any:
    first, second = keys.chunk(2, dim=-1)
    return keys * COSINES + torch.cat([-second, first], -1) * COSINES


TOLD: dict[str, tuple[Callable[[], Any], list[str], float]] = {
    "index_select": (lambda: passed(LAYER(ROWS.index_select(0, SOURCE))), ["linear"], 16),
    "index": (lambda: passed(LAYER(ROWS[SOURCE])), ["linear"], 16),
    "gather": (lambda: passed(LAYER(ROWS.gather(0, SOURCE[:, None].expand(-1, WIDE)))), ["linear"], 16),
    "product": (lambda: passed(ROWS[SOURCE] @ LAYER.weight), ["matmul"], 16),
    "network": (
        lambda: passed(NARROWER(F.gelu(WIDER(NORM(ROWS[SOURCE]))))),
        ["layer_norm", "linear", "gelu", "linear"],
        16,
    ),
    "small table": (lambda: passed(LAYER(TABLE(SOURCE))), ["linear"], 16),
    "repeat_interleave": (lambda: TOKENS + LAYER(CONDITION.repeat_interleave(24, 0)).view(4, 24, WIDE), ["linear"], 24),
    "expand": (
        lambda: TOKENS + NARROWER(F.silu(WIDER(CONDITION[:, None].expand(-1, 24, -1)))),
        ["linear", "silu", "linear"],
        24,
    ),
    "repeat": (lambda: TOKENS * LAYER(CONDITION[:, None].repeat(1, 24, 1)), ["linear"], 24),
    "cat": (lambda: LAYER(torch.cat([TOKENS * 2] * 3)).cumsum(0), ["linear"], 3),
    "expand and reshape": (
        lambda: NORM(KEYS[:, :, None].expand(-1, -1, 4, -1, -1).reshape(4, 8, 24, WIDE)).cumsum(1),
        ["layer_norm"],
        4,
    ),
    "dropout that drops nothing": (lambda: passed(LAYER(F.dropout(ROWS[SOURCE], 0.1, training=False))), ["linear"], 16),
    "norms of rows": (
        lambda: passed(F.normalize(ROWS[SOURCE], dim=-1)),
        ["linalg_vector_norm", "clamp_min", "div"],
        16,
    ),
}


@pytest.mark.parametrize("kind", TOLD)
def test_rows_can_go_through_it_before_they_are_copied(kind: str, tmp_path: Path) -> None:
    body, work, times = TOLD[kind]
    ((copied, names),) = found(body, tmp_path)
    assert [name for name in names if name not in ("dropout", "expand", "expand_as")] == work
    assert copied.times == pytest.approx(times)


def test_autocast_casts_copies_on_their_way(tmp_path: Path) -> None:
    def body() -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return passed(NARROWER(F.relu(WIDER(ROWS[SOURCE]))).float())

    ((copied, names),) = found(body, tmp_path)
    assert names == ["linear", "relu", "linear"] and copied.times == 16


def test_a_layer_that_is_given_its_copies_again_has_one_name_for_them(tmp_path: Path) -> None:
    ((copied, names),) = found(lambda: LAYER(h := CONDITION.repeat(6, 1)).cumsum(0) * LAYER(h).cumsum(0), tmp_path)
    assert names == ["linear", "linear"] and copied.wide == (2, 2)


def test_keys_that_are_repeated_for_their_heads_are_rotated_before(tmp_path: Path) -> None:
    def body() -> Any:
        return rotated(KEYS.repeat_interleave(4, dim=1)).cumsum(1)

    ((copied, names),) = found(body, tmp_path)
    assert copied.times == 4 and names.count("mul") == 2 and names[-1] == "add"


SILENT: dict[str, Callable[[], Any]] = {
    "fewer rows than there are": lambda: LAYER(ROWS[SOURCE[:30]]),
    "each row about once": lambda: LAYER(ROWS[torch.randperm(NODES)]),
    "over the copies": lambda: ROWS[SOURCE].cumsum(0),
    "numbers of edges joined": lambda: passed(WIDER(torch.cat([ROWS[SOURCE], PER_EDGE], 1).unflatten(1, (2, WIDE)).sum(1))),
    "factors of edges": lambda: passed(LAYER(ROWS[SOURCE] * PER_EDGE)),
    "dropout": lambda: passed(LAYER(F.dropout(ROWS[SOURCE], 0.1))),
    "batch norm": lambda: passed(BATCH_NORM(ROWS[SOURCE])),
    "the layer is first": lambda: passed(LAYER(ROWS)[SOURCE]),
    "products of other weights": lambda: torch.bmm(CONDITION.expand(6, 4, WIDE), torch.randn(6, WIDE, WIDE, requires_grad=True)),
    "copies along the row": lambda: NARROWER(CONDITION.repeat(1, 4)),
    "a sum over copies": lambda: LAYER(CONDITION[:, None].expand(-1, 24, -1).reshape(4, 24 * WIDE)[:, :WIDE]),
    "a large table": lambda: LAYER(TABLE(SOURCE[:NODES])),
    "numbers of rows": lambda: LAYER(ROWS[:, torch.randint(0, WIDE, (WIDE,))]),
    "experts of some copies": lambda: LAYER(TOKENS.flatten(0, 1).repeat_interleave(2, 0)[torch.randperm(192)[:50]]),
}  # fmt: skip


@pytest.mark.parametrize("kind", SILENT)
def test_work_that_needs_each_copy(kind: str, tmp_path: Path) -> None:
    assert not found(SILENT[kind], tmp_path)


def test_what_reads_the_copies_or_widens_them_is_counted(tmp_path: Path) -> None:
    ((copied, names),) = found(lambda: passed(NARROWER(F.relu(WIDER(ROWS[SOURCE])))), tmp_path)
    assert names == ["linear", "relu", "linear"] and copied.wide == (4, 4, 1)
    ((copied, names),) = found(lambda: passed((h := ROWS[SOURCE]) * PER_EDGE + LAYER(h)), tmp_path)
    assert names == ["linear"] and copied.wide == (2,), "the copies are read, too"
