"""A small BERT trained by transformers' Trainer: one line compiles it."""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import firebrick


def train(compiled=True, steps=6):
    """Losses and the trained module."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    model = BertForSequenceClassification(config)
    tokens = torch.randint(0, 100, (32, 12))
    rows = [{"input_ids": row, "labels": int(row[0] > 50)} for row in tokens]
    if compiled:
        model = firebrick.compile(model)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=8, logging_steps=1, report_to=[], disable_tqdm=True,
            use_cpu=True, save_steps=steps // 2, max_grad_norm=1.0, gradient_accumulation_steps=2,
        )  # fmt: skip
        trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows)
        trainer.train()
        trainer.evaluate()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row], model


if __name__ == "__main__":
    print(train()[0])
