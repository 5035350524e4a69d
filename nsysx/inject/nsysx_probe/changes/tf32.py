"""FP32 GEMMs in TF32."""

from __future__ import annotations

from typing import Any

from . import Change, Remedy, Watch


def _arm(torch: Any, watch: Watch) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")

    def look() -> None:
        if torch.get_float32_matmul_precision() != "high":
            watch.count, watch.why_not = 0, "the program sets the precision itself"

    if before == "highest":
        watch.took(here=False)
        watch.can_turn(lambda on: torch.set_float32_matmul_precision("high" if on else before))
        watch.at_end.append(look)
    else:
        watch.why_not = f"the precision is {before} already"


CHANGES = (
    Change(
        "tf32", "TF32 for FP32 GEMMs", 'torch.set_float32_matmul_precision("high")', _arm,
        alters="numerics", needs="cuda",
        beware="products keep 10 bits of the mantissa instead of 23",
        advice="torch.set_float32_matmul_precision('high') for TF32", label="TF32",
        condition="TF32 keeps 10 bits of the mantissa: the loss must still converge.",
    ),
)  # fmt: skip
UNTRIED = (
    Remedy("cudnn-tf32", "torch.backends.cudnn.allow_tf32 = True", untried="it is on unless the program turns it off"),
)
