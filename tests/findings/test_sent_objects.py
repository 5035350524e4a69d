"""Objects that one rank pickles for the others: weights go as tensors, and a batch each rank can read for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.findings.lined import FILE, Lined

MAKES, SENDS, USES = 30, 31, 33
WEIGHTS = "sd = [{k: v.cpu() for k, v in net.state_dict().items()}] if rank == 0 else [None]"
BATCH = "obj = [next(it)] if rank == 0 else [None]"


def step(program: Lined, number: int) -> None:
    """A step, and objects that are pickled for 4 ms and sent as bytes, behind their number, which is read; they are read back, too."""
    with program.line(20), program.range("forward"), program.range("net:Net"):
        program.launch(1000)
    with program.line(SENDS):
        program.host(3_000)
        program.copy(500, "HtoD")
        program.launch(20, "ncclDevKernel_Broadcast_RING_LL")
        program.copy(5, "DtoH", bytes=8)
        program.launch(3000, "ncclDevKernel_Broadcast_RING_LL")
        program.copy(500, "DtoH")
        program.host(1_000)
    with program.line(USES):
        program.copy(300, "HtoD")


@pytest.mark.parametrize(
    ("makes", "sends", "uses", "told"),
    [
        (WEIGHTS, "dist.broadcast_object_list(sd, src=0)", "net.load_state_dict(sd[0])", "tensors-sent"),
        ("", "dist.broadcast_object_list(box, src=0)", "actor.load_state_dict(box[0])", "tensors-sent"),
        ("", "dist.broadcast_object_list([net.state_dict()], src=0)", "pass", "tensors-sent"),
        (BATCH, "dist.broadcast_object_list(obj, src=0)", "batch = {k: v.to(dev) for k, v in obj[0].items()}", "own-part-of-data"),
    ],
)  # fmt: skip
def test_weights_go_as_tensors_and_batches_not_at_all(
    makes: str, sends: str, uses: str, told: str, tmp_path: Path
) -> None:
    summary = Lined({20: "y = net(x)", MAKES: makes, SENDS: sends, USES: uses}).run(step).summary(tmp_path)
    here = [f for f in summary.findings or () if f.verdict == "found" and f.where.get("line") == SENDS and f.remedies]
    assert here and {f.remedies[0].name for f in here if f.code in ("NSX110", "NSX123", "NSX105")} == {told}
    first = summary.answer.do[0]
    assert (first.where.get("file"), first.where.get("line")) == (FILE, SENDS)
    assert first.text.startswith("Send the tensors" if told == "tensors-sent" else "Let each rank read the data")
