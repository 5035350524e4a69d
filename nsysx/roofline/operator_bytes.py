"""Bytes that an operator must move: what it reads once and what it writes once, from sizes of its tensors and types of its kernels.

No formula counts what may stay away: a tensor that is given twice is read once, an expanded one has the size of its source, rows that an
index names are read as often as the result needs them at least. So the bytes are the least; a kernel that moves more has something to
gain.

=====================================  ====================================================================================
products                               both factors, bias and result, in the format that is multiplied
convolution                            input, weight, result; its gradients: that of the result, what each needs, what it gives
attention                              query, key, value, result; its gradients: these and the gradient, and three results
recurrent layers                       input, weights, result of one direction; gradients: twice
elementwise, conversions, copies       each tensor that the kernel is given once: the number stands in its name
normalization, softmax                 input and result; gradients: gradient, input and result
reductions, losses, pooling            what is reduced; gradients of pooling: both sizes
embedding, gather, index               what is given out
scatter, index_add, index_put          what is added or put
Cholesky, triangular solutions         one triangle, read (and written), the right side and the solution
Fourier transforms                     input and result, the half that is real once
selection (topk)                       what is selected from
concatenation                          its parts, read and written
random numbers, fill                   what is written
optimizer, fused                       parameter, gradient and states read, all but the gradient written
optimizer, foreach                     its lists read, the first written
kernels of Triton and TorchInductor    each tensor that they are launched with once, see inject.nsysx_probe.kernel_launches
=====================================  ====================================================================================
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nsysx.roofline.element_types import ElementTypes

Shape = list[int]


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One operator as it was called. ``sizes``: of each argument; ``read``: the same as it is read: None for one that stands
    before already, the source's size for an expanded one. ``width``: bytes of one number of its products, None where unknown.
    ``result``: numbers in the result of a product where its operations tell, ``gradients``: how many a backward made, ``launch``:
    blocks in y and threads in x of its longest kernel, None where they are not recorded.
    """

    name: str
    sizes: Sequence[Shape]
    read: Sequence[Shape | None]
    types: ElementTypes
    width: int | None = None
    result: int = 0
    gradients: int = 1
    launch: tuple[int, int] | None = None


def _numbers(shapes: Sequence[Shape | None]) -> int:
    """Return how many numbers tensors hold together; what has no dimensions is taken for a number of the host."""
    return sum(math.prod(s) for s in shapes if s)


def _largest(shapes: Sequence[Shape | None]) -> int:
    return max((math.prod(s) for s in shapes if s), default=0)


def _broadcast(shapes: Sequence[Shape]) -> int:
    """Return the numbers of the result of an elementwise operator."""
    length = max((len(s) for s in shapes), default=0)
    if not length:
        return 1
    padded = [[1] * (length - len(s)) + list(s) for s in shapes if s]
    return math.prod(0 if 0 in column else max(column) for column in zip(*padded, strict=True))


def _product(call: OperatorCall) -> int | None:
    first = next((i for i in (0, 1) if _fits(call.sizes, i)), None)
    if call.width is None or first is None:
        return None
    a, b = call.sizes[first : first + 2]
    bias = math.prod(call.sizes[0]) if first else 0
    written = math.prod(a[:-1]) * (b[-1] if len(b) > 1 else 1)
    return (math.prod(a) + math.prod(b) + min(bias, written) + written) * call.width


def _fits(sizes: Sequence[Shape], first: int) -> bool:
    factors = sizes[first : first + 2]
    if len(factors) != 2 or len(factors[0]) not in (2, 3) or len(factors[1]) not in (1, 2, 3):
        return False
    return factors[0][-1] == factors[1][-2:][0]  # a vector has the rows of a factor alone


def _convolution(call: OperatorCall) -> int | None:
    if call.width is None or len(call.sizes) < 2:
        return None
    return (_numbers(call.sizes[:2]) + call.result) * call.width


def _convolution_backward(call: OperatorCall) -> int | None:
    if call.width is None or len(call.sizes) < 3:
        return None
    given, x, w = (math.prod(s) for s in call.sizes[:3])
    return (given + (2 * (x + w) if call.gradients > 1 else x + w)) * call.width


