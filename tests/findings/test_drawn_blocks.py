"""NSX110: generators that hand out the blocks of a ring, and begin each exchange only when the next block is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist

from nsysx.findings import _layer_exchanges
from nsysx.findings._drawn_blocks import begun_ahead
from nsysx.model import Finding
from tests.findings.lined import all_is_transfer
from tests.findings.recorded_programs import from_host, recorded
from tests.findings.test_whole_tokens import ranks

__all__ = ["ranks"]
WIDTH, TOKENS, RANKS = 16, 32, 4


class Ring:
    def __init__(self, form: str) -> None:
        self.form = form

    def rotate(self, block: Tensor) -> tuple[Tensor, Sequence[Any]]:
        received = torch.empty_like(block)
        ops = [dist.P2POp(dist.isend, block, 2), dist.P2POp(dist.irecv, received, 0)]
        return received, dist.batch_isend_irecv(ops)

    def blocks(self, block: Tensor) -> Iterator[Tensor]:
        if self.form == "ahead":
            for _ in range(RANKS - 1):
                received, works = self.rotate(block)
                yield block
                for work in works:
                    work.wait()
                block = received
            yield block
            return
        yield block
        for _ in range(RANKS - 1):
            block, works = self.rotate(block)
            for work in works:
                work.wait()
            yield block


class Layer(nn.Module):
    def __init__(self, ring: Ring) -> None:
        super().__init__()
        self.ring, self.q, self.kv = ring, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, out = self.q(x), torch.zeros_like(x)
        for kv in self.ring.blocks(self.kv(x)):
            k, v = kv.chunk(2, -1)
            out = out + F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return x + out


def told(form: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Finding | None:
    net = nn.Sequential(*(Layer(Ring(form)) for _ in range(2)))

    def step() -> None:
        with torch.inference_mode():
            net(from_host(torch.randn(2, TOKENS, WIDTH)))

    all_is_transfer(monkeypatch, _layer_exchanges)
    slow = ("_scaled_dot_product_flash_attention_for_cpu", "send", "recv_")
    program = recorded(step, net, __file__, folder, slow=slow, ranks=RANKS)
    return next((f for f in program.found(folder, "NSX110") if "exchanged-ahead" in [w.name for w in f.remedies]), None)


def test_a_generator_that_waits_before_it_hands_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = told("in line", tmp_path, monkeypatch)
    lines = [line.strip() for line in Path(__file__).read_text().splitlines()]
    assert found is not None and lines[found.where["line"] - 1] == "work.wait()"
    ahead = lines.index("for _ in range(RANKS - 1):")  # as the other form has it
    paste = [line.partition("  #")[0].strip() for line in found.paste.splitlines()]
    assert paste == lines[ahead : ahead + 7] and found.where["line"] > ahead + 7


def test_a_generator_that_begins_before_it_hands_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = told("ahead", tmp_path, monkeypatch)
    assert found is None or "in place of all lines" not in found.paste


@pytest.mark.parametrize(
    "lines",
    [
        ["for _ in range(n):", "    block, works = rotate(block)", "    works.wait()", "    yield block"],  # not its own first
        ["yield x", "for _ in range(n):", "    y, works = rotate(x)", "    works.wait()", "    yield y"],
        ["yield x", "for _ in range(n):", "    x, works = rotate(x)", "    x = norm(x)", "    works.wait()", "    yield x"],
        ["yield x", "x, works = rotate(x)", "works.wait()", "yield x"],
        ["yield x", "for _ in range(n):", "    x, works = rotate(x)", "    yield x"],
    ],
)  # fmt: skip
def test_other_generators(lines: list[str]) -> None:
    assert begun_ahead(lines, "rotate") is None
