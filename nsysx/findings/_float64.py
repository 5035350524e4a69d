"""Numbers of float64 on the GPU: when they cost, and what the same work with float32 is worth."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses.helpers import kernel_shapes
from nsysx.catalogue import DeviceActivity, StepPart
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Need, Saving, State, ops_of
from nsysx.findings._finding_bounds import (
    ALL_FLOAT64_SHARE,
    FLOAT32_OTHER_LEFT,
    FLOAT32_OTHER_LEFT_BEST,
    FLOAT32_PRODUCT_LEFT,
    FLOAT32_PRODUCT_LEFT_BEST,
    HALF_OF_BYTES_LEFT,
    LONG_MESSAGE_NS,
    MOST_SHARE,
    REPORTED_SHARE,
    SOLVER_KERNELS_SHARE,
)
from nsysx.findings._once import Takes
from nsysx.findings._solvers import SOLVERS
from nsysx.findings._work_bounds import SAME_SIZE_TIMES
from nsysx.findings.nsx112_fusion import of_modules
from nsysx.frames import lookup
from nsysx.frames.intervals import interval_of
from nsysx.model import Row
from nsysx.replay.edits import ScaleOps

#: Kernels that compute in float64.
_DOUBLE = r"(?i)double|f64|dgemm|dgemv|float64"


#: Kernels that take numbers of float64 as arguments, and compute with others.
_ARGUMENTS = r"(?i)multi_tensor|foreach|fused_?(adam|sgd|adagrad)|nms_kernel"


def _doubles(case: Case) -> pl.DataFrame:
    doubles = np.asarray(lookup.matching(case.kernels["name"], _DOUBLE), np.bool_)
    arguments = np.asarray(lookup.matching(case.kernels["name"], _ARGUMENTS), np.bool_)
    return case.kernels.filter(pl.Series(doubles & ~arguments, dtype=pl.Boolean))


def _for_solvers(case: Case) -> bool:
    """Return whether the numbers are float64 because equations are solved with them: that is no oversight."""
    doubles, code = _doubles(case), case.profile.code()
    solves = np.asarray(lookup.matching(doubles["name"], SOLVERS), np.bool_)
    ns = doubles["ns"].to_numpy()
    if code is None or not solves.any():
        return bool(ns[solves].sum() >= SOLVER_KERNELS_SHARE * max(ns.sum(), 1))
    line_row = code.places_of(code.op[doubles["op"].to_numpy()])
    return bool(ns[np.isin(line_row, line_row[solves])].sum() >= MOST_SHARE * max(ns.sum(), 1))


#: Why float64 of a simulation may be an oversight.
_BEGUN = "what the steps compute with begins in float32 and meets float64"
#: Kernels that transform, beside those that solve: simulations of physics are made of both.
_TRANSFORMS = r"fft|bluestein"


def _not_meant(case: Case) -> tuple[State, str]:
    if not (
        case.program.python or case.program.torch
    ):  # whatever its ranges are called, they are no modules of a network
        return "violated", "the program is neither Python's nor PyTorch's: whoever wrote its kernels chose their types"
    if case.program.networks or of_modules(case.ops).any():
        return "holds", "a network runs in the steps"
    if not lookup.matching(case.kernels["name"], f"{SOLVERS}|{_TRANSFORMS}").any():
        return "unknown", "no network was seen"
    if _promoted(case):
        return "unknown", "numbers of another format enter its arithmetic, and results go back to float32"
    if _meetings(case):
        return "unknown", _BEGUN
    return "violated", "no network was seen, and transforms or solvers run: simulations mostly need float64"


#: Kernels of torch that convert what they load: arithmetic of float64 on numbers of two formats, and copies into float32.
_CONVERTS = r"gpu_kernel_impl<|LoadWithCast"
_COPIES = r"direct_copy_kernel"
_INTO_FLOAT32 = r"lambda\((float|c10::complex<float>)\)"


def _promoted(case: Case) -> bool:
    """Return whether numbers of another format become float64 in an operation with it, and results float32 again, without a solver."""
    names = case.kernels["name"]
    if lookup.matching(names, SOLVERS).any():
        return False
    doubles, converts, copies, into = (
        np.asarray(lookup.matching(names, pattern), np.bool_)
        for pattern in (_DOUBLE, _CONVERTS, _COPIES, _INTO_FLOAT32)
    )
    return bool((doubles & converts & ~copies).any() and (copies & converts & into).any())


#: Elementwise kernels of torch that compute in float32: their grid says how large their tensors are.
_ELEMENTWISE, _SINGLE = r"elementwise_kernel", r"<float\b|\(float\b|c10::complex<float>"


#: What an elementwise kernel of torch does, by its functor: CUDAFunctor_add, MulFunctor.
_FUNCTOR = re.compile(r"CUDAFunctor(?:OnSelf\w*?)?_(\w+)|(\w+)Functor\b")
_OF_NUMBERS = ("binary", "aunary", "bunary")


def _meetings(case: Case) -> tuple[str, ...]:
    """Return what first makes float64 of tensors as large as those of the steps that were float32 until one of float64 met them.

    What it does is lower case, as far as its name tells: add, mul. Empty where nothing does, and where a solver runs. What is float64 on
    purpose is so from its beginning: arithmetic on tensors of that size is float64 before any that takes numbers of two formats, and
    float32 is nothing that came before it.
    """
    of_steps = _sized(case.ops)
    doubles = of_steps.filter(of_steps["double"])
    if not doubles.height or lookup.matching(case.kernels["name"], SOLVERS).any():
        return ()
    usual = float(doubles.sort("ns")["threads"][-1])
    of_process = case.profile.attributed.gpu_ops.filter(pl.col("process") == case.process)
    large = _sized(of_process).filter((pl.col("threads") >= usual / SAME_SIZE_TIMES) & ~pl.col("copies"))
    single, double = large.filter(large["single"] & ~large["double"]), large.filter(large["double"])
    meets = double.filter(double["converts"])
    if not (single.height and meets.height):
        return ()
    first_ns = int(meets["start_ns"].to_numpy().min())
    if single["start_ns"].to_numpy().min() >= first_ns or double["start_ns"].to_numpy().min() < first_ns:
        return ()
    does = [part.lower() for name in meets["name"].cast(pl.String).to_list() for part in _does(name)]
    return tuple(dict.fromkeys(does)) or ("an operator",)


def _does(kernel: str) -> list[str]:
    """Return what the functors of a kernel are called but those that only say how many numbers they take."""
    parts = [a or b for a, b in _FUNCTOR.findall(kernel)]
    return [part for part in parts if part.lower() not in _OF_NUMBERS]


def _sized(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the elementwise kernels among GPU ops: start_ns, name, ns, threads, and what names say: double, single, converts, copies."""
    ops = ops.filter((ops["op_kind"] == "kernel") & ops["grid"].is_not_null() & ops["block"].is_not_null())
    ops = ops.filter(pl.Series(np.asarray(lookup.matching(ops["name"], _ELEMENTWISE), np.bool_), dtype=pl.Boolean))
    patterns = {"double": _DOUBLE, "single": _SINGLE, "converts": _CONVERTS, "copies": _COPIES}
    return ops.select("start_ns", "name", ns=pl.col("end_ns") - pl.col("start_ns")).with_columns(
        threads=kernel_shapes.threads(ops),
        **{
            name: pl.Series(np.asarray(lookup.matching(ops["name"], pattern), np.bool_), dtype=pl.Boolean)
            for name, pattern in patterns.items()
        },
    )


