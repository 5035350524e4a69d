"""The answer of a Summary in words: the first screen of the page, the terminal, Markdown and ``--brief``, so that they never differ.

Nothing is decided here. The texts are safe to show; times are ns of one step: the step that the verdict speaks of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nsysx import units
from nsysx.advice import Action, Also, Answer, Bar, BarPart, Sure, Tried
from nsysx.answer import advised_cause, certainty, subject
from nsysx.answer.others import RECORD_LONGER
from nsysx.events.layers import bare
from nsysx.inject.nsysx_probe import changes
from nsysx.model import Summary
from nsysx.render import facts, facts_line
from nsysx.render.grids import CellTexts
from nsysx.render.render_bounds import (
    CLOSE_SHARE,
    HEADLINE_LETTERS,
    MOST_OVER_LEAST,
    WIDE_FACTOR,
)
from nsysx.render.safe_text import clean, file_name, shorten_kernel
from nsysx.saving import NOTABLE


@dataclass(frozen=True, slots=True)
class Worded:
    """The answer in words.

    ``now_ns`` is the step, ``then_ns`` the step after the change (None: not known), ``bound``: that is the least that it can be.
    ``on_average``: steps have so different lengths that none is as long as their mean, which ``now_ns`` is.
    ``real``: times are without the profiler, or the profiler hardly changes them; ``profiled_ns`` is the step as recorded.
    ``factor`` is the worth as a factor, "" where it is not known, ``replayed`` a sentence on what is not bounded but
    replayed of it; ``level`` and ``why`` are how sure the answer is, in one word and one reason, ``sure`` its two halves in full and
    ``halves`` each in one line. ``source`` is the text of the line in ``where``, "" where it was not recorded.
    ``head`` and ``rest`` are the sentence: its one idea, and what else it says.
    ``tried`` are sentences on what was measured of changes, those that carry out ``do`` first.
    """

    facts: tuple[str, ...]
    sentence: str
    head: str
    rest: str
    alarms: tuple[str, ...]
    code: str
    do: str
    paste: str
    condition: str
    where: str
    source: str
    now_ns: int | None
    then_ns: int | None
    bound: bool
    on_average: bool
    real: bool
    profiled_ns: int | None
    worth: str
    factor: str
    replayed: str
    tried: tuple[str, ...]
    level: str
    why: str
    sure: tuple[Sure, ...]
    halves: tuple[tuple[str, str], ...]
    bars_title: str
    bars: tuple[Bar, ...]
    also: tuple[Also, ...]
    commands: tuple[str, ...]
    next: str


def place(where: Mapping[str, Any], texts: CellTexts) -> str:
    """Return a place in the program as text: module, phase, what lies beside it, and line, each named once."""
    module, near = bare(str(where.get("module") or "")), str(where.get("near") or "")
    phase = where.get("phase") if f"the {where.get('phase')}" not in (module, near) else ""
    parts = dict.fromkeys(texts(name, 120) for name in (module, phase, near) if name)
    if where.get("file"):
        line = f":{where['line']}" if where.get("line") else ""
        parts[f"{texts(file_name(str(where['file'])[:2000], True), 160)}{line}"] = None
    return ", ".join(parts)


def part_words(part: BarPart, total: float) -> str:
    """Return a part in words: "computes 40.84 ms (57 %)"."""
    return f"{part.label} {units.duration(part.ns)} ({units.share(part.ns, total)})".strip()


def _bar(bar: Bar, texts: CellTexts) -> Bar:
    """Return a bar whose names are safe to show."""

    def name(label: str) -> str:
        return shorten_kernel(texts(label, 200), 40) if bar.names == "kernel" else texts(label, 60)

    return replace(bar, label=texts(bar.label, 60), parts=tuple(replace(p, label=name(p.label)) for p in bar.parts))


def _commands(summary: Summary, typed: str) -> tuple[str, ...]:
    """Return the commands to run next, for the reports of this Summary."""
    name = typed or clean(facts.report_name(summary), 80)
    return tuple(command.replace("REPORT", name) for command in summary.answer.ask_next)


def _whole_command(command: str) -> str:
    """Return a command that settles something, with the program that it records."""
    return f"{command} -- CMD" if command.startswith("nsysx run") and " -- " not in command else command


def _next_command(summary: Summary, typed: str, command: str, folder: str) -> str:
    """Return the one command to run next: on the recorded program where that is known, else one that reads the report again."""
    answer, commands = summary.answer, _commands(summary, typed)
    settles = next((s.command for s in answer.certainty.parts if s.command.startswith("nsysx run")), "")
    asked = next((c for c in commands if "nsysx run " in c), "")
    if not command and RECORD_LONGER in commands:
        return RECORD_LONGER
    if not command:
        return next((c for c in commands if " whatif " in c), commands[-1] if commands else "")
    inside = f"cd {folder} && " if folder else ""
    if asked:
        return inside + asked.replace(" -- CMD", f" -- {command}")
    from nsysx.trying import chosen_changes

    if chosen_changes.can_try_advice(answer, summary.findings or (), changes.changes_by_name()):
        return f"{inside}nsysx try {typed or clean(facts.report_name(summary), 80)} -- {command}"
    again = f"{inside}{settles.removesuffix(' -- CMD') or 'nsysx run'} -- {command}"
    # The same run once more tells nothing new; what changes would save, the report tells already.
    return again if settles else next((c for c in commands if " whatif " in c), again)


#: A sentence ends here; "item()." and "0.3 ms" do not.
_END = re.compile(r"(?<=[^\s.]{2}[.)]) (?=[A-Z0-9])")


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, without its full stop."""
    return _END.split(text)[0].rstrip(".")


