"""NSX131: documents of a packed sequence that attention is called for one by one, and loops of attention that are something else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import flex_attention as flex

from nsysx.findings._packed_attention import fix_of
from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_smaller_operators import operator
from tests.findings.test_taken_pieces import Taken, backward_of, noted

LINE, T = 25, 240
TEXT = "outs.append(F.scaled_dot_product_attention(q[..., s:e, :], k[..., s:e, :], v[..., s:e, :], is_causal=True))"
ENDS = [20, 60, 96, 120, 180, 240]
WHOLE = f"[1, 4, {T}, 16]"


def step(program: Lined, number: int, ends: Sequence[int], attention: str) -> None:
    """A network (3 ms), attention for each document of a sequence, and the backward, which makes whole gradients of q, k and v."""
    ids, sequence = (
        iter(range(100_000 * number + 10, 100_000 * (number + 1))),
        iter(range(100_000 * number + 10, 10**9)),
    )
    with program.range("forward"), program.range("net:Net"):
        operator(program, "linear", next(ids), [-1, -1], "[64, 64], [64, 64]", 3000)
        nodes, outs = list[tuple[int, str, int]](), list[int]()
        for begin, end in zip([0, *ends], ends, strict=False):
            with program.line(LINE):
                piece, pieces = f"[1, 4, {end - begin}, 16]", list[int]()
                for which in range(3):
                    at, node, number_of = program.t, next(sequence), next(ids)
                    program.host(4)
                    noted(program, "aten::slice", number_of, at, f"{WHOLE}, [], [], [], []", [0, 0, 0, 0, 0], node)
                    pieces.append(number_of)
                    nodes.append((which, piece, node))
                operator(program, attention, made := next(ids), pieces, ", ".join(3 * [piece]), 40, "flash_fwd")
                outs.append(made)
        operator(program, "cat", next(ids), outs, ", ".join(len(outs) * [piece]), 10)
    sums = dict[int, int]()
    with program.range("backward"):
        for which, piece, node in reversed(nodes):
            sums[which] = backward_of(program, ids, Taken(LINE, "Slice", WHOLE, []), piece, node, sums.get(which))
    program.sync()


def found(folder: Path, ends: Sequence[int] = ENDS, attention: str = "scaled_dot_product_attention") -> list[Finding]:
    program = Lined({LINE: TEXT}, {"networks": [{"class": "Net", "package": "torch"}]})
    return program.run(lambda program, number: step(program, number, ends, attention)).found(folder, "NSX131")


def test_documents_are_attended_at_once(tmp_path: Path) -> None:
    (finding,) = found(tmp_path)
    assert finding.title.startswith(
        "train.py:25: attention is called 6 times per step, for one piece of a sequence each"
    )
    assert [way.name for way in finding.remedies] == ["documents-at-once"] and "(i >= j)" in finding.paste
    # 18 fills, copies and 15 sums of whole gradients; attention itself takes as long as before.
    assert finding.saving_ns_per_step == pytest.approx((18 * 50 + 15 * 100) * 1000, rel=0.1)


@pytest.mark.parametrize(("ends", "attention"), [(ENDS[:3], "scaled_dot_product_attention"), (ENDS, "linear")])
def test_few_documents_and_other_layers_are_taken_apart_once(
    ends: Sequence[int], attention: str, tmp_path: Path
) -> None:
    assert [way.name for f in found(tmp_path, ends, attention) for way in f.remedies] == ["taken-apart-once"]


def test_the_names_of_the_line_are_taken() -> None:
    assert (
        "attend(self.q, key, v, block_mask"
        in fix_of("y = F.scaled_dot_product_attention(self.q[:, s:e], key[:, s:e], v[:, s:e])").paste
    )
    assert "i >= j" not in fix_of("y = attention(q[:, s:e], k[:, s:e], v[:, s:e])").paste


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_what_is_pasted_gives_the_same() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 128, 16)
    cu = torch.tensor([0, 20, 60, 96, 128])
    pairs = zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)
    outs = [
        F.scaled_dot_product_attention(q[..., s:e, :], k[..., s:e, :], v[..., s:e, :], is_causal=True) for s, e in pairs
    ]
    names = {
        "q": q,
        "k": k,
        "v": v,
        "cu": cu,
        "torch": torch,
        "attend": flex.flex_attention,
        "create_block_mask": flex.create_block_mask,
    }
    lines = [line for line in fix_of(TEXT).paste.splitlines() if not line.startswith(("from", "attend ="))]
    exec("\n".join(lines), names)
    torch.testing.assert_close(names["y"], torch.cat(outs, -2))
