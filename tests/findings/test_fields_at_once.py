"""NSX123, NSX105: fields of samples that a line copies one by one, as targets of detection; batches of their own, few or large copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings import said_of
from tests.findings.lined import FILE, Lined, forward

TEXT = "targets = [{k: v.to(device) for k, v in t.items()} for t in targets]"


def told(
    folder: Path, *, text: str = TEXT, copies: int = 224, size: int = 2_000, between: int = 0, wait: bool = True
) -> list[Finding]:
    """Return what is said of line 12, which copies so many tensors of this size (bytes), with kernels between them."""

    def body(program: Lined, number: int) -> None:
        for _ in range(copies):
            with program.line(12):
                program.host(20)
                program.copy(2, pageable=False, bytes=size)
                if wait:
                    program.sync()
            for _ in range(between):
                with program.line(20), program.range("forward"), program.range("net:Net"):
                    program.launch(4)
        forward(program, 200, 60)
        with program.line(30):
            program.sync()

    made = Lined({12: text, 20: "y = net(x)", 30: "loss.item()"}).run(body)
    found = [f for f in said_of(made.write(folder)) if f.verdict == "found"]
    return [
        f for f in found if f.code in ("NSX123", "NSX105") and (f.where.get("file"), f.where.get("line")) == (FILE, 12)
    ]


def is_of_fields(finding: Finding) -> bool:
    return "fields-at-once" in [way.name for way in finding.remedies]


def test_fields_of_samples_are_put_together(tmp_path: Path) -> None:
    findings = told(tmp_path)
    assert findings and all(map(is_of_fields, findings))
    (line,) = (f for f in findings if f.code == "NSX123")
    assert "here 224 copies per step, half of them of 2.0 KiB or less" in line.fix
    # Eight copies are left of 224.
    assert line.saving_ns_per_step == pytest.approx((line.cost_ns_per_step or 0) * (1 - 8 / 224), rel=0.01)
    assert not line.saving.bound


def test_without_waits_the_calls_stay(tmp_path: Path) -> None:
    """non_blocking=True spares the waits, not the calls."""
    findings = told(tmp_path, wait=False)
    assert findings and all(map(is_of_fields, findings))


@pytest.mark.parametrize(
    "how",
    [
        {"between": 3},  # a batch each: micro-batches
        {"copies": 20},
        {"size": 3 << 20},  # images: their bytes take the time
        {"text": "x = torch.tensor([row.score for row in rows]).to(device)"},  # numbers of Python
        {"text": "x = self.prepared(batch)"},
    ],
)
def test_other_copies_are_told_as_before(how: dict[str, object], tmp_path: Path) -> None:
    assert not any(map(is_of_fields, told(tmp_path, **how)))  # type: ignore[arg-type]
