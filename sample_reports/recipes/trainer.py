"""Hugging Face Trainer: GPT-2 of 6 layers, bf16, two loader workers. nsysx run -- python trainer.py"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, i):
        tokens = torch.randint(0, 5000, (256,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": tokens, "labels": tokens}


if __name__ == "__main__":
    model = GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=512, n_head=8, vocab_size=5000))
    arguments = TrainingArguments(
        "trainer_out",
        max_steps=12,
        per_device_train_batch_size=16,
        bf16=True,
        report_to=[],
        logging_steps=10,
        save_strategy="no",
        dataloader_num_workers=2,
    )
    Trainer(model, arguments, train_dataset=Tokens()).train()
