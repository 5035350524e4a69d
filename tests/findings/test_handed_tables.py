"""NSX105: tables on the host that a helper is handed and copies in each call, told with the attributes that its callers hand over."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from nsysx.model import Finding
from tests.findings.lined import Lined, forward

BEFORE, COPY, CALLS, OTHER = 11, 12, (33, 36), 40
HELPER = "res = torch.from_numpy(arr).to(device=timesteps.device)[timesteps].float()"
OF_OBJECT = {
    33: "return expand(self.sqrt_ac, t, x0.shape) * x0 + expand(self.sqrt_1m_ac, t, x0.shape) * noise",
    36: "mean = expand(self.coef, t, xt.shape) * x0",
}


def step(program: Lined, number: int, *, grows: bool) -> None:
    """Lines that call a helper, which copies 8 kB from pageable memory, each time behind long kernels; it has a line before that."""
    forward(program, 30, 20)
    for line in CALLS:
        with program.line(line, f"Diffusion.method_{line}"):
            program.host(2)
            with program.line(BEFORE, "expand"):
                program.host(2)
            with program.line(COPY, "expand"):
                program.host(30)
                program.copy(2, "HtoD", bytes=8000 + 8 * number * grows)
                program.sync()
    with program.line(OTHER):
        program.host(2)
    program.sync()


def told(
    folder: Path, helper: str, calls: Mapping[int, str], other: str = "pass", *, grows: bool = False
) -> list[Finding]:
    program = Lined({COPY: helper, OTHER: other, **calls}, {})
    program.run(lambda program, number: step(program, number, grows=grows))
    found = [f for code in ("NSX105", "NSX123") for f in program.found(folder, code)]
    return [f for f in found if "kept-constant" in [way.name for way in f.remedies]]


@pytest.mark.parametrize(
    ("helper", "calls", "paste"),
    [
        (
            HELPER,
            OF_OBJECT,
            [
                "self.sqrt_ac = torch.from_numpy(self.sqrt_ac).to('cuda')  # once, at the end of Diffusion.__init__",
                "self.sqrt_1m_ac = torch.from_numpy(self.sqrt_1m_ac).to('cuda')  # once, at the end of Diffusion.__init__",
                "self.coef = torch.from_numpy(self.coef).to('cuda')  # once, at the end of Diffusion.__init__",
                "res = arr[timesteps].float()  # in place of the line that copies",
            ],
        ),
        (
            "out = a.to(t.device, torch.float32).gather(-1, t)",
            {33: "x = self.expand(t, self.betas)", 36: "y = self.expand(t, self.betas) * 2"},
            [
                "self.betas = self.betas.to('cuda', torch.float32)  # once, at the end of Diffusion.__init__",
                "out = a.gather(-1, t)  # in place of the line that copies",
            ],
        ),
        (
            "w = torch.as_tensor(values, device=t.device, dtype=torch.float32)[t]",
            dict.fromkeys(CALLS, "w = expand(t=t, values=WEIGHTS)"),
            [
                "WEIGHTS = torch.as_tensor(WEIGHTS, device='cuda', dtype=torch.float32)  # once, at the end of Diffusion.__init__",
                "w = values[t]  # in place of the line that copies",
            ],
        ),
        (
            "w = torch.from_numpy(self.alphas).float().cuda()[t]",
            dict.fromkeys(CALLS, "w = self.expand(t)"),
            [
                "self.alphas = torch.from_numpy(self.alphas).float().to('cuda')  # once, where it is made",
                "w = self.alphas[t]  # in place of the line that copies",
            ],
        ),
        (
            "return torch.from_numpy(arr).cuda()[t]",
            {33: f"x = {' + '.join(f'expand(self.c{n}, t)' for n in range(8))}", 36: "y = expand(self.c0, t)"},
            [
                f"for name in ({', '.join(f'{chr(34)}c{n}{chr(34)}' for n in range(8))}):  # once, at the end of Diffusion.__init__",
                "    setattr(self, name, torch.from_numpy(getattr(self, name)).to('cuda'))",
                "return arr[t]  # in place of the line that copies",
            ],
        ),
    ],
)
def test_what_callers_hand_over_is_kept_on_the_gpu(
    helper: str, calls: Mapping[int, str], paste: list[str], tmp_path: Path
) -> None:
    of_copies, *_ = found = told(tmp_path, helper, calls)
    assert [f.code for f in found] == ["NSX105", "NSX123"]
    assert [f.paste.splitlines() for f in found] == [paste] * 2 and all(f.where["line"] == COPY for f in found)
    assert "2 times in each step" in str(of_copies.fix) and "not what is in them" in of_copies.condition


def test_the_paste_computes_the_same(tmp_path: Path) -> None:
    finding, *_ = told(tmp_path, HELPER, OF_OBJECT)
    *kept, inside = finding.paste.replace("'cuda'", "'cpu'").splitlines()

    class Object:
        sqrt_ac, sqrt_1m_ac, coef = (np.linspace(0, n, 50) for n in (1, 2, 3))

    timesteps, results = torch.tensor([3, 40]), list[torch.Tensor]()
    for line in (HELPER, inside):
        held = Object()
        if line == inside:
            exec("\n".join(kept), {"self": held, "torch": torch})
        for arr in (held.sqrt_ac, held.coef):
            names: dict[str, object] = {"arr": arr, "timesteps": timesteps, "torch": torch}
            exec(re.sub(r"  #.*", "", line), names)
            assert isinstance(names["res"], torch.Tensor)
            results.append(names["res"])
    torch.testing.assert_close(results[:2], results[2:], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("helper", "calls", "other", "grows"),
    [
        (HELPER, {33: "a = expand(rows, t)", 36: "b = expand(self.coef, t)"}, "pass", False),
        (HELPER, dict.fromkeys(CALLS, "a = expand(self.batch, t)"), "pass", False),
        (HELPER, dict.fromkeys(CALLS, "a = expand(self.coef, self.scale)"), "pass", False),
        (HELPER, dict.fromkeys(CALLS, "a = expand(self.coef, t)"), "self.coef = self.schedule(number)", False),
        (HELPER, dict.fromkeys(CALLS, "a = expand(self.coef, t)"), "pass", True),
        (HELPER, dict.fromkeys(CALLS, "a = self.model(t)"), "pass", False),
        ("out = {k: v.to(device) for k, v in arr.items()}", dict.fromkeys(CALLS, "a = expand(self.coef)"), "pass", False),
        ("out = a.to(device) + b.to(device)", dict.fromkeys(CALLS, "a = expand(self.coef, self.scale)"), "pass", False),
    ],
)  # fmt: skip
def test_what_may_be_another_one_in_each_step(
    helper: str, calls: Mapping[int, str], other: str, grows: bool, tmp_path: Path
) -> None:
    assert not told(tmp_path, helper, calls, other, grows=grows)


@pytest.mark.parametrize(
    "before",
    ["arr = next(rows)", "torch.index_select(column, 0, t, out=arr)", "arr[:4] = column[t]", "arr.copy_(column)"],
)
def test_what_the_helper_makes_itself(before: str, tmp_path: Path) -> None:
    calls = dict.fromkeys(CALLS, "a = expand(self.coef, t)") | {BEFORE: before}
    assert not told(tmp_path, "res = arr.to(t.device)[t]", calls)
    assert told(tmp_path, "res = arr.to(t.device)[t]", calls | {BEFORE: "n = len(arr)"})
