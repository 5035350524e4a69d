"""NSX131: rows that tensors choose are taken before they are computed by the index of the line that reads them, never by a constant."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nsysx.model import Finding
from tests.findings import said_of
from tests.findings.recorded_programs import from_host, recorded

ROWS, LENGTH, WIDTH, WORDS = 4, 32, 16, 512


class Judge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.lm_head(self.norm(x)).float()


class Scorer:
    def __init__(self) -> None:
        self.model, self.words = Judge(), torch.tensor([3, 7])
        self.head = self.model.lm_head

    def by_rows(self, x: Tensor, last: Tensor) -> Tensor:
        logits = self.model(x)
        rows = torch.arange(len(x))
        return logits[rows, last][:, self.words].softmax(-1)

    def of_logits(self, x: Tensor, last: Tensor) -> Tensor:
        logits = self.model(x)
        rows = torch.arange(logits.shape[0])
        return logits[rows, last][:, self.words].softmax(-1)

    def by_mask(self, x: Tensor, last: Tensor) -> Tensor:
        logits = self.model(x)
        mask = torch.arange(x.shape[1]) == last[:, None]
        return logits[mask][:, self.words].softmax(-1)

    def in_one_function(self, x: Tensor, last: Tensor) -> Tensor:
        y = self.head(x)
        rows = torch.arange(len(x))
        z = y[rows, last]
        return z.softmax(-1)

    def gathered(self, x: Tensor, last: Tensor) -> Tensor:
        logits = self.model(x)
        picked = logits.gather(1, last[:, None, None].expand(-1, 1, WORDS))
        return picked[:, :, self.words].softmax(-1)

    def last_of_all(self, x: Tensor, last: Tensor) -> Tensor:
        logits = self.model(x)
        return logits[:, -1].softmax(-1)


def told(form: str, folder: Path) -> Finding:
    torch.manual_seed(0)
    scorer, x = Scorer(), torch.randn(5, ROWS, LENGTH, WIDTH)
    last = torch.randint(LENGTH // 2, LENGTH, (5, ROWS))
    call = getattr(scorer, form)

    def step() -> None:
        i = int(torch.randint(0, 5, (1,)))
        with torch.inference_mode():
            call(from_host(x[i]), from_host(last[i]))

    program = recorded(step, scorer.model, __file__, folder, slow=("linear", "addmm"))
    said = said_of(program.write(folder))
    (found,) = [f for f in said if f.verdict == "found" and "narrowed-first" in [way.name for way in f.remedies]]
    return found


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        (
            "by_rows",
            [
                "rows = torch.arange(len(x))",
                "logits = self.model(x, keep=(rows, last))",
                "return logits[:, self.words].softmax(-1)",
                "return self.lm_head(self.norm(x)[keep]).float()",
            ],
        ),
        (
            "by_mask",
            [
                "mask = torch.arange(x.shape[1]) == last[:, None]",
                "logits = self.model(x, keep=mask)",
                "return logits[:, self.words].softmax(-1)",
                "return self.lm_head(self.norm(x)[keep]).float()",
            ],
        ),
        ("in_one_function", ["rows = torch.arange(len(x))", "y = self.head(x[rows, last])", "z = y"]),
        ("of_logits", ["return self.lm_head(self.norm(x)[rows, last]).float()"]),
        ("gathered", ["y = head(x[index])"]),
    ],
)
def test_the_index_of_the_reading_line_is_handed_on(form: str, lines: list[str], tmp_path: Path) -> None:
    found = told(form, tmp_path)
    assert [line.partition("  #")[0] for line in found.paste.splitlines()] == lines
    assert "-1]" not in found.paste and "logits_to_keep" not in found.paste


def test_where_the_line_reads_the_last_position_that_is_told(tmp_path: Path) -> None:
    assert "self.norm(x)[:, -1:]" in told("last_of_all", tmp_path).paste
