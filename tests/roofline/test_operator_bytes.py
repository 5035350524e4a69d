"""Bytes that an operator must move: by hand for each kind, and never more than its tensors hold."""

from __future__ import annotations

import pytest

from nsysx.roofline.element_types import types_of
from nsysx.roofline.operator_bytes import OperatorCall, bytes_of

VECTOR = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::{}, std::array<char *, (unsigned long){}>>(int, T2, T3)"
CAST = (
    "void at::native::unrolled_elementwise_kernel<at::native::{}, std::array<char *, (unsigned long){}>, (int)4, "
    "at::native::memory::LoadWithCast<(int)2>, at::native::memory::StoreWithCast<(int)1>>(int, T1, T2)"
)
STRIDED = "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<at::native::{}>(at::T &)>(int, T3)"
GEMM = "nvjet_sm90_tst_128x128_64x6_2x1_v_bz_NNT"


def moved(name: str, kernel: str, *sizes: list[int], read: list[list[int] | None] | None = None, width: int | None = None,
          result: int = 0, gradients: int = 1) -> int | None:  # fmt: skip
    call = OperatorCall(name, sizes, read or sizes, types_of(kernel), width, result, gradients)
    return bytes_of(call, kernel)


@pytest.mark.parametrize(
    ("kernel", "size", "tensors", "casts"),
    [
        (VECTOR.format("CUDAFunctor_add<float>", 3), 4, 3, False),
        (VECTOR.format("CUDAFunctor_add<c10::BFloat16>", 3), 2, 3, False),
        (VECTOR.format("AUnaryFunctor<double, double, double, at::native::binary_internal::MulFunctor<double>>", 2), 8, 2, False),
        (CAST.format("BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>>", 3), 4, 3, True),
        ("void at::native::<unnamed>::CatArrayBatchedCopy<at::native::<unnamed>::OpaqueType<(unsigned int)2>, unsigned int>(T1 *)", 2,
         None, False),
        ("void at::native::<unnamed>::cunn_SoftMaxForward<(int)4, c10::Half, float, float>(T3 *, const T1 *, int)", 2, None, False),
        ("void gather<long>(float *, int)", 8, None, False),
        ("triton_poi_fused_add_0", None, None, False),
        ("void kernel<float2, myfloat>(float)", None, None, False),
    ],
)  # fmt: skip
def test_kernel_names_say_what_they_move(kernel: str, size: int | None, tensors: int | None, casts: bool) -> None:
    found = types_of(kernel)
    assert (found.size, found.tensors, found.casts) == (size, tensors, casts)


def test_products_move_factors_bias_and_result_once() -> None:
    assert moved("aten::mm", GEMM, [30, 50], [50, 70], width=2) == 2 * (30 * 50 + 50 * 70 + 30 * 70)
    # Inductor gives the result, too.
    assert moved("aten::mm", GEMM, [30, 50], [50, 70], [30, 70], width=2) == 2 * (30 * 50 + 50 * 70 + 30 * 70)
    assert moved("aten::addmm", GEMM, [70], [30, 50], [50, 70], [], [], width=4) == 4 * (
        70 + 30 * 50 + 50 * 70 + 30 * 70
    )
    assert moved("aten::bmm", GEMM, [4, 3, 5], [4, 5, 7], width=2) == 2 * 4 * (15 + 35 + 21)
    assert moved("aten::mm", GEMM, [30, 50], [50, 70]) is None, "the format is not known"


def test_a_matrix_times_a_vector_moves_the_matrix_once() -> None:
    kernel = "gemv2T_kernel_val"
    assert moved("aten::mv", kernel, [300, 50], [50], width=4) == 4 * (300 * 50 + 50 + 300)
    assert moved("aten::addmv_", kernel, [300], [300, 50], [50], [], [], width=4) == 4 * (300 + 300 * 50 + 50 + 300)
    assert moved("aten::mv", kernel, [300, 50], [50]) is None, "the format is not known"
    assert moved("aten::mv", kernel, [300, 50], [60], width=4) is None, "they do not fit"


