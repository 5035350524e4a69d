"""NSX131: rows that are made unique by a comparison, and boxes that are all suppressed, by the operators' names and sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nsysx.inject.nsysx_probe.changes.matrices import UNTRIED
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_smaller_operators import operator

LINE = 30
SOURCE = {20: "y = net(x)", LINE: "coords, inverse = torch.unique(rows, dim=0, return_inverse=True)"}
SORT = "void at_cuda_detail::cub::DeviceMergeSortBlockSortKernel<at::native::unique_dim_cuda_template<long>(at::Tensor const&)>(long *)"
NMS = "void vision::ops::nms_kernel_impl<float>(int, double, float const *, unsigned long *)"


def step(program: Lined, number: int, *, name: str, sizes: str) -> None:
    """A network (400 us), and such an operator of one line (300 us)."""
    at = 1000 * number + 10
    with program.line(20), program.range("forward"), program.range("net:Net"):
        operator(program, "linear", at, [-1, -1], "[64, 128], [128, 128]", 400)
    begin = program.t
    with program.line(LINE):
        program.host(5)
        program.launch(300, NMS if "nms" in name else SORT)
        if program.noted is not None:
            label = f"{name}, op_id = {at + 1}, sizes = [{sizes}], input_op_ids = [(0,-1), (0,-1)]"
            program.main.add_range(label, begin, program.t)
    program.sync()


def told(folder: Path, name: str, sizes: str) -> list[Finding]:
    program = Lined(SOURCE).run(lambda program, number: step(program, number, name=name, sizes=sizes))
    wide = [f for f in program.found(folder, "NSX127") if f.evidence[0]["setting"] == "float64"]
    assert not wide, "the kernel is given a threshold of float64, and computes with float32"
    wanted = ("rows-as-numbers", "best-before-suppression")
    return [f for f in program.found(folder, "NSX131") if f.remedies and f.remedies[0].name in wanted]


@pytest.mark.parametrize(
    ("name", "sizes", "remedy", "left"),
    [
        ("aten::unique_dim", "[1200000, 4], []", "rows-as-numbers", 0.2),
        ("torchvision::nms", "[40000, 4], [40000], []", "best-before-suppression", 0.0),
    ],
)
def test_a_lighter_form_is_told_with_its_line(name: str, sizes: str, remedy: str, left: float, tmp_path: Path) -> None:
    (finding,) = told(tmp_path, name, sizes)
    assert finding.remedies[0].name == remedy and (finding.where["file"], finding.where["line"]) == (FILE, LINE)
    assert finding.saving.bound and finding.saving_ns_per_step == pytest.approx(300_000 * (1 - left), rel=0.05)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("aten::unique_dim", "[100000, 4], []"),  # as long either way
        ("aten::unique_dim", "[1200000, 1], []"),
        ("aten::_unique2", "[1200000], []"),
        ("aten::unique_consecutive", "[1200000, 4], []"),
        ("torchvision::nms", "[2000, 4], [2000], []"),
    ],
)
def test_few_rows_numbers_and_few_boxes_are_silent(name: str, sizes: str, tmp_path: Path) -> None:
    assert told(tmp_path, name, sizes) == []


def test_rows_as_numbers_are_the_same_rows() -> None:
    paste = next(r.example for r in UNTRIED if r.name == "rows-as-numbers")
    rows = torch.randint(0, 7, (500, 4)) * torch.tensor([1, 3, 1, 2])
    wanted, inverse = torch.unique(rows, dim=0, return_inverse=True)
    names = {"torch": torch, "rows": rows}
    exec(paste, names)
    assert torch.equal(names["rows"], wanted) and torch.equal(names["inverse"], inverse)  # type: ignore[arg-type]
