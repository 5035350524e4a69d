"""Lines whose numbers are written out, and lines that count steps."""

from __future__ import annotations

import pytest

from nsysx.findings._numbers_of_lines import counts_steps, names_of_rounds, numbers_written_out, same_parts


@pytest.mark.parametrize(
    ("line", "written_out"),
    [
        ('mask = torch.full((T, T), float("-inf"), device=x.device).triu(1)', True),
        ("mask = torch.full((T, T), -1e9)", True),
        ("return x.new_full((T, T), fill_value=torch.finfo(x.dtype).min)", True),
        ("w = w.masked_fill(torch.full_like(w, True), 0)", True),
        ("z = buffer.fill_(-math.inf)", True),
        ("t = torch.full((batch,), t)", False),
        ("t = torch.full((batch,), 1 - self.alpha)", False),
        ("t = torch.full((batch,), schedule(5))", False),
        ("t = torch.full((T, 5), 0.5) + torch.full((T, 5), t)", False),
        ("x = torch.tensor([1, 2])", False),
        ("for x in torch.full((5,), 0.5):", False),
    ],
)
def test_a_number_that_a_line_writes_everywhere(line: str, written_out: bool) -> None:
    assert numbers_written_out(line) is written_out


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("weight = torch.exp(distance * (step / steps))", True),
        ("x = table * schedule(self.global_step)", True),
        ("noise = base * sigma[i]", True),
        ("halo = Halo(src, *self.where)", False),
        ("self.src[outside] = nodes + back", False),
        ("mask = torch.ones(size, size).tril()", False),
        ("y = f(x, step=2)", False),
        ("y = f(x)  # in each step", False),
    ],
)
def test_a_line_that_names_what_counts_steps(line: str, counts: bool) -> None:
    assert counts_steps(line) is counts


COUNTED = ["count = 0", "region[:, rows] = count", "count += 1"]


@pytest.mark.parametrize(
    ("line", "function", "same"),
    [
        ("region[:, rows] = count", COUNTED, True),
        ("region[:, rows] = count", [*COUNTED, "count = first"], False),
        ("region[:, rows] = count", COUNTED[:2], False),
        ("region[:, rows] = 1", [], True),
        ("region[:, rows] = -1.5", [], True),
        ("region[:, rows] = level", ["level = 3"], False),  # it may be another one in another round
    ],
)
def test_a_number_that_is_written_into_a_part(line: str, function: list[str], same: bool) -> None:
    assert numbers_written_out(line, function) is same


SELECT, SLICE, INDEX, UNBIND = "aten::select", "aten::slice", "aten::index", "aten::unbind"


@pytest.mark.parametrize(
    ("line", "operators", "same"),
    [
        ("source, target = edge", [UNBIND], True),
        ("source, target = edge[0], edge[1]", [SELECT, SELECT], True),
        ("left, right = x.chunk(2)", ["aten::chunk"], True),
        ("table[:, 0::2] = torch.sin(position * scale)", [SLICE], True),
        ("index[:, :, 0] += size - 1", [SELECT, SELECT], True),
        ("return order[:nodes], (target[order][:nodes]) % 4", [SLICE, INDEX, SLICE], True),
        ("return plan['send'][2:-1]", [SLICE], True),
        ("x = data[index]", [SELECT], False),
        ("x = data[index]", [INDEX], True),
        ("x = data[first : first + size]", [SLICE], False),
        ("x = data[order[first : first + size]]", [SLICE, INDEX], False),
        ("x = samples.take()", [SELECT] * 4, False),  # in a function of torch's
        ("x, y = next(batches)", [SELECT], False),
        ("for x in data.split(8):", ["aten::split"], False),
        ("x = data.narrow(0, first, 8)", ["aten::narrow"], False),
        ("x = torch.stack(parts[", [SELECT], False),  # it ends in another line
        ("batch = parts", [UNBIND], False),
    ],
)
def test_a_line_that_writes_out_which_parts_it_takes(line: str, operators: list[str], same: bool) -> None:
    assert same_parts(line, operators) is same


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("for i, (layer, shift) in enumerate(layers):", ["i", "layer", "shift"]),
        ("x = [f(i) for i in y]", []),
        ("while i in names:", []),
    ],
)
def test_names_that_each_round_gives_something_else(line: str, names: list[str]) -> None:
    assert names_of_rounds(line) == names
