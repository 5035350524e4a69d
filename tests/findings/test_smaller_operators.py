"""Operators that are larger than their result needs, and work of 32 bits in networks of 16: both sides of each."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from nsysx.findings import nsx116_fp32_math
from nsysx.model import Finding
from tests.findings.lined import Lined

LINE = 12
SOURCE = {LINE: "y = head(F.interpolate(x, size=size))", 30: "last = self.head(hidden)[:, -1]"}
GEMM, RESAMPLE = (
    "nvjet_sm90_tst_128x192_64x5_2x1",
    "void at::native::upsample_bilinear2d_nhwc_out_frame<float, float>(int)",
)
NARROWING_LINE = 30
FP32_ATTENTION = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(Params)"


def operator(
    program: Lined,
    name: str,
    number: int,
    made: list[int],
    sizes: str,
    us: float = 0,
    kernel: str = GEMM,
    *,
    begin: float | None = None,
) -> None:
    """An operator with one kernel, or none; ``made``: what made its arguments, -1 for what is older than the step.

    ``begin``: when it began, for one that lies around those before.
    """
    begin = program.t if begin is None else begin
    program.host(5)
    if us:
        program.launch(us, kernel)
    if program.noted is not None:
        makers = ", ".join(f"({max(each, 0)},{-1 if each < 0 else 0})" for each in made)
        label = f"aten::{name}, op_id = {number}, sizes = [{sizes}], input_op_ids = [{makers}]"
        program.main.add_range(label, begin, program.t)


def whitening(program: Lined, step: int, *, multiplied: bool = True, rows: int = 4096) -> None:
    """A network (200 us); then a matrix of ``rows`` x 1024 times its transpose, its square, and that times the matrix, 400 us each."""
    at, x = 1000 * step + 10, f"[{rows}, 1024]"
    with program.range("forward"), program.range("net:Net"):
        operator(program, "linear", at, [-1, -1], "[64, 64], [64, 64]", 200)
    with program.line(LINE), program.range("optimizer Muon"):
        operator(program, "div", at + 1, [-1], x)
        operator(program, "numpy_T", at + 2, [at + 1], x)
        operator(program, "mm", at + 3, [at + 1, at + 2], f"{x}, [1024, {rows}]", 400)
        square = f"[{rows}, {rows}]"
        operator(program, "addmm", at + 4, [at + 3] * 3, f"{square}, {square}, {square}", 400)
        if multiplied:
            operator(program, "addmm", at + 5, [at + 1, at + 4, at + 1], f"{x}, {square}, {x}", 400)
    program.sync()


def on_shorter_side(folder: Path, **kind: object) -> list[Finding]:
    program = Lined(SOURCE).run(lambda program, step: whitening(program, step, **kind))  # type: ignore[arg-type]
    return [f for f in program.found(folder, "NSX131") if "shorter-side" in [way.name for way in f.remedies]]


def test_a_tall_matrix_is_turned_first(tmp_path: Path) -> None:
    (found,) = on_shorter_side(tmp_path)
    assert found.where["line"] == LINE and "1024 x 1024 are enough" in found.title
    # Of two products three quarters go, of the square 63 parts in 64.
    assert found.saving_ns_per_step == pytest.approx(400_000 * (0.75 + 63 / 64 + 0.75), rel=0.05)


@pytest.mark.parametrize("kind", [{"multiplied": False}, {"rows": 512}], ids=str)
def test_similarities_and_wide_matrices_are_as_small_as_can_be(kind: dict[str, object], tmp_path: Path) -> None:
    assert not on_shorter_side(tmp_path, **kind)


def segmenting(program: Lined, step: int, *, left: int) -> None:
    """256 channels are resampled (800 us) in one line, and a 1x1 convolution leaves ``left`` of them (100 us)."""
    at = 1000 * step + 10
    with program.line(LINE), program.range("forward"), program.range("net:Net"):
        operator(program, "upsample_bilinear2d", at, [-1], "[12, 256, 128, 128]", 800, RESAMPLE)
        operator(program, "to", at + 1, [at], "[12, 256, 512, 512]")
        operator(program, "conv2d", at + 2, [at + 1, -1], f"[12, 256, 512, 512], [{left}, 256, 1, 1]", 100)
    program.sync()


def resampled_last(folder: Path, left: int) -> list[Finding]:
    program = Lined(SOURCE).run(lambda program, step: segmenting(program, step, left=left))
    return [f for f in program.found(folder, "NSX131") if "mixed-before-resampled" in [way.name for way in f.remedies]]


def test_channels_are_mixed_before_they_are_resampled(tmp_path: Path) -> None:
    (found,) = resampled_last(tmp_path, 8)
    assert found.where["line"] == LINE and found.title == "256 channels are resampled, and 8 are left of them"
    assert found.saving_ns_per_step == pytest.approx(800_000 * (1 - 8 / 256), rel=0.05)


def test_as_many_channels_may_be_mixed_behind(tmp_path: Path) -> None:
    assert not resampled_last(tmp_path, 256)


def attending(program: Lined, step: int) -> None:
    with program.line(LINE), program.range("forward"), program.range("net:Net"):
        program.launch(300, GEMM)
        program.launch(600, FP32_ATTENTION)
    program.sync()


def of_dtype(folder: Path, dtype: str) -> Finding:
    settings = {"networks": [{"class": "Net", "dtypes": {dtype: 1000}}], "autocast": {"regions": 0, "dtypes": {}}}
    return Lined(SOURCE, settings).run(attending).finding(folder, "NSX116")


def test_attention_of_32_bits_in_a_network_of_16_was_made_so_on_the_way(tmp_path: Path) -> None:
    found = of_dtype(tmp_path, "bfloat16")
    assert found.verdict == "found" and [way.name for way in found.remedies] == ["same-dtype"]
    assert found.saving_ns_per_step == pytest.approx(600_000 * 14 / 15, rel=0.05)


def test_the_math_path_of_attention_computes_in_32_bits_whatever_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsx116_fp32_math, "runs_math_path", lambda case: object())
    found = of_dtype(tmp_path, "bfloat16")
    assert found.verdict == "clear" and "math path" in found.detail


def test_attention_of_a_network_of_32_bits_is_as_wide_as_that(tmp_path: Path) -> None:
    assert of_dtype(tmp_path, "float32").verdict == "clear"


def answering(program: Lined, step: int, *, reads: str) -> None:
    """A head (900 us) makes logits of 8 x 100 positions, from what a norm (100 us) makes; ``reads``: what of them is read."""
    at, logits = 1000 * step + 10, "[8, 100, 5000]"
    with program.line(LINE), program.range("forward"), program.range("net:Net"):
        operator(program, "layer_norm", at, [-1, -1, -1], "[8, 100, 64], [], [64]", 100, RESAMPLE)
        operator(program, "linear", at + 1, [at, -1], "[8, 100, 64], [5000, 64]", 900)
    with program.line(NARROWING_LINE):
        operator(program, "select", at + 2, [at + 1, -1, -1], f"{logits}, [], []")
        if reads == "written":
            operator(program, "copy_", at + 3, [at + 2, -1], "[8, 5000], [8, 5000]", 1)
        elif reads == "half":
            operator(program, "slice", at + 3, [at + 1, -1, -1], f"{logits}, [], []")
            operator(program, "argmax", at + 4, [at + 3, -1], "[8, 49, 5000], []", 1)
        operator(program, "argmax", at + 5, [at + 2, -1], "[8, 5000], []", 1)
        if reads == "all":
            operator(program, "cross_entropy_loss", at + 6, [at + 1, -1], f"{logits}, [800]", 1)
    program.sync()


def narrowed_first(folder: Path, reads: str) -> list[Finding]:
    program = Lined(SOURCE).run(lambda program, step: answering(program, step, reads=reads))
    return [f for f in program.found(folder, "NSX131") if "narrowed-first" in [way.name for way in f.remedies]]


@pytest.mark.parametrize(("reads", "kept"), [("last", 0.01), ("half", 0.5)])
def test_rows_that_nothing_reads_need_not_be_computed(reads: str, kept: float, tmp_path: Path) -> None:
    (found,) = narrowed_first(tmp_path, reads)
    assert (
        found.title
        == f"train.py:{NARROWING_LINE} keeps {100 * kept:.{1 if kept < 0.1 else 0}f} % of what train.py:{LINE} computes"
    )
    assert found.where["line"] == LINE
    assert found.saving_ns_per_step == pytest.approx(1_000_000 * (1 - kept), rel=0.05)


@pytest.mark.parametrize(
    ("network", "told"),
    [
        ({"package": "transformers", "logits_to_keep": True}, True),
        ({"package": "transformers", "logits_to_keep": False}, False),
        ({"package": "mine", "logits_to_keep": True}, False),
        ({}, False),  # the probe did not ask
    ],
)
def test_a_language_model_of_transformers_is_told_which_logits_to_make(
    network: dict[str, object], told: bool, tmp_path: Path
) -> None:
    settings = {"networks": [{"class": "LlamaForCausalLM", **network}]}
    program = Lined(SOURCE, settings).run(lambda program, step: answering(program, step, reads="last"))
    (found,) = [f for f in program.found(tmp_path, "NSX131") if "narrowed-first" in [way.name for way in f.remedies]]
    assert ("model(input_ids=ids, logits_to_keep=n)" in found.paste) is told is ("logits_to_keep" in found.fix)
    assert found.where["line"] == LINE


@pytest.mark.parametrize("reads", ["all", "written"])
def test_rows_that_something_reads_are_computed(reads: str, tmp_path: Path) -> None:
    assert not narrowed_first(tmp_path, reads)


CUTTING = {
    LINE: "return self.head(self.norm(x))",
    20: "labels = ids[:, 1:]",
    NARROWING_LINE: "scores = token_losses(model, ids)[:, -c.kept :]",
}


def scoring(program: Lined, step: int, *, by_rows: bool = True, reads: int = 25) -> None:
    """A head (900 us) makes logits of 8 x 100 positions, of which a loss (300 us) is one of each, or their mean; ``reads`` are read."""
    at, logits = 1000 * step + 10, "[8, 100, 5000]"
    with program.line(20), program.range("forward"):
        operator(program, "slice", at, [-1, -1], "[8, 101], []")
    with program.line(LINE), program.range("forward"), program.range("net:Net"):
        operator(program, "layer_norm", at + 1, [-1, -1, -1], "[8, 100, 64], [], [64]", 50, RESAMPLE)
        operator(program, "linear", at + 2, [at + 1, -1], "[8, 100, 64], [5000, 64]", 900)
    with program.line(21), program.range("forward"):
        operator(program, "flatten", at + 3, [at + 2, -1], f"{logits}, []")
        operator(program, "flatten", at + 4, [at, -1], "[8, 100], []")
        operator(program, "cross_entropy_loss", at + 5, [at + 3, at + 4], "[800, 5000], [800]", 300, RESAMPLE)
        operator(program, "view", at + 6, [at + 5, -1], "[800], []" if by_rows else "[], []")
    with program.line(NARROWING_LINE):
        if by_rows:
            operator(program, "slice", at + 7, [at + 6, -1, -1], "[8, 100], [], []")
        operator(
            program, "mean", at + 8, [at + (7 if by_rows else 6), -1], f"[8, {reads}], []" if by_rows else "[], []", 1
        )
    program.sync()


def scored(folder: Path, **kind: Any) -> list[Finding]:
    program = Lined(CUTTING).run(lambda program, step: scoring(program, step, **kind))
    return [f for f in program.found(folder, "NSX131") if "narrowed-first" in [way.name for way in f.remedies]]


def test_losses_of_rows_are_cut_before_the_head(tmp_path: Path) -> None:
    """The loss of each row is narrowed with the logits that it is made of, and what these are compared with is cut, too."""
    (found,) = scored(tmp_path)
    assert found.title == f"train.py:{NARROWING_LINE} keeps 25 % of what train.py:{LINE} computes"
    assert found.where["line"] == LINE
    assert found.saving_ns_per_step == pytest.approx(0.75 * 1_250_000, rel=0.05)
    assert "return self.head(self.norm(x)[:, -25:])" in found.paste
    assert "labels = ids[:, 1:][:, -25:]" in found.paste


@pytest.mark.parametrize("kind", [{"by_rows": False}, {"reads": 100}], ids=str)
def test_a_mean_loss_and_one_that_is_read_whole_need_all_rows(kind: dict[str, Any], tmp_path: Path) -> None:
    assert not scored(tmp_path, **kind)


RANKING = {
    20: "out = self.net(input_ids=ids, attention_mask=mask)",
    21: "logp = torch.log_softmax(out.logits.float(), dim=-1)",
    NARROWING_LINE: "return logp[:, -1].index_select(-1, self.words)",
}
OF_ROWS, OF_COLUMNS = (
    f"void at::native::(anonymous namespace)::{name}<4, float, float, float>(float*)"
    for name in ("cunn_SoftMaxForwardGmem", "cunn_SpatialSoftMaxForward")
)


def ranking(program: Lined, step: int, *, kernel: str) -> None:
    """A head (500 us), a cast (300 us) and a softmax (400 us) of 8 x 100 positions, of which the words' numbers at the last are read."""
    at, logits = 1000 * step + 10, "[8, 100, 5000]"
    with program.line(20), program.range("forward"), program.range("net:Ranker"):
        operator(program, "linear", at, [-1, -1], "[8, 100, 64], [5000, 64]", 500)
    with program.line(21):
        operator(program, "to", at + 1, [at, -1], f"{logits}, []", 300, RESAMPLE)
        operator(program, "log_softmax", at + 2, [at + 1, -1, -1], f"{logits}, [], []", 400, kernel)
    with program.line(NARROWING_LINE):
        operator(program, "select", at + 3, [at + 2, -1, -1], f"{logits}, [], []")
        operator(program, "index_select", at + 4, [at + 3, -1, -1], "[8, 5000], [], [2]", 2)
        operator(program, "argmax", at + 5, [at + 4, -1], "[8, 2], []", 2)
    program.sync()


