"""The README and the documents: every console block runs, every option is documented, links lead somewhere."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import json
import lzma
import os
import re
import shlex
import shutil
import statistics
import sys
from pathlib import Path

import click
import pytest
import typer.main

from nsysx.cli.app import command_line
from tests.comparing.test_commands import call
from tests.reports import training

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = {p.name.removesuffix(".md"): p.read_text(encoding="utf-8") for p in (ROOT / "nsysx" / "docs").glob("*.md")}
CONTRIBUTING = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
MANY = DOCUMENTS["many-ranks"]


def commands(text: str) -> list[list[str]]:
    """Return the words of every command in the console blocks."""
    lines = [
        line[2:]
        for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("$ ")
    ]
    return [shlex.split(re.sub(r"\s{2,}#.*$|\s# .*$", "", line)) for line in lines]


#: Each command once, however often it is shown.
ALL = [
    list(words) for words in dict.fromkeys(tuple(w) for text in (README, *DOCUMENTS.values()) for w in commands(text))
]
OURS = [words[1:] for words in ALL if words[0] == "nsysx"]
#: Commands that profile, ask the machine or talk to a cluster: parsed here; they are run by tests of their own.
PARSED = [w for w in OURS if w[0] in ("run", "try", "doctor", "calibrate")]
RUN = [w for w in OURS if w not in PARSED]


def test_there_is_something_to_run() -> None:
    assert len(PARSED) > 3
    assert len(RUN) > 15
    assert {words[0] for words in ALL} <= {"nsysx", "scripts/demo", "scripts/test", "python3", "pip", "kubectl"}


def parsed(words: list[str]) -> None:
    group = typer.main.get_command(command_line())
    name, *rest = words
    group.commands[name].make_context(name, list(rest))  # type: ignore[attr-defined]


@pytest.mark.parametrize("words", PARSED, ids=" ".join)
def test_what_needs_a_machine_is_at_least_right(words: list[str]) -> None:
    parsed(words)


def test_every_command_has_examples_in_its_help_and_they_are_right() -> None:
    group = typer.main.get_command(command_line())
    for name in group.commands:  # type: ignore[attr-defined]
        room = importlib.import_module(f"nsysx.cli.{'try_' if name == 'try' else name}")
        assert room.EXAMPLES
        for example, _ in room.EXAMPLES:
            parsed([name, *shlex.split(example.partition(" >")[0])])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the README names."""
    place = tmp_path_factory.mktemp("readme")
    (place / "sample_reports").symlink_to(ROOT / "sample_reports")
    for name in ("masked_nonzero.sqlite.xz", "masked_nonzero.run.json"):
        data = (ROOT / "sample_reports" / name).read_bytes()
        ending = name.removeprefix("masked_nonzero").removesuffix(".xz")
        (place / f"run{ending}").write_bytes(lzma.decompress(data) if name.endswith("xz") else data)
    for i, name in enumerate(("train", "other", "before", "a1", "a2", "a3")):
        training(8, gap=100 + i).write(place / f"{name}.sqlite")
    for i, name in enumerate(("after", "b1", "b2", "b3")):
        training(8, gap=60 + i).write(place / f"{name}.sqlite")
    (place / "ddp.sqlite.xz").symlink_to(ROOT / "sample_reports" / "ddp.sqlite.xz")
    for n in (0, 1):
        packed = ROOT / "sample_reports" / f"ddp_per_rank.rank{n}.sqlite.xz"
        for name in (f"rank{n}", f"job.rank{n}"):
            (place / f"{name}.sqlite").write_bytes(lzma.decompress(packed.read_bytes()))
            shutil.copy(packed.with_name(f"ddp_per_rank.rank{n}.run.json"), place / f"{name}.run.json")
    return place


