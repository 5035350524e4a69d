"""Metrics that the host makes in each step of what it copies from the GPU: a confusion matrix by numpy, hits among the first k.

The lines of a function that copy to the host, and what they make of that by arithmetic of arrays alone, are one thing to do: on the GPU
the copies, the waits for them and the host code behind them go together. What the function makes must stay on the host: no line that
copies to the GPU may name it. What few numbers tell, or few steps ask for, is told by what its lines do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses import lines
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import Call
from nsysx.events import line_runs
from nsysx.events.code_lines import CodeLines
from nsysx.findings._case import Case, Fix, calls_of
from nsysx.findings._finding_bounds import MUCH_READ_BACK_BYTES, NEARLY_ALL_STEPS_SHARE
from nsysx.findings._function_texts import lines_of_function
from nsysx.findings._made_again import MadeAgain, calls_below
from nsysx.findings._metric_pastes import on_gpu
from nsysx.findings._needs import step_of
from nsysx.replay.idle_lines import by_line

#: A name, or an attribute of one, that a line gives a value or adds to; and a list that it appends to.
_ASSIGNS = re.compile(
    r"\s*(?P<names>[A-Za-z_][\w.]*(?:\s*,\s*[A-Za-z_][\w.]*)*)(?:\[[^=]*\])?\s*(?:[-+*/|&]|//)?=(?!=)\s*(?P<value>.*)"
)
_APPENDS = re.compile(r"\s*(?P<names>[A-Za-z_][\w.]*)\.(?:append|extend)\((?P<value>.*)\)\s*$")
_COPIES = re.compile(r"\.(?:cpu|numpy|tolist)\(\s*\)|\.to\(\s*[\"']cpu")
_TO_CPU = re.compile(r"\.to\(\s*[\"']cpu[\"']\s*\)")
_NAME = re.compile(r"(?<![\w.])[A-Za-z_][\w.]*")
_STRING = re.compile(r"\"[^\"]*\"|'[^']*'")
_CALLED = re.compile(r"([\w.]*)\(")
#: What of arrays torch has as well; a call of anything else may be no arithmetic.
_ROOTS = frozenset({"np", "numpy", "torch"})
_METHOD = re.compile(
    r"all|any|argmax|argmin|argsort|astype|bincount|clip|copy|cpu|cumsum|detach|double|flatten|float|int|item|long|max|mean|min|numpy|ravel|"
    r"reshape|sort|squeeze|std|sum|t|tolist|topk|transpose|unsqueeze|var|view|append|extend"
)
#: Metrics of sklearn that torchmetrics has by tensors.
_SCORES = re.compile(r"(?:\w+\.)*(?:confusion_matrix|\w*(?:accuracy|f1|precision|recall|jaccard)_score)")
#: What only tells a value.
_TELLS = re.compile(
    r"\s*(?:print|log\w*|self\.log|\w*writer\.add_scalar|\w*bar\.set_\w+|wandb\.log|logg(?:er|ing)\.\w+)\("
)
_BUILTINS = frozenset({"", "abs", "float", "int", "len", "max", "min", "range", "round", "slice", "sum", "tuple"})
#: What makes few numbers of many: without it a function hands on what it copied.
_REDUCES = re.compile(
    r"\b(bincount|histogram\w*|unique|argmax|argsort|argpartition|topk|count_nonzero|corrcoef|percentile|quantile)\(|"
    r"\b(?:confusion_matrix|\w+_score)\(|(?:\.|\bnp\.|\bnumpy\.|\btorch\.)(sum|mean|std|var|max|min|any|all|median|average|nan(?:mean|sum)|add\.at)\("
)
#: Not arithmetic of arrays that torch has: files, text, strings.
_ELSEWHERE = re.compile(
    r"\b(np|numpy|torch)\.(save\w*|load\w*|random|fromfile|array2string|vectorize|frompyfunc|apply_along_axis|linalg)\b"
)
_CONDITION = (
    "torch.bincount waits for the GPU once a call, and so does a mask by boolean indexing; it is not deterministic where weights are "
    "added up (use_deterministic_algorithms refuses it). Copy the sums (.cpu()) only where they are read."
)


class HostMetric(NamedTuple):
    """What one function makes on the host in each step: its lines (rows of the places), and its calls that copy to the host or wait.

    ``places`` holds lines that only call it; ``numbers``: its own lines by number, ``copying``: those that copy.
    """

    file: str
    function: str
    places: frozenset[int]
    calls: frozenset[int]
    copied: int
    numbers: tuple[int, ...]
    copying: frozenset[int]


def calls_of_metrics(case: Case) -> frozenset[int]:
    """Return the calls that copy what such metrics are made of, and wait for it."""
    return frozenset[int]().union(*(metric.calls for metric in host_metrics(case)))


def host_metrics(case: Case) -> list[HostMetric]:
    """Return the metrics that cost: in nearly all steps much is copied, and host code behind it leaves the GPU idle."""
    return case.once(_costly_metrics)


def _costly_metrics(case: Case) -> list[HostMetric]:
    code = case.profile.code()
    if code is None or case.stepless or not case.program.torch or case.device is None:
        return []
    rows = {(r["file"], r["line"], r["function"]): r for r in case.typed_rows(lines.ROWS)}
    copies = case.ops.filter((case.ops["op_kind"] == "memcpy") & case.ops["call"].is_not_null())
    down = copies.filter(copies["name"].cast(pl.String) == "DtoH")
    up = code.places_of(code.op[copies.filter(copies["name"].cast(pl.String) == "HtoD")["op"].to_numpy()])
    sent = [code.places.row(line_row) for line_row in sorted(set(up.tolist()) - {-1})]
    functions = {(file, function) for (file, _, function), row in rows.items() if row["copies"] and file}
    metrics = list[HostMetric]()
    for file, function in sorted(functions):
        of_function = {code_row: rows.get(code.places.row(code_row)) for code_row in _places(code, str(file), function)}
        metric = _of_function(case, code, str(file), function, of_function, down, sent)
        metrics += [metric] if metric is not None else []
    return metrics


def _places(code: CodeLines, file: str, function: str) -> list[int]:
    there = (pl.col("file") == file) & (pl.col("function") == function) & pl.col("line").is_not_null()
    places: list[int] = code.places.with_row_index("row").filter(there)["row"].to_list()
    return places


def _of_function(
    case: Case,
    code: CodeLines,
    file: str,
    function: str,
    rows: Mapping[int, lines.CodeLineRow | None],
    down: pl.DataFrame,
    sent: Iterable[tuple[str, int, str]],
) -> HostMetric | None:
    """Return the metric of a function, None where it makes none. ``down``: copies to the host; ``sent``: lines that copy to the GPU."""
    row_of = {int(code.places["line"][line_row]): line_row for line_row in rows}
    source = {
        n: text.partition("  #")[0]
        for n, text in lines_of_function(case.profile, file, next(iter(row_of), None)).items()
    }
    helpers = _helpers(case, code, file)
    copying, made, names = set[int](), set[int](), set[str]()
    reduces = keeps = False
    for number, text in source.items():
        copies = (
            number in row_of
            and _COPIES.search(text) is not None
            and bool((rows[row_of[number]] or {"copies": 0})["copies"])
        )
        uses = names.intersection(_names(text))
        if not copies and not uses:
            continue
        text = _TO_CPU.sub(".cpu()", text) if copies else text
        assigns, appends = _ASSIGNS.fullmatch(text), _APPENDS.fullmatch(text)
        keeps = keeps or bool(appends or _TELLS.match(text) or (assigns and not copies and _adds(text, assigns)))
        assigns = assigns or appends
        if assigns is None and _TELLS.match(text):
            continue
        if assigns is None or not _of_arrays(text, frozenset(helpers)):
            # What is returned, printed, or handed to something else is not known to stay here.
            return None
        names.update(re.split(r"\s*,\s*", assigns["names"]))
        called = {each for each in helpers if re.search(rf"(?<![\w.]){re.escape(each)}\(", text)}
        reduces = reduces or bool(called) or (not copies and _REDUCES.search(text) is not None)
        (copying if copies else made).add(number)
    if not copying or not reduces or not keeps or _goes_back(case, (file, function, min(copying)), names, sent):
        return None
    places = frozenset(row_of[n] for n in copying | made if n in row_of)
    runs = case.profile.once(line_runs.of_lines)
    working = frozenset(row_of[n] for n in made if n in row_of)
    works = calls_below(case, code, working)
    if any(runs.encloses[line_row] for line_row in places) or works["kind"].is_in([*Call.LAUNCHES, Call.COPY]).any():
        return None
    idle = by_line(case.profile)
    held = case.per_step(float(idle["real_ns"].to_numpy()[code.passing(idle["stack"].to_numpy(), working)].sum()))
    places |= _callers(case, code, places)
    theirs = calls_below(case, code, places)
    brought = down.filter(down["call"].is_in(theirs["call"].implode()))
    in_steps = step_of(case.profile, theirs.filter(theirs["call"].is_in(brought["call"].implode()))["start_ns"])
    copied = int(brought["bytes"].fill_null(0).sum())
    if len(set(in_steps.tolist())) < NEARLY_ALL_STEPS_SHARE * case.steps or copied < MUCH_READ_BACK_BYTES * case.steps:
        return None
    if not case.notable(held):
        return None
    calls = calls_of(theirs.filter(~theirs["kind"].is_in(Call.LAUNCHES)))
    numbers = tuple(sorted(copying | made))
    return HostMetric(file, function, places, calls, copied, numbers, frozenset(copying))


def _helpers(case: Case, code: CodeLines, file: str) -> set[str]:
    """Return the functions of a file that are arithmetic of arrays alone, by the names by which it calls them."""
    ran = code.places.filter((pl.col("file") == file) & pl.col("line").is_not_null())
    texts_of = dict[str, list[str]]()
    for line, function in ran.select("line", pl.col("function").cast(pl.String)).iter_rows():
        texts_of.setdefault(function, []).append(text_of(texts(case.profile), file, line) or "")
    alone = {
        f for f, each in texts_of.items() if all(_of_arrays(re.sub(r"^\s*(def .*|return\b)", "", t)) for t in each)
    }
    return {f"self.{f.rpartition('.')[2]}" if "." in f else f for f in alone}


def _callers(case: Case, code: CodeLines, places: frozenset[int]) -> frozenset[int]:
    """Return the lines that do nothing but call the function of these lines, and take nothing from it."""
    chains = [code.own_chain(stack) for stack in np.flatnonzero(np.isin(code.place, sorted(places))).tolist()]
    callers = {next((row for row in chain if row not in places), -1) for chain in chains} - {-1}
    runs, (_, _, function) = case.profile.once(line_runs.of_lines), code.places.row(min(places))
    name = re.escape(function.rpartition(".")[2])
    bare = rf"\s*[\w.]+\.{name}\([^()]*(?:\([^()]*\)[^()]*)*\)\s*(?:#.*)?"
    return frozenset(
        row
        for row in callers
        if not runs.encloses[row] and re.fullmatch(bare, text_of(texts(case.profile), *code.places.row(row)[:2]) or "")
    )


def _adds(text: str, assigns: re.Match[str]) -> bool:
    """Return whether a line adds to what it gives a value: with ``+=``, or as an average that goes on."""
    return re.search(r"[-+|&]=(?!=)", text) is not None or (
        "+" in assigns["value"] and assigns["names"] in _names(assigns["value"])
    )


def _goes_back(case: Case, begins: tuple[str, str, int], names: set[str], sent: Iterable[tuple[str, int, str]]) -> bool:
    """Return whether a line that copies to the GPU names what a function makes, from one of its lines on; attributes count anywhere."""
    file, function, first = begins
    attributes = {name.rpartition(".")[2] for name in names if "." in name}
    for other, line, there in sent:
        words = set(re.findall(r"\w+", _STRING.sub("", text_of(texts(case.profile), other, line) or "")))
        if words & attributes or ((other, there) == (file, function) and line >= first and words & names):
            return True
    return False


def _names(text: str) -> set[str]:
    """Return the names that a line reads, each with its attributes and without."""
    read_names = set[str]()
    for name in _NAME.findall(_STRING.sub("", text)):
        parts = name.split(".")
        read_names.update(".".join(parts[: n + 1]) for n in range(len(parts)))
    return read_names


def _of_arrays(text: str, of_arrays: frozenset[str] = frozenset()) -> bool:
    """Return whether a line is arithmetic of arrays that torch has, and nothing else; ``of_arrays``: functions that are that, too."""
    if _ELSEWHERE.search(text) or re.search(r"\b(for|lambda|await|yield)\b", text):
        return False
    for called in _CALLED.findall(text):
        first, _, last = called.rpartition(".")
        array = first.partition(".")[0] in _ROOTS or _SCORES.fullmatch(called) is not None
        if not (array or called in of_arrays or (_METHOD.fullmatch(last) if "." in called else called in _BUILTINS)):
            return False
    return True


def in_words(case: Case, metric: HostMetric) -> MadeAgain:
    """Return what is said about a metric."""
    numbers = metric.numbers
    there, size = f"{PurePath(metric.file).name}:{numbers[0]}", units.size(metric.copied / case.steps)
    span = f"{there} to {numbers[-1]}" if numbers[1:] else there
    name = f"{metric.function} ({span})"
    text = (
        f"Make this metric on the GPU: {name} copies {size} to the host in each step and works on them there. Leave the tensors on the "
        "GPU, count and add up there, and copy the sums only in the steps that read them"
    )
    why = f"{name} copies {size} to the host in each step; no line that copies to the GPU names what it makes of them."
    source = lines_of_function(case.profile, metric.file, numbers[0])
    paste = on_gpu({n: text for n, text in source.items() if n >= numbers[0]}, numbers, metric.copying)
    fix = Fix.by_name("numpy-on-gpu", text=text, paste=paste, condition=_CONDITION)
    title = f"{name} makes a metric on the host in each step"
    return MadeAgain(metric.places, title, why, fix, {"file": metric.file, "line": numbers[0]}, keeps_launches=True)
