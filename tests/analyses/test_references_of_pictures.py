"""What pictures merge, queue and name, and ranges of the program, against slow references on random small frames."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from nsysx.analyses import kernel_spread, own_ranges
from nsysx.analyses.helpers import picture_places, timeline_data
from nsysx.analyses.helpers.analysis_bounds import FEWEST_FOR_REASON
from nsysx.catalogue import CAUSES, Cause
from nsysx.pictures import Span
from tests.random_tables import columns, covered, grouped, profile, rounds, rows

PROCESS, OTHER = 7, 8


def test_neighbours_of_a_lane_are_merged_and_fill_what_they_filled() -> None:
    seen = 0
    for source in rounds(80):
        spans, at = [], 0
        for _ in range(source.randrange(14)):
            at += source.choice((0, 1, 4, 30))
            length = source.choice((1, 3, 25))
            spans.append(
                Span(
                    at,
                    at + length,
                    source.choice(("a", "a", "b")),
                    source.choice(("x", "y")),
                    backlog_ns=source.randrange(3),
                )
            )
            at += length
        most, width = source.choice((3, 20)), 60
        merged, gone = timeline_data._merge(spans, width, most)
        if len(spans) <= most:
            assert (merged, gone) == (tuple(spans), 0)
            continue
        pixel = max(width // most, 1)
        told: list[list[Span]] = []
        for span in spans:
            group = told[-1] if told else None
            if (
                group
                and group[-1].kind == span.kind
                and span.start_ns - max(s.end_ns for s in group) < pixel
                and max(s.end_ns for s in group) - group[0].start_ns < 4 * pixel
            ):
                group.append(span)
            else:
                told.append([span])
        assert gone == len(spans) - len(told)
        for made, group in zip(merged, told, strict=True):
            assert (made.start_ns, made.end_ns) == (group[0].start_ns, max(s.end_ns for s in group))
            assert made.backlog_ns == sum(s.backlog_ns for s in group)
            labels = {s.label for s in group}
            assert made.label == (labels.pop() if len(labels) == 1 else "several")
            if len(group) > 1:
                seen += 1
                assert made.covered_ns == len(covered(*((s.start_ns, s.end_ns) for s in group)))
    assert seen > 10


def test_the_longest_stretch_of_each_part_by_place() -> None:
    parts = [Cause.named(code).part.value for code in CAUSES]
    for source in rounds(80):
        start, end = source.randrange(20), source.randrange(30, 70)
        of = (
            columns(source, 16)
            .times()
            .add("process", (PROCESS, PROCESS, OTHER))
            .names("cls", ("compute", "memset", "comm"))
        )
        ops = of.names("module", ("m", None)).names("phase", ("forward", None)).frame()
        idle = columns(source, 8).times().add("cause", range(len(CAUSES))).add("module", ("m", None), pl.String)
        pieces = idle.add("phase", ("forward", None), pl.String).frame()
        every = [(r["start_ns"], r["end_ns"], r["module"], r["phase"], parts[r["cause"]]) for r in rows(pieces)]
        for r in rows(ops):
            if r["process"] == PROCESS and r["end_ns"] > start and r["start_ns"] < end:
                clipped = [min(max(r[k], start), end) for k in ("start_ns", "end_ns")]
                part = {"compute": "work", "memset": "copy"}.get(r["cls"], r["cls"])
                every.append((clipped[0], clipped[1], r["module"], r["phase"], part))
        told = {}
        for (module, phase, part), group in grouped(
            [dict(zip(("a", "b", "module", "phase", "part"), e, strict=True)) for e in every], "module", "phase", "part"
        ).items():
            longest = min(group, key=lambda e: (-(e["b"] - e["a"]), e["a"]))
            told[module or "", phase or "", part] = (longest["a"] - start, longest["b"] - start)
        shown = profile(attributed=SimpleNamespace(gpu_ops=ops))
        found = picture_places.places(shown, pieces, PROCESS, start, end)
        assert {(p.module, p.phase, p.part): (p.start_ns, p.end_ns) for p in found} == told
        lengths = [p.end_ns - p.start_ns for p in found]
        assert lengths == sorted(lengths, reverse=True)


def test_ranges_of_the_program_that_lie_within_a_steady_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_ranges.layers, "layer_of", lambda frame: SimpleNamespace(rows=frame.sort("start_ns")))
    for source in rounds(80):
        of = (
            columns(source, 16)
            .times(100, 40)
            .add("process", (PROCESS, PROCESS, OTHER))
            .add("own", (False, False, True), pl.Boolean)
        )
        of.add("crossing", (False, False, True), pl.Boolean).add("kind", ("range", "phase", "module", "op"), pl.String)
        of.names("label", ("a", "Optimizer.step#AdamW.step, op_id = 7")).add("name", ("n", ""), pl.String).add(
            "cls", ("C",), pl.String
        )
        ranges = of.frame()
        spans = [(0, 30), (30, 55), (60, 95)]
        made = [(PROCESS, s, e, source.random() < 0.7) for s, e in spans] + [(OTHER, 0, 99, True)]
        names = {"process": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "steady": pl.Boolean}
        cpu = pl.DataFrame(made, schema=names, orient="row").sample(4, shuffle=True, seed=len(made))
        whole = source.random() < 0.2
        shown = profile(
            process=PROCESS,
            ranges=SimpleNamespace(ranges=ranges),
            steps=SimpleNamespace(cpu=cpu, whole=whole),
            scope=SimpleNamespace(steps=3),
        )
        steady = [(s, e) for p, s, e, is_steady in made if p == PROCESS and (is_steady or whole)]
        told = []
        for r in rows(ranges):
            by_torch = r["kind"] == "phase" and "op_id" in r["label"]
            if r["process"] != PROCESS or r["own"] or r["crossing"] or r["kind"] == "op" or by_torch:
                continue
            step = max((i for i, (s, _) in enumerate(steady) if s <= r["start_ns"]), default=-1)
            if step >= 0 and r["end_ns"] <= steady[step][1]:
                told.append((r["start_ns"], r["end_ns"], r["name"] or "C", step))
        layer, step_of, count = own_ranges._written(shown)
        found = [
            (r["start_ns"], r["end_ns"], r["name"], int(s)) for r, s in zip(rows(layer.rows), step_of, strict=True)
        ]
        assert sorted(found) == sorted(told) and count == len(steady)


def test_a_clock_explains_a_spread_where_enough_executions_have_one() -> None:
    seen = set()
    for source in rounds(120):
        count = 30
        every = np.array([100.0 + source.randrange(50) for _ in range(count)])
        sampled = np.array(
            [
                source.choice((float("nan"), 1_000.0, 2_000.0 - e)) if source.random() < 0.5 else 2_000.0 - e
                for e in every
            ]
        )
        if source.random() < 0.4:
            sampled[source.randrange(5, 20) :] = np.nan
        common = np.array([float("nan") if source.random() < 0.2 else e / 100 for e in every])
        found = kernel_spread._clock(sampled, every, common, source.choice((0.1, 9.0)))
        known = [s for s in sampled.tolist() if s == s]
        by_samples = len(known) >= FEWEST_FOR_REASON and len(set(known)) > 1
        if by_samples and found is not None:
            assert found[2].startswith(f"SM clock {min(known):.0f} to {max(known):.0f} MHz")
        if not by_samples and found is not None:
            assert "with the other kernels of the time" in found[2]
            assert sum(c == c for c in common.tolist()) >= FEWEST_FOR_REASON
        seen.add((by_samples, found is not None))
    assert len(seen) > 2
