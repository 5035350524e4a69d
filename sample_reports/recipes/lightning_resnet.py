"""Lightning: ResNet-18 on images of 64 x 64, batch 32. nsysx run -- python lightning_resnet.py"""

import lightning.pytorch as lightning
import torch
import torchvision


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torchvision.models.resnet18(num_classes=10)

    def training_step(self, batch, index):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01, momentum=0.9)


if __name__ == "__main__":
    data = torch.utils.data.TensorDataset(torch.randn(2048, 3, 64, 64), torch.randint(0, 10, (2048,)))
    trainer = lightning.Trainer(max_steps=14, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False)
    trainer.fit(Net(), torch.utils.data.DataLoader(data, 32, num_workers=2))
