"""Loops that broadcast or reduce one tensor after the other: the lines that send all of them in one message, in the names of the loop."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from nsysx.analyses.lines import text_of, texts
from nsysx.events.profile import Profile
from nsysx.findings._loop_texts import loop_around
from nsysx.findings._pieces_in_text import names_in, parsed

#: Broadcasts of which each has a rank of its own that sends: by the number of the tensor, a list of owners, an attribute of it.
_OF_OWNERS = re.compile(
    r"\bbroadcast\w*\((?:[^(),]|\([^()]*\))+,\s*(?:src\s*=\s*)?[^,()=]*(?:%|\[|\bowner|\.own|\.rank\b|\.src\b)"
)
_SENDS = ("broadcast", "all_reduce")
#: Views of a parameter that autograd does not see.
_DETACHED = re.compile(r"(\.data|\.grad|\.detach\(\))$")


def by_owners(profile: Profile, file: str | None, line: int | None) -> bool:
    """Return whether a line broadcasts what each rank has made of its own part: the ranks send in turn."""
    text = text_of(texts(profile), file, line) or ""
    if _OF_OWNERS.search(text):
        return True
    call, head = _call_in(text), _head_around(profile, file, line)
    sender = None if call is None else _sender_of(call)
    return sender is not None and head is not None and _varies(sender, head)


def in_one_message(profile: Profile, file: str | None, line: int | None) -> str:
    """Return the lines in place of a loop ``for`` whose body is such a line, one message for each rank that sends; "" for another."""
    call, head = _call_in(text_of(texts(profile), file, line) or ""), _head_around(profile, file, line)
    if call is None or head is None:
        return ""
    sender, each = _sender_of(call), ast.unparse(call.args[0])
    each = each if _DETACHED.search(each) else f"{each}.detach()"
    target = ast.unparse(head.target)
    turns = f"for {target[1:-1] if isinstance(head.target, ast.Tuple) else target} in {ast.unparse(head.iter)}"
    if not _varies(call.args[0], head):
        return ""
    in_turn = sender is not None and _varies(sender, head)
    which = f" if {ast.unparse(sender)} == sender" if sender is not None and in_turn else ""
    source = "sender" if in_turn else "" if sender is None else ast.unparse(sender)
    sends = _sent_at_once(call, source)
    lines = [
        f"theirs = [{each} {turns}{which}]",
        "flat = torch._utils._flatten_dense_tensors(theirs)  # of one dtype",
        sends,
        "torch._foreach_copy_(theirs, torch._utils._unflatten_dense_tensors(flat, theirs))",
    ]
    if sender is None or not in_turn:
        return "\n".join(lines)
    return "\n".join([f"for sender in sorted({{{ast.unparse(sender)} {turns}}}):", *(f"    {each}" for each in lines)])


def _head_around(profile: Profile, file: str | None, line: int | None) -> ast.For | None:
    """Return the loop around a line if that is all that it does, as torch's parser reads its head; None otherwise."""
    source = texts(profile).get(str(file))
    loop = loop_around(source, line) if source is not None and line is not None else None
    tree = None if loop is None or len(loop.body) != 1 else parsed(loop.header.strip())
    head = tree.body[0] if tree is not None and tree.body else None
    return head if isinstance(head, ast.For) else None


def _call_in(text: str) -> ast.Call | None:
    """Return the call of a line that sends a tensor, None without one."""
    tree = parsed(text.strip())
    return next(_calls(tree), None) if tree is not None else None


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).rpartition(".")[2] in _SENDS:
            yield node


def _sender_of(call: ast.Call) -> ast.expr | None:
    """Return which rank sends, None for a reduction."""
    if ast.unparse(call.func).rpartition(".")[2] != "broadcast":
        return None
    named = [each.value for each in call.keywords if each.arg in ("src", "group_src")]
    return next(iter([*call.args[1:2], *named]), None)


def _varies(expression: ast.expr, head: ast.For) -> bool:
    """Return whether an expression has another value in each round."""
    return not names_in(head.target).isdisjoint(names_in(expression))


def _sent_at_once(call: ast.Call, sender: str) -> str:
    """Return the call that sends the flat tensor."""
    by_name = any(each.arg in ("src", "group_src") for each in call.keywords)
    given = ["flat", *([sender] if sender and not by_name else [])]
    given += [ast.unparse(each) for each in call.args[2 if sender and not by_name else 1 :]]
    for each in call.keywords:
        if each.arg != "async_op":
            value = sender if each.arg in ("src", "group_src") else ast.unparse(each.value)
            given.append(f"{each.arg}={value}")
    return f"{ast.unparse(call.func)}({', '.join(given)})"
