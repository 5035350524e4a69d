"""NSX131: lines whose kernels only move memory: a loss written out, distances of all pairs; and what a compiled network does not reach."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from nsysx.findings import _line_work
from nsysx.findings._work_remedies import KINDS, kinds_of
from nsysx.model import Finding
from tests.findings import said_of
from tests.findings.lined import Lined, forward

SCALE = "void at::native::vectorized_elementwise_kernel<4, Mul>(int)"
SOFTMAX = "cunn_SoftMaxForward<LogSoftMaxForwardEpilogue>"
#: Lines of a loss, and 100 us of kernels for each.
LOSS = {
    30: "logp = F.log_softmax(logits, dim=-1)",
    31: "rows = F.one_hot(target, n).float()",
    33: "loss = -(rows * logp).sum(-1).mean()",
}
PLAIN = {30: "logp = penalty(logits)", 31: "rows = scale(logp)", 33: "loss = rows.mean()"}


def body(program: Lined, number: int, *, inside: bool = False, kernels: int = 1) -> None:
    """A network of 500 us, and lines 30 to 33 with a softmax of 100 us and elementwise kernels of 400 us."""
    with program.line(20), program.range("forward"), program.range("net:Net"):
        program.launch(500, "nvjet_gemm")
    for line, names in ((30, [SOFTMAX]), (31, [SCALE] * 2 * kernels), (33, [SCALE] * 2 * kernels)):
        with program.line(line, "loss_of"):
            if inside:
                with program.range("forward"), program.range("net:Net"):
                    for name in names:
                        program.launch(100, name)
            else:
                for name in names:
                    program.launch(100, name)
    program.sync()


def found(folder: Path, source: dict[int, str], inside: bool = False) -> list[Finding]:
    return Lined(source).run(lambda program, number: body(program, number, inside=inside)).found(folder, "NSX131")


def test_what_a_loss_by_class_numbers_does_not_need_goes(tmp_path: Path) -> None:
    """400 us of elementwise kernels go, the softmax stays."""
    (finding,) = found(tmp_path, LOSS)
    assert [way.name for way in finding.remedies] == ["classes-as-numbers"]
    assert finding.cost_ns_per_step == pytest.approx(500_000, rel=0.02)
    assert finding.saving_ns_per_step == pytest.approx(400_000, rel=0.05)
    assert finding.where["line"] == 31 and "train.py:30-33 loss_of" in finding.title


@pytest.mark.parametrize(
    ("differentiated", "last", "told"),
    [
        (False, "hits = rows.eq(labels).sum()", "compile-function"),
        (True, "hits = rows.eq(labels).sum()", "fused-loss"),
        (False, "old = logp.gather(-1, labels)", "fused-loss"),
    ],
)
def test_metrics_of_a_step_are_no_loss(differentiated: bool, last: str, told: str, tmp_path: Path) -> None:
    """The logarithm of a softmax that no backward goes through, for the entropy; and one of targets, as of an older policy."""
    source = {30: "logp = F.log_softmax(logits, dim=-1)", 31: "rows = -(logp.exp() * logp).sum(-1)", 33: last}

    def training(program: Lined, number: int) -> None:
        body(program, number)
        with program.line(33 if differentiated else 20, "loss_of"), program.range("backward"):
            program.launch(100, SCALE)
        with program.range("optimizer"):
            program.launch(10)
        program.sync()

    (finding,) = Lined(source).run(training).found(tmp_path, "NSX131")
    assert [way.name for way in finding.remedies] == [told]


def test_lines_outside_of_the_network_are_fused_as_a_function(tmp_path: Path) -> None:
    """Of five kernels in a row that share data one is left."""
    (finding,) = found(tmp_path, PLAIN)
    assert [way.name for way in finding.remedies] == ["compile-function"]
    assert finding.saving_ns_per_step == pytest.approx(400_000, rel=0.05)
    assert finding.paste == "loss_of = torch.compile(loss_of)"


#: A conversion of FP32 numbers to BF16, as torch names it.
CONVERTS = "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(float)>(int)"


@pytest.mark.parametrize(
    ("names", "times_us", "least_us", "most_us"),
    [
        # By its longest kernel the chain of 500 us is 200 us, by the numbers that come in 50 us.
        ((SCALE, SCALE, CONVERTS), (200, 250, 50), 250, 450),
        ((SCALE, CONVERTS, CONVERTS), (200, 250, 50), 250, 450),
        ((SCALE, SCALE, SCALE), (200, 250, 50), 250, 250),
        ((SCALE, SCALE, CONVERTS), (100, 150, 250), 250, 250),
    ],
)
def test_a_chain_that_converts_may_move_no_more_than_its_conversion(
    names: tuple[str, ...], times_us: tuple[int, ...], least_us: int, most_us: int, tmp_path: Path
) -> None:
    def converted(program: Lined, number: int) -> None:
        with program.line(20), program.range("forward"), program.range("net:Net"):
            program.launch(500, "nvjet_gemm")
        with program.line(30, "loss_of"):
            for name, us in zip(names, times_us, strict=True):
                program.launch(us, name)
        program.sync()

    (finding,) = Lined({30: "loss = penalty(logits)"}).run(converted).found(tmp_path, "NSX131")
    saving = finding.saving
    assert saving.likely_ns == pytest.approx((least_us + most_us) / 2 * 1_000, rel=0.05)
    assert saving.likely_ns - (saving.error_ns or 0) <= 1_000 * least_us * 1.02
    assert max(saving.most_ns or 0, saving.likely_ns) >= 1_000 * most_us * 0.98


@pytest.mark.parametrize(
    ("function", "paste", "said"),
    [
        ("loss_of", "loss_of = torch.compile(loss_of)", "outside of the model"),
        ("Rotary.forward", "Rotary.forward = torch.compile(Rotary.forward)", "not compiled"),
        ("main", "@torch.compile\ndef loss_of(logits, target): ...", "outside of the model"),
        ("<module>", "@torch.compile\ndef loss_of(logits, target): ...", "outside of the model"),
    ],
)
def test_a_function_is_compiled_by_its_own_name(function: str, paste: str, said: str) -> None:
    kind = next(k for k in KINDS if k.remedy == "compile-function")
    group = _line_work._Group("train.py", function, lines=[30], texts=["y = a * b"], kernels=pl.DataFrame(), kind=kind)
    fix = _line_work._fix_of(group)
    assert (fix.paste, said in fix.text) == (paste, True)


def test_what_a_compiler_wrote_is_not_fused_again(tmp_path: Path) -> None:
    """The same lines, whose kernels TorchInductor wrote."""

    def compiled(program: Lined, number: int) -> None:
        with program.line(20), program.range("forward"), program.range("net:Net"):
            program.launch(500, "nvjet_gemm")
        with program.line(30, "forward"):
            for _ in range(5):
                program.launch(100, "triton_poi_fused_add_mul_0")
        program.sync()

    assert Lined(PLAIN).run(compiled).found(tmp_path, "NSX131") == []


def test_inside_a_network_only_lines_with_a_better_form_are_named(tmp_path: Path) -> None:
    assert found(tmp_path, PLAIN, inside=True) == []
    (tmp_path / "b").mkdir()
    (finding,) = found(tmp_path / "b", {**PLAIN, 31: "d = (a[:, None] - b[None]).pow(2).sum(-1)"}, inside=True)
    assert [way.name for way in finding.remedies] == ["distances-by-product"]
    assert finding.saving_ns_per_step == pytest.approx(200_000, rel=0.05), "the line's own kernels"


NORM = {
    30: "mean = x.mean(-1, keepdim=True)",
    31: "y = (x - mean) / torch.sqrt(x.var(-1, keepdim=True) + self.eps)",
    33: "return y * self.weight + self.bias",
}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, [31, 30, 33]),
        (
            {30: "mean = x.mean()", 31: "y = (x - mean) / torch.sqrt(x.var() + self.eps)"},
            None,
        ),  # of all numbers: no layer's
        ({30: "h = self.gate(x)"}, [31, 33]),
    ],
    ids=["written out", "of all", "another line between"],
)
def test_a_normalization_that_is_written_out_in_a_network_is_all_of_its_lines(
    changed: dict[int, str], told: list[int] | None, tmp_path: Path
) -> None:
    findings = found(tmp_path, NORM | changed, inside=True)
    assert [way.name for f in findings for way in f.remedies] == ["library-normalization"] * (told is not None)
    if told is not None:
        (finding,) = findings
        assert sorted(row["line"] for row in finding.evidence) == sorted(told) and finding.where["line"] == 31
        # No operators were recorded: of kernels in a row one stays.
        assert finding.saving_ns_per_step == pytest.approx(100_000 * (len(told) + 1 if 30 in told else 3), rel=0.3)


def test_lines_of_another_function_are_no_part_of_a_normalization(tmp_path: Path) -> None:
    def both(program: Lined, number: int) -> None:
        body(program, number, inside=True)
        with program.line(35, "scaled"), program.range("forward"), program.range("net:Net"):
            program.launch(300, SCALE)

    (finding,) = Lined({**NORM, 35: "return x * self.weight"}).run(both).found(tmp_path, "NSX131")
    assert 35 not in [row["line"] for row in finding.evidence]


def test_nothing_is_compiled_where_gradients_are_differentiated_again(tmp_path: Path) -> None:
    """torch.compile makes one backward: neither the network nor the lines beside it are advised to be compiled."""

    def chain(program: Lined, number: int) -> None:
        with program.line(20), program.range("forward"), program.range("net:Net"):
            for _ in range(10):
                program.launch(100, SCALE)
        body(program, number)

    codes = {}
    for folder, text in (("once", "logp = penalty(logits)"), ("twice", "g = grad(u.sum(), x, create_graph=True)[0]")):
        (tmp_path / folder).mkdir()
        findings = said_of(Lined({**PLAIN, 30: text}).run(chain).write(tmp_path / folder))
        codes[folder] = {f.code for f in findings if f.verdict == "found"} & {"NSX112", "NSX131"}
    assert codes == {"once": {"NSX112", "NSX131"}, "twice": set()}


def test_without_such_lines_it_is_clear(tmp_path: Path) -> None:
    assert [f.verdict for f in Lined().run(lambda program, number: forward(program)).findings(tmp_path, "NSX131")] == [
        "clear"
    ]


@pytest.mark.parametrize(
    ("remedy", "text"),
    [
        ("classes-as-numbers", "dist = F.one_hot(target, n).float()"),
        ("distances-by-product", "d = (x[:, None, :] - y[None, :, :]) ** 2"),
        ("distances-by-product", "d = (a.unsqueeze(1) - b.unsqueeze(0)).norm(dim=-1)"),
        ("views-for-copies", "k = k.repeat_interleave(groups, dim=1)"),
        ("views-for-copies", "return x[:, :, None].expand(b, h, groups, t, d).reshape(b, h * groups, t, d)"),
        # Where nothing is repeated a reshape is a view.
        ("compile-function", "return x[:, :, None].reshape(b, h, t * d)"),
        ("fused-loss", "logp = torch.log_softmax(logits, -1)"),
        ("fused-loss", "nll = -torch.log(softmax(logits))[rows, target]"),
        ("foreach-parameters", "for e, p in zip(ema, net.parameters()): e.mul_(d).add_(p, alpha=1 - d)"),
        ("sums-by-product", "y = (a[:, :, None] * b[:, None]).sum(-1)"),
        ("library-convolution", "columns = F.unfold(x, 7, padding=3)"),
        ("preallocated", "k = torch.cat([self.cache_k, k], dim=2)"),
        ("largest-for-sort", "order = scores.argsort(descending=True)[:, :k]"),
        ("one-layout", "y = x.permute(0, 2, 3, 1).contiguous()"),
        # A layout that is named is what the next layer wants, or what the tensor has.
        ("compile-function", "h = self.mlp(x.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last))"),
        ("kept-constant", "mask = torch.ones(n, n, device=x.device).tril()"),
        ("compile-function", "image = image * gain + bias"),
        ("library-normalization", "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight"),
        ("library-normalization", "y = (x - mean) / torch.sqrt(var + self.eps)"),
        ("library-normalization", "x = (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)"),
        ("library-activation", "y = 0.5 * x * (1 + torch.tanh(c * (x + 0.044715 * x ** 3)))"),
        ("library-activation", "y = x * 0.5 * (1.0 + torch.erf(x / 2 ** 0.5))"),
        ("library-activation", "gate = h * torch.sigmoid(h)"),
        ("library-softmax", "e = torch.exp(scores - scores.max(-1, keepdim=True).values)"),
        # A gate is no activation of itself, a root may be of anything.
        ("compile-function", "y = value * torch.sigmoid(gate)"),
        ("compile-function", "y = x / math.sqrt(dim)"),
        ("compile-function", "ratio = torch.exp(new - old)"),
    ],
)
def test_a_line_says_what_its_work_can_be(remedy: str, text: str) -> None:
    kind, _ = next(kinds_of([text], outside=True, trains=True))
    assert kind.remedy == remedy


@pytest.mark.parametrize(
    ("beside", "told"),
    [
        ("return logp[:, -1].index_select(-1, answers)", False),
        ("return -(logp.exp() * logp).sum(-1)", False),
        ("scores = F.nll_loss(logp, ids[:, 1:])", True),
        ("picked = logp.gather(-1, ids.unsqueeze(-1))", True),
    ],
)
def test_a_loss_has_something_to_compare_with_in_a_program_that_does_not_train(beside: str, told: bool) -> None:
    texts = ["logp = torch.log_softmax(logits, -1)", beside]
    assert any(kind.remedy == "fused-loss" for kind, _ in kinds_of(texts, outside=True)) is told


def test_a_softmax_of_attention_is_no_loss() -> None:
    assert not list(kinds_of(["p = torch.log_softmax(scores, -1)"], outside=False))


@pytest.mark.parametrize("trains", [False, True])
def test_weights_that_each_call_converts_are_converted_once_where_nothing_trains(tmp_path: Path, trains: bool) -> None:
    """Two lines of two functions convert weights for 400 us; a program that trains changes them in each step."""
    source = {
        30: "x = self.scaled(x)",
        31: "return self.weight.float() * self.scale",
        33: "y = F.linear(x, self.full_weight().to(x.dtype))",
    }

    def calling(program: Lined, number: int) -> None:
        body(program, number, inside=True)
        if trains:
            with program.range("backward"):
                program.launch(100, "nvjet_gemm")

    findings = Lined(source).run(calling).found(tmp_path, "NSX131")
    if trains:
        assert findings == []
        return
    (finding,) = findings
    assert [way.name for way in finding.remedies] == ["weights-converted-once"]
    assert finding.saving_ns_per_step == pytest.approx(400_000, rel=0.05), "all of both lines"
