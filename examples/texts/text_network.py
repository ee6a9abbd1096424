"""A small BERT of bytes with public weights, and LoRA adapters that learn."""

import os

import safetensors.torch
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import BertConfig, BertModel

LENGTH, VOCABULARY, PADDING = 64, 257, 0


def bert() -> BertModel:
    """Return the transformer, built from its configuration with random weights."""
    return BertModel(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            max_position_embeddings=LENGTH,
            pad_token_id=PADDING,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation="eager",
        ),
        add_pooling_layer=False,
    )


class Classifier(nn.Module):
    """The mean over a text's positions, and a linear layer on it."""

    def __init__(self, text: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.text = text
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits [n, classes] of tokens [n, LENGTH]."""
        there = (tokens != PADDING).float()
        states = self.text(input_ids=tokens, attention_mask=there).last_hidden_state
        mean = (states * there[..., None]).sum(dim=1) / there.sum(dim=1, keepdim=True).clamp(min=1)
        return self.head(mean)


def adapted(*, classes: int, rank: int = 8, **_: object) -> nn.Module:
    """Return the network: public weights that stay, adapters and a head that are trained.

    The weights' file is named by the variable TEXT_WEIGHTS; certificates name its digest.
    """
    network = bert()
    weights = safetensors.torch.load_file(os.environ["TEXT_WEIGHTS"])
    network.load_state_dict(weights)
    adapters = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["query", "value", "dense"])
    text = get_peft_model(network, adapters).base_model.model
    return Classifier(text, network.config.hidden_size, classes)
