"""NSX116 fp32-math: GEMMs and convolutions in FP32 on a GPU whose tensor cores sit idle.

What it means
    Tensor cores multiply TF32, BF16 and FP16, not FP32. An FP32 product runs on the ordinary cores, which do about an eighth
    of the work in the same time (A100: 19.5 of 156 TFLOPS, H100: 67 of 495; NVIDIA's data sheets). TF32 keeps FP32 tensors
    and rounds the factors to 10 bits of mantissa; autocast to BF16 halves the memory traffic as well. By default PyTorch
    allows TF32 for convolutions but not for GEMMs. The saving shown lets these kernels run 8 times as fast: an
    upper bound, since many of them would then wait for memory. In a step that multiplies in 16 bits otherwise, products with TF32
    count, too: autocast does not reach them. The saving is then by the step's own products of 16 bits and like size.

In the trace
    Kernels named sgemm, simt, ffma, f32f32_f32f32_f32, or cuDNN engines of <float>; no tf32, bf16, s16816 or nvjet. Of an X-ray step also
    the line that calls them outside of autocast, in a thread or a backward without it, or where it is switched off.

Bad
    model = Net().cuda(); loss = model(x).sum()            # FP32 throughout

Good
    torch.set_float32_matmul_precision("high")             # TF32 for GEMMs
    with torch.autocast("cuda", torch.bfloat16):           # or BF16
        loss = model(x).sum()

    with torch.autocast("cuda", enabled=False):            # around the router alone, not around its experts
        routing = router(x.float())

    with torch.autocast("cuda", torch.bfloat16):           # teacher, head and critic too; anew in each thread
        soft = teacher(x)

    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.bfloat16)   # float32 casts all that follows

    q = rotary(q).to(q.dtype)                              # tables of float32 make what they touch float32

    z = F.linear(F.linear(x, A.to(x.dtype)), B.to(x.dtype))  # the weights of adapters are small: x stays in 16 bits

Harmless when
    The result needs FP32, as a factorization does, or these kernels are so short that launching them takes longer.
"""

from __future__ import annotations

import re

import polars as pl

from nsysx import units
from nsysx.catalogue import StepLimit, StepPart
from nsysx.events import kernel_math
from nsysx.events.recorded_settings import settings_of
from nsysx.findings import _float32_adapters, _without_autocast
from nsysx.findings._case import Case, Fix, Rule, Saving, ops_of, way
from nsysx.findings._found import Found
from nsysx.findings._names import mostly
from nsysx.findings._once import Takes
from nsysx.findings._outside_autocast import outside
from nsysx.findings._solvers import in_solvers, solves_much
from nsysx.findings._work_bounds import BF16_CORES_TIMES, TENSOR_CORES_TIMES
from nsysx.findings.nsx118_unfused_attention import runs_math_path
from nsysx.frames import lookup
from nsysx.model import Finding
from nsysx.replay.engine import ScaleOps

RULE = Rule(
    "NSX116",
    "fp32-math",
    "FP32 products beside idle tensor cores",
    cause=(StepPart.WORK,),
    about=StepLimit.GPU,
    tries=("tf32", "autocast-bf16"),
    rests_on="The formats of the products were recorded",
)
REQUIRES = ("kernels",)
_TF32 = Fix.by_name(
    "tf32", "autocast-bf16", condition="TF32 keeps 10 bits of the mantissa, BF16 7: the loss must still converge."
)
_CHANNELS_LAST = way(
    "autocast-bf16,channels-last",
    "torch.autocast('cuda', torch.bfloat16), with model and input in torch.channels_last",
    "model = model.to(memory_format=torch.channels_last)\n"
    'with torch.autocast("cuda", torch.bfloat16):\n'
    "    y = model(images.to(memory_format=torch.channels_last))",
)
_INSIDE = Fix.by_name(
    "autocast-bf16",
    text="Move this call into the region of torch.autocast that the rest of the step runs in: it runs outside, in float32",
    paste='with torch.autocast("cuda", torch.bfloat16):\n    soft = teacher(x)      # whatever runs outside now',
)
_SAME_DTYPE = Fix.by_name("same-dtype")
#: Dtypes of 16 bits that a network's parameters may have.
_NARROW = frozenset(("bfloat16", "float16"))
#: Cards whose tensor cores have no TF32 and no BF16.
_WITHOUT_TF32 = re.compile(r"V100|\bT4\b|TITAN (V|RTX)|RTX 20\d\d|Quadro (RTX|GV)", re.IGNORECASE)
#: Fused attention on FP32 numbers: a region of autocast gives it others, TF32 does not change it.
_FP32_ATTENTION = r"fmha\w*_f32"


