"""Programs of other people's frameworks, each with one thing wrong before, and right after."""

import logging
import warnings

import baton
import torch
import torch.nn.functional as F

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)


def gpt2(layers=6):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=512, n_head=8, vocab_size=5000))


def transformers_optimizer(side, steps, tick):
    """GPT-2 of transformers in a loop of one's own; AdamW with a kernel per parameter -> fused."""
    model = gpt2().to(DEVICE)
    adam = torch.optim.AdamW(
        model.parameters(), lr=1e-5, **({"foreach": False} if side == "before" else {"fused": CUDA})
    )
    tokens = torch.randint(0, 5000, (8, 256), device=DEVICE)
    for _ in range(steps):
        adam.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        adam.step()
        tick()


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        tokens = torch.randint(0, 5000, (256,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def trainer(side, steps, tick):
    """Transformers' Trainer, AdamW foreach -> fused."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Ticks(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            tick()

    arguments = TrainingArguments(
        "/tmp/nsysx-pairs-trainer",
        max_steps=steps,
        per_device_train_batch_size=8,
        bf16=CUDA,
        report_to=[],
        logging_steps=1000,
        save_strategy="no",
        disable_tqdm=True,
        optim="adamw_torch" if side == "before" else "adamw_torch_fused",
    )
    Trainer(gpt2(), arguments, train_dataset=Texts(), callbacks=[Ticks()]).train()


def lightning(side, steps, tick):
    """Lightning, a ResNet whose training step reads loss and accuracy -> does not."""
    try:
        import lightning.pytorch as pl
    except ImportError:
        import pytorch_lightning as pl
    import torchvision

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torchvision.models.resnet18(num_classes=10)
            self.seen = 0.0

        def training_step(self, batch, number):
            scores = self.net(batch[0])
            loss = F.cross_entropy(scores, batch[1])
            if side == "before":
                self.seen += loss.item() + (scores.argmax(1) == batch[1]).float().mean().item()
            return loss

        def on_train_batch_end(self, *args):
            tick()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01, momentum=0.9)

    torch.manual_seed(0)
    images = torch.utils.data.TensorDataset(torch.randn(512, 3, 64, 64), torch.randint(0, 10, (512,)))
    batches = torch.utils.data.DataLoader(images, 32, pin_memory=CUDA)
    how = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    accelerator = "gpu" if CUDA else "cpu"
    pl.Trainer(max_steps=steps, max_epochs=-1, accelerator=accelerator, devices=1, **how).fit(Model(), batches)


def graph_network(side, steps, tick):
    """torch-geometric: the nodes of the loss by a mask, which waits, and the loss read -> by number, and not read."""
    from torch_geometric.nn import GCNConv

    torch.manual_seed(0)
    nodes = 20000 if CUDA else 200
    edges = torch.randint(0, nodes, (2, 10 * nodes), device=DEVICE)
    x, y = torch.randn(nodes, 128, device=DEVICE), torch.randint(0, 10, (nodes,), device=DEVICE)
    train = torch.rand(nodes, device=DEVICE) < 0.3
    chosen = train if side == "before" else train.nonzero().flatten()

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([GCNConv(128, 256), GCNConv(256, 256), GCNConv(256, 10)])

        def forward(self, x):
            for layer in self.layers[:-1]:
                x = layer(x, edges).relu()
            return self.layers[-1](x, edges)

    model = Network().to(DEVICE)
    adam = torch.optim.Adam(model.parameters(), fused=CUDA)
    total = 0.0
    for _ in range(steps):
        adam.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out[chosen], y[chosen])
        loss.backward()
        adam.step()
        if side == "before":
            total += float(loss)
        tick()


def resnet(side, steps, tick):
    """Torchvision's ResNet-18 on small images, SGD with a kernel per parameter -> fused."""
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.resnet18().to(DEVICE)
    how = {"foreach": False} if side == "before" else {"fused": CUDA}
    sgd = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9, **how)
    x, y = torch.randn(8, 3, 96, 96, device=DEVICE), torch.zeros(8, dtype=torch.long, device=DEVICE)
    for _ in range(steps):
        sgd.zero_grad()
        F.cross_entropy(model(x), y).backward()
        sgd.step()
        tick()


def timm_items(side, steps, tick):
    """Timm's ViT: loss and accuracy of each step read -> not."""
    import timm

    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10).to(DEVICE)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=CUDA)
    x, y = torch.randn(16, 3, 224, 224, device=DEVICE), torch.zeros(16, dtype=torch.long, device=DEVICE)
    seen = 0.0
    for _ in range(steps):
        adam.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(x)
            loss = F.cross_entropy(scores, y)
        if side == "before":
            seen += loss.item() + (scores.argmax(1) == y).float().mean().item()
        loss.backward()
        adam.step()
        tick()


if __name__ == "__main__":
    programs = (transformers_optimizer, trainer, lightning, graph_network, resnet, timm_items)
    baton.main({program.__name__: program for program in programs})
