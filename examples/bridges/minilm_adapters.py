"""all-MiniLM-L6-v2 with LoRA adapters, for workers to import: its public weights stay as they are.

The variable MINILM names the folder with the network's files, as examples/minilm_tokens.py writes
them.
"""

import json
import os
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch import nn
from transformers import BertConfig, BertModel

LAYERS, PADDING = 2, 0
"""The lowest two of six layers are enough for titles, and faster."""


class Titles(nn.Module):
    """Adapters on a frozen transformer, the mean of its states, and a linear layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        folder = Path(os.environ["MINILM"])
        known = json.loads((folder / "config.json").read_text("utf-8")) | {
            "num_hidden_layers": LAYERS
        }
        known |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        config = BertConfig(**known, attn_implementation="eager")
        public = BertModel(config, add_pooling_layer=False)
        lacking, _ = public.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
        if lacking:
            raise ValueError(f"the file has no {lacking[0]}")
        adapters = LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value", "dense"])
        self.text = get_peft_model(public, adapters)
        self.head = nn.Linear(config.hidden_size, classes)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return logits [n, classes] of tokens [n, length]."""
        there = (input_ids != PADDING).float()
        states = self.text(input_ids=input_ids, attention_mask=there).last_hidden_state
        mean = (states * there[..., None]).sum(dim=1) / there.sum(dim=1, keepdim=True).clamp(min=1)
        return self.head(mean)


def build(*, classes: int, **_: object) -> nn.Module:
    """Return the network in the form that the service calls."""
    return Titles(classes)