def prepare(folder: Path, words: list[str], capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> list[str]:
    """Return the words as a shell would hand them over; what a command before it would have written is written."""
    if ("budget.toml" in words and words[-1] != "budget.toml") or "--budget" in words:
        made = call(capsys, patch, "check", "run.sqlite", "--init")[1]
        (folder / "budget.toml").write_text(made)
    if "run.json" in words:
        summary = call(capsys, patch, "report", "run.sqlite", "--json", "-")[1]
        (folder / "run.json").write_text(summary)
        (folder / "ticket.md").write_text(f"A step takes {json.loads(summary)['steps']['gpu_mean_ns'] / 1e6:.1f} ms.\n")
    kept = words[: words.index(">")] if ">" in words else words
    return [name for word in kept for name in (sorted(p.name for p in folder.glob(word)) if "*" in word else [word])]


@pytest.mark.parametrize("words", RUN, ids=" ".join)
def test_every_command_of_the_readme_runs(
    folder: Path, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    ready = prepare(folder, words, capsys, monkeypatch)
    for name in ("page.html", "other.html", "change.html", "frames", "run.pftrace"):
        shutil.rmtree(folder / name, ignore_errors=True) if (folder / name).is_dir() else (folder / name).unlink(True)
    if "FILE" in " ".join(words) or "--cluster" in words:
        parsed(ready)
        return
    code, out, err = call(capsys, monkeypatch, *ready)
    wished = any(w.startswith("--") and w not in ("--steps", "--graph") for w in words[1:])
    if words[0] == "whatif" and wished and code == 2:
        assert "matches nothing" in err or "copy nothing" in err, err  # the report here has no such line or module
    elif words[0] == "export" and {"--speedscope", "--folded"} & set(words):
        assert code == 4 and "no line of Python was noted" in err, err  # nor lines of an X-ray
    else:
        assert code == 0, err
        assert out or err


def test_every_option_is_documented_in_help_or_readme() -> None:
    group = typer.main.get_command(command_line())
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        assert command.help, name
        for parameter in command.params:
            if isinstance(parameter, click.Option) or hasattr(parameter, "opts"):
                told = getattr(parameter, "help", "") or ""
                assert told or parameter.param_type_name == "argument", (name, parameter.name)


def test_links_inside_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).exists(), target
    everything = "\n".join((README, CONTRIBUTING, *DOCUMENTS.values()))
    assert set(DOCUMENTS) == set(re.findall(r"nsysx/docs/([\w-]+)\.md", README)), "each document stands in the README"
    for text in DOCUMENTS.values():
        assert not re.search(r"\]\((?!http)", text), (
            "documents are printed by the command too: a link leads nowhere there"
        )
    for named in re.findall(r"`((?:nsysx|tests|scripts|sample_reports)/[\w./]+\.\w+)`", everything):
        if not named.endswith(("130_slow_thing.py", "nsx130_slow_thing.py")):
            assert (ROOT / named).exists() or (ROOT / "nsysx" / named).exists(), named


def test_every_room_stands_on_the_map() -> None:
    rooms = {
        p.name.removesuffix(".py")
        for p in (ROOT / "nsysx").iterdir()
        if p.suffix == ".py" or (p / "__init__.py").exists()
    }
    rooms -= {"__init__", "__main__", "__pycache__"}
    table = CONTRIBUTING[CONTRIBUTING.index("## A map of the rooms") :]
    named = set(re.findall(r"`(\w+)`", table[: table.index("\n\n`nsysx explain")]))
    assert rooms <= named, sorted(rooms - named)


def test_variables_of_the_environment_are_listed() -> None:
    users = {"NSYSX_DEBUG", "NSYSX_KERNEL_FAMILIES"}
    section = DOCUMENTS["settings"]
    assert users <= set(re.findall(r"NSYSX_[A-Z_]+", section))


def test_frameworks_are_told_by_the_command_and_each_recipe_is_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = call(capsys, monkeypatch, "explain", "frameworks")
    assert code == 0
    assert "| Hugging Face `Trainer`" in out
    recipes = sorted((ROOT / "sample_reports" / "recipes").glob("*.py"))
    assert len(recipes) == 7
    for path in recipes:
        program = ast.parse(path.read_text())
        said = ast.get_docstring(program) or ""
        assert said.endswith(f"nsysx run -- python {path.name}"), path.name


def test_many_ranks_is_told_by_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = call(capsys, monkeypatch, "explain", "many-ranks")
    assert code == 0
    assert out.strip() == MANY.strip()
    for block in re.findall(r"```yaml\n(.*?)```", MANY, re.DOTALL):
        import yaml

        kinds = [part["kind"] for part in yaml.safe_load_all(block)]
        assert kinds == ["Service", "Deployment", "Deployment"]
    shell = re.findall(r"```bash\n(.*?)```", MANY, re.DOTALL)
    assert shell
    for block in shell:
        assert os.system(f"bash -n <<'EOF'\n{block}EOF") == 0


def test_the_table_of_pairs_is_what_was_measured() -> None:
    loader = importlib.machinery.SourceFileLoader("pairs", str(ROOT / "scripts" / "pairs.py"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("pairs", loader))  # type: ignore[arg-type]
    sys.modules["pairs"] = module  # dataclasses look their module up
    loader.exec_module(module)
    rows = json.loads((ROOT / "sample_reports" / "pairs.json").read_text())
    assert module.markdown(rows) in DOCUMENTS["what-if"]
    assert {row["pair"]: row["change"] for row in rows} == {name: pair.change for name, pair in module.PAIRS.items()}


def test_figures_of_the_pairs_are_those_that_were_measured() -> None:
    rows = json.loads((ROOT / "sample_reports" / "pairs.json").read_text())
    sides = [(row[side], row["bare"][f"{side}_ms"]) for row in rows for side in ("before", "after")]
    told = {name: " ".join(text.split()) for name, text in {**DOCUMENTS, "README": README}.items()}

    def savings(source: str) -> tuple[str, str]:
        errors = [abs(row["before"][source]["saved"] - row["bare"]["saved"]) * 100 for row in rows]
        return f"{statistics.median(errors):.1f} %", f"{max(errors):.0f} %"

    median, worst = savings("in_process")
    assert f"The median error of savings is {median} of the step, the worst {worst}." in told["what-if"]
    assert f"its median error is {median} of the step and its worst {worst}" in told["README"]
    median, worst = savings("assumed")
    assert f"the median is {median} and the worst {worst}." in told["what-if"]

    def off(source: str, truths: list[float]) -> list[float]:
        steps = [side[source]["step_ms"] for side, _ in sides]
        return sorted(abs(step / truth - 1) * 100 for step, truth in zip(steps, truths, strict=True))

    window, bare = [side["in_process"]["step_ms"] for side, _ in sides], [truth for _, truth in sides]
    for source, name in (
        ("in_process", "measured before the window"),
        ("modelled", "by `nsysx calibrate`"),
        ("assumed",) * 2,
    ):
        here, there = off(source, window), off(source, bare)
        same = f"median {statistics.median(here):.1f} %, worst {here[-1]:.0f} %" if here[-1] else ""
        other = f"median {statistics.median(there):.1f} %, 90 % within {there[len(there) * 9 // 10]:.0f} %"
        assert " ".join(f"| {name} | {same} | {other} |".split()) in told["accuracy"]
    held = sum(side["assumed"]["low_ms"] <= truth <= side["assumed"]["high_ms"] for side, truth in sides)
    assert f"In {held} of the {len(sides)} captures" in told["accuracy"]