def test_convolutions() -> None:
    x, w, y = [2, 4, 9, 9], [6, 4, 3, 3], [2, 6, 7, 7]
    sizes = 2 * 4 * 81, 6 * 4 * 9, 2 * 6 * 49
    assert moved("aten::convolution", "conv", x, w, [], width=2, result=sizes[2]) == 2 * sum(sizes)
    assert moved("aten::convolution_backward", "dgrad", y, x, w, width=2) == 2 * sum(sizes)
    assert moved("aten::convolution_backward", "dgrad", y, x, w, width=2, gradients=2) == 2 * (
        sizes[2] + 2 * (sizes[0] + sizes[1])
    )


def test_attention_reads_three_and_writes_one() -> None:
    q, k = [2, 8, 16, 32], [2, 8, 24, 32]
    one, other = 2 * 8 * 16 * 32, 2 * 8 * 24 * 32
    name = "aten::_scaled_dot_product_flash_attention"
    assert moved(name, "flash_fwd", q, k, k, width=2) == 2 * (2 * one + 2 * other)
    assert moved(f"{name}_backward", "flash_bwd", q, q, k, k, width=2) == 4 * (2 * one + 2 * other)


def test_elementwise() -> None:
    a = [64, 100]
    add = VECTOR.format("CUDAFunctor_add<float>", 3)
    assert moved("aten::add", add, a, a, []) == 3 * 6400 * 4
    assert moved("aten::mul", add, a, a, read=[a, None]) == 2 * 6400 * 4, "x * x is read once"
    # What is converted on the way may be as small as a byte; the result has the type of the arithmetic.
    cast = CAST.format("BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>>", 3)
    assert moved("aten::mul", cast, a, a) == 6400 * (4 + 4 + 1)
    strided = STRIDED.format("CUDAFunctor_add<float>")
    assert moved("aten::add", strided, a, [100], []) == 4 * (6400 + 6400 + 100)
    assert moved("aten::add", strided, [64, 1], [100], []) == 4 * (64 + 100 + 6400)
    assert moved("aten::add", strided, a, a, [], read=[a, [1, 100], []]) == 4 * (6400 + 100 + 6400), "one is expanded"
    copy = "void at::native::vectorized_elementwise_kernel<(int)8, at::native::bfloat16_copy_kernel_cuda(at::T &)::[lambda(float) (i)]>(T)"
    assert moved("aten::copy_", copy, a, a, []) == 6400 * (2 + 4), "from FP32 to BF16"


def test_reductions_norms_and_lookups() -> None:
    rows = [64, 1000]
    softmax = "void cunn_SoftMaxForward<(int)4, float, float, float>(T3 *)"
    assert moved("aten::_log_softmax", softmax, rows, [], []) == 2 * 64000 * 4
    assert moved("aten::_log_softmax_backward_data", softmax, rows, rows, [], []) == 3 * 64000 * 4
    assert (
        moved("aten::sum", "void reduce_kernel<(int)512, ReduceOp<c10::BFloat16, float>>(T3)", rows, [], [])
        == 64000 * 2
    )
    assert moved("aten::embedding", "void kernel<float, long>(T1 *)", [10000, 512], [8, 20], []) == 160 * 512 * 4
    assert moved("aten::gather", "void g<float, long>(T1 *)", [100, 40], [], [900, 40], []) == 900 * 40 * 4
    assert moved("aten::index_add_", "void g<float, long>(T1 *)", [100, 40], [], [900], [900, 40], []) == 900 * 40 * 4
    assert moved("aten::cat", "void CatArray<OpaqueType<(unsigned int)2>>(T)", [0], [8, 10], [8, 20], []) == 2 * 240 * 2
    assert moved("aten::fill_", "void v<FillFunctor<float>>(T)", [8, 10], []) == 80 * 4


INDEX = "void index_elementwise_kernel<(int)128, (int)4, gpu_index_kernel<index_kernel_impl<OpaqueType<(int)4>>(T)>>(T)"
BACKWARD = "void indexing_backward_kernel<float, (int)4>(const long *, T1 *)"


