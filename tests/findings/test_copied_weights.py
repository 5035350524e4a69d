"""Weights that are kept on the CPU and copied there in each step: to be kept on the GPU. Copies of anything else are no weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_line_remedies import first, rest

COPY, UPDATE = 15, 16
TENSORS, TENSOR_BYTES = 40, 1 << 20
NETWORK = {"class": "Net", "parameters": TENSORS, "dtypes": {"float32": TENSORS * TENSOR_BYTES // 4}}


def averaging(
    program: Lined, number: int, *, size: int = TENSOR_BYTES, every: int = 1, function: str = "Average.update"
) -> None:
    """A short step, then one blocking copy (20 us) and 150 us of the CPU for each tensor."""
    rest(program)
    for _ in range(TENSORS if number % every == 0 else 0):
        with program.line(COPY, function):
            program.copy(20, "DtoH", bytes=size)
        with program.line(UPDATE, function):
            program.host(150)


def told(folder: Path, copies: str = "now = p.data.to('cpu')", known: bool = True, **kind: int) -> list[Finding]:
    source = {COPY: copies, UPDATE: "self.kept[name].mul_(decay).add_(now, alpha=1 - decay)"}
    program = Lined(source, {"networks": [NETWORK]} if known else {})
    summary = program.run(lambda program, number: averaging(program, number, **kind)).summary(folder)
    if kind.get("every", 1) == 1 and kind.get("size", TENSOR_BYTES) == TENSOR_BYTES and known:
        assert first(summary) == ("NSX105", COPY)
    return [f for f in summary.findings or () if f.verdict == "found"]


def remedies(findings: list[Finding], code: str) -> list[str]:
    return [way.name for f in findings if f.code == code for way in f.remedies]


def test_weights_that_are_copied_to_the_cpu_in_each_step_are_kept_on_the_gpu(tmp_path: Path) -> None:
    found = told(tmp_path)
    assert remedies(found, "NSX105") == ["weights-on-gpu"] and remedies(found, "NSX123") == ["weights-on-gpu"]
    (copies,) = (f for f in found if f.code == "NSX105")
    # 40 times 150 us of the CPU and 21 us of a copy go, and what the GPU does in place of that is short.
    assert not copies.saving.bound and copies.saving.likely_ns == pytest.approx(40 * 171_000, rel=0.1)


@pytest.mark.parametrize(
    "kind", [{"size": 3 * TENSOR_BYTES // 4}, {"size": 5 * TENSOR_BYTES // 4}, {"every": 4}], ids=str
)
def test_copies_of_other_sizes_or_in_few_steps_are_no_weights(tmp_path: Path, kind: dict[str, int]) -> None:
    found = told(tmp_path, **kind)
    assert "weights-on-gpu" not in [*remedies(found, "NSX105"), *remedies(found, "NSX123")]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("now = self.shadow[name] - p.detach().cpu()", True),
        ("for name, p in net.named_parameters(): self.host[name].copy_(p)", True),
        ("torch.save(net.state_dict(), path)", False),
        ("outputs.append(out.cpu())", False),
    ],
)
def test_where_no_network_was_seen_the_line_says_what_it_copies(tmp_path: Path, text: str, kept: bool) -> None:
    found = told(tmp_path, text, known=False)
    assert ("weights-on-gpu" in remedies(found, "NSX105")) == kept
    assert ("weights-on-gpu" in remedies(found, "NSX123")) == kept


@pytest.mark.parametrize(
    ("text", "size", "kept"),
    [
        ("now = p.data.to('cpu')", TENSOR_BYTES, True),
        ("torch.save(net.state_dict(), path)", TENSOR_BYTES, False),  # a checkpoint
        ("rows.append(out.cpu())", 3 * TENSOR_BYTES // 4, False),
    ],
)
def test_weights_that_are_copied_now_and_then_are_kept_on_the_gpu_too(
    tmp_path: Path, text: str, size: int, kept: bool
) -> None:
    (slow,) = (f for f in told(tmp_path, text, every=4, size=size) if f.code == "NSX109")
    assert (slow.where["file"], slow.where["line"]) == ("/job/train.py", COPY)
    assert ("weights-on-gpu" in [way.name for way in slow.remedies]) == kept
    assert slow.title.endswith(
        "a copy of the weights to the CPU" if kept else "a checkpoint or another large read-back"
    )


def noisy(program: Lined, _: int) -> None:
    """A short step; noise of each gradient's size is drawn on the CPU (500 us) and copied to the GPU (20 us)."""
    rest(program)
    for _ in range(TENSORS):
        with program.line(UPDATE, "add_noise"):
            program.host(500)
        with program.line(COPY, "add_noise"):
            program.copy(20, bytes=TENSOR_BYTES)
            program.launch(5)


def test_noise_of_the_size_of_gradients_is_drawn_on_the_gpu(tmp_path: Path) -> None:
    draws = "noise = torch.randn(p.shape, generator=gen) * sigma * clip"
    source = {UPDATE: draws, COPY: "p.grad.add_(noise.to(p.device))"}
    summary = Lined(source, {"networks": [NETWORK]}).run(noisy).summary(tmp_path)
    found = [f for f in summary.findings or () if f.verdict == "found"]
    assert first(summary) == ("NSX123", UPDATE) and remedies(found, "NSX123")[0] == "made-on-gpu"
    assert "weights-on-gpu" not in [way.name for f in found for way in f.remedies]
    line = next(f for f in found if f.code == "NSX123")
    assert "noise = torch.randn(p.shape, generator=generator, device=p.device)" in line.paste


def masked(program: Lined, _: int, *, copies: bool) -> None:
    """A short step; then a span is drawn for each tensor alone: 300 us of the CPU, three kernels of 2 us, or a copy of it to the GPU."""
    rest(program)
    for _ in range(TENSORS):
        with program.line(UPDATE, "mask_along"):
            program.host(300)
            if copies:
                program.copy(2, bytes=4)
            for _ in range(3):
                program.launch(2)


@pytest.mark.parametrize("copies", [False, True])
def test_what_a_line_makes_on_the_gpu_as_it_is_need_not_be_made_there(tmp_path: Path, copies: bool) -> None:
    source = {UPDATE: f"start = torch.rand(1{'' if copies else ', device=x.device'}).to(x.device) * size"}
    summary = Lined(source).run(lambda program, number: masked(program, number, copies=copies)).summary(tmp_path)
    ways = remedies([f for f in summary.findings or () if f.verdict == "found"], "NSX123")
    assert ways[:1] == (["made-on-gpu"] if copies else ["batched-operation"])
