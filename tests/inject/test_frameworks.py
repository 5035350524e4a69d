"""Programs that import a framework before torch, in real reports: nothing of theirs is downloaded, their models are made here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.inject.test_probe_e2e import Run, nsys, profile

__all__ = ["nsys"]

TRAINER = """
from transformers import Trainer, TrainingArguments, BertConfig, BertForSequenceClassification
import torch

torch.manual_seed(0)
config = BertConfig(vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
                    max_position_embeddings=8)
net = BertForSequenceClassification(config)
data = [{"input_ids": torch.arange(4) + i % 8, "labels": torch.tensor(i % 2)} for i in range(8)]
how = TrainingArguments("out", per_device_train_batch_size=2, max_steps=4, report_to=[], save_strategy="no", use_cpu=True,
                        disable_tqdm=True, logging_strategy="no", dataloader_num_workers=0, dataloader_drop_last=True)
Trainer(model=net, args=how, train_dataset=data * 2).train()
print("trained")
if torch.distributed.is_initialized():
    # Torch waits for gloo's threads with the GIL in its hand, and they need it to give their last tensors back: without the
    # pause a rank, bare as well, now and then waits for good or aborts at its end (pytorch issues 56297, 190489).
    import time; time.sleep(0.5)
    torch.distributed.destroy_process_group()
"""
ACCELERATE = """
from accelerate import Accelerator
import torch

torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
data = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
net, optimizer, data = accelerator.prepare(net, optimizer, data)
for x in data:
    optimizer.zero_grad()
    accelerator.backward(net(x).sum())
    optimizer.step()
print("trained")
"""
LIGHTNING = """
import lightning
import torch

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
    def training_step(self, batch, _):
        return self.fc(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

trainer = lightning.Trainer(max_steps=4, accelerator="cpu", logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Net(), torch.utils.data.DataLoader(torch.ones(16, 4), batch_size=2))
print("trained")
"""
QUIET = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TRANSFORMERS_VERBOSITY": "error"}


def seen(run: Run, ranks: int) -> None:
    """Each rank has its steps, phases and modules, and all that was sent is in the report."""
    assert run.code == 0, run.err
    assert run.out.count("trained") == ranks
    run.check(processes=ranks)
    trained = [f for f in run.files.values() if f["ranges"]["module"]]
    assert [f["steps"]["count"] for f in trained] == [4] * ranks
    for file in trained:
        labels = [label for label in run.labels() if label.kind == "phase"]
        assert {"forward", "backward", "optimizer"} <= {label.name for label in labels}
        assert file["ranges"]["backward_module"] > 0


def command(way: str, script: str) -> list[str]:
    """Return how to start a script: python, accelerate or torchrun."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--cpu",
        "--num_processes",
        "1",
        "--num_machines",
        "1",
    ]
    return {
        "python": [sys.executable, script],
        "accelerate": [*launch, "--mixed_precision", "no", "--dynamo_backend", "no", script],
        "torchrun": [*run, script],
    }[way]


@pytest.mark.parametrize("way", ["accelerate", "torchrun"])
def test_transformers_before_torch(nsys: str, tmp_path: Path, way: str) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    seen(profile(nsys, tmp_path, command(way, "train.py"), **QUIET), 2 if way == "torchrun" else 1)


@pytest.mark.parametrize("program", [ACCELERATE, LIGHTNING], ids=["accelerate", "lightning"])
def test_other_frameworks_before_torch(nsys: str, tmp_path: Path, program: str) -> None:
    (tmp_path / "train.py").write_text(program)
    seen(profile(nsys, tmp_path, command("python", "train.py"), **QUIET), 1)
