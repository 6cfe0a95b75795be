"""A BERT of two small layers with random weights, for `firebrick graph examples.small_bert:make` and the like."""

import torch
from transformers import BertConfig, BertModel


def make():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=500, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    config._attn_implementation = "eager"  # attention written out, so that there is something to rewrite
    return BertModel(config).eval(), (torch.randint(0, 500, (1, 16)),)
