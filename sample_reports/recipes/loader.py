"""A DataLoader of 2 workers whose samples take 2 ms each. nsysx run -- python loader.py"""

import time

import torch
from torch import nn


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        began = time.perf_counter()
        while time.perf_counter() - began < 0.002:
            pass
        return torch.randn(3, 64, 64), i % 10


if __name__ == "__main__":
    convolutions = [nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3)]
    model = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = iter(torch.utils.data.DataLoader(Slow(), 32, num_workers=2))
    for _ in range(14):
        x, y = next(batches)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
