"""Kernels of solvers: factorizations of matrices and the solutions of equations with them, with the products that these are made of.

A library's factorization multiplies with the same kernels as a product of matrices. What it launches lies between two kernels of torch's
own (``at::native``), which the step's other operators consist of.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nsysx.findings._case import Case
from nsysx.findings._finding_bounds import SOLVER_KERNELS_SHARE
from nsysx.frames import lookup

#: Kernels that factorize and solve: with fewer digits such a matrix may not be solvable at all.
SOLVERS = r"(?i)getrf|potrf|trsm|trsv|trtri|syev|gesvd|geqrf|cholesky|laswp|linalg"
_OWN = r"at::native|^triton"


def in_solvers(case: Case) -> npt.NDArray[np.bool_]:
    """Return which of ``Case.kernels`` a solver runs, its products included."""
    kernels = case.kernels
    solves = np.asarray(lookup.matching(kernels["name"], SOLVERS), np.bool_)
    if not solves.any():
        return solves
    when = kernels.select("op").join(case.ops["op", "stream", "start_ns"], on="op", how="left", maintain_order="left")
    order = np.lexsort((when["start_ns"].to_numpy(), when["stream"].to_numpy()))
    native: npt.NDArray[np.bool_] = np.asarray(lookup.matching(kernels["name"], _OWN), np.bool_)[order]
    stream = when["stream"].to_numpy()[order]
    part = np.cumsum(native | np.append(True, stream[1:] != stream[:-1]))
    within = np.zeros(len(order), np.bool_)
    within[order] = ~native & np.isin(part, part[solves[order]])
    return within | solves


def solves_much(case: Case, others: npt.NDArray[np.bool_]) -> bool:
    """Return whether solvers take so much beside other kernels (of ``Case.kernels``) that these serve them: they need all of the digits."""
    ns = case.kernels["ns"].to_numpy()
    solving = int(ns[in_solvers(case)].sum())
    return solving > 0 and solving >= SOLVER_KERNELS_SHARE * (solving + int(ns[others].sum()))
