"""Programs that start in half the time: those with an optimizer, and jobs of two ranks."""

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
#: The same as one line, for a program that begins with an empty one: its other lines keep their numbers.
LIGHT_LINE = WITHOUT_META.strip().replace("\n", "; ")

#: Starts two ranks of the words behind it, as srun or mpirun would: ``python -c TWO_RANKS job.py``. torchrun imports torch, too. Where
#: it is torchrun that a test is about, or what it does with ranks that fail, it is started.
TWO_RANKS = """
import os, socket, subprocess, sys
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])
both = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
ranks = [
    subprocess.Popen([sys.executable, *sys.argv[1:]], env={**both, "RANK": str(rank), "LOCAL_RANK": str(rank)})
    for rank in range(2)
]
sys.exit(max([rank.wait() != 0 for rank in ranks]))
"""
