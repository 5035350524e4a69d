"""A rank that is held by a line which its peers do not run: the line is named, and it is no drift of a host."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from nsysx.findings import _late_rank_lines
from nsysx.pipeline import summarize
from nsysx.ranks import late_lines
from nsysx.ranks.rank_places import HostLine
from nsysx.replay import replayed_window
from tests.builder import Report
from tests.ranks import rank_rows
from tests.ranks.test_one_job import rank
from tests.ranks.test_rank_table import ALL_REDUCE

US, MS = 1_000, 1_000_000
FILE = "/job/train.py"
TEXT = {"37": "if rank == 1: time.sleep(.002)", "40": "loss = model(x); loss.backward()"}


def job(
    path: Path,
    sleep_ns: int,
    slower: float = 1.0,
    *,
    memsets: int | None = None,
    peer_ns: int = 0,
    held_at: Sequence[int] = (37,),
    text: Mapping[str, str] = TEXT,
    plain: int = 10,
    xray: int = 3,
    every: int = 1,
) -> Path:
    """Write two ranks, 20 ms of work in a step; rank 1 sleeps before it, and is ``slower`` in all other lines of its host.

    With ``memsets`` it makes so many of them instead, in the line that its peers run, too. ``peer_ns``: how long rank 0 is at the lines
    ``held_at``, which share the time. Each ``every``-th step is held; lines are noted in the last ``xray``.
    """
    report = Report()
    threads = report.ranks(2)
    t, work = MS, 20 * MS
    for i in range(plain + xray):
        if i in (0, plain):
            for thread in threads:
                thread.mark(json.dumps({"marks": i == plain, "xray": i == plain}), t, domain="nsysx")
                row = report.rows["NVTX_EVENTS"][-1]
                row["text"] = f"info {row['text']}"
            t += 10
        held = [peer_ns, sleep_ns if i % every == every - 1 else 0]
        host = [work // 5, round(work // 5 * slower)]
        done = t + max(h + 4 * each for h, each in zip(held, host, strict=True)) + work // 5 + 50 * US
        for r, thread in enumerate(threads):
            at = t + held[r]
            for k in range(r * (memsets or 0)):
                called = t + 10 + k * held[r] // (memsets or 1)
                thread.memset(called, gpu_start=called + 5 * US, gpu_dur=US, stream=7, device=r)
            for k in range(4):
                at += host[r]
                thread.launch(at - 10 * US, kernel=f"gemm{k}", gpu_start=at, gpu_dur=work // 8, device=r)
            came = at + work // 8
            thread.launch(at + 5 * US, kernel=ALL_REDUCE, gpu_start=came, gpu_dur=done - came, stream=20, device=r)
            thread.sync("cudaDeviceSynchronize_v3020", at=at + 20 * US, dur=done - at - 10 * US, device=r)
            if i >= plain:
                asleep = held[r] if memsets is None else 0
                for k, line in enumerate(held_at if asleep else ()):
                    part = asleep // len(held_at)
                    thread.line(f"{FILE}:{line} step", t + 1 + k * part, t + (k + 1) * part + (k == len(held_at) - 1))
                thread.line(f"{FILE}:40 step", t + asleep + 3, done + 15 * US)
            thread.add_range(f"step {i}", t, done + 20 * US, domain="nsysx")
        t = done + 30 * US
    probes = [
        {"pid": 100 + r, "xray": {"steps": list(range(plain, plain + xray)), "lines": True}, "source": {FILE: text}}
        for r in range(2)
    ]
    path.with_suffix("").with_suffix(".run.json").write_text(json.dumps({"probe": probes}))
    return report.write(path)


def test_a_line_that_one_rank_alone_runs_is_named_though_it_is_shorter_than_what_hosts_drift_by(tmp_path: Path) -> None:
    summary = summarize([job(tmp_path / "j.sqlite", 2 * MS)], every_table=False)
    rows = list(summary.rows("ranks"))
    assert [r["straggler"] for r in rows] == [False, True]
    assert rows[1]["late_cause"] == "host"
    line = rows[1]["late_lines"][0]
    assert (line["file"], line["line"], line["text"]) == (FILE, 37, TEXT["37"])
    assert line["ns"] == pytest.approx(2 * MS, rel=0.02) and line["others_ns"] < 10 * US
    assert rows[0]["late_lines"] is None
    found = next(f for f in summary.findings or () if f.code == "NSX111")
    assert found.verdict == "found" and found.where["line"] == 37
    assert "Only rank 1 is held by train.py:37" in found.fix and "remove this sleep" in found.fix
    assert any(r.get("line") == "train.py:37" for r in found.evidence)


def test_a_line_that_one_rank_alone_runs_in_each_fourth_step_holds_the_others_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few steps are replayed, a whole number of fours: by these alone no delay is sure, by all that were recorded it is."""
    monkeypatch.setattr(replayed_window, "MOST_REPLAYED_OPS", 33)
    summary = summarize([job(tmp_path / "j.sqlite", 40 * MS, plain=40, xray=4, every=4)], every_table=False)
    row = next(r for r in summary.rows("ranks") if r["straggler"])
    assert (row["rank"], row["late_cause"], row["late_lines"][0]["line"]) == (1, "host", 37)
    assert row["price_ns"] == pytest.approx(10 * MS, rel=0.1)
    assert 0 < row["late_low_ns"] < row["late_ns"] < row["late_high_ns"]


