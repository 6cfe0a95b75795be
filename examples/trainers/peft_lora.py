"""LoRA of a small GPT-2 by peft: only adapters are trained, one line compiles the model."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

import firebrick


def train(compiled=True, steps=6):
    """Losses and the trained module."""
    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], lora_dropout=0.0, fan_in_fan_out=True)
    model = get_peft_model(base, lora)
    run = firebrick.compile(model) if compiled else model
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    tokens, losses = torch.randint(0, 100, (4, 16)), []
    model.train()
    for _ in range(steps):
        loss = run(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    with model.disable_adapter():
        losses.append(run(input_ids=tokens, labels=tokens).loss.item())
    return losses, model


if __name__ == "__main__":
    print(train()[0])
