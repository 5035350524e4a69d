"""Programs with an optimizer that start in half the time."""

from __future__ import annotations

#: A first line of a program. Each optimizer imports torch._dynamo when it is made, which takes as long as torch itself, and asks it
#: for these two only. Not for programs that compile, checkpoint or are about how torch is found.
WITHOUT_DYNAMO = (
    'import sys, types; sys.modules["torch._dynamo"] = '
    "types.SimpleNamespace(disable=lambda f, *_, **__: f, graph_break=lambda: None)\n"
)