#: A second sentence that goes on with the idea of the first: what the GPU works on.
_SAME_IDEA = re.compile(r"<?[\d.]+ % of GPU time (?:without communication )?is ")


def _head(text: str) -> str:
    """Return the one idea of a sentence: its first part, and the second where it goes on with it and both fit a headline."""
    first, second, *_ = [*_END.split(text, maxsplit=2), ""]
    both = f"{first} {second}"
    return both if _SAME_IDEA.match(second) and len(both) <= HEADLINE_LETTERS else first


def factor(answer: Answer) -> str:
    """Return what the change is worth as a factor, with its range: "1.8x faster (1.5 to 2.2)"; "" where it is not known."""
    now, then, low, high = answer.now_ns, answer.then_ns, answer.then_low_ns, answer.then_high_ns
    if not now or not then or then >= now:
        return ""
    if answer.bound:
        return f"up to {_with_signs(answer.times) if _is_left_open(answer) else units.times(now / then)} faster"
    ends = answer.times or ((now / high, now / low) if low and high else ())
    between = _factor_range(ends)
    return f"{units.times(now / then)} faster{f' ({between})' if between else ''}"


def _factor_range(ends: tuple[float, ...]) -> str:
    """Return the least and the most factor: "1.1 to 2.7", "1.1 or more"; "" where they are told as the same."""
    least, most = (units.times(end)[:-1] for end in ends or (1.0, 1.0))
    if ends and ends[1] >= MOST_OVER_LEAST * ends[0]:
        return f"{least} or more"
    return "" if least == most else f"{least} to {most}"


def _with_signs(ends: tuple[float, ...]) -> str:
    """Return the least and the most factor: "1.1x to 2.7x", "1.1x or more"."""
    least, _, most = _factor_range(ends).partition(" to ")
    return f"{least}x to {most}x" if most else least.replace(" or", "x or")


def _is_left_open(answer: Answer) -> bool:
    """Return whether the factor of a bound is as wide as the bounds of the step: one number would be below what it may be."""
    times = answer.times
    return answer.bound and not answer.replayed_ns and bool(times) and times[1] >= WIDE_FACTOR * times[0]


