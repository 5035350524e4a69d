"""Objects that one rank pickles for the others: weights go as tensors, and a batch each rank can read for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.findings import said_of
from tests.findings.lined import FILE, Lined

MAKES, SENDS, USES = 30, 31, 33
WEIGHTS = "sd = [{k: v.cpu() for k, v in net.state_dict().items()}] if rank == 0 else [None]"
TRAINS, SERVES = {"backwards": 1}, {"backwards": 0}
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


@pytest.mark.parametrize(
    ("before", "makes", "uses", "settings", "told"),
    [
        ("plan = scheduler.step()", "obj = [plan]", "logits = model(**to_gpu(obj[0]))", SERVES, "plan-as-tensor"),
        ("tokens = sample(logits).tolist()", "obj = [tokens]", "x = torch.tensor(obj[0]).cuda()", SERVES, "plan-as-tensor"),
        ("batch = next(requests)", "obj = [batch]", "x = obj[0].cuda()", SERVES, "own-part-of-data"),
        ("batch = make(step)", "obj = [batch]", "x = obj[0].cuda()", TRAINS, "own-part-of-data"),
        ("sd = get_model_state_dict(model, options=full)", "t = sd[name]; obj = [t]", "pass", TRAINS, "tensors-sent"),
        ("t = whole[name]", "obj = [t]", "gen_params[name].data.copy_(obj[0])", TRAINS, "tensors-sent"),
    ],
)  # fmt: skip
def test_plans_of_programs_that_train_nothing_are_no_data(
    before: str, makes: str, uses: str, settings: dict[str, int], told: str, tmp_path: Path
) -> None:
    """What an object is made of says what it is, also where its own line names nothing of that."""
    sends = "dist.broadcast_object_list(obj, src=0, group=tp_group)"
    source = {20: "y = net(x)", MAKES - 1: before, MAKES: makes, SENDS: sends, USES: uses}
    said = said_of(Lined(source, settings | {"optimizers": []}).run(step).write(tmp_path))
    here = [f for f in said if f.verdict == "found" and f.where.get("line") == SENDS and f.remedies]
    here = [f for f in here if f.code in ("NSX110", "NSX123", "NSX105")]
    assert here and {f.remedies[0].name for f in here} == {told}
    assert told != "plan-as-tensor" or all("dist.broadcast(plan, src=0, group=tp_group)" in f.paste for f in here)


GATHERS = "sd = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))"


def gathers(program: Lined, number: int) -> None:
    with program.line(20), program.range("forward"), program.range("net:Net"):
        program.launch(1000)
    with program.line(SENDS):
        for _ in range(40):
            program.launch(200, "ncclDevKernel_AllGather_RING_LL", stream=20)
            program.copy(200, "DtoH")
    with program.line(USES):
        program.host(100)
        for _ in range(40):
            program.copy(200, "HtoD")
            program.launch(200, "ncclDevKernel_Broadcast_RING_LL", stream=20)
    program.sync()


@pytest.mark.parametrize(
    ("uses", "told"),
    [
        ("gen_params[name].data.copy_(sd[name])", "weights-to-generator"),
        ("engine.load_weights(list(sd.items()))", "weights-to-generator"),
        ("torch.save(sd, path)", "shards-saved"),
        ("pass", "shards-saved"),
    ],
)
def test_weights_that_are_gathered_for_another_network_are_not_to_be_saved(
    uses: str, told: str, tmp_path: Path
) -> None:
    source = {20: "y = net(x)", SENDS: GATHERS, USES: uses}
    said = said_of(Lined(source, {"backwards": 1}).run(gathers).write(tmp_path))
    here = [f for f in said if f.verdict == "found" and f.where.get("line") == SENDS and f.remedies]
    names = {f.remedies[0].name for f in here}
    assert told in names and not names & ({"weights-to-generator", "shards-saved"} - {told})


@pytest.mark.parametrize(
    ("uses", "network"),
    [
        (
            "set_model_state_dict(self.worker.model, sd, options=StateDictOptions(broadcast_from_rank0=True))",
            "self.worker.model",
        ),
        ("generator.load_state_dict(sd)", "generator"),
    ],
)
def test_weights_go_from_one_network_to_the_other_by_their_names(uses: str, network: str, tmp_path: Path) -> None:
    """The line that sets them has the same advice as the one that gathers them."""
    source = {20: "y = net(x)", SENDS: GATHERS, USES: uses}
    said = said_of(Lined(source, {"backwards": 1}).run(gathers).write(tmp_path))
    told = [f for f in said if f.verdict == "found" and f.remedies and f.remedies[0].name == "weights-to-generator"]
    assert {f.where.get("line") for f in told} >= {SENDS, USES}
    assert all(f"target = dict({network}.named_parameters())" in f.paste for f in told)
    assert all("for name, p in model.named_parameters():" in f.paste for f in told)
