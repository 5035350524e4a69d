"""Two optimizers that take turns. nsysx run -- python gan.py"""

import torch
from torch import nn


def mlp(wide, narrow):
    hidden = [nn.Linear(wide, 512), nn.LeakyReLU(), nn.Linear(512, 512), nn.LeakyReLU()]
    return nn.Sequential(*hidden, nn.Linear(512, narrow)).cuda()


G, D = mlp(64, 784), mlp(784, 1)
of_g, of_d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
loss = nn.functional.binary_cross_entropy_with_logits
one, zero = torch.ones(128, 1, device="cuda"), torch.zeros(128, 1, device="cuda")
for _ in range(20):
    real, fake = torch.randn(128, 784, device="cuda"), G(torch.randn(128, 64, device="cuda"))
    of_d.zero_grad()
    (loss(D(real), one) + loss(D(fake.detach()), zero)).backward()
    of_d.step()
    of_g.zero_grad()
    loss(D(fake), one).backward()
    of_g.step()
