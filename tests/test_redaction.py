"""What is secret in a command line stands in no output: not on the terminal, not in a file, not in the log of a CI run."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from nsysx.redaction import redacted, redacted_text, shell
from nsysx.trying.session import Session
from nsysx.trying.try_options import TryOptions
from tests.builder import Report
from tests.recording.test_capture import FakeNsys
from tests.test_cli import nsysx

SECRET = "s3cr3tV4lu3"


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (f"python t.py --hf-token={SECRET} --epochs 3", "python t.py '--hf-token=***' --epochs 3"),
        (f"python t.py --password {SECRET} -n 3", "python t.py --password '***' -n 3"),
        (f"python t.py -password '{SECRET} b'", "python t.py -password '***'"),
        (f"HF_TOKEN={SECRET} python t.py", "'HF_TOKEN=***' python t.py"),
        (f"env WANDB_API_KEY={SECRET} python t.py", "env 'WANDB_API_KEY=***' python t.py"),
        (f"python t.py model.clientSecret={SECRET} lr=3", "python t.py 'model.clientSecret=***' lr=3"),
        (f"get https://user:{SECRET}@host/data", "get 'https://***@host/data'"),
        (f"get https://user:a@{SECRET}@host/a@b", "get 'https://***@host/a@b'"),
        (f"get 'https://host/data?part=1&token={SECRET}&x=2'", "get 'https://host/data?part=1&token=***&x=2'"),
        (f"get -H 'X-Api-Key: {SECRET}'", "get -H 'X-Api-Key: ***'"),
        (f"get -H 'Authorization: Bearer {SECRET}'", "get -H 'Authorization: *** ***'"),
        (f"""bash -c 'export HF_TOKEN={SECRET}; python t.py --password "{SECRET} b" -n 3'""",
         "bash -c 'export HF_TOKEN=***; python t.py --password *** -n 3'"),
        ("python t.py --key hf_abcdefgh1234567890XYZ", "python t.py --key '***'"),
        ("python t.py AKIAABCDEFGH12345678 sk-proj-abc123def456ghi7", "python t.py '***' '***'"),
    ],
)  # fmt: skip
def test_a_secret_is_hidden_and_all_else_stays(typed: str, shown: str) -> None:
    words = shlex.split(typed)
    assert shell(words) == shown
    assert redacted(redacted(words)) == redacted(words)


@pytest.mark.parametrize(
    "typed",
    [
        "python hf_llama3_finetune_experiment.py --path=/a/b=c --keys 1",
        "python t.py --max-tokens 512 --num-token 8 --pad-token '[PAD]' --eos-token '</s>'",
        "python t.py --use-auth-token --epochs 3",
        "python t.py --use-auth-token True --token-file /a --tokenizer gpt2 --key value",
        "torchrun --nproc-per-node 2 --rdzv-endpoint=localhost:0 t.py sk-learn-something-or-other",
        "python -c 'import x; x.run(lr=1e-3, name=\"a: b\")'",
        "get https://host:80/a@b s3://bucket/key",
    ],
)
def test_what_is_no_secret_can_still_be_pasted(typed: str) -> None:
    words = shlex.split(typed)
    assert redacted(words) == words
    assert redacted_text(typed) == typed


def _secrets() -> list[str]:
    return [f"--hf-token={SECRET}", "--password", SECRET, f"https://user:{SECRET}@host/", f"API_KEY={SECRET}"]


def test_no_output_of_run_holds_a_secret(tmp_path: Path) -> None:
    fake = FakeNsys(tmp_path / "fake")
    (tmp_path / "t.py").write_text("")
    (tmp_path / "not.sh").write_text("")
    argument = f"--nsys-arg=--env-var=TOKEN={SECRET}"
    ways: list[list[object]] = [
        ["run", "--no-report", "--no-probe", argument, "--nsys", fake.path, "--", "python", "t.py", *_secrets()],
        ["run", "--dry-run", "--nsys", fake.path, "-o", "other", "--", "python", "t.py", *_secrets()],
        ["run", "--nsys", fake.path, "--", "t.py", *_secrets()],
        ["run", "--nsys", fake.path, "--", f"python t.py --password {SECRET}"],
        ["run", "--nsys", fake.path, "--", "./not.sh", *_secrets()],
        ["python", "t.py", *_secrets()],
        ["try", "--yes", "--", f"nowhere --password {SECRET}"],
    ]
    for words in ways:
        done = nsysx(*words, cwd=tmp_path, env={"PATH": f"{Path(os.sys.executable).parent}:{os.environ['PATH']}"})  # type: ignore[attr-defined]
        assert SECRET not in done.stdout + done.stderr, words
        assert "--dry-run" not in words or "***" in done.stdout
    written = [path for path in tmp_path.glob("*.json") if SECRET in path.read_text()]
    assert (tmp_path / "t.run.json").exists() and written == []


def test_no_output_of_a_report_holds_the_secret_of_an_older_record(tmp_path: Path) -> None:
    """The record beside a report may come from a version that wrote the command as it was typed."""
    report = Report()
    report.process(100).thread(100, name="python").launch(at=1000, dur=500, kernel="gemm", gpu_start=2000, gpu_dur=4000)
    report.write(tmp_path / "t.sqlite")
    command = ["python", "t.py", *_secrets()]
    (tmp_path / "t.run.json").write_text(json.dumps({"schema": "nsysx.run/1", "command": command, "probe": []}))
    words = ("--html", "p.html", "--json", "s.json", "--markdown", "m.md", "--brief", "b.json", "--no-redact")
    done = nsysx("report", "t.sqlite", *words, cwd=tmp_path, env={"COLUMNS": "300"})
    assert done.returncode == 0, done.stderr
    assert "-- python t.py" in done.stdout, "the next command is that of the recorded program"
    texts = [(tmp_path / name).read_text() for name in words[1:-1:2]]
    assert not any(SECRET in text for text in (done.stdout, done.stderr, *texts))
    compared = nsysx("compare", "t.sqlite", "t.sqlite", cwd=tmp_path)
    assert SECRET not in compared.stdout + compared.stderr


def test_a_trial_runs_the_command_with_its_secret_and_tells_it_without() -> None:
    session = Session(["python", "t.py", *_secrets()], [], TryOptions())
    assert SECRET not in json.dumps(session.result.to_json())
    assert session.runner.command[2:] == _secrets()


def test_a_report_is_found_again_by_its_command(tmp_path: Path) -> None:
    from nsysx.reading import tried

    command = ["python", "t.py", *_secrets()]
    (tmp_path / "t.sqlite").write_bytes(b"")
    for recorded in (command, redacted(command)):
        (tmp_path / "t.run.json").write_text(json.dumps({"command": recorded}))
        assert tried.report_of(command, tmp_path) == tmp_path / "t.sqlite"