#: Numbers of a simulation are float64 on purpose.
NOT_MEANT = Need("float64 is an oversight", _not_meant)


def in_settings(case: Case, settings: RecordedSettings) -> str:
    networks = [(r.get("class"), r.get("dtypes")) for r in settings.rows("networks") or ()]
    where = [f"parameters of {c}" for c, kinds in networks if isinstance(kinds, Mapping) and kinds.get("float64")]
    kinds = settings.activations("dtypes")
    if isinstance(kinds, Mapping) and kinds.get("float64"):
        modules = settings.activations("float64_in")
        first = f", first of {modules[0]}" if isinstance(modules, list) and modules and modules[0] else ""
        where.append(f"results of modules{first}")
    told = seen(case)
    return told.replace("outside of modules", f"in {' and in '.join(where)}") if where else told


#: Kernels of complex numbers of two float64, and transforms, which name the real type of either.
_COMPLEX, _OF_EITHER = r"(?i)complex<double>|cf64|zgemm|zgemv|double2", r"(?i)fft"


def _complex(case: Case) -> bool:
    """Return whether most of what computes in float64, transforms aside, has complex numbers."""
    doubles = _doubles(case)
    names, ns = doubles["name"], doubles["ns"].to_numpy()
    both, either = (np.asarray(lookup.matching(names, pattern), np.bool_) for pattern in (_COMPLEX, _OF_EITHER))
    return bool(ns[both & ~either].sum() > MOST_SHARE * ns[~either].sum() > 0)