def ranked(folder: Path, kernel: str, source: dict[int, str] = RANKING, *, keeps: bool = True) -> list[Finding]:
    """Return what is told of it; ``keeps``: a package's model that may be told which logits to make."""
    networks = [{"class": "Ranker", "package": "transformers" if keeps else "own", "logits_to_keep": keeps}]
    program = Lined(source, {"networks": networks}).run(lambda program, step: ranking(program, step, kernel=kernel))
    return program.found(folder, "NSX131")


def test_logits_of_one_place_behind_a_softmax_are_made_for_that_alone(tmp_path: Path) -> None:
    """Nothing is compared with them: no loss is told."""
    (found,) = [f for f in ranked(tmp_path, OF_ROWS) if "narrowed-first" in [way.name for way in f.remedies]]
    assert found.saving_ns_per_step == pytest.approx(0.99 * 1_200_000, rel=0.05) and found.where["line"] == 20
    assert found.paste.startswith("out = self.net(input_ids=ids, attention_mask=mask, logits_to_keep=1)  # train.py:20")


def test_the_rows_of_an_own_head_are_cut_before_it(tmp_path: Path) -> None:
    found = ranked(tmp_path, OF_ROWS, RANKING | {20: "logits = self.head(x)"}, keeps=False)
    assert any("logits = self.head(x[:, -1:])" in each.paste for each in found)


