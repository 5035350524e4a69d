"""NSX127: tensors that a line hands to other ranks as pickled objects in each step, and objects that are small, rare, or no data."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.findings import _pickled_in_steps
from nsysx.findings._case import Saving
from nsysx.findings._object_calls import object_call, paste_of, tensors_used
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined

MAKES, SENDS, RETURNS, CALLS, USES = 30, 31, 32, 40, 41
SAVED_NS = 4_000_000
BROADCAST = "dist.broadcast_object_list(batch, src=0, device=device)"
SOURCE = {
    20: "y = net(x)",
    MAKES: "batch = [next(loader) if loader is not None else None]",
    SENDS: BROADCAST,
    RETURNS: "return batch[0]",
    CALLS: "batch = next_batch(loader, device)",
    USES: 'target = batch["target"].to(device)',
}


def step(program: Lined, number: int, size: int = 40 << 20, every: int = 1) -> None:
    """A step, and in each, or each few, an object that is sent as its size and its bytes, which are unpickled."""
    with program.line(CALLS):
        with program.line(MAKES, "next_batch"):
            program.host(5)
        with program.line(SENDS, "next_batch"):
            if number % every == 0:
                program.launch(20, "ncclDevKernel_Broadcast_RING_LL")
                program.copy(5, "DtoH", bytes=8)
                program.launch(500, "ncclDevKernel_Broadcast_RING_LL")
                program.copy(500, "DtoH", bytes=size)
                program.host(3_000)
        with program.line(RETURNS, "next_batch"):
            program.host(2)
    with program.line(USES):
        program.copy(100, "HtoD", bytes=size // 2)
    with program.line(20), program.range("forward"), program.range("net:Net"):
        program.launch(4_000)


def told(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: dict[int, str] | None = None,
    saved_ns: int | None = SAVED_NS,
    **sent: int,
) -> list[Finding]:
    """Return what is told of a rank that gets objects, of a job whose replay saves so much of a step without them."""
    saving = None if saved_ns is None else Saving(saved_ns, "replayed", error_ns=10_000, source="replay")
    asked = list[str]()
    monkeypatch.setattr(_pickled_in_steps, "on_all_ranks", lambda case, name: asked.append(name) or saving)
    monkeypatch.setattr(_pickled_in_steps, "rank_rows", lambda case: [{"process": case.process, "rank": 1}])
    program = Lined({**SOURCE, **(source or {})}, {"backwards": 1}).run(lambda p, n: step(p, n, **sent))
    found = [f for f in program.found(folder, "NSX127") if f.evidence[0]["setting"] == "objects in each step"]
    assert set(asked) <= {f"train.py:{SENDS} sends nothing"}
    assert len(asked) <= 2, "which line it is, once for the finding and all that is said of it, and its price"
    return found


def test_a_batch_that_is_pickled_in_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = told(tmp_path, monkeypatch)
    assert (finding.where["file"], finding.where["line"]) == (FILE, SENDS)
    assert finding.title == f"train.py:{SENDS} pickles tensors for other ranks in each step, in next_batch"
    assert "Send `target` as a tensor with dist.broadcast" in finding.fix and "with the same seed" in finding.fix
    assert "40.0 MiB are pickled" in finding.detail and "the GPU of rank 1 idles" in finding.detail
    assert "    dist.broadcast(tensor, src=0)\n" in finding.paste
    assert (
        finding.saving.likely_ns == SAVED_NS and finding.saving.error_ns == SAVED_NS // 4 and not finding.saving.bound
    )


@pytest.mark.parametrize(
    ("source", "sent", "saved_ns"),
    [
        ({}, {"size": 1_000}, SAVED_NS),  # names and texts: their cost is the meeting
        ({}, {"every": 4}, SAVED_NS),  # a configuration, a checkpoint
        ({}, {}, None),  # ranks that are not replayed together
        ({}, {}, 1_000),
        ({MAKES: "batch = [net.state_dict()]"}, {}, SAVED_NS),  # weights have a rule of their own
        ({SENDS: "dist.broadcast(batch, src=0)"}, {}, SAVED_NS),
    ],
)
def test_objects_that_are_small_or_rare_or_no_data_are_not_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: dict[int, str],
    sent: dict[str, int],
    saved_ns: int | None,
) -> None:
    assert not told(tmp_path, monkeypatch, source, saved_ns, **sent)


@pytest.mark.parametrize(
    ("call", "advice", "pasted"),
    [
        (
            "dist.all_gather_object(everyone, batch)",
            "Gather the tensors themselves with dist.all_gather",
            "dist.all_gather(everyone, batch.contiguous())",
        ),
        (
            "dist.scatter_object_list(own, batch, src=0)",
            "Send each rank its part as a tensor with dist.scatter",
            "dist.scatter(part, [x.cuda(non_blocking=True) for x in batch] if dist.get_rank() == 0 else None, src=0)",
        ),
    ],
)
def test_other_calls_that_send_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, advice: str, pasted: str
) -> None:
    (finding,) = told(tmp_path, monkeypatch, {SENDS: call})
    assert finding.fix.startswith(advice) and pasted in finding.paste.splitlines()


@pytest.mark.parametrize(
    ("used", "keys"),
    [
        ({40: "b = next_batch(it)", 41: 'x = b["image"].cuda()', 42: "y = b['label'].cuda()"}, ("image", "label")),
        ({40: "b = next_batch(it)", 41: "loss = net(**b)"}, ()),
        ({32: 'x = batch[0]["image"].cuda()'}, ("image",)),
        ({32: "batch = batch[0]", 33: 'x = batch["image"].cuda()'}, ("image",)),
        ({32: "return batch[0]", 40: "b = next_batch(it)"}, ()),
    ],
)
def test_keys_that_receivers_use(used: dict[int, str], keys: tuple[str, ...]) -> None:
    call = object_call({"31": BROADCAST}, 31)
    assert call is not None and tensors_used(call, "next_batch", used) == keys


def test_calls_over_several_lines_keep_their_group() -> None:
    of_file = {
        "9": "preds = logits.argmax(-1).cpu()",
        "10": "if on: torch.distributed.all_gather_object(  # of all",
        "11": "    out,",
        "12": "    preds, group=dp)",
        "13": "x = 1",
    }
    call = object_call(of_file, 12)
    assert call is not None and object_call(of_file, 13) is None and object_call(of_file, 9) is None
    assert paste_of(call, 10, "step", (), of_file).splitlines()[1:] == [
        "preds = logits.argmax(-1)  # line 9, on the GPU still",
        "out = [torch.empty_like(preds) for _ in range(torch.distributed.get_world_size(dp))]",
        "torch.distributed.all_gather(out, preds.contiguous(), group=dp)",
    ]


def test_a_paste_runs_and_hands_on_what_is_used() -> None:
    """On the rank that sends and on one that gets it, with what is sent kept in between."""

    class Tensor:
        dtype = "half"

        def __init__(self, shape: int) -> None:
            self.shape = shape

        def to(self, device: str) -> Tensor:
            return Tensor(self.shape)

    class Dist:
        def __init__(self, rank: int, sent: list[object]) -> None:
            self.rank, self.sent = rank, sent

        def get_rank(self) -> int:
            return self.rank

        def broadcast_object_list(self, box: list[object], src: int, device: str) -> None:
            if self.rank == src:
                self.sent.append(box[0])
            else:
                box[0] = self.sent.pop(0)

        def broadcast(self, tensor: Tensor, src: int) -> None:
            if self.rank == src:
                self.sent.append(tensor.shape)
            else:
                assert tensor.shape == self.sent.pop(0)

    class Torch:
        @staticmethod
        def empty(shape: int, dtype: str, device: str) -> Tensor:
            return Tensor(shape)

    call = object_call({"31": BROADCAST}, 31)
    assert call is not None
    paste = paste_of(call, 31, "next_batch", ("target",), {})
    kinds: tuple[dict[str, object], dict[str, object]] = ({}, {})
    for _ in range(2):
        sent = list[object]()
        for rank, batch in ((0, [{"target": Tensor(5), "state": Tensor(3)}]), (1, [None])):
            names = {"batch": batch, "kinds": kinds[rank], "dist": Dist(rank, sent), "torch": Torch, "device": "cuda"}
            exec(paste, names)
            assert {k: v.shape for k, v in (batch[0] or {}).items()} == (
                {"target": 5, "state": 3} if rank == 0 else {"target": 5}
            )
        assert not sent
