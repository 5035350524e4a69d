"""The programs before and after a change that hold nsysx against reality, and the table of what it said of them.

Each pair is timed bare with both sides in one process, blocks in turn (``sample_reports/pairs/baton.py``), and each side is
captured once, with steps that are not recorded before those that are. ``scripts/make_samples --pairs`` does it on a GPU
machine; ``scripts/make_samples --pairs-table DIR`` makes the table of what came from there.
"""

import json
import lzma
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

#: The steps that are recorded: those before them tell, in the same process, what a step takes without the profiler.
FIRST, END, STEPS = 40, 48, 52


@dataclass(frozen=True)
class Pair:
    """``edits`` are the arguments of `nsysx.Report.whatif` that say the change. ``bound`` is what the side before waits for."""

    file: str
    change: str
    edits: "dict[str, object]"
    bound: str = "launches"
    framework: bool = False
    block: int = 5
    blocks: int = 26

    def command(self, name: str, *more: str) -> "list[str]":
        return [f"sample_reports/pairs/{self.file}.py", name, *more]

    def bare(self, name: str) -> "list[str]":
        return self.command(name, "--bare", "--block", str(self.block), "--blocks", str(self.blocks))

    def side(self, name: str, side: str) -> "list[str]":
        return self.command(name, "--side", side, "--steps", str(STEPS))


def _language(change: str, edits: "dict[str, object]", bound: str = "launches") -> Pair:
    return Pair("language_model", change, edits, bound)


def _small(change: str, edits: "dict[str, object]", bound: str = "launches", **how: int) -> Pair:
    return Pair("small_programs", change, edits, bound, **how)


def _framework(change: str, edits: "dict[str, object]") -> Pair:
    return Pair("framework_programs", change, edits, framework=True)


_FUSED: "dict[str, object]" = {"fuse_optimizer": True}
_NO_WAITS: "dict[str, object]" = {"remove_wait": "all"}
_GRAPH: "dict[str, object]" = {"graph": "all"}
PAIRS = {
    "optimizer": _language("AdamW, a kernel per parameter -> fused", _FUSED),
    "optimizer_foreach": _language("AdamW, foreach -> fused", _FUSED),
    "graph": _language("small LM -> one CUDA graph", _GRAPH),
    "decode": _language("decoding, a token -> one CUDA graph", _GRAPH),
    "micro_item": _language("`.item()` in each of 4 micro-steps goes", _NO_WAITS),
    "clip": _language("clipped gradients: check and norm read -> not", _NO_WAITS),
    "empty_cache": _language("`empty_cache()` each step goes", {"no_empty_cache": True}),
    "phase_syncs": _language("synchronize after each phase goes", {"remove_sync_calls": "device"}, "both"),
    "layer_items": _small("`.item()` after each of 64 tiny layers goes", _NO_WAITS),
    "stack_graph": _small("64 tiny layers -> one CUDA graph", _GRAPH),
    "recurrent": _small("LSTM: check of each token by the CPU goes", _NO_WAITS),
    "gan": _small("GAN, two Adams, a kernel per parameter -> fused", _FUSED),
    "mask_wait": _small("`nonzero` -> `where`", _NO_WAITS, "GPU"),
    "mask_work": _small("masks -> `ignore_index`", {"remove_module": "MaskedLoss"}, "GPU"),
    "pageable": _small("pageable batches -> pinned, `non_blocking`", {"pin_copies": True}, "copies"),
    "loader": _small("DataLoader without workers -> 8", {"free_loader": True}, "input", block=30, blocks=8),
    "transformers_optimizer": _framework("transformers' GPT-2, AdamW, a kernel per parameter -> fused", _FUSED),
    "trainer": _framework("transformers' Trainer, AdamW foreach -> fused", _FUSED),
    "lightning": _framework("Lightning's ResNet-18: loss and accuracy read -> not", _NO_WAITS),
    "graph_network": _framework("torch-geometric: mask and `float(loss)` -> without", _NO_WAITS),
    "resnet": _framework("torchvision's ResNet-18, SGD, a kernel per parameter -> fused", _FUSED),
    "timm_items": _framework("timm's ViT: loss and accuracy read -> not", _NO_WAITS),
}
SIDES = ("before", "after")


