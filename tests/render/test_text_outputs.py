"""Terminal, Markdown and JSON: what they say, in every width and locale, with hostile names and with nothing recorded."""

from __future__ import annotations

import ast
import io
import itertools
import json
import math
import re
import unicodedata
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.model import SCHEMA, Summary
from nsysx.render import code as code_of
from nsysx.render import json_text, markdown, terminal
from tests.render import factory


def shown(summary: Summary, width: int = 80, encoding: str = "utf-8", *, color: bool = False, **options) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="")
    terminal.render(
        summary,
        Console(file=file, width=width, force_terminal=color, color_system="truecolor" if color else None),
        **options,
    )
    file.flush()
    return raw.getvalue().decode(encoding)


LEDGER_80 = """\
Where the step goes  mean of 10 steady steps
GPU 0 (NVIDIA H200): 69.25 ms
  compute                      56.00 ms   81 % █████████████████████████▏
  copy                          3.00 ms  4.3 % █▍
  memset                         250 us  0.4 % ▏
  idle: host sync               6.00 ms  8.7 % ██▋
  idle: kernel launch latency   2.00 ms  2.9 % ▉
  idle: host code (Python)      1.90 ms  2.7 % ▉
  idle: the profiler itself      100 us  0.1 % ▏
CPU thread main: 69.00 ms
  kernel launches               9.00 ms   13 % ████
  copy calls                    2.00 ms  2.9 % ▉
  host syncs                   40.00 ms   58 % █████████████████▉
  allocator calls                500 us  0.7 % ▎
  other CUDA calls              1.50 ms  2.2 % ▋
  outside CUDA calls           16.00 ms   23 % ███████▏
"""

WAITS_80 = """\
Waits  per step, mean of 10 steady steps
                                                GPU idle
call                   Python line      total     caused   saving  module
cudaStreamSynchronize  losses.py:88  38.00 ms    6.00 ms  40.0 us  blocks.1.loss
"""

WAITS_120 = """\
                                                GPU idle                                              own    host
call                   Python line      total     caused   saving  module         calls   backlog    work    cost  phase
cudaStreamSynchronize  losses.py:88  38.00 ms    6.00 ms  40.0 us  blocks.1.loss    1.2  37.00 ms  100 us  900 us  loss
"""

MODULES_80 = """\
Modules  per step, mean of 10 steady steps
                                                                             GPU
                                    backward                     backlog    idle
module                forward GPU        GPU  self GPU   launch   waited  blamed
(Net)                    20.00 ms   30.00 ms    500 us  8.00 ms     0 ns    0 ns
2 x Block (blocks.*)     19.50 ms   30.00 ms   1.50 ms  7.50 ms     0 ns    0 ns
blocks.1.attn.qkv         6.00 ms    8.00 ms  14.00 ms   900 us     0 ns    0 ns
"""


def stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def test_the_order_and_the_words_at_80_columns(full):
    text = stripped(shown(full))
    assert text.startswith("The GPU computes for 81 % of the 69.25 ms step;")
    assert LEDGER_80 in text
    assert WAITS_80 in text
    assert MODULES_80 in text
    heads = [
        "What to do first",
        "Steady step, mean: GPU 69.25 ms",
        "Where the step goes",
        "Findings",
        "Waits",
        "Modules",
        "Kernels",
        "API calls",
        "Copies",
        "Not in this capture",
        "Quality",
    ]
    places = [text.index(head) for head in heads]
    assert places == sorted(places)
    assert "Boolean masks cost 22 ms of sort and gather kernels: saves 22.00 ms per step" in text
    assert "Device memory: re-run with: nsysx run --memory -- python train.py" in text
    assert "An analysis of tomorrow" in text
    assert re.search(r"alpha +2\.0 KiB +2\.00 GB/s +yes", text)


def test_more_columns_come_with_more_width(full):
    assert WAITS_120 in stripped(shown(full, 120))


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(width, full, hostile):
    for summary in (full, hostile):
        for line in shown(summary, width).splitlines():
            assert cell_len(line) <= width, line


def test_ledger_parts_add_up_to_the_step_as_printed(full):
    text = shown(full, sections=["ledger"])
    times = [
        float(n) * {"ms": 1, "us": 1e-3}[u] for n, u in re.findall(r"^  \S.*? ([\d.]+) (ms|us) ", text, re.MULTILINE)
    ]
    totals = [float(n) for n in re.findall(r": ([\d.]+) ms$", text, re.MULTILINE)]
    assert totals == [69.25, 69.0]
    assert math.isclose(sum(times), sum(totals), abs_tol=0.01)