def test_a_line_that_all_ranks_run_in_some_steps_says_nothing_of_a_late_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replayed_window, "MOST_REPLAYED_OPS", 33)
    path = job(tmp_path / "j.sqlite", 40 * MS, peer_ns=4 * MS, plain=40, xray=4, every=4)
    assert not any(r["straggler"] for r in rank_rows(path))


WEIGHTS = {"37": "self.shadow[name].lerp_(value.cpu(), 0.1)", "20": "self.ema.update(model)"}


@pytest.mark.parametrize(
    ("text", "copied_ns", "said"),
    [
        (WEIGHTS["37"], 3 * MS, "Keep on the GPU what rank 1 alone keeps of the weights"),
        (WEIGHTS["37"], 0, "Only rank 1 is held by train.py:37"),  # a value that is read
        ("rows.append(logits.cpu())", 3 * MS, "Only rank 1 is held by train.py:37"),
    ],
)
def test_weights_that_one_rank_copies_to_the_cpu_stay_on_the_gpu(text: str, copied_ns: int, said: str) -> None:
    line = {"file": FILE, "line": 37, "text": text, "function": "Ema.update", "ns": 20 * MS, "others_ns": 0, "lines": 1}
    calls = {"file": FILE, "line": 20, "text": WEIGHTS["20"], "function": "step", "ns": MS, "others_ns": 0}
    late = {"rank": 1, "late_ns": 20 * MS, "late_because": {"copy": copied_ns}, "late_lines": [line, calls]}
    fix = _late_rank_lines.fix_of(line, late)
    assert fix.text.startswith(said)
    assert "called in train.py:20" in fix.text
    assert (fix.ways[0].name == "weights-on-gpu") == said.startswith("Keep")


def test_a_line_that_one_rank_alone_runs_is_read_beside_those_of_the_others(tmp_path: Path) -> None:
    """Each rank notes what stands at the lines that it runs: those of the last one are not all."""
    path = job(tmp_path / "j.sqlite", 2 * MS)
    run = path.with_suffix(".run.json")
    noted = json.loads(run.read_text())
    noted["probe"].append({"pid": 99, "source": {FILE: {"40": TEXT["40"]}}})
    run.write_text(json.dumps(noted))
    assert rank_rows(path)[1]["late_lines"][0]["text"] == TEXT["37"]