@pytest.mark.parametrize(
    ("name", "kernel", "sizes", "bytes_"),
    [
        ("index", INDEX, ([24, 128, 32, 40], [64, 1], [80]), 64 * 80 * 24 * 32 * 4),  # 128 channels, which the sizes leave open
        ("index", INDEX, ([4000], [4, 16]), 4 * 16 * 4),
        ("index", INDEX, ([64, 30], [64, 30]), None),  # a mask, or as many indices
        ("index", INDEX, ([64, 30], [64]), None),
        ("_index_put_impl_", BACKWARD, ([4, 64], [900], [900, 64], [], []), 900 * 64 * 4),
        ("topk", "void mbtopk::gatherTopK<float, unsigned int, (int)2>(T1)", ([64, 3000], [], []), 64 * 3000 * 4),
        ("_weight_norm_interface", "void weight_norm_fwd_first_dim_kernel<float, float>(T1 *)", ([256, 256, 7], [256, 1, 1], []),
         2 * 256 * 256 * 7 * 4),
        ("_fft_r2c", "void multi_bluestein_fft<(unsigned int)256, unsigned int, float>(T1)", ([4, 100], [], []), 2 * 400 * 4),
        ("_fft_c2c", "void multi_bluestein_fft<(unsigned int)256, unsigned int, double>(T1)", ([4, 100], [], []), 4 * 400 * 8),
        ("_fft_c2r", "void regular_fft<float>(T1)", ([4, 51], [], []), 3 * 204 * 4),
        ("_foreach_copy_", "multi_tensor_apply_kernel<TensorListMetadata<(int)2>, Copy<c10::BFloat16, float>>", ([30], [7], [30], [7]),
         2 * 37 * 2),
        ("scatter_", "void _scatter_gather_elementwise_kernel<(int)128, (int)8, F<float, long>>(T)", ([16, 20000], [], [16, 1], []),
         16 * 4),
        ("gather", "void at::native::vectorized_gather_kernel<(int)16, long>(char *)", ([90, 40], [], [900, 40], []), None),
        ("linalg_cholesky_ex", "void potrf_cta_lower_batch<float, float, (int)16>(T1 **)", ([64, 128, 128], [], []), 64 * 128 * 128 * 4),
        ("tril_", "void at::native::triu_tril_kernel<float, int, (bool)0>(T1)", ([64, 128, 128], []), 64 * 128 * 128 // 2 * 4),
        ("_cholesky_solve_helper", "gemm_template_batched_tn_kernel<float, (int)16>(T1)", ([64, 128, 16], [64, 128, 128], []),
         64 * (2 * 128 * 16 + 128 * 128 // 2) * 4),
        ("linalg_solve_triangular", "void trsm_left_kernel<float>(T1)", ([128, 128], [128, 16], []), (2 * 128 * 16 + 128 * 128 // 2) * 4),
        ("isneginf", VECTOR.format("isneginf_kernel_impl<float>", 2), ([80, 63],), 80 * 63 * 5),
        ("gt", VECTOR.format("compare_scalar_kernel<float>", 2), ([80, 63], []), 80 * 63 * 5),
    ],
)  # fmt: skip
def test_what_moves_less_than_the_largest_of_its_sizes(
    name: str, kernel: str, sizes: tuple[list[int], ...], bytes_: int | None
) -> None:
    assert moved(f"aten::{name}", kernel, *sizes) == bytes_


@pytest.mark.parametrize(
    ("row", "launch", "size"),
    [(256, (1, 64), 4), (256, (1, 32), None), (768, (1, 192), 4), (768, (1, 96), 2), (2560, (3, 256), 4), (2560, (2, 256), 2),
     (64, (1, 32), None), (256, (1, 96), None)],
)  # fmt: skip
def test_rows_that_are_moved_as_bytes_have_their_numbers_size_by_their_launch(
    row: int, launch: tuple[int, int], size: int | None
) -> None:
    """Real launches on an H100; short rows fit into a warp with numbers of several sizes."""
    kernel = "void at::native::vectorized_gather_kernel<(int)16, long>(char *, char *, T2 *)"
    gather = OperatorCall("aten::gather", s := [[90, row], [], [50, row], []], s, types_of(kernel), launch=launch)
    index = OperatorCall("aten::index", s := [[90, row], [50]], s, types_of(kernel), launch=launch)
    assert bytes_of(gather, kernel) == bytes_of(index, kernel) == (None if size is None else 50 * row * size)


def test_optimizers() -> None:
    parameters = [[10, 20], [20], [7]]
    numbers = 227
    fused = "void multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<(int)4>, FusedAdamMathFunctor<float, (int)4>>(T1)"
    adam = [*parameters * 4, [], [], []]
    assert moved("aten::_fused_adamw_", fused, *adam) == numbers * 4 * (4 + 3)
    amsgrad = [*parameters * 5, [], [], []]
    assert moved("aten::_fused_adamw_", fused, *amsgrad) == numbers * 4 * (5 + 4)
    each = "void multi_tensor_apply_kernel<TensorListMetadata<(int)2>, BinaryOpListAlphaFunctor<float, (int)2>>(T1)"
    assert moved("aten::_foreach_add_", each, *parameters * 2, []) == numbers * 4 * 3
    assert moved("aten::_fused_adamw_", fused, *parameters, [3], *parameters) is None, "no lists of equal sizes"


@pytest.mark.parametrize("name", ["aten::mm", "aten::convolution_backward", "aten::embedding", "aten::gather", "aten::cat", "aten::sum",
                                  "aten::_fused_adamw_", "aten::_foreach_mul_", "aten::copy_", "aten::mul", "aten::fill_",
                                  "aten::_cudnn_rnn", "aten::scatter_add_"])  # fmt: skip
def test_odd_sizes_are_nothing_known(name: str) -> None:
    for kernel in (VECTOR.format("CUDAFunctor_add<float>", 3), STRIDED.format("x"), "", "x<"):
        for sizes in ([], [[]], [[0]], [[3, 0], [0, 7]], [[], [], []], [[1, 2, 3, 4, 5]]):
            number = moved(name, kernel, *sizes, width=2)
            assert number is None or number >= 0


def test_what_has_no_formula_is_not_known() -> None:
    assert moved("aten::unique2", "void cub::DeviceRadixSort<float>(T)", [100]) is None
    assert moved("aten::mul", VECTOR.format("X", 3), [3]) is None, "the type is not named"


@pytest.mark.parametrize(
    ("names", "kernel", "sizes"),
    [
        (("mm", "_int_mm"), GEMM, ([30, 50], [50, 70])),
        (("addmm", "addmm_", "_addmm_activation"), GEMM, ([70], [30, 50], [50, 70], [], [])),
        (("bmm",), GEMM, ([4, 3, 5], [4, 5, 7])),
        (("sum", "mean", "amax", "amin", "max", "min", "prod", "norm", "any", "all", "argmax", "argmin", "var", "std",
          "avg_pool2d", "max_pool2d_with_indices", "_adaptive_avg_pool2d", "upsample_nearest2d"), "reduce<float>", ([2, 4, 8, 8],)),
        (("avg_pool2d_backward", "max_pool2d_with_indices_backward", "_adaptive_avg_pool2d_backward"), "pool<float>",
         ([2, 4, 4, 4], [2, 4, 8, 8])),
        (("fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_"), "fill<float>", ([64, 64],)),
        (("convolution", "_convolution", "cudnn_convolution", "cudnn_convolution_transpose"), "conv", ([2, 4, 9, 9], [6, 4, 3, 3], [])),
    ],
)  # fmt: skip
def test_names_of_one_operator_move_the_same(names: tuple[str, ...], kernel: str, sizes: tuple[list[int], ...]) -> None:
    """What a library or a compiler calls an operator changes nothing of its bytes, and each of its names is known."""
    found = {name: moved(f"aten::{name}", kernel, *sizes, width=2, result=588) for name in names}
    assert len(set(found.values())) == 1 and None not in found.values()


@pytest.mark.parametrize(
    ("types", "mask", "size"), [("float, bool", True, 4), ("bool, bool", False, 1), ("float, float", False, 4)]
)
def test_a_mask_is_a_bool_beside_numbers(types: str, mask: bool, size: int) -> None:
    found = types_of(f"void at::native::vectorized_elementwise_kernel<4, at::native::F<{types}>>(int)")
    assert (found.mask, found.size) == (mask, size)


def test_a_reduction_reads_the_largest_of_its_tensors_once() -> None:
    assert moved("aten::mean", "reduce<float>", [7], [100]) == moved("aten::mean", "reduce<float>", [100], [7]) == 400
