"""NSX106: a dataset that works on the GPU sample by sample, which no worker can do; and loaders that only put batches together there."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings import said_of
from tests.findings.lined import FILE, Lined, forward

SOURCE = {
    8: "for x in loader:",
    11: "wav, sr = torchaudio.load(self.paths[i])",
    12: "wav = wav.to(self.device)",
    13: "m = self.mel(wav).clamp_min(1e-5).log()",
    20: "y = net(x)",
}
ITEM = "Clips.__getitem__"


def starved(folder: Path, *, kernels: int, workers: int = 0, batch: int = 16, pin: bool = True) -> list[Finding]:
    """16 samples are decoded, copied, and worked on by so many kernels each while the loop waits."""

    def body(program: Lined, number: int) -> None:
        with program.range("data DataLoader"):
            for _ in range(16):
                with program.line(11, ITEM):
                    program.host(500)
                with program.line(12, ITEM):
                    program.copy(20)
                with program.line(13, ITEM):
                    for _ in range(kernels):
                        program.host(10)
                        program.launch(4)
            with program.line(8):
                program.launch(10, "CatArrayBatchedCopy")
        forward(program)
        program.sync()

    loader = {
        "workers": workers,
        "iterators": 1,
        "batch_size": batch,
        "pin_memory": pin,
        "parts": [[]],
        "collate": "collate",
    }
    made = Lined(SOURCE, {"loaders": [loader], "cpu": {"allowed": 32}}).run(body)
    return [f for f in said_of(made.write(folder)) if f.verdict == "found"]


def test_kernels_for_each_sample_are_launched_once_for_the_batch(tmp_path: Path) -> None:
    findings = starved(tmp_path, kernels=8)
    (told,) = (f for f in findings if f.code == "NSX106")
    assert [way.name for way in told.remedies] == ["samples-on-cpu"]
    assert (told.where["file"], told.where["line"]) == (FILE, 13)
    assert (
        "129 kernels and 16 copies per step are launched for 16 samples, one by one, train.py:13 above all" in told.fix
    )
    assert told.paste.endswith("# here, for all samples at once: m = self.mel(wav).clamp_min(1e-5).log()")
    assert told.saving_ns_per_step and told.saving.error_ns, "from a third of what eight workers could give"
    assert not any("batch-that-pins" in [way.name for way in f.remedies] for f in findings), "there is no batch yet"


@pytest.mark.parametrize(
    ("kernels", "workers", "batch"),
    [
        (0, 0, 16),  # only copied, and put together on the GPU
        (8, 4, 16),  # workers make the samples: what is launched is of the batch
        (8, 0, 1),  # a batch is a sample
        (8, 0, 1024),  # large batches that few kernels put together
    ],
)
def test_other_loaders_are_told_as_before(kernels: int, workers: int, batch: int, tmp_path: Path) -> None:
    told = [f for f in starved(tmp_path, kernels=kernels, workers=workers, batch=batch) if f.code == "NSX106"]
    assert told and not any("samples-on-cpu" in [way.name for way in f.remedies] for f in told)
