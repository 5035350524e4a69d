"""NSX111: what one rank alone keeps of the weights in some steps costs what these have more than the others, gathers on all ranks too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsysx.findings import _copied_weights, _late_rank_lines, _lone_averages
from nsysx.model import Finding
from nsysx.replay import replayed_window
from tests.findings import findings_alone
from tests.ranks.test_late_lines import FILE, MS, job

USUAL, LONG = 60 * MS, 160 * MS
KEPT = "self.shadow[name].lerp_(value.cpu(), 0.1)"


def told(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    bare: list[int],
    copying: tuple[int, int, int] | None,
    text: str = KEPT,
) -> Finding:
    monkeypatch.setattr(replayed_window, "MOST_REPLAYED_OPS", 33)
    monkeypatch.setattr(_late_rank_lines, "_copies_more", lambda late: True)
    monkeypatch.setattr(_lone_averages, "_copying_steps", lambda profile: copying)
    path = job(folder / "j.sqlite", 40 * MS, plain=40, xray=4, every=4, text={"37": text, "40": "loss = model(x)"})
    record = path.with_suffix("").with_suffix(".run.json")
    made = json.loads(record.read_text())
    for probe in made["probe"]:
        probe["unrecorded_steps"] = {"lengths_ns": bare, "fetch_ns": [0] * len(bare), "count": len(bare)}
    record.write_text(json.dumps(made))
    return findings_alone("NSX111", path)[0]


EACH_FOURTH = [LONG if n % 4 == 3 else USUAL + n * MS // 100 for n in range(40)]


def test_all_that_the_steps_have_more_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(tmp_path, monkeypatch, EACH_FOURTH, (11, 44, 1 << 20))
    assert found.remedies[0].name == "weights-on-gpu"
    assert found.saving_ns_per_step == pytest.approx((LONG - USUAL) / 4, rel=0.02)
    assert found.saving.source == "steps" and "11 of 44 recorded steps" in found.detail


@pytest.mark.parametrize(
    ("bare", "copying", "text"),
    [
        ([USUAL] * 40, (11, 44, 1 << 20), KEPT),  # no step was long
        ([LONG if n % 10 == 9 else USUAL for n in range(40)], (11, 44, 1 << 20), KEPT),  # others are: each tenth saves
        (EACH_FOURTH, None, KEPT),  # copied in all steps
        (EACH_FOURTH, (11, 44, 1 << 20), "if rank == 1: time.sleep(.04)"),
    ],
)
def test_only_what_the_rank_is_late_by_goes_elsewhere(
    bare: list[int], copying: tuple[int, int, int] | None, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = told(tmp_path, monkeypatch, bare, copying, text)
    assert found.saving_ns_per_step == pytest.approx(10 * MS, rel=0.1)


@pytest.mark.parametrize("gathered", [True, False])
def test_weights_that_are_gathered_for_it_stay_shards(gathered: bool) -> None:
    gather = {"file": FILE, "line": 36, "text": "full = p.detach().full_tensor()" if gathered else "full = p.detach()"}
    line = {"file": FILE, "line": 37, "text": KEPT, "function": "Ema.update", "ns": 20 * MS, "others_ns": 0, "lines": 1}
    rows = [line, {**line, **gather, "others_ns": 10 * MS}]
    late = {"rank": 1, "late_ns": 20 * MS, "late_because": {"copy": 3 * MS}, "late_lines": rows}
    fix = _late_rank_lines.fix_of(line, late)
    assert fix.ways[0].name == "weights-on-gpu"
    assert ("to_local()" in fix.paste) is gathered and ("all ranks gather" in fix.text) is gathered
    assert fix.paste == (_copied_weights._OF_SHARDS if gathered else _copied_weights.ON_GPU.paste)


@pytest.mark.parametrize(
    ("copies", "moved", "name"),
    [
        (30, 40_000_000, "weights-on-gpu"),  # all parameters, and buffers with them
        (30, 4_000_000, ""),  # of something else
        (3, 40_000_000, ""),
    ],
)
def test_all_weights_that_are_copied_are_kept_whatever_lines_call_them(
    copies: int, moved: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_lone_averages, "_to_host_of", lambda *_: (copies, moved))
    monkeypatch.setattr(_copied_weights, "_weights", lambda _: iter([(20, 39_000_000)]))
    found = told(tmp_path, monkeypatch, [USUAL] * 40, None, "value = theirs[name].to(self.place)")
    assert [way.name for way in found.remedies] == ([name] if name else [])
    assert found.saving_ns_per_step
