"""NSX127: a loop that exchanges tensors one by one, and layers that need each exchange before they go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from nsysx.findings import _messages_in_one
from tests.findings import said_of
from tests.findings.lined import FILE, Lined

EXCHANGE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)"
SOURCE = {
    20: "y = net(x)",
    21: "loss.backward()",
    31: "dist.all_to_all_single(out, x.contiguous())",
    37: "dist.all_to_all_single(back, grad.contiguous())",
    68: "got = Exchange.apply(feature)",
}
TIMES, HOST_US = 32, 40


def exchanged(program: Lined, line: int = 68) -> None:
    """A line exchanges a tensor: 40 us of Python, a copy, and the message."""
    with program.line(line):
        program.host(HOST_US)
        with program.line(31, "Exchange.forward"):
            program.host(2)
            program.launch(2, "copy_kernel")
            program.launch(10, EXCHANGE)


def step(program: Lined, *, times: int = TIMES, between: str = "", line: int = 68) -> None:
    """Exchanges of one function, each with 40 us of Python before it; ``between``: a kernel that runs before each of them."""
    for _ in range(times):
        if between:
            with program.line(20), program.range("forward"), program.range("net:Net"):
                program.launch(20, between)
        exchanged(program, line)
    with program.line(21), program.range("backward"):
        program.launch(400)


def settings_told(folder: Path, source: dict[int, str] | None = None, **how: object) -> dict[str, object]:
    program = Lined({**SOURCE, **(source or {})}).run(lambda p, n: step(p, **how))  # type: ignore[arg-type]
    return {str(f.evidence[0]["setting"]): f for f in program.found(folder, "NSX127")}


def test_exchanges_of_a_loop_are_told_at_its_line_with_what_all_but_one_cost(tmp_path: Path) -> None:
    program = Lined(SOURCE).run(lambda p, n: step(p))
    finding = next(f for f in program.found(tmp_path, "NSX127") if f.evidence[0]["setting"] == "exchanges in a loop")
    assert (finding.where["file"], finding.where["line"]) == (FILE, 68)
    assert [r.name for r in finding.remedies] == ["packed-exchange"] and "runs 32 times in each step" in finding.detail
    # Each of the 31 others: 42 us of Python, and the launches behind it.
    least = (TIMES - 1) * (HOST_US + 2) * 1_000
    assert 0.8 * least <= (finding.saving_ns_per_step or 0) <= 1.6 * least


def saving(folder: Path, kernel: str, launches: int = 1) -> int:
    """Return what it saves to pack exchanges that go back in a backward, each behind so many launches of a kernel of another line."""

    def body(program: Lined, _: int) -> None:
        step(program)
        with program.line(21), program.range("backward"):
            for _ in range(TIMES):
                for _ in range(launches):
                    with program.line(69):
                        program.host(HOST_US)
                        program.launch(2, kernel)
                with program.line(37, "Exchange.backward"):
                    program.host(HOST_US)
                    program.launch(10, EXCHANGE)

    finding = next(
        f for f in Lined(SOURCE).run(body).found(folder, "NSX127") if f.evidence[0]["setting"] == "exchanges in a loop"
    )
    return finding.saving_ns_per_step or 0


def test_copies_between_exchanges_are_made_once_for_all(tmp_path: Path) -> None:
    """A gradient goes back through a stack: a copy of its forward's line makes it contiguous for each exchange."""
    folders = [tmp_path / name for name in ("copies", "sums", "many")]
    for folder in folders:
        folder.mkdir()
    copies, sums = saving(folders[0], "direct_copy_kernel"), saving(folders[1], "sum_kernel")
    many = saving(folders[2], "direct_copy_kernel", 6)
    least = (TIMES - 1) * HOST_US * 1_000
    assert 0.8 * least <= copies - sums <= 1.2 * least and abs(many - sums) < 0.1 * least


@pytest.mark.parametrize(
    ("source", "how"),
    [
        (
            {},
            {"between": "sm90_xmma_gemm_f32f32"},
        ),  # a layer that is split over the ranks: its product is what is exchanged
        ({}, {"times": 8}),
        ({31: "dist.all_reduce(p.grad)"}, {}),  # gradients have a remedy of their own
        ({31: "out = attend(x)"}, {}),
    ],
    ids=["products between", "a few", "gradients", "not by this line"],
)
def test_other_collectives_are_no_loop(source: dict[int, str], how: dict[str, object], tmp_path: Path) -> None:
    assert "exchanges in a loop" not in settings_told(tmp_path, source, **how)


def layered(program: Lined, each: int, layers: int = 16) -> None:
    """Layers that exchange so many tensors each, a product behind them."""
    for _ in range(layers):
        with program.line(20), program.range("forward"), program.range("net:Net"):
            program.launch(20, "sm90_xmma_gemm_f32f32")
            for _ in range(each):
                exchanged(program)
    with program.line(21), program.range("backward"):
        program.launch(400)


@pytest.mark.parametrize(("each", "told"), [(3, True), (1, False), (2, False)])
def test_exchanges_of_each_layer_are_told_where_they_are_many_together(each: int, told: bool, tmp_path: Path) -> None:
    """Queries, keys and values of 16 layers: 32 of 48 go. Two of each are 16 that go: less than counts."""
    found = Lined(SOURCE).run(lambda p, n: layered(p, each)).found(tmp_path, "NSX127")
    packed = [f for f in found if f.evidence[0]["setting"] == "exchanges in a loop"]
    assert bool(packed) == told
    for finding in packed:
        assert "runs 48 times in each step, 3 at a time, with nothing computed between" in finding.detail
        least = 32 * (HOST_US + 2) * 1_000
        assert 0.6 * least <= (finding.saving_ns_per_step or 0) <= 1.6 * least


BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def updated(program: Lined, times: int = 200) -> None:
    """A step whose optimizer updates a part of the parameters, and then sends all of them one by one."""
    with program.line(20), program.range("forward"), program.range("net:Net"):
        program.launch(500, "sm90_xmma_gemm_f32f32")
    with program.line(21), program.range("backward"):
        program.launch(1_000, "sm90_xmma_gemm_f32f32")
        program.launch(200, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    with program.line(40), program.range("optimizer"):
        program.launch(100, "multi_tensor_apply_kernel")
    for _ in range(times):
        with program.line(50):
            program.host(25)
            program.launch(12, BROADCAST)
    program.sync()


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("dist.broadcast(p.data, src=i % world)", "updates-gathered"),
        ("dist.broadcast(param.data, owner[i])", "updates-gathered"),
        ("works.append(dist.broadcast(weight, p.owner, async_op=True))", "updates-gathered"),
        ("dist.broadcast(p.data, src=0)", "weights-sent-once"),
    ],
)
def test_what_each_rank_updates_is_gathered_at_once(text: str, remedy: str, tmp_path: Path) -> None:
    """Only where one rank sends all is it needless: what each rank has updated, the others need."""
    program = Lined({**SOURCE, 50: text}).run(lambda program, _: updated(program))
    found = {f.code: f for f in said_of(program.write(tmp_path)) if f.verdict == "found" and f.where.get("line") == 50}
    names = {way.name for f in found.values() for way in f.remedies} & {
        "updates-gathered",
        "weights-sent-once",
        "packed-exchange",
    }
    assert remedy in names and ("weights-sent-once" in names) == (remedy == "weights-sent-once")
    if remedy == "updates-gathered":
        assert names == {remedy}


@pytest.mark.parametrize(
    ("head", "text", "paste"),
    [
        (
            "for p, rank in self.owner.items():",
            "dist.broadcast(p, src=rank, group=self.group)",
            [
                "for sender in sorted({rank for p, rank in self.owner.items()}):",
                "    theirs = [p.detach() for p, rank in self.owner.items() if rank == sender]",
                "    flat = torch._utils._flatten_dense_tensors(theirs)",
                "    dist.broadcast(flat, src=sender, group=self.group)",
                "    torch._foreach_copy_(theirs, torch._utils._unflatten_dense_tensors(flat, theirs))",
            ],
        ),
        (
            "for i, p in enumerate(params):",
            "works.append(dist.broadcast(p.data, i % world, async_op=True))",
            [
                "for sender in sorted({i % world for i, p in enumerate(params)}):",
                "    theirs = [p.data for i, p in enumerate(params) if i % world == sender]",
                "    flat",
                "    dist.broadcast(flat, sender)",
                "    torch._foreach_copy_(",
            ],
        ),
        ("for p in params:", "dist.broadcast(p.data, src=owner[p])", ["for sender in sorted({owner[p] for p in params}):"]),
        ("while params:", "dist.broadcast(params.pop(), src=ranks.pop())", []),
    ],
)  # fmt: skip
def test_a_loop_of_owners_in_its_own_names(head: str, text: str, paste: list[str], tmp_path: Path) -> None:
    program = Lined({**SOURCE, 49: head, 50: f"    {text}"}).run(lambda program, _: updated(program))
    told = [f for f in program.found(tmp_path, "NSX127") if f.evidence[0]["setting"] == "exchanges in a loop"]
    if not paste:
        assert all("theirs = [" not in f.paste for f in told)
        return
    (found,) = told
    assert found.title == "What each rank updates is broadcast one by one" and found.where["line"] == 50
    assert all(map(str.startswith, found.paste.splitlines(), paste))


def test_what_one_rank_sends_in_a_loop_is_no_owners() -> None:
    program = Lined({**SOURCE, 49: "for p, scale in pairs:", 50: "    dist.broadcast(p, src=root)"})
    texts = {FILE: program.source}
    with patch.object(_messages_in_one, "texts", lambda _: texts):
        profile: Any = None
        assert not _messages_in_one.by_owners(profile, FILE, 50)
        assert (
            _messages_in_one.in_one_message(profile, FILE, 50).splitlines()[0]
            == "theirs = [p.detach() for p, scale in pairs]"
        )


def by_head(program: Lined, layers: int = 6, heads: int = 8) -> None:
    """Layers whose queries, keys and values are exchanged head by head, and then what attention makes of them: 24 and 8 together."""
    for _ in range(layers):
        for tensors in (3, 1):
            with program.line(20), program.range("forward"), program.range("net:Net"):
                program.launch(20, "sm90_xmma_gemm_f32f32")
                for _ in range(tensors):
                    for _ in range(heads):
                        with program.line(68):
                            program.host(HOST_US)
                            program.launch(2, "copy_kernel")
                            program.launch(2, "copy_kernel")
                            program.launch(10, EXCHANGE)
                            program.launch(2, "CatArrayBatchedCopy")
                    program.launch(2, "CatArrayBatchedCopy")
    with program.line(21), program.range("backward"):
        program.launch(400)


def test_exchanges_of_heads_are_told_where_keys_and_results_take_one_line(tmp_path: Path) -> None:
    source = {**SOURCE, 68: "dist.all_to_all(got, parts, group=sp)"}
    found = Lined(source).run(lambda program, _: by_head(program)).found(tmp_path, "NSX127")
    packed = next((f for f in found if f.evidence[0]["setting"] == "exchanges in a loop"), None)
    assert packed is not None and [r.name for r in packed.remedies] == ["packed-exchange"]
    assert "runs 192 times in each step, 16 at a time" in packed.detail
