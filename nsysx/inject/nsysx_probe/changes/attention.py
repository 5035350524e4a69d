"""scaled_dot_product_attention by one of its backends alone."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from . import Change, Remedy, Watch

#: Name of the change, name in ``torch.nn.attention.SDPBackend``, and the function that allows it, without enable_ and _sdp.
_BACKENDS = (
    ("sdpa-flash", "FLASH_ATTENTION", "flash"),
    ("sdpa-efficient", "EFFICIENT_ATTENTION", "mem_efficient"),
    ("sdpa-cudnn", "CUDNN_ATTENTION", "cudnn"),
    ("sdpa-math", "MATH", "math"),
)


def _allowed(torch: Any, backend: str) -> bool:
    """Return whether a backend is allowed."""
    return bool(getattr(torch.backends.cuda, f"{backend}_sdp_enabled", bool)())


def _only(wanted: str) -> Callable[[Any, Watch], None]:
    def arm(torch: Any, watch: Watch) -> None:
        watch.why_not = "scaled_dot_product_attention was not called in the first two steps"
        before = {backend: _allowed(torch, backend) for _, _, backend in _BACKENDS}
        allow = {backend: getattr(torch.backends.cuda, f"enable_{backend}_sdp", None) for _, _, backend in _BACKENDS}
        if allow[wanted] is None:
            watch.why_not = f"torch {torch.__version__} does not have it"
            return

        def turn(on: bool) -> None:
            for backend, enable in allow.items():
                if enable is not None:
                    enable(backend == wanted if on else before[backend])

        turn(True)
        watch.can_turn(turn)
        functional = torch.nn.functional
        original = functional.scaled_dot_product_attention

        @functools.wraps(original)
        def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
            watch.took()
            return original(*args, **kwargs)

        functional.scaled_dot_product_attention = scaled_dot_product_attention
        watch.at_step.setdefault(2, []).append(
            lambda: setattr(functional, "scaled_dot_product_attention", original)
        )  # whoever imported the function itself goes on through ours, which costs a call

    return arm


def _without_weights(torch: Any, watch: Watch) -> None:
    watch.why_not = "nn.MultiheadAttention is not called for its weights"
    watch.can_turn()
    owner = torch.nn.MultiheadAttention
    original = owner.forward
    signature = inspect.signature(original)

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs)
        if not watch.on or not given.arguments.get("need_weights", True):
            return original(self, *args, **kwargs)
        given.arguments["need_weights"] = False
        watch.took()
        return original(*given.args, **given.kwargs)

    owner.forward = forward


def _change(name: str, backend: str, wanted: str) -> Change:
    paste = f"from torch.nn.attention import SDPBackend, sdpa_kernel\nwith sdpa_kernel(SDPBackend.{backend}):\n    output = model(inputs)"
    return Change(
        name, f"attention by {backend} alone", paste, _only(wanted), alters="numerics",
        group="attention", beware="another algorithm rounds in another order",
    )  # fmt: skip


CHANGES = (
    *(_change(*backend) for backend in _BACKENDS),
    Change(
        "no-attention-weights", "attention without its weights", "y, _ = self.attention(q, k, v, need_weights=False)", _without_weights,
        alters="numerics", beware="another algorithm rounds in another order",
        advice="Call nn.MultiheadAttention with need_weights=False: with its default it makes and averages all scores, and cannot use the "
        "fused kernel",
        condition="Nothing may read the weights that it returns.",
    ),
)  # fmt: skip
UNTRIED = (
    Remedy(
        "sdpa", "Use F.scaled_dot_product_attention; in transformers attn_implementation='sdpa'",
        "y = F.scaled_dot_product_attention(q, k, v)",
        "Nothing else may need the scores. A causal mask becomes is_causal=True, another mask attn_mask=mask.",
        untried="attention written by hand is the program's own code",
    ),
    Remedy(
        "sdpa-fused",
        "Let scaled_dot_product_attention use a fused kernel: it runs its math path here, in float32. Forced to one it says why it cannot "
        "(sizes, strides, the mask, a backend that is switched off): mend that",
        "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
        "with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):  # where it cannot run, warnings say why\n"
        "    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)",
        untried="why it cannot is a matter of the program's own inputs",
    ),
    Remedy(
        "documents-at-once",
        "Attend to all documents of a packed sequence in one call, which keeps them apart: flex_attention with a block mask, made once for "
        "each batch, or a varlen kernel that is given the lengths",
        "from torch.nn.attention.flex_attention import create_block_mask, flex_attention\n"
        "attend = torch.compile(flex_attention)  # once, before the loop\n"
        "document = torch.bucketize(torch.arange(q.size(-2), device=cu.device), cu, right=True)  # cu: where each document begins\n"
        "apart = lambda b, h, i, j: (document[i] == document[j]) & (i >= j)\n"
        "mask = create_block_mask(apart, None, None, q.size(-2), q.size(-2), device=cu.device)  # once for each batch, for all layers\n"
        "y = attend(q, k, v, block_mask=mask)  # not one call for each document",
        "Its kernel is compiled for the length of the sequence, and anew for another one.", untried="the documents are the program's own",
    ),
    Remedy(
        "written-keys",
        "Give attention the keys and values that are written, in steps of 512, not the whole room of the cache; or a kernel that is told "
        "how many there are (flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths)). And make the room prompt + max_new_tokens long",
        "n = min(-(-(position + 1) // 512) * 512, k.size(2))  # position: the loop's own counter, a number of the host, not .item()\n"
        "y = F.scaled_dot_product_attention(q, k[:, :, :n], v[:, :, :n], attn_mask=mask[..., :n])",
        "Keys that earlier calls have left in the cache count, too. A compiled program, or a CUDA graph, is one for each n.",
        untried="which position a call is at, the program says",
    ),
    Remedy(
        "is-causal", "Give is_causal=True instead of a causal mask: half of the scores are not computed then. "
        "For another fixed pattern: flex_attention with a block mask",
        "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)", "The mask must be the causal one.",
        untried="what the mask holds, the program says",
    ),
    Remedy(
        "causal-of-chunk", "Cut off the keys that no query of a chunk sees, and give the causal mask that is aligned at the end",
        "from torch.nn.attention.bias import causal_lower_right\n"
        "y = F.scaled_dot_product_attention(q, k[..., :n, :], v[..., :n, :], attn_mask=causal_lower_right(q.size(-2), n))",
        "The chunk must see all keys before it.", untried="what the mask holds, the program says",
    ),
    Remedy(
        "no-empty-mask", "Pass no mask where nothing is masked (attn_mask=None): FlashAttention takes no mask, and other kernels read it "
        "for each head",
        "y = F.scaled_dot_product_attention(q, k, v)  # no attn_mask",
        "No batch may need it: where some have padding, ask on the CPU, where the batch is made, whether this one has. Of key_padding_mask "
        "nn.MultiheadAttention makes a mask, of attention_mask transformers.",
        untried="which batches need the mask, the program says",
    ),
    Remedy(
        "built-deformable-kernel",
        "Build the kernel for multi-scale deformable attention into the image, and stop at the start where it is not there, rather than "
        "fall back to torch's operators (disable_custom_kernels=False in transformers; mmcv in full, not mmcv-lite)",
        "from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction  # built with nvcc, TORCH_CUDA_ARCH_LIST=9.0\n"
        "y = MultiScaleDeformableAttnFunction.apply(value, shapes, level_start, locations, weights, 64)",
        "value: batch, places, heads, width; locations as given here, from 0 to 1; shapes and level_start are tensors on the GPU.",
        untried="which library the program can build, is not known",
    ),
)  # fmt: skip
