"""The line that compares labels with class numbers in place of one-hot rows whose classes are brought forward, in a program's own names."""

from __future__ import annotations

import re

#: oh = F.one_hot(target, n).permute(0, 3, 1, 2).float()
_ONE_HOT = re.compile(
    r"^(?P<made>[A-Za-z_]\w*)\s*=\s*[\w.]*\bone_hot\((?P<target>(?:[^,()]|\([^()]*\))+),\s*(?:num_classes\s*=\s*)?(?P<classes>[\w.]+)\)"
    r"\s*\.(?P<moves>permute|movedim|moveaxis)\((?P<order>[-\d\s,()]+)\)"
)
#: What makes whole numbers of labels, which a comparison need not have.
_LONG = re.compile(r"\.(long\(\)|to\(torch\.(int64|long)\))$")


def compared_classes(text: str, function: str) -> str | None:
    """Return what takes the place of a line with one-hot rows; None where its text does not tell. ``function``: the one it is in."""
    hot = _ONE_HOT.match(text.partition("  #")[0].strip())
    if hot is None:
        return None
    order = [int(number) for number in re.findall(r"-?\d+", hot["order"])]
    if hot["moves"] == "permute" and (len(order) < 3 or order != [0, len(order) - 1, *range(1, len(order) - 1)]):
        return None
    if hot["moves"] != "permute" and order != [-1, 1]:
        return None
    places = ", ".join(["-1", *["1"] * (len(order) - 2 if hot["moves"] == "permute" else 2)])
    target = _LONG.sub("", hot["target"].strip())
    lines = [
        f"{hot['made']} = {target}[:, None] == torch.arange({hot['classes']}, device={target}.device).view({places})"
    ]
    if re.fullmatch(r"(?!main$)[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", function):
        lines.append(f"{function} = torch.compile({function})  # fused, nothing of this is written")
    return "\n".join(lines)
