"""NSX127: rows that ranks exchange as float32 and compute on in 16 bits, and exchanges that need their 32 bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings import _bucket_options, _rows_in_16_bits
from nsysx.inject.nsysx_probe import sources
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined, all_is_transfer
from tests.findings.test_smaller_operators import GEMM, operator
from tests.findings.test_widened_messages import NARROW, NORM, OWN, WIDEN, converted

SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)"
PICK = (
    "void at::native::vectorized_gather_kernel<(int)16, long>(char *, char *, T2 *, int, long, long, long, long, bool)"
)
HALF = "[32, 128]"
PICKING, SENDING = 33, 34
SOURCE = {
    20: "y = self.norm(x)",
    PICKING: "rows = Sorted.apply(y, order)",
    SENDING: "dist.all_to_all_single(out, rows.contiguous())",
}
DDP = "model = DistributedDataParallel(model, bucket_cap_mb=25, gradient_as_bucket_view=True)"


def exchanged(program: Lined, at: int, made: int) -> int:
    """An exchange of rows that operator ``made`` made; returns the number of what came."""
    operator(program, "empty", at, [-1], "[]")
    begin = program.t
    program.launch(200, SEND)
    if program.noted is not None:
        given = f"({at},0), ({made},0)"
        label = f"c10d::alltoall_base_, op_id = {at + 1}, sizes = [{OWN}, {OWN}, []], input_op_ids = [{given}, (0,-1)]"
        program.main.add_range(label, begin, program.t)
    return at + 1


def step(program: Lined, number: int, *, kind: str) -> None:
    """Rows that are normalized (float32), sorted (40 us), exchanged (200 us), taken apart, and multiplied by two experts."""
    at = 1000 * number + 10
    with program.line(20), program.range("forward"), program.range("net:Net"):
        operator(program, "layer_norm", at, [-1, -1], f"{OWN}, [128]", 100, NORM)
    last = at
    if kind == "cast before":
        with program.line(21):
            converted(program, at + 1, last, NARROW)
        last = at + 1
    with program.line(PICKING):
        operator(program, "index_select", at + 3, [last, -1, -1], f"{OWN}, [], [64]", 40, PICK)
    with program.line(SENDING):
        came = exchanged(program, at + 20, at + 3)
    with program.line(40):
        begin = program.t
        for part in (31, 32):
            operator(program, "as_strided", at + part, [came, -1], f"{OWN}, []")
        if program.noted is not None:
            label = (
                f"aten::split_with_sizes, op_id = {at + 30}, sizes = [{OWN}, []], input_op_ids = [({came},0), (0,-1)]"
            )
            program.main.add_range(label, begin, program.t)
    for n, part in enumerate((31, 32)):
        with program.line(41 + n):
            source = at + part
            if kind == "one part as it is" and n:
                operator(program, "add", at + 50, [source, -1], f"{HALF}, {HALF}", 5, NORM)
            elif kind != "cast before":
                converted(program, at + 41 + 2 * n, source, NARROW)
                source = at + 41 + 2 * n
            operator(program, "mm", at + 51 + n, [source, -1], f"{HALF}, [128, 128]", 100)
    if kind == "converted for the way back":
        with program.line(43):
            converted(program, at + 60, at + 51, WIDEN)
    program.sync()


def finding(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Finding | None:
    all_is_transfer(monkeypatch)
    program = Lined(SOURCE).run(lambda program, number: step(program, number, kind=kind))
    settings = {str(f.evidence[0]["setting"]): f for f in program.found(folder, "NSX127")}
    return settings.get("float32 messages")


@pytest.mark.parametrize("kind", ["cast behind", "converted for the way back"])
def test_rows_are_cast_where_they_are_sorted(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = finding(tmp_path, kind, monkeypatch)
    assert found is not None and "converted to 16 bits" in found.detail
    assert (found.where["file"], found.where["line"]) == (FILE, PICKING)
    assert [r.name for r in found.remedies] == ["exchanged-in-16-bits"]
    assert found.paste == "rows = Sorted.apply(y.to(torch.bfloat16), order)"
    # Half of the transfer and of the sorting, and both conversions (20 us each).
    assert not found.saving.bound and found.saving.likely_ns is not None and found.saving.most_ns is not None
    assert found.saving.most_ns == pytest.approx(100_000 + 20_000 + 40_000, rel=0.1)
    assert found.saving.likely_ns - (found.saving.error_ns or 0) < found.saving.likely_ns <= found.saving.most_ns


@pytest.mark.parametrize(
    "kind",
    [
        "cast before",  # they have 16 bits already
        "one part as it is",  # which float32 is computed of
    ],
)
def test_exchanges_that_need_their_bits_or_have_few(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert finding(tmp_path, kind, monkeypatch) is None


@pytest.mark.parametrize(
    ("text", "cast"),
    [
        ("rows = x.index_select(0, order)", "rows = x.to(torch.float16).index_select(0, order)"),
        ("rows = torch.gather(x, 0, order)", "rows = torch.gather(x.to(torch.float16), 0, order)"),
        ("rows = x[order]", "rows = x.to(torch.float16)[order]"),
        (
            "dist.all_to_all_single(out, x.contiguous(), a, b)",
            "x = x.to(torch.float16)  # before out is made, which has its type\ndist.all_to_all_single(out, x.contiguous(), a, b)",
        ),
        ("rows = sort(x)", ""),
        ("rows = table[n] + x[order]", ""),
        ("rows = (x + y", ""),
    ],
)
def test_the_line_with_the_cast_is_written_where_its_text_tells_it(text: str, cast: str) -> None:
    assert _rows_in_16_bits.cast_in(text, "torch.float16") == cast


def test_a_conversion_is_left_out_where_there_is_one() -> None:
    written = _rows_in_16_bits.without_conversion("return merge(out).type_as(rows)")
    assert written == "return merge(out)  # converted behind the exchange"
    assert not _rows_in_16_bits.without_conversion("return merge(out.float(), rows.float())")


@pytest.mark.parametrize(
    ("cap_mb", "view", "left"),
    [
        (25, True, ""),
        (25, False, "model = DistributedDataParallel(model, gradient_as_bucket_view=True)"),
        (500, True, "model = DistributedDataParallel(model, bucket_cap_mb=25)"),
        (500, False, DDP),
    ],
)
def test_options_that_are_set_already_are_no_advice(cap_mb: int, view: bool, left: str) -> None:
    wrapper = {"kind": "DDP", "bucket_cap_bytes": cap_mb << 20, "gradient_as_bucket_view": view}
    assert _bucket_options.changing_options(DDP, RecordedSettings({"wrappers": [wrapper]})) == left
    assert _bucket_options.changing_options(DDP, None) == DDP


def called_with_casts(program: Lined, number: int) -> None:
    """A function of autograd converts what it is given (20 us), exchanges it (200 us), and a product (100 us) reads what came."""
    at = 1000 * number + 10
    with program.line(20), program.range("forward"), program.range("net:Net"):
        operator(program, "linear", at, [-1, -1], f"{OWN}, [128, 128]", 300, GEMM)
    with program.line(PICKING):
        converted(program, at + 1, at, WIDEN)
        with program.line(SENDING, "exchange"):
            came = exchanged(program, at + 20, at + 1)
    with program.line(40):
        operator(program, "linear", at + 30, [came, -1], f"{OWN}, [128, 128]", 100, GEMM)
    program.sync()


@pytest.mark.parametrize(
    ("call", "decorator", "line", "paste"),
    [
        (
            "rows = Exchange.apply(y, group)",
            "@custom_fwd(cast_inputs=torch.float32, device_type=KIND)",
            12,
            "@custom_fwd(device_type=KIND)  # of Exchange.forward: an exchange does no arithmetic",
        ),
        (
            "rows = Exchange.apply(y, group)",
            "",
            PICKING,
            "@custom_fwd(device_type='cuda')  # of Exchange.forward: an exchange does no arithmetic, and needs no cast_inputs",
        ),
        ("rows = Exchange.apply(y.float(), group)", "", PICKING, "rows = Exchange.apply(y, group)  # converted behind the exchange"),
    ],
)  # fmt: skip
def test_what_a_decorator_converts(
    call: str, decorator: str, line: int, paste: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_is_transfer(monkeypatch)
    program = Lined({20: "y = net(x)", PICKING: call, SENDING: SOURCE[SENDING], 40: "return self.experts(rows)"})
    program.run(called_with_casts)
    program.probe["of_ranks"] = {FILE: {"12": decorator}} if decorator else {}
    told = [f for f in program.found(tmp_path, "NSX127") if f.evidence[0]["setting"] == "float32 messages"]
    assert [(f.where["line"], f.paste) for f in told] == [(line, paste)]


def test_decorators_that_convert_are_noted() -> None:
    texts = [
        "    @custom_fwd(cast_inputs=torch.float32)",
        "@custom_fwd",
        "# @custom_fwd(cast_inputs=torch.half)",
        "f(cast_inputs=1)",
    ]
    assert [bool(sources._CASTS.search(text)) for text in texts] == [True, False, False, False]