def test_a_softmax_over_places_needs_all_of_them(tmp_path: Path) -> None:
    remedies = {way.name for f in ranked(tmp_path, OF_COLUMNS) for way in f.remedies}
    assert not remedies & {"narrowed-first", "fused-loss"}


def steering(program: Lined, step: int, *, inverse: str, side: int, read: bool, network: bool = True) -> None:
    """A network (300 us), or functions alone; an inverse of 512 matrices (200 us) that a product (10 us) and, if ``read``, a sum reads."""
    at, size = 1000 * step + 10, f"[512, 8, {side}]"
    with program.range("forward"), program.range("net:Net") if network else nullcontext():
        operator(program, "linear", at, [-1, -1], "[64, 64], [64, 64]", 300)
    with program.line(LINE):
        operator(program, inverse, at + 1, [at, -1], f"{size}, []", 200)
        operator(program, "matmul", at + 2, [at + 1, at], f"{size}, [512, 8, 2]", 10)
        if read:
            operator(program, "sum", at + 3, [at + 1], size, 2)
        # A number of Python in the place of the inverse.
        operator(program, "add", at + 4, [at + 2, at + 1], "[512, 8, 2], []", 2)
    program.sync()


def solved(
    folder: Path, *, inverse: str = "linalg_pinv", side: int = 8, read: bool = False, network: bool = True
) -> list[Finding]:
    program = Lined(SOURCE).run(
        lambda program, step: steering(program, step, inverse=inverse, side=side, read=read, network=network)
    )
    return [f for f in program.found(folder, "NSX131") if "solved-for-inverse" in [way.name for way in f.remedies]]


