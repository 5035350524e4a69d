"""NSX101: whether each module's output is finite, read in a hook; what other lines read is another matter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.findings.lined import FILE, Lined

CHECK = 12
OF_VALUE = "if not torch.isfinite(o).all():"


def step(program: Lined, number: int) -> None:
    """A network of 40 modules, behind each of which a hook computes with five kernels what it reads."""
    with program.line(20), program.range("forward"), program.range("net:Net"):
        for module in range(40):
            with program.range(f"net.layers.{module}:Linear"):
                program.launch(30)
                with program.line(CHECK, "check"):
                    for _ in range(5):
                        program.host(6)
                        program.launch(5, "reduce_kernel")
                    program.copy(2, "DtoH", bytes=1)
                    program.host(6)
    with program.line(21), program.range("backward"):
        program.launch(1000)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (OF_VALUE, "checked-rarely"),
        ("assert (o > 0).all(), names[m]", "checked-rarely"),
        ("if torch.isnan(o).any():", "checked-rarely"),
        ("largest[names[m]] = o.abs().max().item()", "keep-on-gpu"),
        ("share = float((o > 0).float().mean())", "keep-on-gpu"),
        ("if o.abs().max() > bound:", "keep-on-gpu"),
    ],
)
def test_a_check_is_made_rarely_and_a_value_that_is_used_is_kept(text: str, remedy: str, tmp_path: Path) -> None:
    program = Lined({20: "y = net(x)", CHECK: text, 21: "y.sum().backward()"}).run(step)
    found = [f for f in program.found(tmp_path, "NSX101") if f.where.get("line") == CHECK]
    assert [[way.name for way in f.remedies] for f in found] == [[remedy]]
    assert found[0].where["file"] == FILE
    # A check goes with its kernels and launches; a value that is used has to be computed, and the CPU waits for less.
    assert ((found[0].saving.likely_ns or 0) > 2_000_000) == (remedy == "checked-rarely")
