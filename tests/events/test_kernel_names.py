"""What kernels are called."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from nsysx.analyses.helpers.module_names import kernel_called
from nsysx.events import kernel_names
from tests.samples import NAMES, Samples


@pytest.mark.parametrize(
    "name, function, computes",
    [
        ("void at::native::index_kernel<float, (int)4>(float *, int)", "at::native::index_kernel", None),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", None),
        ("<unnamed>::softmax_warp_forward<float>(float *)", "softmax_warp_forward", None),
        ("void (anonymous namespace)::elementwise<int>(int)", "elementwise", None),
        ("void a::<unnamed>::b::gather(int)", "a::b::gather", None),
        ("void cutlass::Kernel<(anonymous namespace)::Shape>(T1::Params)", "cutlass::Kernel", None),
        ("void cutlass::Kernel2<cutlass_80_sgemm_256x128_8x4_nn_align1>(T1::Params)", "cutlass_80_sgemm_256x128_8x4_nn_align1", None),
        ("void k<at::native::add_kernel(at::Iter &)::[lambda(float) (instance 1)]>(int)", "k", "add_kernel"),
        ("(odd)", "(odd)", None),
        ("", "", None),
    ],
)  # fmt: skip
def test_a_kernel_is_called_by_its_function(name: str, function: str, computes: str | None) -> None:
    assert kernel_names.function_of(name) == function
    assert kernel_names.computes(name) == (computes or function)


@pytest.mark.parametrize("sample", NAMES)
def test_no_kernel_of_a_report_is_called_by_an_empty_word(sample: str, recorded: Samples) -> None:
    with closing(sqlite3.connect(f"file:{recorded.report(sample)}?mode=ro", uri=True)) as report, report:
        rows = report.execute(
            "SELECT DISTINCT value FROM StringIds WHERE id IN (SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL)"
        )
        names = [name for (name,) in rows]
    assert names
    for name in names:
        assert kernel_names.function_of(name).strip("<>():, ")
        assert kernel_called(name).removeprefix("the kernel ").strip("<>():, ")