def _without(run: "dict[str, object]", machine: object) -> "dict[str, object]":
    """Return a run.json as if no step had been measured, with the costs of ``machine`` (None: the assumed ones)."""
    probes = [{k: v for k, v in p.items() if k != "unrecorded_steps"} for p in run.get("probe") or ()]  # type: ignore[attr-defined]
    return run | {"probe": probes, "machine_profile": machine}


def _told(report: Path, run: "dict[str, object]", edits: "dict[str, object] | None") -> "dict[str, object]":
    """Return what nsysx says of one side: its step, and for the side before the step and saving after the change."""
    import nsysx

    report.with_suffix(".run.json").write_text(json.dumps(run))
    given = nsysx.report(report)
    unprofiled = given.unprofiled
    if unprofiled is None:
        return {"source": None}
    told: dict[str, object] = {"source": unprofiled.source, "recorded_ms": unprofiled.recorded_ns / 1e6}
    told |= {
        "step_ms": unprofiled.step_ns / 1e6,
        "low_ms": unprofiled.low_ns / 1e6,
        "high_ms": unprofiled.high_ns / 1e6,
    }
    told |= {"gpu_busy": unprofiled.gpu_busy}
    if edits is not None:
        answer = given.whatif(**edits)  # type: ignore[arg-type]
        told |= {"then_ms": answer.step_ns / 1e6, "saved": answer.saving_ns / answer.now_ns}
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in told.items()}


def write_table(folder: Path, to: Path) -> int:
    """Write what nsysx says of every pair that was recorded in ``folder``, and below it, beside what was measured.

    Each side is told three times: with the steps before its window, as measured in its own process; without them, by the costs
    that `nsysx calibrate` measured on the machine; and by the costs in the package.
    """
    rows = {}
    for table in sorted(folder.rglob("make_samples.json")):
        rows |= {n: (table.parent, row) for n, row in json.loads(table.read_text())["programs"].items() if n in PAIRS}
    machine = next((json.loads(f.read_text()) for f in sorted(folder.rglob("tracing-*.json"))), None)
    made = []
    for name in (n for n in PAIRS if n in rows):
        folder_of_pair, row = rows[name]
        pair = PAIRS[name]
        keys = ("before_ms", "after_ms", "saved", "saved_low", "saved_high")
        line: dict = {"pair": name, "change": pair.change, "edits": pair.edits}
        line |= {"bound": pair.bound, "framework": pair.framework}
        line["bare"] = {k: row[k] for k in keys}
        for side in SIDES:
            with tempfile.TemporaryDirectory(prefix="nsysx-pairs-") as work:
                report = Path(work) / f"{name}.{side}.sqlite"
                with lzma.open(folder_of_pair / f"{report.name}.xz") as source, report.open("wb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
                run = json.loads((folder_of_pair / f"{name}.{side}.run.json").read_text())
                edits = pair.edits if side == "before" else None
                line[side] = {
                    "in_process": _told(report, run, edits),
                    "modelled": _told(report, _without(run, machine), edits),
                    "assumed": _told(report, _without(run, None), edits),
                }
        made.append(line)
        print(json.dumps(line), flush=True)
    to.write_text(json.dumps(made, indent=1) + "\n")
    return 0 if made else 1


def markdown(rows: "list[dict]") -> str:
    """Return the table of README: measured bare, and told by nsysx; savings in percent of the step before."""
    lines = [
        "| change | bare, ms | saves | nsysx: step before, ms | nsysx: saves | error |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        bare, told = row["bare"], row["before"]["in_process"]
        error = 100 * (told["saved"] - bare["saved"])
        lines.append(
            f"| {row['change']} | {bare['before_ms']:.4g} -> {bare['after_ms']:.4g} | {100 * bare['saved']:.1f} % | "
            f"{told['step_ms']:.4g} | {100 * told['saved']:.1f} % | {error:+.1f} |"
        )
    return "\n".join(lines)
