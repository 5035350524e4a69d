"""Numbers of Python that bear the name of a result that has no more to do with them.

Torch names what an operator is given by where the tensor lies in memory. A number of Python is made a tensor without an operator, and where
that takes the memory of one that was freed it has that one's name: ``flip * 2.0`` then reads a gradient of the step before, and all the
backward that led to it seems to be needed. A number has no dimensions; a result that something was given with dimensions before has some.
"""

from __future__ import annotations

import polars as pl

from nsysx.events.operator_flow import DIMENSIONS, results_in

_GIVEN = "input_op_ids = "
_WITHOUT_DIMENSIONS = r"\[\].*input_op_ids = .*\(\d+,\d+\)"
_UNNAMED = "(0,-1)"
_Argument = tuple[str, tuple[int, int]]


def without_names_of_numbers(operators: pl.DataFrame) -> pl.DataFrame:
    """Return operators (start_ns, label) with labels in which such numbers have no name."""
    labels = operators["label"]
    rows = labels.str.contains(_WITHOUT_DIMENSIONS).fill_null(value=False).arg_true()
    arguments = {row: _arguments(text) for row, text in zip(rows.to_list(), labels.gather(rows).to_list(), strict=True)}
    names = {name for given in arguments.values() for size, name in given if not size and name[1] >= 0}
    if not names:
        return operators
    dimensions = _dimensions(operators, names)
    numbers = {
        row: indices
        for row, given in arguments.items()
        if (indices := [index for index, (size, name) in enumerate(given) if not size and dimensions.get(name)])
    }
    if not numbers:
        return operators
    unnamed = [_without(labels[row], indices) for row, indices in numbers.items()]
    return operators.with_columns(labels.clone().scatter(list(numbers), unnamed))


def _arguments(text: str) -> list[_Argument]:
    """Return size and name of each argument of an operator; of lists of tensors nothing, they have fewer sizes than names."""
    sizes, _, given = text.partition("sizes = ")[2].partition(_GIVEN)
    dimensions, named = DIMENSIONS.findall(sizes), results_in(given)
    return list(zip(dimensions, named, strict=True)) if len(dimensions) == len(named) else []


def _dimensions(operators: pl.DataFrame, names: set[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """Return the size of results with which something is given them first, "" for no dimensions."""
    texts = [f"({number},{which})" for number, which in names]
    reads = operators["label"].str.contains_any(texts).fill_null(value=False)
    first: dict[tuple[int, int], str] = {}
    for text in operators.filter(reads).sort("start_ns", maintain_order=True)["label"].to_list():
        for size, name in _arguments(text):
            if name in names:
                first.setdefault(name, size)
    return first


def _without(text: str, indices: list[int]) -> str:
    """Return a label in which the arguments at these indices have no name."""
    before, given, after = text.partition(_GIVEN)
    named = [f"({number},{which})" for number, which in results_in(after)]
    return f"{before}{given}[{', '.join(_UNNAMED if index in indices else each for index, each in enumerate(named))}]"
