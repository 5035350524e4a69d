"""torch.compile: a transformer of 4 layers, autocast, fused AdamW. nsysx run -- python compiled.py"""

import torch
from torch import nn

layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
model = torch.compile(nn.Sequential(encoder, nn.Linear(512, 1000)).cuda())
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x = torch.randn(16, 256, 512, device="cuda")
for _ in range(14):
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
