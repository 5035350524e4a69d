"""Lines that cut a network in stages, with the numbers of layers that make these even."""

from __future__ import annotations

import pytest

from nsysx.findings._stage_cut import counts_with, cut_with


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("layers_per_stage=(6, 4), batch=1,", "layers_per_stage=(7, 3), batch=1,"),
        ('"blocks": [6, 4],  # of the stages', '"blocks": [7, 3],'),
        ("layers_per_stage=(4, 6), batch=1,", ""),  # other numbers
        ("kernel=(6, 4)", ""),
    ],
)
def test_a_setting_that_counts_the_layers_of_stages_has_better_ones_in_its_place(text: str, then: str) -> None:
    assert counts_with(text, (6, 4), (7, 3)) == then


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        (
            "first, last = stage * n // num_stages, (stage + 1) * n // num_stages",
            "first, last = sum(layers_of[:stage]), sum(layers_of[:stage + 1])",
        ),
        ("return [depth * s // k for s in range(k + 1)]", "return [sum(layers_of[:s]) for s in range(k + 1)]"),
        ("own = blocks[rank * n : (rank + 1) * n]", "own = blocks[sum(layers_of[:rank]):sum(layers_of[:rank + 1])]"),
        ("own = blocks[edges[i] : edges[i + 1]]", "edges = [0, 7, 10]  # where the stages begin and end\n{}"),
        ('split_spec={"layers.5": SplitPoint.BEGINNING}', 'split_spec={"layers.7": SplitPoint.BEGINNING}'),
        ("per_stage = layers // num_stages", ""),  # one number for all
        ("first = stage * n // stages", ""),  # where it ends stands elsewhere
        ("if stage == 0:", ""),
    ],
)
def test_the_line_that_cuts_the_network_has_the_numbers_of_layers(text: str, cut: str) -> None:
    assert cut_with(text, [7, 3], "layers_of") == cut.replace("{}", text)
