"""A function that torch.compile has given up: steps before the limit show what its GPU work takes compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings import US
from tests.findings.lined import FILE, Lined
from tests.findings.test_nsx127_costly_settings import CLEAN

ANEW = {"file": FILE, "function": "forward", "line": 65, "count": 7, "reason": "0/6: self.calls == 6"}
SETTINGS = {**CLEAN, "compile": {"recompile_limit": 8, "recompilations": [ANEW]}}
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>"
FUSED = "triton_poi_fused_add_mul_0"


def finding_of(folder: Path, kernel: str, launches: int = 1, choices: int = 1) -> Finding:
    """Return what is told of a program whose first steps launch a kernel of 100 us so often, after they tried it out so often."""

    def body(program: Lined, number: int) -> None:
        with program.line(66, "forward"), program.range("forward"), program.range("net:Net"):
            if number >= 4:
                for _ in range(30):
                    program.launch(100, "void at::native::elementwise_kernel<add>")
            for _ in range(choices if number < 4 else 0):
                program.host(20_000)
                program.launch(100, kernel)
                for _ in range(60):
                    program.launch(50, FILL)
                    program.launch(100, kernel)
            for _ in range(launches if number < 4 else 0):
                program.launch(100, kernel)
        program.sync()

    (finding,) = [
        f
        for f in Lined({66: "y = x * 2 + 1"}, SETTINGS).run(body, count=12).found(folder, "NSX127")
        if f.remedies[0].name == "compiled-for-all-calls"
    ]
    return finding


@pytest.mark.parametrize(("launches", "choices"), [(1, 1), (4, 1), (4, 0)])
def test_it_takes_what_its_compiled_calls_took(launches: int, choices: int, tmp_path: Path) -> None:
    """Not the 61 launches of each choice among ways to launch the kernel."""
    saving = finding_of(tmp_path, FUSED, launches, choices).saving
    assert saving.source == "time" and f"{launches} kernel" in saving.confidence
    assert saving.likely_ns is not None and saving.error_ns is not None and saving.most_ns is not None
    assert saving.likely_ns == pytest.approx((3_000 - 100 * launches) * US, abs=60 * US)
    assert saving.likely_ns <= saving.most_ns <= 3_050 * US and (saving.error_ns > 90 * US) == (choices > 0)


@pytest.mark.parametrize(("kernel", "launches"), [("void at::native::elementwise_kernel<mul>", 1), (FUSED, 40)])
def test_without_a_compiled_call_it_is_no_exact_replay(kernel: str, launches: int, tmp_path: Path) -> None:
    """Kernels that no compiler wrote, as often, and such that take longer than all that the function does uncompiled."""
    saving = finding_of(tmp_path, kernel, launches).saving
    assert "no compiled call was recorded" in saving.confidence
    assert (saving.source, saving.bound) == ("time", False)


@pytest.mark.parametrize(
    ("reason", "paste"),
    [
        (
            "2/6: self.step == 6      # self.step += 1  # train.py:22",
            "allow_unspec_int_on_nn_module = True  # before the first call: self.step",
        ),
        ("0/6: temp == 3.4  # if temp > 2.0: s = s * 2", "temp = torch.tensor(temp, device=x.device)"),
        ("0/6: self.scale == 0.5", "self.scale = torch.tensor(self.scale, device=x.device)"),
        ("0/6: tensor 'x' size mismatch at index 0", 'self.register_buffer("calls"'),
    ],
)
def test_the_number_that_changed_is_named(
    reason: str, paste: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ANEW, "reason", reason)
    assert paste in finding_of(tmp_path, FUSED).paste
