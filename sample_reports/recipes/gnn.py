"""torch-geometric: GCN on a full graph, a boolean mask, float(loss) in every step. nsysx run -- python gnn.py"""

import torch
from torch_geometric.nn import GCNConv

NODES = 20_000


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = GCNConv(128, 256), GCNConv(256, 256), GCNConv(256, 10)

    def forward(self, x, edges):
        return self.c(self.b(self.a(x, edges).relu(), edges).relu(), edges)


edges = torch.randint(0, NODES, (2, 200_000), device="cuda")
x, y = torch.randn(NODES, 128, device="cuda"), torch.randint(0, 10, (NODES,), device="cuda")
mask = torch.rand(NODES, device="cuda") < 0.3
model = Net().cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(14):
    optimizer.zero_grad()
    out = model(x, edges)
    loss = torch.nn.functional.cross_entropy(out[mask], y[mask])
    loss.backward()
    optimizer.step()
    value = float(loss)