def _attention(first: int, *, backward: bool = False) -> Callable[[OperatorCall], int | None]:
    def formula(call: OperatorCall) -> int | None:
        given = call.sizes[first : first + 3]
        if call.width is None or len(given) < 3 or any(len(s) != 4 for s in given):
            return None
        query, key, value = (math.prod(s) for s in given)
        out = query // given[0][3] * given[2][3] if given[0][3] else 0
        # The backward reads the gradient and the result as well, and writes three gradients.
        return (2 * (query + key + value + out) if backward else query + key + value + out) * call.width

    return formula


def _recurrent(call: OperatorCall) -> int | None:
    """Return the bytes of a recurrent layer: its weights are among the sizes, the result of each place has a state's size."""
    if not call.sizes or len(call.sizes[0]) != 3:
        return None
    size = call.types.size or call.width
    return None if size is None else _numbers(call.sizes[:1]) * size


def _elementwise(call: OperatorCall) -> int | None:
    types, size = call.types, call.types.size
    if size is None:
        return None
    tensors = [(s, r) for s, r in zip(call.sizes, call.read, strict=True) if s]
    numbers = _broadcast([s for s, _ in tensors]) if tensors else 0
    in_place = call.name.endswith("_")
    copies = call.name == "aten::copy_"
    if types.tensors is not None:
        again = sum(r is None and math.prod(s) == numbers for s, r in tensors)
        count = max(types.tensors - again, 1)
        if types.casts:  # what is converted has a byte at least
            return numbers * ((1 if in_place and not copies else size) + (count - 1 if count < 3 else size + count - 2))
        return numbers * ((count - 1) * size + 1 if types.mask else count * size)
    if copies:
        source = call.read[1] if len(call.read) > 1 else None
        return numbers * (types.written or size) + (
            0 if types.casts else math.prod(source or []) * size if source else 0
        )
    arguments = [r for _, r in tensors][: types.arguments]
    read = sorted(math.prod(r) for r in arguments if r)
    if types.casts:
        return numbers * (1 if in_place else size) + sum(read)
    return numbers * (1 if types.mask else size) + sum(read) * size


def _reads(count: int) -> Callable[[OperatorCall], int | None]:
    """Return the formula of what reads its first tensors; the result is small, or not known."""

    def formula(call: OperatorCall) -> int | None:
        size = call.types.size
        return None if size is None else _numbers([r for r in call.read if r][:count]) * size

    return formula


def _in_and_out(gradient: bool = False) -> Callable[[OperatorCall], int | None]:
    """Return the formula of what reads its largest tensor (with ``gradient`` two of that size) and writes as much."""

    def formula(call: OperatorCall) -> int | None:
        size, most = call.types.size, _largest(call.sizes)
        return None if size is None else most * size * (3 if gradient else 2)

    return formula


def _largest_once(call: OperatorCall) -> int | None:
    return None if call.types.size is None else _largest(call.read) * call.types.size


def _written(call: OperatorCall) -> int | None:
    return None if call.types.size is None or not call.sizes else math.prod(call.sizes[0]) * call.types.size


def _concatenated(call: OperatorCall) -> int | None:
    return None if call.types.size is None else 2 * _numbers(call.sizes) * call.types.size


def _pooled(call: OperatorCall) -> int | None:
    return None if call.types.size is None else _numbers(call.sizes[:2]) * call.types.size


