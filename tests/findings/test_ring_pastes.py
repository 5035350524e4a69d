"""Statements that write new rows over the oldest: they run, and keep the same rows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from nsysx.findings._case import Fix
from nsysx.findings._ring_pastes import ring

LINES = {
    10: "        n = obs.size(0)",
    11: "        self.obs = torch.cat([self.obs[n:], obs])",
    12: "        self.done = torch.cat((self.done[n:], done), dim=0)  # with them",
    13: "        self.total += n",
}
FIX = Fix.by_name("ring-of-rows")


@pytest.mark.parametrize("line", [11, 12])
def test_rows_and_what_belongs_to_them(line: int) -> None:
    fix = ring(FIX, LINES.get, line)
    assert "(self.oldest + number) % len(self.obs)" in fix.condition
    kept = SimpleNamespace(obs=torch.zeros(7, 2), done=torch.zeros(7), oldest=0)
    obs, done = kept.obs, kept.done
    for number in range(1, 5):
        new = {
            "obs": torch.full((3, 2), float(number)) + torch.arange(3.0)[:, None] / 4,
            "done": torch.full((3,), float(number)),
        }
        exec(fix.paste, {"self": kept, "torch": torch, **new})
        obs, done = torch.cat([obs[3:], new["obs"]]), torch.cat([done[3:], new["done"]])
        order = (kept.oldest + torch.arange(7)) % 7
        assert torch.equal(kept.obs[order], obs) and torch.equal(kept.done[order], done)


@pytest.mark.parametrize(
    "text",
    [
        "self.obs = torch.cat([self.obs[:, 1:], new[:, None]], 1)",
        "self.obs = torch.cat([self.old[n:], obs])",
        "window = torch.cat([rows[n:], new])",
        "self.obs = self.join(self.obs, obs)",
    ],
)
def test_other_statements_are_left_to_the_program(text: str) -> None:
    assert ring(FIX, {11: text}.get, 11) == FIX


def test_a_name_of_a_function() -> None:
    fix = ring(FIX, {4: "rows = torch.cat([rows[len(new):], new])"}.get, 4)
    assert fix.paste.endswith("rows[slots] = new\noldest = (oldest + len(new)) % len(rows)")
