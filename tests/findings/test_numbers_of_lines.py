"""Lines whose numbers are written out, and lines that count steps."""

from __future__ import annotations

import pytest

from nsysx.findings._numbers_of_lines import counts_steps, numbers_written_out


@pytest.mark.parametrize(
    ("line", "written_out"),
    [
        ('mask = torch.full((T, T), float("-inf"), device=x.device).triu(1)', True),
        ("mask = torch.full((T, T), -1e9)", True),
        ("return x.new_full((T, T), fill_value=torch.finfo(x.dtype).min)", True),
        ("w = w.masked_fill(torch.full_like(w, True), 0)", True),
        ("z = buffer.fill_(-math.inf)", True),
        ("t = torch.full((batch,), t)", False),
        ("t = torch.full((batch,), 1 - self.alpha)", False),
        ("t = torch.full((batch,), schedule(5))", False),
        ("t = torch.full((T, 5), 0.5) + torch.full((T, 5), t)", False),
        ("x = torch.tensor([1, 2])", False),
        ("for x in torch.full((5,), 0.5):", False),
    ],
)
def test_a_number_that_a_line_writes_everywhere(line: str, written_out: bool) -> None:
    assert numbers_written_out(line) is written_out


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("weight = torch.exp(distance * (step / steps))", True),
        ("x = table * schedule(self.global_step)", True),
        ("noise = base * sigma[i]", True),
        ("halo = Halo(src, *self.where)", False),
        ("self.src[outside] = nodes + back", False),
        ("mask = torch.ones(size, size).tril()", False),
        ("y = f(x, step=2)", False),
    ],
)
def test_a_line_that_names_what_counts_steps(line: str, counts: bool) -> None:
    assert counts_steps(line) is counts