def _replayed(answer: Answer) -> str:
    """Return what the replay alone gives, where the step after the change is a bound beyond that; "" elsewhere."""
    now, alone, between = answer.now_ns, answer.replayed_ns, _factor_range(answer.times)
    if (best := answer.best_ns) is not None and (then := answer.then_ns) and best < CLOSE_SHARE * then:
        return f"At best {units.duration(best)}." if MOST_OVER_LEAST * best > then else ""
    if _is_left_open(answer):
        return "How much depends on the unprofiled step time."
    if not now or not alone:
        return ""
    times = f" ({units.times(now / alone)}{f', {between}' if between else ''})" if alone < now else ""
    fused = any("compile" in action.paste or "compile" in action.text for action in answer.do)
    return f"Replay: {units.duration(alone)}{times}; anything below {'assumes kernel fusion' if fused else 'is an upper bound'}."


#: What is known of a change that was tried, from what matters most.
_VERDICTS = ("faster", "slower", "fails", "changes_results", "same", "cannot_tell", "does_not_apply")


def tried(summary: Summary, code: str, texts: CellTexts) -> tuple[str, ...]:
    """Return a sentence for each change that was tried, those that the finding ``code`` advises first."""
    ended = [trial for trial in summary.tried if trial.verdict == "fails" or trial.then_ns is not None]
    if not ended:
        return ()
    from nsysx.trying.trial_sentences import measured

    def order(trial: Tried) -> tuple[bool, int, float]:
        return code not in trial.codes, _VERDICTS.index(trial.verdict), (trial.then_ns or 1) / (trial.now_ns or 1)

    def measured_sentence(trial: Tried) -> str:
        file, colon, line = trial.place.rpartition(":")
        return measured(replace(trial, place=f"{file_name(file[:2000], True)}{colon}{line}" if file else ""))

    return tuple(texts(measured_sentence(trial), 300) for trial in sorted(ended, key=order))


#: How the sentence of a limit begins: "Host-bound: ..."; a GPU keeps its capitals.
_LIMIT = re.compile(r"(?:Mostly GPU work \([^)]*\), partly [a-z]+|[A-Z][a-z]+|GPU)-bound: ")


#: How the title of steps that are slower begins: "Every 10th step takes 304.2 ms".
_SLOW_STEPS = re.compile(r"(?:Every \w+ step takes|\d+ of \d+ steps? takes?) [\d.,]+ \w+")


#: A title that begins with the line: "job.py:92: Masks of ...".
_LED_BY_LINE = re.compile(r"(\S+:\d+): (.+)", re.DOTALL)


def _head_and_rest(summary: Summary, sentence: str, texts: CellTexts) -> tuple[str, str]:
    """Return the headline and what follows it: the limit and what the first advice is for, which leads where that is another limit."""
    cause = advised_cause.of_first_advice(summary)
    there, title = place(cause.where, texts), texts(cause.title, HEADLINE_LETTERS)
    file = cause.where.get("file")
    if file and file_name(str(file), True) in title:  # the title names the line itself
        there = ""
    if not there and (led := _LED_BY_LINE.match(title)):  # behind "First to fix:" it would be a second colon
        there, title = led[1], led[2]
    if cause.another_limit and title and _LIMIT.match(sentence):
        limit = sentence if sentence.startswith("GPU") else f"{sentence[0].lower()}{sentence[1:]}"
        if slow := _SLOW_STEPS.match(title):  # said once: the sentence has them behind the usual step
            limit = limit.replace(f"; {units.uncapitalized(slow[0])}", "")
        return f"{units.capitalized(title)}{f' ({there})' if there else ''}.", f"Otherwise {limit}"
    head, title = _head(sentence), units.uncapitalized(title)
    part = f"{title} ({there})" if title and there else title or there
    first = f" First to fix: {part}." if part else ""
    return head, f"{sentence[len(head) :]}{first}".strip()


def _sequence(do: Sequence[Action], now_ns: int | None, texts: CellTexts) -> str:
    """Return what to do as one text: several changes are numbered, each but the last with its place and why it comes first."""
    if len(do) == 1:
        return do[0].text
    changes = zip(do, reasons(do, now_ns, texts), strict=True)
    return " ".join(f"({i}) {action.text}{reason}." for i, (action, reason) in enumerate(changes, 1))