def _of_row(call: OperatorCall, row: int) -> int | None:
    """Return the bytes of one of the numbers in a row that torch moves as bytes, by how it is launched; None where several sizes fit.

    ``vectorized_gather_kernel``: a thread moves ``width`` bytes, a block at most 256 times that, in whole warps
    (https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/cuda/IndexKernelUtils.cu).
    """
    width = call.types.vector
    if width is None or call.launch is None or not row:
        return call.types.size
    fits = []
    for size in (1, 2, 4, 8, 16):
        vectors = -(-row * size // width)
        threads = min(256, -(-vectors // 32) * 32)
        if row * size % width == 0 and call.launch == (-(-vectors // 256), threads):
            fits.append(size)
    return fits[0] if len(fits) == 1 else None


def _looked_up(call: OperatorCall) -> int | None:
    """Return the bytes of an embedding: its result, (indices) x (row), is written, and some rows are read."""
    if call.types.size is None or len(call.sizes) < 2 or len(call.sizes[0]) != 2:
        return None
    return math.prod(call.sizes[1]) * call.sizes[0][1] * call.types.size


def _gathered(call: OperatorCall) -> int | None:
    """Return what a gather writes: as many numbers as its index has."""
    if len(call.sizes) < 3:
        return None
    size = _of_row(call, math.prod(call.sizes[2][1:]))
    return None if size is None else math.prod(call.sizes[2]) * size


def _indexed(call: OperatorCall) -> int | None:
    """Return what an index with tensors gives out at least: a row for each place that they name together.

    None for one that has the sizes of what it indexes: a mask has them, and how much that picks its sizes do not tell.
    """
    if len(call.sizes) < 2 or not call.sizes[0]:
        return None
    source, indices = call.sizes[0], [s for s in call.sizes[1:] if s]
    left = len(source) - len(indices)
    row = math.prod(source[1:]) if call.types.vector else math.prod(sorted(source)[: max(left, 0)])
    size = _of_row(call, row)
    if size is None or left < 0 or not indices or any(s == source[: len(s)] for s in indices):
        return None
    return _broadcast(indices) * row * size


def _put(call: OperatorCall) -> int | None:
    """Return what is read of the values that are put, the last tensor: indices stand before it."""
    values = next((s for s in reversed(call.read) if s), None)
    return (
        None
        if call.types.size is None or values is None or len(call.sizes) < 3
        else math.prod(values) * call.types.size
    )


def _transformed(read: int, written: int) -> Callable[[OperatorCall], int | None]:
    """Return the formula of a Fourier transform that reads and writes so many real numbers for each of its input at least."""

    def formula(call: OperatorCall) -> int | None:
        size, numbers = call.types.size, math.prod(call.sizes[0]) if call.sizes and call.sizes[0] else 0
        return None if size is None else numbers * (read + written) * size

    return formula


def _foreach_copied(call: OperatorCall) -> int | None:
    """Return the bytes of lists that are copied into lists, in the narrower of both formats."""
    equal = _lists(call.sizes, (2,))
    return None if equal is None or call.types.size is None else 2 * equal[1] * call.types.size


def _triangle(call: OperatorCall) -> int | None:
    """Return the bytes of one triangle of a matrix: a factorization reads and writes no more, and tril_ writes zeros into the other."""
    size, numbers = call.types.size, math.prod(call.sizes[0]) if call.sizes and call.sizes[0] else 0
    if size is None:
        return None
    return (numbers if call.name.endswith("cholesky_ex") else numbers // 2) * size


def _solved(call: OperatorCall) -> int | None:
    """Return the bytes of a solution by a triangular factor: the right side and one triangle read, the solution written."""
    given = [s for s in call.sizes if len(s) >= 2][:2]
    if call.types.size is None or len(given) < 2:
        return None
    first, second = (math.prod(s) for s in given)
    factor = next((math.prod(s) for s in given if s[-1] == s[-2]), 0)
    return (2 * (first + second - factor) + factor // 2) * call.types.size


def _scattered(call: OperatorCall) -> int | None:
    """Return what a scatter reads of its source, the fourth argument."""
    source = call.read[3] if len(call.read) > 3 else None
    return None if call.types.size is None or not source else math.prod(source) * call.types.size


def _lists(sizes: Sequence[Shape], most: Sequence[int]) -> tuple[int, int] | None:
    """Return how many equal lists of tensors the sizes begin with, and the numbers in one; None where they are not lists.

    Lists stand one behind another; steps and other numbers without dimensions stand at the end.
    """
    given = list(sizes)
    for count in most:
        for length in range(len(given) // count, 0, -1):
            parts = [given[i * length : (i + 1) * length] for i in range(count)]
            rest = given[count * length :]
            if not any(rest) and all(part == parts[0] for part in parts) and any(parts[0]):
                return count, _numbers(parts[0])
    return None


def _fused(states: tuple[int, ...]) -> Callable[[OperatorCall], int | None]:
    """Return the formula of a fused optimizer, whose lists are parameters, gradients and states."""

    def formula(call: OperatorCall) -> int | None:
        equal = _lists(call.sizes, states)
        if equal is None or call.types.size is None:
            return None
        lists, numbers = equal
        return numbers * (2 * lists - 1) * call.types.size

    return formula


def _foreach(call: OperatorCall) -> int | None:
    """Return the bytes of an optimizer over lists: each list is read once, the first is written."""
    equal = _lists(call.sizes, (4, 3, 2, 1))
    if equal is None or call.types.size is None:
        return None
    written = 0 if call.name.endswith("_norm") else equal[1]
    return (_numbers(call.read) + written) * call.types.size


_FORMULAS: dict[str, Callable[[OperatorCall], int | None]] = {
    **dict.fromkeys(
        ("mm", "bmm", "addmm", "addmm_", "baddbmm", "baddbmm_", "_addmm_activation", "_scaled_mm", "_int_mm", "mv",
         "addmv", "addmv_"), _product,
    ),
    **dict.fromkeys(
        ("convolution", "_convolution", "cudnn_convolution", "cudnn_convolution_transpose"), _convolution
    ),
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(
        tuple(f"_scaled_dot_product_{k}" for k in ("flash_attention", "efficient_attention", "cudnn_attention")),
        _attention(0),
    ),
    **dict.fromkeys(
        tuple(f"_scaled_dot_product_{k}_backward" for k in ("flash_attention", "efficient_attention", "cudnn_attention")),
        _attention(1, backward=True),
    ),
    **dict.fromkeys(("_flash_attention_forward", "_efficient_attention_forward", "_flash_attn_forward"), _attention(0)),
    **dict.fromkeys(
        ("_flash_attention_backward", "_efficient_attention_backward", "_flash_attn_backward"),
        _attention(1, backward=True),
    ),
    **dict.fromkeys(("_cudnn_rnn", "_cudnn_rnn_backward"), _recurrent),
    **dict.fromkeys(
        ("native_layer_norm", "native_group_norm", "native_batch_norm", "cudnn_batch_norm", "_batch_norm_impl_index",
         "_fused_rms_norm", "_softmax", "_log_softmax", "native_dropout", "logsumexp", "cumsum", "_weight_norm_interface", "sort"),
        _in_and_out(),
    ),
    **dict.fromkeys(
        ("native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward",
         "cudnn_batch_norm_backward", "_fused_rms_norm_backward", "_softmax_backward_data",
         "_log_softmax_backward_data"),
        _in_and_out(gradient=True),
    ),
    **dict.fromkeys(
        ("sum", "mean", "amax", "amin", "max", "min", "prod", "norm", "linalg_vector_norm", "any", "all", "argmax",
         "argmin", "var", "var_mean", "std", "count_nonzero", "avg_pool2d", "max_pool2d_with_indices", "max_pool2d",
         "_adaptive_avg_pool2d", "upsample_nearest2d", "upsample_bilinear2d", "dot", "topk", "kthvalue", "tril", "triu"),
        _largest_once,
    ),
    **dict.fromkeys(
        ("avg_pool2d_backward", "max_pool2d_with_indices_backward", "_adaptive_avg_pool2d_backward"), _pooled
    ),
    **dict.fromkeys(("upsample_nearest2d_backward", "upsample_bilinear2d_backward"), _reads(1)),
    "embedding": _looked_up,
    "embedding_dense_backward": _reads(1),
    "gather": _gathered,
    **dict.fromkeys(("scatter_", "scatter"), _gathered),
    **dict.fromkeys(("linalg_cholesky_ex", "tril_", "triu_"), _triangle),
    **dict.fromkeys(("_cholesky_solve_helper", "linalg_solve_triangular"), _solved),
    **dict.fromkeys(("scatter_add_", "scatter_add", "index_add_", "index_add"), _scattered),
    "index": _indexed,
    **dict.fromkeys(("_index_put_impl_", "index_put_"), _put),
    "_fft_r2c": _transformed(1, 1),
    "_fft_c2c": _transformed(2, 2),
    "_fft_c2r": _transformed(2, 1),
    "_foreach_copy_": _foreach_copied,
    "cat": _concatenated,
    **dict.fromkeys(("fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_"), _written),
    **dict.fromkeys(("_fused_adam_", "_fused_adamw_"), _fused((5, 4))),
    "_fused_sgd_": _fused((3, 2)),
    "_fused_adagrad_": _fused((3,)),
}  # fmt: skip
_ELEMENTWISE = re.compile(r"elementwise_kernel")


def bytes_of(call: OperatorCall, kernel: str) -> int | None:
    """Return the bytes that an operator must move at least, None where no formula fits its name, sizes or kernel."""
    short = call.name.split("::")[-1].split(".", 1)[0]
    if short in _FORMULAS:
        return _FORMULAS[short](call)
    if short.startswith("_foreach_"):
        return _foreach(call)
    if _ELEMENTWISE.search(kernel) and "index_elementwise" not in kernel:
        return _elementwise(call)
    return None