@pytest.mark.parametrize(("inverse", "network"), [("linalg_pinv", True), ("linalg_inv", True), ("linalg_inv", False)])
def test_an_inverse_that_is_only_multiplied_on_is_solved_for(tmp_path: Path, inverse: str, network: bool) -> None:
    (found,) = solved(tmp_path, inverse=inverse, network=network)
    assert found.where["line"] == LINE and "512 matrices of 8 x 8" in found.title and found.saving.bound
    assert found.saving_ns_per_step == pytest.approx(200_000, rel=0.1)
    assert inverse.replace("linalg_", "linalg.") in found.paste and ("full rank" in found.condition) is (
        inverse == "linalg_pinv"
    )


@pytest.mark.parametrize(
    "kind", [{"read": True}, {"side": 4}, {"inverse": "linalg_cholesky"}, {"read": True, "network": False}], ids=str
)
def test_what_is_read_otherwise_or_no_square_is_needed(tmp_path: Path, kind: dict[str, Any]) -> None:
    assert not solved(tmp_path, **kind)


DISTILLING = {
    20: "theirs = self.teacher(ids)",
    21: "ours = self.student(ids)",
    LINE: "return self.head(self.norm(x))",
    NARROWING_LINE: "ours = ours[:, first - 1:-1] / heat",
    31: "theirs = theirs[:, first - 1:-1] / heat",
}