def reasons(do: Sequence[Action], now_ns: int | None, texts: CellTexts) -> list[str]:
    """Return where each change before the last is made, and why it comes first: what it saves by itself, or that the last needs it.

    "" for the last, whose place and worth stand apart. ``now_ns`` is the step (ns).
    """

    def reason(action: Action) -> str:
        saving, where = action.saving_ns, place(action.where, texts)
        where = "" if where in action.text else where
        if saving is None or saving < NOTABLE * (now_ns or 0) or not saving:
            return f"{f' ({where})' if where else ''}, needed for ({len(do)})"
        return f" ({f'{where}; ' if where else ''}saves {units.duration(saving)} a step)"

    return [*map(reason, do[:-1]), ""]


#: The halves of the answer in one word.
_HALVES = {"How much": "Size", certainty.LOST: "Lost time", certainty.GAINED: "Gain"}


def _half_in_words(sure: Sure, why: str) -> tuple[str, str]:
    """Return which half is how sure, as "Cause certain", and why in one sentence."""
    half = sure.about if sure.about.startswith("(") else _HALVES.get(sure.about, "Cause")
    for beginning, changes_meant in certainty.SIZE_OF.items():
        if why.startswith(beginning):
            half, why = f"{half} {changes_meant}", why.removeprefix(beginning)
    return f"{half} {sure.level}", f"{why[:1].upper()}{why[1:]}"


def _worth(answer: Answer) -> str:
    """Return the remark on the worth; where only the length of the step is not known, with the factors that its bounds give."""
    if answer.then_ns is not None or not answer.times:
        return answer.worth
    between = f"up to {units.times(answer.times[1])}" if answer.bound else _with_signs(answer.times)
    between = f"at least {between.removesuffix(' or more')}" if between.endswith(" or more") else between
    return f"{between} faster; {units.uncapitalized(answer.worth)}"


def build(summary: Summary, *, redact: bool = True, typed: str = "", command: str = "", folder: str = "") -> Worded:
    """Return the answer in words. ``redact`` hides what names a person or a machine.

    ``typed`` is how a shell finds the reports, ``command`` the recorded program as a shell runs it, ``folder`` where, "" for any.
    """
    texts, answer = CellTexts(redact), summary.answer
    first = answer.do[-1]
    head, rest = _head_and_rest(summary, texts(summary.verdict.sentence, 400), texts)
    return Worded(
        facts=facts_line.facts_line(summary, texts),
        sentence=f"{head} {rest}".strip(),
        head=head,
        rest=rest,
        alarms=tuple(texts(detail, 200) for detail in answer.alarms),
        code=first.code,
        do=texts(_sequence(answer.do, answer.now_ns, texts), 500),
        paste="\n".join(a.paste for a in answer.do if a.paste),
        condition=texts(first.condition, 300),
        where=place(first.where, texts),
        source=texts(facts.source_at(summary, first.where), 120),
        now_ns=answer.now_ns,
        then_ns=answer.then_ns,
        bound=answer.bound,
        on_average=subject.on_average(summary),
        real=answer.real,
        profiled_ns=answer.recorded_ns,
        worth=texts(_worth(answer), 300),
        factor=factor(answer),
        replayed=_replayed(answer),
        level=answer.certainty.level,
        why=first_sentence(texts(answer.certainty.reason, 600)),
        tried=tried(summary, first.code, texts),
        sure=tuple(
            replace(s, reason=texts(s.reason, 600), command=_whole_command(s.command)) for s in answer.certainty.parts
        ),
        halves=tuple(_half_in_words(s, first_sentence(texts(s.reason, 600))) for s in answer.certainty.parts),
        bars_title=answer.picture.title,
        bars=tuple(_bar(b, texts) for b in answer.picture.bars),
        also=tuple(replace(a, text=texts(a.text, 150)) for a in answer.also),
        commands=_commands(summary, typed),
        next=_next_command(summary, typed, command, folder),
    )
