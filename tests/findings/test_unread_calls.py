"""NSX127 by the probe's look: networks of which no optimizer reads a gradient, where collectives hide what operators make of what."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import polars as pl
import pytest

from nsysx.findings import _unread_calls
from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_unread import Trained

TEACHES, LEARNS, LOSS, STEP = 12, 13, 14, 16
SOURCE = {
    TEACHES: "        wanted = average(rows)",
    LEARNS: "        given = learner(rows)",
    LOSS: "    distance(given, wanted).backward()",
    STEP: "    opt.step()",
}
DDP = "DistributedDataParallel"


def taught(program: Trained, number: int, *, backwards: int) -> None:
    """A network and the average of a part of it, of that part's class: 300 us for each gradient, each of the average's weights 200 us."""
    program.first = 100 * (number + 1)
    with program.line(10, "train"):
        with program.line(TEACHES, "train"), program.range("forward"), program.range(":Encoder"):
            program.op("linear", 1, -1, -1, seq=1, us=100)
        with program.line(LEARNS, "train"), program.range("forward"), program.range(f"{DDP}:{DDP}"):
            program.host(1)
            with program.range(f"{DDP}:Online"), program.range(f"{DDP}.encoder:Encoder"):
                program.op("linear", 2, -1, -1, seq=2, us=100)
        for _ in range(backwards):
            with program.line(LOSS, "train"), program.range("backward"):
                with program.noted_as("LinearBackward0", 20, (2,), seq=2), program.range(f"{DDP}.encoder:Encoder"):
                    program.op("mm", 5, 2, -1, us=300)
                with program.noted_as("LinearBackward0", 21, (1,), seq=1), program.range(":Encoder"):
                    program.op("mm", 6, 1, -1, us=200)
        with program.line(STEP, "train"), program.range("optimizer Adam"):
            with program.noted_as("c10d::allreduce_", 40, (-1,)):
                program.host(1)
            program.op("_fused_adam_", 42, -1, -1, us=50)
    program.sync()


def findings(folder: Path, *, backwards: int = 1, source: dict[int, str] = SOURCE, **settings: object) -> list[Finding]:
    def body(program: Lined, number: int) -> None:
        taught(cast("Trained", program), number, backwards=backwards)

    noted = {"gradient_readers": [], "unread": {}, "unheld": {}, "backwards": backwards, **settings}
    return Trained(source, noted).run(body).found(folder, "NSX127")


def test_an_average_is_called_without_gradients_at_its_own_line(tmp_path: Path) -> None:
    """Its class is that of a part of what is trained, whose backward stays; its weights' gradients go with all of its backward."""
    (told,) = findings(tmp_path, unread={"Encoder": [0]}, unheld={"Encoder": [64, 64]})
    assert told.where["line"] == TEACHES and "parameters that no optimizer holds" in told.detail
    assert told.paste == f"with torch.no_grad():  # line {TEACHES}\n    wanted = average(rows)"
    assert told.saving_ns_per_step == pytest.approx(200_000, rel=0.1)


def test_a_network_through_which_others_learn_only_loses_the_gradients_of_its_weights(tmp_path: Path) -> None:
    """The probe tells of none whose backward is for nothing: an input of the network needs a gradient."""
    (told,) = findings(tmp_path, unheld={"Encoder": [64, 64]})
    assert [way.name for way in told.remedies] == ["frozen"] and "no_grad" not in told.fix


def test_what_is_trained_is_not_told(tmp_path: Path) -> None:
    assert findings(tmp_path) == []


def test_a_network_that_another_loss_trains_is_detached(tmp_path: Path) -> None:
    """Of two backwards the gradients of the first are reset: the second needs the call with gradients."""
    (told,) = findings(tmp_path, backwards=2, unread={"Encoder": [0]})
    assert told.fix.startswith("Detach what Encoder returns") and "no_grad" not in told.paste
    assert told.paste.startswith("wanted.detach()  # line 12")


def test_a_line_that_cannot_stand_under_a_context_has_no_paste(tmp_path: Path) -> None:
    source = {**SOURCE, TEACHES: "        for wanted in average(rows):"}
    (told,) = findings(tmp_path, source=source, unread={"Encoder": [0]}, unheld={"Encoder": [64, 64]})
    assert told.paste == "" and "generator" not in told.fix


def names_of(tree: list[tuple[str, str, str | None]], called: tuple[tuple[str, str], ...] = ()) -> Any:
    modules = pl.DataFrame(tree, schema=["module", "cls", "parent"], orient="row")
    ranges = pl.DataFrame(
        [("module", *each) for each in called],
        schema={"kind": pl.String, "name": pl.String, "cls": pl.String},
        orient="row",
    )
    profile = SimpleNamespace(attributed=SimpleNamespace(modules=modules), ranges=SimpleNamespace(ranges=ranges))
    return _unread_calls.network_names(cast("Any", profile))


@pytest.mark.parametrize("several", [True, False])
def test_networks_that_are_wrapped_alike_bear_their_own_classes(several: bool) -> None:
    """A generator and its critic: the class of their wrapper says nothing of which of them is meant."""
    tree = [
        ("G", DDP, None),
        ("G.module", "Restorer", "G"),
        ("G.module.stem", "Conv2d", "G.module"),
        ("head", "Linear", None),
    ]
    tree += [("D", DDP, None), ("D.module", "Critic", "D")] if several else []
    names = names_of(tree)
    assert names["head"] == ("Linear",)
    assert names["G.module.stem"] == names["G.module"] == (("Restorer",) if several else ("Restorer", DDP))
    assert names["G"] == (() if several else (DDP,))
    assert names.get("D.module") == (("Critic",) if several else None)


def test_what_a_wrapper_wraps_is_called_by_its_own_path() -> None:
    tree = [("net", DDP, None), ("net.encoder", "Encoder", "net"), ("net.head", "Linear", "net")]
    names = names_of(tree, (("net", DDP), ("net", "Online"), ("net.encoder", "Encoder")))
    assert names["net"] == names["net.encoder"] == names["net.head"] == ("Online", DDP)


def test_of_two_networks_of_one_class_the_one_that_is_not_wrapped_is_meant() -> None:
    tree = [("net", DDP, None), ("net.stem", "Linear", "net"), ("(Net)", "Net", None), ("stem", "Linear", "(Net)")]
    names = names_of(tree, (("net", DDP), ("net", "Net")))
    assert names["stem"] == ("Net",) and names["net.stem"] == (DDP,)
