"""Lines that freeze what no optimizer updates, in the program's own names: parts of a network, or by what its optimizers hold."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from nsysx.advice import Alternative
from nsysx.analyses.lines import text_of, texts
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import file_and_line, settings_of
from nsysx.findings._finding_bounds import MOST_NAMED_PARTS

BEFORE_TRAINING, BEFORE_WRAPPING = "  # before training", "  # before the network is wrapped"
#: What people call a network; a call of something else may stand in the same line.
_NETWORK = re.compile(r"(?i)(^|_|\.)(model|net|network|module)$")
_STEPS = re.compile(
    r"(?<![\w.])(?:self\.)?\w*(?i:scaler)\.step\(\s*((?:self\.)?[A-Za-z_]\w*)\s*\)|(?<![\w.])((?:self\.)?[A-Za-z_]\w*)\.step\("
)
#: What else than an optimizer steps, by its name.
_NO_OPTIMIZERS = re.compile(r"(?i)sched|scaler|prof|ema$")


def parts_as_code(parts: Sequence[str], network: str) -> list[str]:
    """Return parts of a network, by their paths, as code: neighbours of one list as a slice of it; [] for more than are worth a line."""
    code, runs = list[str](), dict[str, list[int]]()
    for part in parts:
        owner, _, last = part.rpartition(".")
        if owner and last.isdecimal():
            if owner not in runs:
                code.append(owner)
            runs.setdefault(owner, []).append(int(last))
        else:
            code.append(part)
    sliced = [text for each in code for text in _slices(each, runs.get(each), network)]
    return sliced if len(sliced) <= MOST_NAMED_PARTS else []


def _slices(path: str, numbers: list[int] | None, network: str) -> list[str]:
    """Return a part as code, of a list the slices in which some ``numbers`` lie."""
    owner = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", f"{network}.{path}")
    if numbers is None:
        return [owner]
    starts, ends = ([n + by for n in sorted(numbers) if n + by + (by - 1) not in numbers] for by in (0, 1))
    return [f"{owner}[{start or ''}:{end}]" for start, end in zip(starts, ends, strict=True)]


def untrained_parts(profile: Profile) -> list[str]:
    """Return the parts of networks that nothing trains, as the probe compared their weights, as code; [] where it does not say."""
    settings = settings_of(profile)
    code = list[str]()
    for row in (settings.rows("untrained") if settings is not None else None) or ():
        parts, cls = row.get("parts"), str(row.get("class"))
        given = list(map(str, parts)) if isinstance(parts, list) else []
        named = parts_as_code(given, network_name(profile, cls)) if given else []
        if not named:
            return []
        code += named
    return code if len(code) <= MOST_NAMED_PARTS else []


def parts_frozen(parts: Sequence[str], before: str = BEFORE_TRAINING) -> str:
    """Return the line that freezes some parts, given as code."""
    return (
        f"{parts[0]}.requires_grad_(False){before}"
        if len(parts) == 1
        else f"for part in [{', '.join(parts)}]: part.requires_grad_(False){before}"
    )


def frozen_by_optimizers(profile: Profile, cls: str = "", before: str = BEFORE_TRAINING) -> str:
    """Return the lines that freeze all that no optimizer of the program holds of a network, the first one if its class is not known."""
    held, network = optimizer_names(profile), network_name(profile, cls)
    group = "for g in {}.param_groups"
    if len(held) > 1:
        group = f"for o in ({', '.join(held)}) {group.format('o')}"
    else:
        group = group.format(held[0])
    return (
        f'held = {{id(p) {group} for p in g["params"]}}\n'
        f"for p in {network}.parameters(): p.requires_grad_(id(p) in held){before}"
    )


def optimizer_names(profile: Profile) -> list[str]:
    """Return what the program calls its optimizers where they step, ["optimizer"] where that is not known."""
    settings = settings_of(profile)
    count = len((settings.rows("optimizers") if settings is not None else None) or ())
    every = (step[2] or step[1] for text in _lines(profile) for step in _STEPS.finditer(text))
    names = list(dict.fromkeys(name for name in every if not _NO_OPTIMIZERS.search(name)))
    return names if 0 < len(names) == count else ["optimizer"]


def network_name(profile: Profile, cls: str = "", otherwise: str = "model") -> str:
    """Return what the program calls a network of this class, or its only one, where it calls it; ``otherwise`` where that is not known.

    One that is wrapped for several ranks is called by the wrapper's name, and has another one before.
    """
    settings = settings_of(profile)
    if settings is not None and settings.rows("wrappers"):
        return otherwise
    rows = list((settings.rows("inputs") if settings is not None else None) or ())
    rows = [row for row in rows if row.get("class") == cls] or ([] if cls else rows)
    names = {name for row in rows for name in [_called_network(_text_at(profile, row.get("place")))] if name}
    return names.pop() if len(names) == 1 else otherwise


def named_as_called(profile: Profile, remedy: Alternative) -> Alternative:
    """Return a remedy whose line calls the network ``model`` with the program's own name of it."""
    name = network_name(profile)
    return replace(remedy, paste=re.sub(r"\bmodel\b", lambda _: name, remedy.paste))


def _text_at(profile: Profile, noted: object) -> str:
    where = file_and_line(noted)
    return text_of(texts(profile), where["file"], where["line"]) or "" if where else ""


def _called_network(text: str) -> str:
    """Return the name of the network that is called in a line, "" where several things may be one."""
    try:
        tree = ast.parse(f"{text} pass" if text.endswith(":") else text)
    except SyntaxError:
        return ""
    called = {name for node in ast.walk(tree) if isinstance(node, ast.Call) and (name := _name_of(node.func))}
    usual = {name for name in called if _NETWORK.search(name)}
    one_of = usual or called
    return one_of.pop() if len(one_of) == 1 else ""


def _name_of(function: ast.expr) -> str:
    """Return the name of what is called as a network is: a name, or an attribute of ``self``; "" for methods of something else."""
    if isinstance(function, ast.Name) and not hasattr(builtins, function.id):
        return function.id
    of_self = (
        isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "self"
    )
    return ast.unparse(function) if of_self else ""


def _lines(profile: Profile) -> Iterator[str]:
    """Yield the lines of the program that the probe noted, without those of packages."""
    for file, lines in texts(profile).items():
        if "-packages/" not in file and isinstance(lines, dict):
            yield from (text.strip() for text in lines.values() if isinstance(text, str))
