"""What a kernel is called in a sentence or a picture: the function, without what a C++ compiler adds to its name."""

from __future__ import annotations

import re

from nsysx.events.event_bounds import LONGEST_KERNEL_NAME

#: How the compilers of a report write a namespace without a name: a kernel in one would be called by nothing.
_NO_NAMESPACE = re.compile(r"(?:<unnamed>|\(anonymous namespace\)|\{anonymous\}|_GLOBAL__N__\w+)::")
#: A kernel that runs a lambda is named by the function that contains the lambda.
_LAMBDA = re.compile(r"<(?:\w+::)*(\w+)\((?=.*lambda)")
#: CUTLASS starts its kernels through one function: the kernel is what that is instantiated with.
_STARTED = re.compile(r"^(?:void )?cutlass::Kernel\d*<(cutlass_\w+)")


def function_of(name: str) -> str:
    """Return the function of a kernel with its namespaces: "at::native::index_kernel" of "void at::native::index_kernel<...>(...)".

    What has no function in its name is returned as it is, so that nothing is called by an empty word.
    """
    if started := _STARTED.match(name):
        return started[1]
    text = _NO_NAMESPACE.sub("", name[:LONGEST_KERNEL_NAME]).strip()
    text = text.removeprefix("void ")
    return re.sub(r"[<(].*", "", text, flags=re.DOTALL).strip(": ") or text or name


def computes(name: str) -> str:
    """Return the function that contains the lambda which a kernel runs, else its own, see `function_of`."""
    inner = _LAMBDA.search(_NO_NAMESPACE.sub("", name[:LONGEST_KERNEL_NAME]))
    return inner[1] if inner else function_of(name)
