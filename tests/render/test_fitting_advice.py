"""What is advised without steps is about the cause that the sentence names, and in words of the program that was recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nsysx import units
from nsysx.advice import Action
from nsysx.model import Summary
from nsysx.pipeline import summarize
from nsysx.render import answer_text, answer_words, html_page
from nsysx.render.markdown import escape
from tests.builder import Report
from tests.render import factory
from tests.samples import Samples

US = 1_000


def stepless(folder: Path, *, kernels: bool = True) -> Summary:
    """Return the summary of a program without Python: ten copies in a row, each after a short kernel, and a wait at the end."""
    report = Report()
    main = report.process(1, name="simulation").thread(1, "simulation")
    for i in range(10):
        t = i * 1_000 * US
        if kernels:
            main.launch(t, 5 * US, kernel="solve", gpu_start=t + 10 * US, gpu_dur=50 * US)
            main.memcpy(t + 70 * US, 5 * US, kind="HtoD", gpu_start=t + 80 * US, gpu_dur=800 * US)
        main.sync(at=t + 900 * US, dur=20 * US)
    return summarize([report.write(folder / "r.sqlite")])


def test_copies_hear_about_copies_and_get_no_python(tmp_path: Path) -> None:
    summary = stepless(tmp_path)
    said = answer_words.build(summary)
    assert summary.verdict.code == "copy_bound"
    assert said.code == "NSX105"
    assert "in pieces on two streams" in said.do  # 50 us of kernels hide little of 800 us of copies
    assert said.paste == ""
    assert "Python" not in str(said.bars)


def test_without_gpu_work_nothing_else_is_advised(tmp_path: Path) -> None:
    said = answer_words.build(stepless(tmp_path, kernels=False))
    assert said.code == ""
    assert said.do.startswith("Let the program reach its work on the GPU inside the capture")
    assert "parts below" not in said.worth


def test_without_steps_no_closed_line_speaks_of_steps(recorded: Samples) -> None:
    page = html_page.render(recorded.summary("custom_add"))
    assert "step by step" not in page
    assert "a typical step" not in page


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hidden.* (20 modules)", "`hidden.*` (20 modules)"),
        ("24 x blocks.*.mlp.* 8.02 ms", "24 x `blocks.*.mlp.*` 8.02 ms"),
        ("*.up and (layers.*)", "`*.up` and (`layers.*`)"),
        ("a*b **x** *y*", "`a*b` `**x**` `*y*`"),
        ("x`.* a.*`b", "x&#96;.&#42; a.&#42;&#96;b"),
        ("add<4, Fill<float> > takes 3 ms", "`add<4, Fill<float> >` takes 3 ms"),
        ("a < b, 5 > 3 & x -> y # 1", "a < b, 5 > 3 & x -> y # 1"),
        ("f<float>(int, char const*), then", "`f<float>(int, char const*)`, then"),
        ("open<4, a b", "`open<4`, a b"),
        ("generic<float, (Kind<4>)0, (cudnnKernelData… 3 ms", "`generic<float, (Kind<4>)0, (cudnnKernelData…` 3 ms"),
        ("kernel<2, Add<…>, array<char *, 3>>", "`kernel<2, Add<…>, array<char *, 3>>`"),
        ("<0.1 %, +4.2 us", "<0.1 %, +4.2 us"),
        ("-113 us to -105 us", "-113 us to -105 us"),
        ("- a", "&#45; a"),
        ("__init__ in ~/x.py:7 (#12)", "`__init__` in `~/x.py:7` (`#12`)"),
        ("# a\n", "&#35; a\n"),
        ("<b> <!everyone> @all [x](y) a|b", "`<b>` &#60;&#33;everyone&#62; &#64;all &#91;x&#93;(y) a&#124;b"),
    ],
)
def test_names_stay_readable_in_markdown(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_one_of_a_kind_is_said_so() -> None:
    assert [units.several(n, "row") for n in (0, 1, 2_500)] == ["0 rows", "1 row", "2,500 rows"]
    assert units.several(1, "launch", "launches") == "1 launch"


@pytest.mark.parametrize(
    ("saving_ns", "reason"),
    [
        (2_000 * US, " (saves 2.00 ms a step)"),
        (200 * US, " (saves 200 us a step)"),
        (199 * US, ", needed for (2)"),
        (0, ", needed for (2)"),
        (None, ", needed for (2)"),
    ],
)
def test_a_change_before_another_says_what_it_saves_or_that_it_is_needed(saving_ns: int | None, reason: str) -> None:
    """Of a step of 20 ms; the worth of the last change is that of all, and stands elsewhere."""
    summary: Summary = factory.summary()
    do = (Action("Take the waits out", saving_ns=saving_ns), Action("Compile the model", saving_ns=9_000 * US))
    summary = replace(summary, answer=replace(summary.answer, do=do, now_ns=20_000 * US))
    assert answer_words.build(summary).do == f"(1) Take the waits out{reason}. (2) Compile the model."
    assert answer_text.changes(summary, lambda text, _: str(text)) == (
        f"Take the waits out{reason}",
        "Compile the model",
    )


def test_changes_in_order_are_one_sentence_in_which_names_keep_their_capitals() -> None:
    actions = ("Remove the syncs: two", "Use larger batches", "DistributedDataParallel once", "torch.compile(model)")
    assert answer_text.in_order(actions) == (
        "Remove the syncs, then use larger batches, then DistributedDataParallel once, then torch.compile(model)"
    )


def test_a_change_has_the_room_that_those_before_it_leave() -> None:
    """Half of 200 letters is too little for the second one; with what the first leaves it is whole."""
    summary: Summary = factory.summary()
    long = f"Use larger batches: {'x' * 120}"
    do = (Action("Take the waits out", finding=0), Action(long, finding=0))
    summary = replace(summary, answer=replace(summary.answer, do=do, now_ns=20_000 * US))
    assert answer_text.changes(summary, lambda text, _: str(text), 200)[1] == long
    assert answer_text.changes(summary, lambda text, _: str(text), 150)[1] == "Use larger batches"


@pytest.mark.parametrize(
    ("text", "begun"),
    [("nsysx explain NSX101", "nsysx explain NSX101"), ("nsys profile it", "nsys profile it"), ("keep it", "Keep it")],
)
def test_a_command_at_the_begin_of_a_sentence_stays_a_command(text: str, begun: str) -> None:
    assert units.capitalized(text) == begun