def check(case: Case) -> list[Finding]:
    """Return a finding for each region without autocast whose products take 5 % of the step or more, and one where other FP32 products and
    convolutions take 1 %.
    """
    regions = _without_autocast.findings_of(case, RULE)
    told = frozenset[int]().union(*(ops for _, ops in regions))
    adapters, of_adapters = _float32_adapters.findings_of(case, RULE)
    told |= of_adapters
    beyond = outside(case, RULE, told)
    findings = [finding for finding, _ in regions] + adapters + beyond.findings
    others = _elsewhere(case, told | beyond.told, beyond.meant)
    return findings + [f for f in others if not findings or f.verdict == "found"]


def _elsewhere(case: Case, told: frozenset[int], meant: frozenset[int]) -> list[Finding]:
    """Return what is found of all FP32 products but GPU ops that are told; ``meant``: those that a step of 16 bits has for a reason."""
    trace = case.profile.trace
    cards = {(g.process, g.device): g.name for g in trace.capture.gpus if g.process == case.process and g.name}
    computes = {device: limits.compute for device, limits in trace.limits.items()}
    if any(not kernel_math.has_tensor_cores(name, computes.get(device)) for device, name in cards.items()):
        return case.clear(RULE, "this GPU has no tensor cores")
    kernels = case.kernels
    tensor = kernel_math.on_tensor_cores(kernels["name"])
    wide = kernel_math.fp32(kernels["name"])
    if _narrow_elsewhere(case, bool(tensor.any())) is not None:
        wide |= lookup.matching(kernels["name"], _FP32_ATTENTION)
        told |= meant
    wide &= ~kernels["op"].is_in(list(told)).to_numpy()
    wide &= ~in_solvers(case)  # which number format these have no setting of torch decides
    fp32_kernels = kernels.filter(pl.Series(wide, dtype=pl.Boolean))
    taken = case.per_step(int(fp32_kernels["ns"].sum()))
    if solves_much(case, wide):
        return case.clear(
            RULE, "the step solves equations: products that serve a factorization need all digits of FP32"
        )
    if not case.notable(taken):
        return case.clear(RULE, f"products and convolutions in FP32 take {case.share(taken)} of the step")
    of_conv = int(fp32_kernels.filter(fp32_kernels["family"] == "convolution")["ns"].sum())
    operation = "convolutions" if 2 * of_conv > int(fp32_kernels["ns"].sum()) else "GEMMs"
    attends = lookup.matching(fp32_kernels["name"], _FP32_ATTENTION)
    if 2 * int(fp32_kernels.filter(pl.Series(attends, dtype=pl.Boolean))["ns"].sum()) > int(fp32_kernels["ns"].sum()):
        operation = "attention kernels"
    old = any(_WITHOUT_TF32.search(name) for name in cards.values())
    fix = _fix(case, old, bool(tensor.any()), operation)
    inside = fix in (_INSIDE, _SAME_DTYPE)
    if fix == _SAME_DTYPE and runs_math_path(case) is not None:
        # It computes in float32 whatever it is given: no tensor of the program made that wide.
        return case.clear(
            RULE, "the math path of scaled_dot_product_attention computes in FP32: what it costs is NSX118"
        )
    times = BF16_CORES_TIMES if inside else TENSOR_CORES_TIMES
    formats = "FP16" if old else "BF16" if inside else "TF32 and BF16"
    why = f"if these kernels run {times} times as fast"
    faster = ScaleOps(ops_of(fp32_kernels), 1 / times, less_work=True)
    worth = case.worth_or_time(taken * (1 - 1 / times), why, faster, cause=RULE.cause)
    if worth.likely_ns is not None and not case.notable(worth.likely_ns):
        return case.clear(RULE, "faster FP32 products would shorten the step by less than 1 %")
    if tensor.any() and operation == "convolutions":
        worth = Saving(None, "not known: cuDNN picks these kernels although it may use tensor cores, as others here do")
    rows = fp32_kernels.group_by(pl.col("name").cast(pl.String)).agg(pl.len().alias("count"), pl.col("ns").sum())
    rows = rows.sort("ns", "name", descending=[True, False]).head(6)
    evidence = [{"kernel": k, "count": n / case.steps, "total_ns": case.per_step(ns)} for k, n, ns in rows.iter_rows()]
    detail = (
        f"Kernels that multiply in FP32 take {units.duration(taken)} {case.per} ({case.share(taken)}). Tensor cores are up to "
        f"{times} times as fast in {formats.replace('and', 'or')}; kernels that then wait for memory gain less."
    )
    title = f"FP32 {operation} take {units.duration(taken)}; the GPU has tensor cores for {formats}"
    where = mostly(case.profile, fp32_kernels)
    return [
        Found(
            RULE,
            title,
            detail,
            worth=worth,
            cost_ns=taken,
            fix=fix,
            where=where,
            evidence=evidence,
            takes=Takes(ops_of(fp32_kernels)),
        ).as_finding(case)
    ]


