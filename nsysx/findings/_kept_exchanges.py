"""Checkpoints that keep what exchanges brought, by a policy, in the program's own line that asks for checkpoints.

A policy sees functional collectives: their results are tensors of their own. Others write into tensors that are there.
"""

from __future__ import annotations

import ast

import polars as pl

from nsysx.analyses import lines
from nsysx.events.collective_operators import WAITS
from nsysx.findings._case import Case
from nsysx.findings._pieces_in_text import whole_statement
from nsysx.findings._recomputed import asking_lines

_FUNCTIONAL = "_c10d_functional::"
_CONTEXTS = "contexts"


def kept_by_policy(case: Case) -> str:
    """Return the lines with such a policy; "" where exchanges are no functional ones, or no line asks for checkpoints in a known way."""
    ops = case.profile.ranges.ranges.filter((pl.col("process") == case.process) & (pl.col("kind") == "op"))
    every = ops["name"].cast(pl.String).unique().to_list()
    names = sorted(name for name in every if name.startswith(_FUNCTIONAL) and name != WAITS)
    asking = next(((where, text) for where, text in asking_lines(lines.texts(case.profile))), None)
    changed = "" if asking is None else _with_contexts(asking[1].strip())
    if not names or not changed or asking is None:
        return ""
    kept = ", ".join(f"torch.ops.{name.replace('::', '.')}.default" for name in names)
    return (
        "from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts\n"
        "def policy(ctx, op, *args, **kwargs):\n"
        f"    keep = op in ({kept},)\n"
        "    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE\n"
        f"{_CONTEXTS} = lambda: create_selective_checkpoint_contexts(policy)\n"
        f"{changed}  # line {asking[0]['line']}"
    )


def _with_contexts(text: str) -> str:
    """Return a statement that asks for checkpoints with the policy's contexts, "" where it cannot take them.

    Of one that goes on below, with calls there, what is added is said alone.
    """
    statement = whole_statement(text)
    if statement is None:
        return ""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call) and _takes_contexts(node)]
    if len(calls) != 1:
        return ""
    (call,) = calls
    wraps = next((k for k in call.keywords if k.arg == "checkpoint_wrapper_fn"), None)
    if _called(call) != "apply_activation_checkpointing":
        added = ast.keyword("context_fn", ast.Name(_CONTEXTS))
    elif wraps is None and len(call.args) > 1:
        return ""  # by place: which it is, versions say
    else:
        name = "checkpoint_wrapper" if wraps is None else ast.unparse(wraps.value)
        name = name if name.replace(".", "").isidentifier() else f"({name})"
        value = ast.parse(f"lambda module: {name}(module, context_fn={_CONTEXTS})", mode="eval").body
        added = ast.keyword("checkpoint_wrapper_fn", value)
    if any(isinstance(node, ast.Constant) and node.value is ... for node in ast.walk(statement)):
        return f"# {ast.unparse(call.func)}(..., {ast.unparse(added)}), its other arguments as they are"
    call.keywords = [k for k in call.keywords if k is not wraps] + [added]
    return ast.unparse(statement)


def _takes_contexts(call: ast.Call) -> bool:
    given = {each.arg: each.value for each in call.keywords}
    if "context_fn" in given or None in given:
        return False
    if _called(call) == "checkpoint":  # reentrant ones take none
        reentrant = given.get("use_reentrant")
        return isinstance(reentrant, ast.Constant) and reentrant.value is False
    return _called(call) in ("checkpoint_wrapper", "apply_activation_checkpointing")


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
