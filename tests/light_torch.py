"""Programs with an optimizer that start in half the time."""

from __future__ import annotations

#: A first line of a program. Each optimizer imports torch._dynamo when it is made, which takes as long as torch itself, and asks it
#: for the first two only; process groups and DistributedDataParallel ask for the others. Not for programs that compile, checkpoint or
#: are about how torch is found.
WITHOUT_DYNAMO = (
    'import sys, types; sys.modules["torch._dynamo"] = types.SimpleNamespace('
    "disable=lambda f, *_, **__: f, graph_break=lambda: None, "
    "trace_rules=types.SimpleNamespace(clear_lru_cache=lambda: None), "
    'utils=types.SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"))\n'
)

#: The same for programs whose DataLoaders have no workers and that never use the device meta: what torch registers for tensors without
#: storage takes a third of its own import.
WITHOUT_META = (
    WITHOUT_DYNAMO + 'sys.modules["torch._meta_registrations"] = types.ModuleType("torch._meta_registrations")\n'
)