def worded(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy, those of complex numbers where the kernels have such, with the first line that computes with them."""
    line = _first_line(case)
    first = f", first at {PurePath(str(line['file'])).name}:{line['line']}" if line else ""
    if case.program.torch and _not_meant(case) == ("unknown", _BEGUN):
        text = (
            "Make arrays of numpy float32 (complex64 if complex) before they meet the state: they are float64 by default, and what was "
            "float32 and meets one is float64 from then on"
        )
        paste = "x = torch.from_numpy(array).float().to(device)  # of complex numbers .to(torch.complex64)"
        return f"Float32 becomes float64 on the GPU{first}", replace(remedy, text=text, paste=paste)
    if not _complex(case):
        return f"{title}{first}", remedy
    text = "Make this complex64 where it is made (numpy's default is complex128)"
    paste = "x = torch.as_tensor(array, dtype=torch.complex64)  # complex128 promotes all that it meets"
    return f"Complex128 on the GPU{first}", replace(remedy, text=text, paste=paste)


def seen(case: Case) -> str:
    """Return what the kernels alone tell of float64, "" where theirs take too little."""
    ns = case.per_step(int(_doubles(case)["ns"].sum()))
    much = case.notable(ns, REPORTED_SHARE) and not _for_solvers(case)
    kind = "complex128" if _complex(case) else "float64"
    return f"{kind} outside of modules: its kernels take {units.duration(ns)} {case.per}" if much else ""


def taken(case: Case) -> Takes:
    """Return the kernels that compute with float64."""
    return Takes(ops_of(_doubles(case)))


def place(case: Case) -> Row:
    """Return where the program asks for float64, as the default or for a network whose parameters have it, else the first line of a step
    that computes with it; empty if not known.
    """
    settings = settings_of(case.profile)
    if settings is None:
        return _first_line(case) or _first_meeting(case)
    wide = any("float64" in (row.get("dtypes") or ()) for row in settings.rows("networks") or ())
    of_settings = settings.place("float64", *(["double"] if wide else []))
    return of_settings or _first_line(case) or _first_meeting(case)


def _first_meeting(case: Case) -> Row:
    """Return in words which operators first make float64 of what was float32, empty where that is not known."""
    if _not_meant(case) != ("unknown", _BEGUN):
        return {}
    return {"near": f"float32 first meets float64 in {' and '.join(_meetings(case)[:2])}"}


def _first_line(case: Case) -> Row:
    """Return the line that most often launches the first kernel of float64 in a step, empty where lines are not known."""
    code, steps = case.profile.code(), case.profile.steps.cpu.filter(pl.col("process") == case.process)
    if code is None or not steps.height:
        return {}
    doubles = case.ops.filter(pl.col("op").is_in(_doubles(case)["op"].implode()) & (pl.col("call") >= 0)).sort(
        "call_start_ns"
    )
    line_row = code.places_of(code.op[doubles["op"].to_numpy()])
    step = interval_of(doubles["call_start_ns"].to_numpy(), steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy())
    noted = (step >= 0) & (line_row >= 0)
    first = np.unique(step[noted], return_index=True)[1]
    return code.where_most(line_row[noted][first])


def halved(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what it is worth if kernels of float64 take half of the time, half of the bytes, and products less (see above).

    Where nearly all that is computed is float64, so are the numbers that ranks send each other: long messages take half of their time.
    """
    doubles = _doubles(case)
    products = doubles["family"].cast(pl.String).is_in(["gemm", "convolution", "attention"])
    of_products, others = ops_of(doubles.filter(products)), ops_of(doubles.filter(~products))
    sent = _messages(case, doubles)
    parts = (StepPart.WORK, StepPart.COMM) if sent else (StepPart.WORK,)

    def worth(product: float, other: float) -> Saving:
        factors = ((of_products, product), (others, other), (sent, HALF_OF_BYTES_LEFT))
        edits = [ScaleOps(ops, by, less_work=True) for ops, by in factors if ops]
        return case.worth(*edits, cause=parts, bound=True) if edits else Saving(None, "no kernel of float64")

    likely, best = (
        worth(FLOAT32_PRODUCT_LEFT, FLOAT32_OTHER_LEFT),
        worth(FLOAT32_PRODUCT_LEFT_BEST, FLOAT32_OTHER_LEFT_BEST),
    )
    most = max(likely.most_ns or 0, best.most_ns or 0)
    return likely if likely.likely_ns is None else replace(likely, most_ns=most)


#: Messages of numbers that are not float64, by the names of NCCL's kernels; of copies between ranks these name no type.
_OTHER_NUMBERS = r"_(f32|f16|bf16|f8\w*|[iu](8|32|64))_"


def _messages(case: Case, doubles: pl.DataFrame) -> frozenset[int]:
    """Return the long messages in which ranks send float64: those of a program whose computation nearly all is float64."""
    computes = case.timed_ops(case.ops["cls"] == DeviceActivity.COMPUTE.value, "op")
    if int(doubles["ns"].sum()) < ALL_FLOAT64_SHARE * int(computes["ns"].sum()):
        return frozenset()
    sent = case.timed_ops(case.ops["cls"] == DeviceActivity.COMM.value, "op", "name")
    other = pl.Series(np.asarray(lookup.matching(sent["name"], _OTHER_NUMBERS), np.bool_), dtype=pl.Boolean)
    return ops_of(sent.filter(~other & (sent["ns"] >= LONG_MESSAGE_NS)))