def _fix(case: Case, old: bool, tensor: bool, operation: str) -> Fix:
    """Return how to reach the tensor cores: nothing that is already switched on. ``old``: cards without TF32 and BF16."""
    if not case.program.torch:
        return Fix("Let the library use tensor cores: CUBLAS_COMPUTE_32F_FAST_TF32, CUDNN_TENSOR_OP_MATH, or BF16 data")
    if old:
        return Fix.by_name("autocast-fp16")
    settings = settings_of(case.profile)
    if (narrow := _narrow_elsewhere(case, tensor)) is not None:
        return narrow
    if operation == "convolutions":
        # What cuDNN is told already is not advised; its search for the fastest algorithm has a finding of its own.
        if settings is not None and (tensor or settings.switch("conv_tf32") is True):
            return Fix.by_name(_CHANNELS_LAST)
        also = way("cudnn-benchmark" if tensor else "cudnn-tf32")
        return Fix.by_name(_CHANNELS_LAST, also, text=f"{_CHANNELS_LAST.text}; or {also.text}")
    if settings is not None and settings.switch("matmul_tf32") is True:
        return Fix.by_name("autocast-bf16", text="torch.autocast('cuda', torch.bfloat16): TF32 is allowed already")
    return _TF32


def _narrow_elsewhere(case: Case, tensor: bool) -> Fix | None:
    """Return how work in FP32 comes to 16 bits where the rest of the step has them; None where it has not. ``tensor``: cores are used.

    That is by a region of autocast, or because all parameters of the networks have 16 bits: then a tensor of float32 made it wide.
    """
    settings = settings_of(case.profile)
    if not tensor or settings is None:
        return None
    if settings.autocast("regions") and settings.autocast("dtypes"):
        return _INSIDE
    dtypes = [frozenset(row.get("dtypes") or ()) for row in settings.rows("networks") or ()]
    return _SAME_DTYPE if dtypes and all(each and each <= _NARROW for each in dtypes) else None
