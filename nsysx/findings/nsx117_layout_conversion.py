"""NSX117 layout-conversion: convolutions convert their data from one memory layout to another and back.

What it means
    Tensor cores want images with the channels last (NHWC); PyTorch puts them first (NCHW). To run such a convolution on
    tensor cores, cuDNN converts its input before and its output after, every time. With model and input in channels_last
    the data stays as the kernels want it. The saving shown is the time of the conversions, an upper bound.
    A program in channels_last may lose that order at a line: torch.cat of five dimensions, a view that has to be copied, a product.
    Each convolution behind it then copies its input back, and once more for its gradient: that line is told.

In the trace
    nchwToNhwcKernel before and nhwcToNchwKernel after convolution kernels; tensorTransformGeneric. A copy within a convolution
    of channels_last.

Bad
    model = Net().cuda(); y = model(images)

Good
    model = Net().cuda().to(memory_format=torch.channels_last)
    y = model(images.to(memory_format=torch.channels_last))

Harmless when
    Some layer needs the other layout anyway, or the conversions take a small share of the step.
"""

from __future__ import annotations

import re

import polars as pl

from nsysx import units
from nsysx.catalogue import StepLimit, StepPart
from nsysx.findings import _lost_layouts
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._converted_inputs import call_of_network
from nsysx.findings._found import Found
from nsysx.findings._names import mostly
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import CHANNELS_LAST_NORM_LEFT
from nsysx.frames import lookup
from nsysx.model import Finding
from nsysx.replay.engine import Edit, RemoveOps, ScaleOps

RULE = Rule(
    "NSX117",
    "layout-conversion",
    "Conversions between memory layouts",
    cause=(StepPart.WORK,),
    about=StepLimit.GPU,
    tries=("cudnn-benchmark", "channels-last"),
    rests_on="The converting kernels were recorded",
)
REQUIRES = ("kernels",)
_CHANNELS_LAST = Fix.by_name("channels-last")
#: Batch normalization of torch over planes of NCHW.
_PLANES = r"(?i)batch_norm_(?!.*channels_last)"
_CONVERSION = r"(?i)nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|tensorTransformGeneric"


#: Tensors of three dimensions have no channels_last.
_OF_SEQUENCES = Fix(
    "Make these 1d convolutions and their normalization 2d ones of height 1 (nn.Conv2d with a kernel of (1, k), x.unsqueeze(2)) in "
    "torch.channels_last: tensors of three dimensions have no such layout"
)
_ONE_DIMENSION = re.compile(r"1d$")


def _one_dimensional(case: Case, conversions: pl.DataFrame) -> bool:
    """Return whether most of the conversions are in layers of one dimension."""
    classes = dict(case.profile.attributed.modules.select(pl.col("module", "cls").cast(pl.String)).iter_rows())
    modules = conversions["module"].cast(pl.String).to_list()
    of_sequences = sum(_ONE_DIMENSION.search(classes.get(module) or "") is not None for module in modules)
    return 2 * of_sequences > conversions.height


def check(case: Case) -> list[Finding]:
    """Return one finding where layout conversions take 1 % of the step or more, and one for each line that loses channels_last."""
    lost = _lost_layouts.findings_of(case, RULE)
    conversions = case.kernels.filter(pl.Series(lookup.matching(case.kernels["name"], _CONVERSION), dtype=pl.Boolean))
    taken = case.per_step(int(conversions["ns"].sum()))
    if not case.notable(taken):
        return lost or case.clear(RULE, f"layout conversions take {case.share(taken)} of the step")
    norms = case.kernels.filter(pl.Series(lookup.matching(case.kernels["name"], _PLANES), dtype=pl.Boolean))
    edits: list[Edit] = [RemoveOps(ops_of(conversions))]
    if norms.height:
        edits.append(ScaleOps(ops_of(norms), CHANNELS_LAST_NORM_LEFT, less_work=True))
    worth = case.worth_or_time(taken, "the conversions themselves", *edits, cause=RULE.cause)
    cost = case.lost(taken, worth)
    count = conversions.height / case.steps
    detail = (
        f"{count:.0f} kernels {case.per} convert between NCHW and NHWC around convolutions that need channels last: "
        f"{units.duration(taken)} ({case.share(taken)})."
    )
    if norms.height:
        of_norms = case.per_step(int(norms["ns"].sum()))
        detail += f" Batch normalization of NCHW takes {units.duration(of_norms)}, which is less in channels last, too."
    elif cost > taken:
        detail += f" With the pauses after them that is {units.duration(cost)}."
    fix = _OF_SEQUENCES if _one_dimensional(case, conversions) else _CHANNELS_LAST
    where = mostly(case.profile, conversions)
    if fix is _CHANNELS_LAST and (call := call_of_network(case.profile)) is not None:
        fix, where = fix.but(paste=call.paste), {**where, **call.where}
    if not case.program.torch:
        fix = Fix("Keep tensors in NHWC, the layout that the convolutions use")
    slow = " and slow normalization in NCHW" if norms.height else ""
    title = f"Conversions between memory layouts{slow} take {units.duration(cost)}"
    return [
        *lost,
        Found(
            RULE,
            title,
            detail,
            worth=worth,
            cost_ns=cost,
            fix=fix,
            where=where,
            takes=Takes(ops_of(conversions) | ops_of(norms)),
        ).as_finding(case),
    ]