def test_sections_and_top(full):
    text = shown(full, sections=["kernels"], top=2)
    assert text.split()[0] == "Kernels"
    assert "2 of 4" in text
    assert "Where the step goes" not in text
    assert "Quality" not in text
    only = shown(full, sections=["memory"])
    assert "Not recorded: re-run with: nsysx run --memory" in only


def test_a_section_that_does_not_exist_is_an_error_that_names_those_that_do(full):
    with pytest.raises(NsysxError, match=r"no section is called kernel\. Did you mean kernels\? There are") as caught:
        shown(full, sections=["kernel"])
    assert caught.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1", "cp1252", "koi8-r"])
def test_a_locale_without_unicode(encoding, full, hostile):
    text = shown(full, encoding=encoding)
    assert "█" not in text
    assert re.search(r"compute +56\.00 ms +81 % #{15,}", text)
    assert "→" not in text
    assert "\\u6838" in shown(hostile, encoding="ascii")


def test_pipes_get_no_color_and_terminals_do(full, monkeypatch):
    assert "\x1b" not in shown(full)
    assert "\x1b[" in shown(full, color=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", shown(full, color=True))


def test_hostile_names_are_inert_in_the_terminal(hostile):
    text = shown(hostile, 120, top=50)
    invisible = [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c != "\n"]
    assert invisible == []
    assert "[red]not markup[/red][/oops]" in text
    assert "\\x1b[31mred" in text
    assert len(text) < 100_000


def test_nothing_recorded_is_said_and_never_zero(bare):
    text = shown(bare)
    assert text.startswith("This capture holds no GPU work")
    assert "re-run with nsysx run -t cuda" in text
    assert not re.search(r"\b0(\.0+)? (ns|us|ms|s|%)", text)


def test_markdown_is_a_ticket(full):
    text = markdown.render(full)
    assert text.startswith("**The GPU computes for 81 % of the 69.25 ms step;")
    assert "- **Worth:** 1.5x faster (1.25 to 1.8): 69.15 ms → 47.15 ms a step" in text
    assert "compute 56.25 ms (81 %)" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    for before, after in itertools.pairwise(rows):
        if set(after) <= set("|-:"):
            assert before.count("|") == after.count("|")
    assert len(text.splitlines()) <= 25


def test_hostile_names_are_inert_in_markdown(hostile):
    text = markdown.render(hostile)
    body = re.sub(r"</?sub>", "", text)
    body = re.sub(r"^### |\*\*|^- ", "", body, flags=re.MULTILINE)
    body = re.sub(r"`[^`|@$\n]+`", "code", body)  # what stands in code is inert, but for mentions and cells
    for line in body.splitlines():
        cells = line.strip("|") if line.startswith("|") else line
        if line.startswith("|") and not set(line) <= set("|-: "):
            cells = re.sub(r" \|(?= )", "", cells)
        if not set(line) <= set("|-: "):
            assert not re.search(r"[<>`\[\]@$|]|(?<!&)#|://|\\", cells), line
    assert not [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c != "\n"]
    assert len(text) < 100_000


def test_markdown_redacts_as_the_page_does(full):
    assert "alice" not in markdown.render(full)
    assert "losses.py:88" in markdown.render(full)


def test_json_holds_everything_and_only_what_json_knows(full):
    odd = replace(full, totals={**full.totals, "nan": math.nan, "inf": -math.inf, "text": "\ud800é", "tuple": (1, 2)})
    text = json_text.render(odd)
    text.encode("utf-8")
    data = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert list(data)[:4] == ["schema", "tool", "capture", "quality"]
    assert data["schema"] == SCHEMA
    assert data["totals"]["nan"] is None
    assert data["totals"]["inf"] is None
    assert data["totals"]["tuple"] == [1, 2]
    assert data["totals"]["text"] == "\\ud800é"
    assert data["memory"] is None
    assert data["gpu_ledger"][0]["idle_causes"]["sync"] == 60_000_000
    assert "timelines" not in data
    assert text.endswith("}\n")
    assert json_text.render(odd) == text


def test_json_of_hostile_names_can_be_read_back(hostile):
    data = json.loads(json_text.render(hostile))
    assert data["kernels"][0]["name"] == factory.HOSTILE[0]
    assert data["kernels"][4]["name"] == factory.HOSTILE[4]


def test_no_line_ends_in_a_space(full, hostile):
    for text in (shown(full), shown(hostile, 60), shown(full, 120, "ascii")):
        assert [line for line in text.splitlines() if line != line.rstrip()] == []


def test_figures_over_the_whole_capture_are_never_divided_by_steps(full):
    tables = {key: replace(t, scope=t.scope and factory.WHOLE) for key, t in full.tables.items()}
    for key in ("gpu_ledger", "cpu_ledger"):
        rows = tuple({**r, "steps": None} for r in tables[key].rows or ())
        tables[key] = replace(tables[key], rows=rows)
    whole = factory.changed(full, steps=replace(full.steps, whole=True, scope=factory.WHOLE), tables=tables)
    text = shown(whole)
    assert "Where the time goes  whole capture" in text
    assert "GPU 0 (NVIDIA H200): 692.5 ms" in text
    assert "per step" not in text.partition("Where the time goes")[2].replace("saves 22.00 ms per step", "").replace(
        "400 us per step", ""
    )
    assert re.search(r"^cudaStreamSynchronize +losses.py:88 +380\.0 ms +60\.00 ms", text, re.MULTILINE)


@pytest.mark.parametrize(
    "code",
    [
        "kept = torchvision.ops.batched_nms(boxes.view(-1, 4), scores.view(-1), image_of_box, 0.5)",
        "groups = x[order].view(experts, -1, x.shape[1]) # as many rows for each: pad, or drop what is over the capacity",
        'optimizer = torch.optim.AdamW(model.parameters(), lr=base_rate, fused=True)  # say "fused" and not "foreach"',
    ],
)
def test_code_to_paste_fits_the_terminal_and_is_still_the_same_code(code: str) -> None:
    shown = code_of.lines(code, 60, 5)
    assert max(map(len, shown)) <= 60
    assert ast.dump(ast.parse("\n".join(shown))) == ast.dump(ast.parse(code))
    assert code_of.lines(code, 200, 5) == [code], "nothing is broken or dropped where there is room"


def test_code_that_has_no_room_says_how_much_of_it_is_left() -> None:
    rows = ["order = e.argsort()", "f(a_long_argument, another_one)  # why", "y = h[order]", "z = y"]
    assert code_of.first_lines("\n".join(rows), 40, 4) == [rows[0], "f(a_long_argument, another_one)  # why", *rows[2:]]
    assert code_of.first_lines("\n".join(rows), 24, 4) == [
        rows[0],
        "f(a_long_argument,",
        "    another_one)",
        "# 2 more lines: --full",
    ]
    assert code_of.first_lines("\n".join(rows), 24, 3) == ["# 4 lines of code: --full"]  # one line alone tells nothing
    assert code_of.first_lines("\n".join(rows), 24, 1) == ["# 4 lines of code: --full"]
    assert code_of.first_lines(rows[0], 40, 3) == [rows[0]] and code_of.first_lines("", 40, 3) == []
    assert code_of.first_lines("\n".join(rows), 40, 0) == []


def test_code_shown_in_part_does_not_end_with_the_head_of_a_block() -> None:
    rows = ["sent = []", "kept = []", "for batch in batches:", "    kept.append(step(batch))", "done()"]
    assert code_of.first_lines("\n".join(rows), 40, 4, "below") == [*rows[:2], "# 3 more lines: below"]
    assert code_of.first_lines("\n".join(rows[1:]), 40, 3) == ["# 4 lines of code: --full"]


def test_the_full_report_prints_the_code_that_the_first_screen_leaves_out() -> None:
    summary = factory.summary()
    findings = tuple(
        replace(f, paste="\n".join(f"y{row} = f_{n}_{row}(x)  # all" for row in range(12)), condition="x stays.")
        if f.verdict == "found"
        else f
        for n, f in enumerate(summary.findings or ())
    )
    text = shown(replace(summary, findings=findings), 120)
    told = [n for n, f in enumerate(findings) if f.verdict == "found"]
    assert told and all(text.count(f"y{row} = f_{n}_{row}(x)") == 1 for n in told for row in range(12))
    assert text.count("x stays.") == len(told)


def test_a_comment_that_has_no_room_beside_its_code_follows_it() -> None:
    row = "    draws = rng.integers(low, high, n)  # all at once; draw again those that may not be"
    shown = code_of.first_lines(row, 60, 5)
    assert shown == ["    draws = rng.integers(low, high, n)", "    # all at once; draw again those that may not be"]
    assert code_of.first_lines(row, 60, 1) == shown[:1], "the code comes first where there is room for one of them"
    assert code_of.first_lines(row, 100, 5) == [row]
