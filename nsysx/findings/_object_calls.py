"""Calls that send Python objects between ranks, as they are written: what they name, what receivers use, and the same with tensors."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nsysx.findings._finding_bounds import LINES_TO_A_READ
from nsysx.findings._job_bounds import LINES_OF_OBJECT_CALL

_CALL = re.compile(
    r"(?P<module>(?:\w+\.)*)(?P<name>broadcast_object_list|all_gather_object|gather_object|scatter_object_list)\("
)
#: Of each call the names of what it is given by position.
_GIVEN = {
    "broadcast_object_list": ("object_list", "src", "group", "device"),
    "all_gather_object": ("object_list", "obj", "group"),
    "gather_object": ("obj", "object_gather_list", "dst", "group"),
    "scatter_object_list": ("scatter_object_output_list", "scatter_object_input_list", "src", "group"),
}
_TO_CPU = re.compile(r"(\.(detach|cpu|numpy|tolist)\(\))+$")


class ObjectCall(NamedTuple):
    """A call: its module with the dot, its name, its text, and what it is given by name of the argument, as written."""

    module: str
    name: str
    text: str
    given: Mapping[str, str]

    @property
    def source(self) -> str:
        """The rank that sends, as it is written; "" where each one does."""
        return self.given.get("src", "0") if self.name in ("broadcast_object_list", "scatter_object_list") else ""

    @property
    def group(self) -> str:
        """The argument that names the group, with a comma before it; "" without one."""
        return f", group={self.given['group']}" if self.given.get("group", "None") != "None" else ""

    @property
    def device(self) -> str:
        """Where its tensors are."""
        given = self.given.get("device", "None")
        return "'cuda'" if given == "None" else given


def object_call(of_file: Mapping[str, object], line: int) -> ObjectCall | None:
    """Return the call that begins at a line of a file, or at most a few lines before it; None where none does."""
    for first in range(line, line - LINES_OF_OBJECT_CALL, -1):
        text = str(of_file.get(str(first), "")).partition("  #")[0]
        match = _CALL.search(text)
        if match is None:
            continue
        whole, last = text[match.start() :], first
        while whole.count("(") > whole.count(")") and last < first + LINES_OF_OBJECT_CALL:
            last += 1
            whole += " " + str(of_file.get(str(last), "")).partition("  #")[0].strip()
        return _parsed(match["module"], match["name"], whole) if last >= line else None
    return None


def _parsed(module: str, name: str, text: str) -> ObjectCall | None:
    """Return the call with which a text begins, None where it has no end."""
    for end in (m.end() for m in re.finditer(r"\)", text)):
        try:
            call = ast.parse(text[:end].strip(), mode="eval").body
        except SyntaxError:
            continue
        if not isinstance(call, ast.Call) or any(isinstance(each, ast.Starred) for each in call.args):
            return None
        given = {key: ast.unparse(value) for key, value in zip(_GIVEN[name], call.args, strict=False)}
        given |= {each.arg: ast.unparse(each.value) for each in call.keywords if each.arg}
        return ObjectCall(module, name, text[:end].strip(), given)
    return None


def tensors_used(call: ObjectCall, function: str, used: Mapping[int, str]) -> tuple[str, ...]:
    """Return the keys of a batch that is broadcast which lines of its receivers use; none where one uses all of it, or that is unknown.

    ``used``: line -> what stands there, of lines that they run. A function that sends returns the batch to a line that calls it.
    """
    name = call.given.get("object_list", "")
    if call.name != "broadcast_object_list" or not name.isidentifier():
        return ()
    first = rf"(?<![\w.]){name}\[0\]"
    made = [re.match(rf"\s*(\w+)\s*=\s*(.*\b{function}\(.*|{first})\s*$", text) for text in used.values()]
    named = {match[1] for match in made if match is not None}
    batch = "|".join([first, *(rf"(?<![\w.\"'\[]){re.escape(each)}\b(?!\s*=[^=])" for each in sorted(named - {name}))])
    if name in named:
        batch += rf"|(?<![\w.\"'\[]){name}\b(?!\s*=[^=])(?!\[0\])"
    keys = dict[str, None]()
    for line in sorted(used):
        text = re.sub(r"^\s*return\b.*", "", used[line].partition("  #")[0])
        for match in re.finditer(rf"(?:{batch})(?:\[[\"'](?P<key>\w+)[\"']\])?", text):
            if re.match(rf"\s*\w+\s*=\s*{first}\s*$", text):
                continue
            if match["key"] is None:
                return ()
            keys[match["key"]] = None
    return tuple(keys)


def paste_of(call: ObjectCall, line: int, function: str, tensors: Sequence[str], of_file: Mapping[str, str]) -> str:
    """Return the same with tensors, in the names of the call; "" where it names none."""
    within = f"in {function}, " if function.isidentifier() else ""
    head = f"# {within}in place of line {line}: {call.text}"
    if call.name == "broadcast_object_list" and call.given.get("object_list", "").isidentifier():
        return _broadcast(call, head, tensors)
    if call.name in ("all_gather_object", "gather_object"):
        return _gathered(call, head, line, of_file)
    names = [call.given.get(key, "") for key in _GIVEN["scatter_object_list"][:2]]
    if call.name == "scatter_object_list" and all(name.isidentifier() for name in names):
        return _scattered(call, head, *names)
    return ""


def _broadcast(call: ObjectCall, head: str, tensors: Sequence[str]) -> str:
    name, dist, end = call.given["object_list"], call.module, f"src={call.source}{call.group})"
    sends = f"{dist}get_rank() == {call.source}"
    if not tensors:
        return (
            f"{head}\n# each tensor x of {name}[0], whose shape and dtype are sent once, as now\n"
            f"tensor = x.to({call.device}, non_blocking=True) if {sends} else torch.empty(shape, dtype=dtype, device={call.device})\n"
            f"{dist}broadcast(tensor, {end}"
        )
    keys = f"({', '.join(map(repr, tensors))},)"
    told = re.sub(rf"\(\s*(object_list\s*=\s*)?{name}\b", "(told", call.text, count=1)
    return (
        f"{head}\nif not kinds:  # kinds = {{}} once, at the top of the file: shapes and types\n"
        f"    told = [{{k: ({name}[0][k].shape, {name}[0][k].dtype) for k in {keys}}} if {sends} else None]\n"
        f"    {told}\n"
        "    kinds.update(told[0])\n"
        f"{name}[0] = {name}[0] if {sends} else {{}}\n"
        "for k, (shape, dtype) in kinds.items():\n"
        f"    tensor = {name}[0][k].to({call.device}) if {sends} else torch.empty(shape, dtype=dtype, device={call.device})\n"
        f"    {dist}broadcast(tensor, {end}\n"
        f"    {name}[0] = {{**{name}[0], k: tensor}}"
    )


def _gathered(call: ObjectCall, head: str, line: int, of_file: Mapping[str, str]) -> str:
    gives = _TO_CPU.sub("", call.given.get("obj", ""))
    into = call.given.get("object_list" if call.name == "all_gather_object" else "object_gather_list", "")
    if not re.fullmatch(r"[\w.]+", gives):
        return ""
    lines = [head]
    for n in range(line - 1, line - 1 - LINES_TO_A_READ, -1):
        made = re.match(rf"\s*{re.escape(gives)}\s*=\s*(.*)$", str(of_file.get(str(n), "")).partition("  #")[0])
        if made is not None:
            kept = _TO_CPU.sub("", made[1].strip())
            if kept != made[1].strip():
                lines.append(f"{gives} = {kept}  # line {n}, on the GPU still")
            break
    if call.name == "all_gather_object" and into.isidentifier():
        lines.append(
            f"{into} = [torch.empty_like({gives}) for _ in range({call.module}get_world_size({call.group[8:]}))]"
        )
        lines.append(f"{call.module}all_gather({into}, {gives}.contiguous(){call.group})")
        return "\n".join(lines)
    if call.name == "gather_object" and into:
        to = call.given.get("dst", "0")
        lines.append(
            f"parts = [torch.empty_like({gives}) for _ in range({call.module}get_world_size({call.group[8:]}))]"
            f" if {call.module}get_rank() == {to} else None"
        )
        lines.append(
            f"{call.module}gather({gives}.contiguous(), parts, dst={to}{call.group})  # then parts, not {into}"
        )
        return "\n".join(lines)
    return ""


def _scattered(call: ObjectCall, head: str, out: str, parts: str) -> str:
    dist, end = call.module, f"src={call.source}{call.group})"
    sends = f"{dist}get_rank() == {call.source}"
    return (
        f"kinds = []  # once, at the top of the file\n{head}\n"
        "if not kinds:  # in the first step alone: shape and type of a part\n"
        f"    told = [({parts}[0].shape, {parts}[0].dtype) if {sends} else None]\n"
        f"    {dist}broadcast_object_list(told, {end}\n"
        "    kinds += told\n"
        "part = torch.empty(kinds[0][0], dtype=kinds[0][1], device='cuda')\n"
        f"{dist}scatter(part, [x.cuda(non_blocking=True) for x in {parts}] if {sends} else None, {end}\n"
        f"{out}[0] = part"
    )