def distilling(
    program: Lined, step: int, *, read: int, follows: bool = True, deeper: bool = False, more: bool = False
) -> None:
    """A trained head (400 us) makes logits of 8 x 1000 positions; ``read`` of them, and of those that a frozen one (500 us) made before the
    step, are read (100 us each). The frozen one's logits of the next step come last.
    ``deeper``: a function that line 50 calls makes the logits, and ``more`` of all rows.
    """
    at, logits = 1000 * step + 10, "[8, 1000, 5000]"

    def head(line: int, module: str, number: int, us: float) -> None:
        with program.line(line), program.range(module):
            program.host(1)
            with program.line(50, "forward") if deeper else nullcontext():
                program.host(1)
                if more:
                    with program.line(51, "head"):
                        operator(program, "cumsum", number + 400, [-1], "[8, 1000, 64], []", 1, RESAMPLE)
                with program.line(LINE, "head" if deeper else "forward"):
                    operator(program, "linear", number, [-1, -1], "[8, 1000, 64], [5000, 64]", us)
                program.host(1)
            program.host(1)

    with program.range("forward"):
        head(21, "net:Net", at, 400)
    for row, line, made in ((1, NARROWING_LINE, at), (3, 31, at - 1000 + 6 if follows else -1)):
        with program.line(line):
            operator(program, "slice", at + row, [made, -1, -1], f"{logits}, [], []")
            operator(program, "div", at + row + 1, [at + row], f"[8, {read}, 5000]", 100, RESAMPLE)
    with program.line(40):
        operator(program, "sub", at + 5, [at + 2, at + 4], f"[8, {read}, 5000], [8, {read}, 5000]", 1)
    head(20, "frozen:Net", at + 6, 500)
    program.sync()


def distilled(folder: Path, source: dict[int, str] = DISTILLING, **kind: Any) -> list[Finding]:
    program = Lined(source).run(lambda program, step: distilling(program, step, **kind))
    return [f for f in program.found(folder, "NSX131") if "narrowed-first" in [way.name for way in f.remedies]]


def test_what_the_step_behind_reads_of_a_frozen_network_is_all_that_it_need_make(tmp_path: Path) -> None:
    """Both heads are priced, with many rows left as a likely value, and the slice is handed to both calls."""
    (found,) = distilled(tmp_path, read=250)
    assert found.title == f"train.py:{NARROWING_LINE} and train.py:31 keep 25 % of what train.py:{LINE} computes"
    assert not found.saving.bound and found.saving_ns_per_step == pytest.approx(0.75 * 900_000, rel=0.05)
    # What is picked lies in one piece then, and may be read faster.
    assert (found.saving.most_ns or 0) >= 0.75 * 900_000 + 0.6 * 200_000 - 10_000
    assert [line.partition("  #")[0] for line in found.paste.splitlines()] == [
        "keep = slice(first - 1, -1)",
        "theirs = self.teacher(ids, keep=keep)",
        "ours = self.student(ids, keep=keep)",
        "ours = ours / heat",
        "theirs = theirs / heat",
        "return self.head(self.norm(x)[:, keep])",
    ]


@pytest.mark.parametrize("more", [False, True])
def test_a_slice_is_handed_to_the_forward_that_calls_what_makes_the_rows(tmp_path: Path, more: bool) -> None:
    """Where that makes something of all rows, too, it cannot be given fewer."""
    source = DISTILLING | {50: "return self.head(self.hidden(ids))", LINE: "return F.linear(self.norm(x), self.weight)"}
    (found,) = distilled(tmp_path, source, read=250, deeper=True, more=more)
    assert ("keep = slice" in found.paste) == (not more)
    if not more:
        assert "theirs = self.teacher(ids, keep=keep)  # " in found.paste
        assert found.paste.endswith(
            "return self.head(self.hidden(ids)[:, keep])  # train.py:50: its forward takes keep=slice(None), too"
        )


def test_few_rows_left_are_a_bound(tmp_path: Path) -> None:
    (found,) = distilled(tmp_path, read=10)
    assert found.saving.bound


def test_a_frozen_network_whose_logits_are_all_read_is_as_large_as_it_has_to_be(tmp_path: Path) -> None:
    assert not distilled(tmp_path, read=1000)


def test_a_slice_whose_bounds_come_between_call_and_cut_is_not_handed_on(tmp_path: Path) -> None:
    (found,) = distilled(tmp_path, DISTILLING | {25: "first = ours.shape[1] - length"}, read=250)
    assert "keep = slice" not in found.paste
