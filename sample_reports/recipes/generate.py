"""transformers generate: GPT-2 of 8 layers, 2 calls of 30 tokens. nsysx run -- python generate.py"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config(n_layer=8, n_embd=512, n_head=8, vocab_size=5000)).cuda().half().eval()
prompt = torch.randint(0, 5000, (4, 16), device="cuda")
for _ in range(2):
    model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=30, do_sample=False, pad_token_id=0)