@pytest.mark.parametrize(
    ("held_at", "said"),
    [
        (
            (37,),
            "train.py:37 `rows = [parse(r) for r in own]`: it takes rank 1 35.01 ms a step, and its peers 15.01 ms",
        ),
        ((37, 38, 39), "with 2 more lines of step: it takes rank 1 35.01 ms a step, and its peers 15.01 ms"),
    ],
)
def test_lines_that_all_ranks_run_and_one_for_longer_are_more_work_not_a_slow_host(
    held_at: tuple[int, ...], said: str, tmp_path: Path
) -> None:
    text = TEXT | {"37": "rows = [parse(r) for r in own]"}
    path = job(tmp_path / "j.sqlite", 35 * MS, peer_ns=15 * MS, held_at=held_at, text=text)
    summary = summarize([path], every_table=False)
    late = summary.rows("ranks")[1]
    assert (late["straggler"], late["late_cause"]) == (True, "host")
    found = next(f for f in summary.findings or () if f.code == "NSX111")
    assert [way.name for way in found.remedies] == ["equal-host-work"] and said in found.fix
    assert (found.where["file"], found.where["line"]) == (FILE, late["late_lines"][0]["line"])


@pytest.mark.parametrize("slower", [1.1, 1.7])
def test_a_host_that_is_slower_in_all_of_its_lines_is_no_straggler(tmp_path: Path, slower: float) -> None:
    summary = summarize([job(tmp_path / "j.sqlite", 0, slower=slower)], every_table=False)
    rows = list(summary.rows("ranks"))
    assert not any(r["straggler"] for r in rows)
    assert next(f for f in summary.findings or () if f.code == "NSX111").verdict == "clear"


@pytest.mark.parametrize("memsets", [0, 30])
def test_calls_that_one_rank_alone_makes_are_no_drift(tmp_path: Path, memsets: int) -> None:
    summary = summarize([job(tmp_path / "j.sqlite", 2 * MS, memsets=memsets)], every_table=False)
    late = summary.rows("ranks")[1]
    assert (late["straggler"], late["late_cause"]) == ((True, "extra_calls") if memsets else (False, "host"))
    if memsets:
        found = next(f for f in summary.findings or () if f.code == "NSX111")
        assert "mostly in calls that its peers do not make" in found.detail and "only this rank makes" in found.fix


def test_a_few_more_calls_than_the_peers_make_are_chance() -> None:
    def more(calls: float | None, *others: float | None) -> float:
        return late_lines.more_calls(rank(0, calls_of_work=calls), [rank(1, calls_of_work=n) for n in others])

    assert more(200, 100, 150, 90) == 0.5
    assert (more(109, 100), more(100, 200), more(None, 100), more(100, None), more(100)) == (0, 0, 0, 0, 0)


def lined(number: int, **ns: int):
    return rank(number, host_lines={HostLine("a.py", int(name[1:]), ""): each for name, each in ns.items()})


def test_lines_are_a_rank_s_own_where_they_take_twice_as_long() -> None:
    late = lined(2, l1=100, l2=190, l3=50, l4=10)
    rows = late_lines.longer(late, [lined(0, l1=10, l2=100, l3=60), lined(1, l1=20, l2=100)])
    assert [(row.line.line, row.ns, row.ns_there) for row in rows] == [
        (2, 190, 100),
        (1, 100, 15),
        (3, 50, 30),
        (4, 10, 0),
    ]
    assert late_lines.own(rows) == 85 + 10
    assert late_lines.longer(late, [lined(0, l1=10), rank(1)]) == ()
    assert [r["text"] for r in late_lines.rows_per_step(rows)] == [None] * 4


@pytest.mark.parametrize("ns", [5 * MS, 0])
def test_a_line_that_holds_the_host_of_all_ranks_is_replayed_without_it(ns: int, tmp_path: Path) -> None:
    table = summarize([job(tmp_path / "r.sqlite", ns, peer_ns=ns)], every_table=False).tables["ranks"]
    for row in table.rows or ():
        without = (row["changed_ns"] or {}).get("train.py:37", 0)
        assert without == pytest.approx(ns, rel=0.1)
