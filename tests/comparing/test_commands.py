"""The command as people and programs call it."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from nsysx.cli import process as cli
from tests.comparing.programs import MS, program, summary
from tests.render.test_sample_pages import REQUIRED, VALIDATE
from tests.samples import unpack

SVG_TEXT = "{http://www.w3.org/2000/svg}text"
NET = {"a": 3 * MS, "b": 2 * MS, "c": 5 * MS}


def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["nsysx", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


@pytest.fixture
def sample(tmp_path: Path) -> Any:
    return lambda name: unpack(name, tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "verdict", "cause", "bare_ms"),
    [
        ("masked_nonzero", "masked_ignore_index", "faster", "MaskedLoss", -22.5),
        ("gpt", "gpt_graph", "slower", "(optimizer)", 0.2),
    ],
)
def test_pairs_of_the_samples(capsys, monkeypatch, sample, before, after, verdict, cause, bare_ms) -> None:
    code, out, _ = call(capsys, monkeypatch, "compare", sample(before), sample(after), "--json", "-")
    found = json.loads(out)
    assert (code, found["schema"], found["verdict"]) == (0, "nsysx.compare/1", verdict)
    assert sum(p["difference_ns"] for p in found["parts"]) == found["difference_ns"]
    assert found["low_ns"] < found["difference_ns"] < found["high_ns"]
    assert found["parts"][0]["name"] == cause
    assert f"in {cause} kernels" in found["sentence"]
    # Both programs are GPU-bound: what is recorded is near the bare truth.
    assert abs(found["difference_ns"] / 1e6 - bare_ms) < 0.6


def test_the_terminal_is_short_and_narrow(capsys, monkeypatch, sample) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call(capsys, monkeypatch, "compare", sample("masked_nonzero"), sample("masked_ignore_index"))
    lines = out.splitlines()
    assert code == 0
    assert len(lines) <= 31  # the verdict has a line of its own
    assert max(map(len, lines)) <= 80
    assert re.match(r"23\.0 ms a step faster \(33\.4 %, [\d.]+ to [\d.]+\): 22\.4 in MaskedLoss kernels", out)


def test_several_captures_and_summaries(capsys, monkeypatch, tmp_path: Path) -> None:
    files = []
    for i in range(4):
        ns = 5 * MS if i < 2 else 4 * MS
        report = program({**NET, "c": ns}, noise=1000, seed=i)
        path = tmp_path / f"s{i}.json"
        path.write_text(json.dumps(summary(tmp_path, report, f"s{i}")))
        files.append(path if i % 2 else tmp_path / f"s{i}.sqlite")
    words = ["--before", *files[:2], "--json", "-", "--after", *files[2:]]
    code, out, _ = call(capsys, monkeypatch, "compare", *words)
    found = json.loads(out)
    assert (code, found["verdict"], found["before"]) == (0, "faster", ["s0.sqlite", "s1.json"])
    assert "scatter between captures (2 + 2)" in found["basis"]


@pytest.mark.parametrize(
    ("words", "slug"),
    [
        (["one.json"], "needs two reports"),
        ([], "needs two reports"),
        (["a", "b", "c"], "needs two reports"),
        (["--before", "x"], "needs two reports"),
    ],
)
def test_what_is_no_pair(capsys, monkeypatch, words, slug) -> None:
    code, _, err = call(capsys, monkeypatch, "compare", *words)
    assert (code, slug in err) == (2, True)


def test_what_is_no_summary(capsys, monkeypatch, tmp_path: Path) -> None:
    for text, code in (("{", 3), ("[]", 3), ("{}", 3), ('{"schema": "nsysx.summary/1"}', 3)):
        (tmp_path / "x.json").write_text(text)
        got, out, err = call(capsys, monkeypatch, "compare", tmp_path / "x.json", tmp_path / "x.json")
        assert (got, out) == (code, ""), text
        assert "x.json" in err
    assert call(capsys, monkeypatch, "compare", tmp_path / "no.json", tmp_path / "x.json")[0] == 3


def test_who_asks_for_a_page_still_reads_the_answer(capsys, monkeypatch, tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.json").write_text(json.dumps(summary(tmp_path, program(NET), name)))
    words = (tmp_path / "b.json", tmp_path / "a.json", "--html")
    code, out, _ = call(capsys, monkeypatch, "compare", *words, tmp_path / "c.html")
    assert code == 0 and out.startswith("The same within") and "Verdict: same" in out


HOSTILE = '<img src=x onerror=alert(1)>"\x1b[31m\u202e'


def page(capsys, monkeypatch, tmp_path: Path) -> str:
    files = []
    for i, name in enumerate(("b", "c")):
        (tmp_path / f"{i}.json").write_text(
            json.dumps(summary(tmp_path, program({"a": 3 * MS, HOSTILE + name: (2 + i) * MS}), f"{i}"))
        )
        files.append(tmp_path / f"{i}.json")
    call(capsys, monkeypatch, "compare", *files, "--html", tmp_path / "c.html", "--markdown", tmp_path / "c.md")
    assert "<img" not in (tmp_path / "c.md").read_text()
    return (tmp_path / "c.html").read_text()


def test_the_page_runs_nothing_of_others(capsys, monkeypatch, tmp_path: Path) -> None:
    text = page(capsys, monkeypatch, tmp_path)
    assert "<img src=x" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "default-src 'none'" in text
    assert text.count("<script") == 1
    wide = [
        base64.b64decode(data).decode() for data in re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)"', text)
    ]
    assert len(wide) == 3 == text.count("<source media=")
    said = [["".join(node.itertext()) for node in ET.fromstring(picture).iter(SVG_TEXT)] for picture in wide]
    assert [{"before", "after"} <= set(said[n]) for n in (0, 1)] == [True, True], "both steps"
    assert {"before 1", "after 1", "11 steps"} <= set(said[2]), "the steps of both"
    marks = [data.count("z") for data in re.findall(r' d="([^"]+)" style="fill: #(?:0072b2|e69f00)', wide[2])]
    assert marks == [11, 11], "a mark for each"
    assert not any("<img" in picture or "\x1b" in picture or "\u202e" in picture for picture in wide)
    assert not re.search(r"(?:src|href)=.?https?:", text)


@pytest.mark.skipif(not VALIDATE and not REQUIRED, reason="NSYSX_HTML_VALIDATE names no html-validate")
def test_the_page_is_valid_html(capsys, monkeypatch, tmp_path: Path) -> None:
    page(capsys, monkeypatch, tmp_path)
    rules = {"no-inline-style": "off", "long-title": "off"}
    (tmp_path / "config.json").write_text(
        json.dumps({"root": True, "extends": ["html-validate:standard"], "rules": rules})
    )
    words = [VALIDATE, "--config", str(tmp_path / "config.json"), "--formatter", "text", str(tmp_path / "c.html")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=os.environ)
    assert done.returncode == 0, (done.stdout + done.stderr)[:4000]
