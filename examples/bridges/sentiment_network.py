"""A transformer of Hugging Face that reads the service's tokens, for workers to import."""

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

PADDING, VOCABULARY = 0, 257
"""Texts become 1 + each byte, then 0: docs/tasks.md."""


class Texts(nn.Module):
    """Gives a transformer its mask, and returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits [n, classes] of tokens [n, length]."""
        there = (tokens != PADDING).to(torch.int64)
        return self.model(input_ids=tokens, attention_mask=there).logits


def transformer(length: int, classes: int) -> BertForSequenceClassification:
    """Return the model that the Trainer knows."""
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=length,
        pad_token_id=PADDING,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=classes,
        attn_implementation="eager",
    )
    return BertForSequenceClassification(config)


def build(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the same model in the form that the service calls."""
    return Texts(transformer(input_shape[0], classes))
