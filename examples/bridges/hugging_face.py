"""A Trainer of Hugging Face: its arguments become the recipe, its evaluation stays."""

import random
import tempfile

import numpy as np
import pandas as pd
import torch
from certified import forgotten, published, trained
from safetensors.torch import load_file
from sentiment_network import PADDING, build, transformer
from transformers import Trainer, TrainingArguments

LENGTH = 48
WORDS = {"bad": ["awful", "dull", "broken", "late"], "good": ["lovely", "bright", "solid", "quick"]}

choose = random.Random(0)
frame = pd.DataFrame(
    [
        {
            "review": f"review-{i}",
            "author": f"author {i // 4}",
            "text": f"The delivery was {choose.choice(WORDS[mood])} in week {i % 52}",
            "mood": mood,
        }
        for i, mood in enumerate(["bad", "good"] * 300)
    ]
)

FACTORY = "sentiment_network:build"
client = trained(
    frame,
    {
        "name": "reviews",
        "dataset": "reviews",
        "task": {
            "name": "classification",
            "inputs": [{"name": "text", "kind": "text", "length": LENGTH}],
            "target": {"column": "mood", "classes": ["bad", "good"]},
        },
        "architecture": {"name": "custom", "factory": FACTORY},
        # TrainingArguments(num_train_epochs=8, per_device_train_batch_size=32, learning_rate=5e-3)
        "recipe": {
            "optimizer": "adamw",
            "epochs": 8,
            "batch_size": 32,
            "learning_rate": 5e-3,
            "held_out_fraction": 0,
        },
        "policy": {"mechanism": "retraining"},
    },
    {"text": "string", "mood": "string"},
    record_id="review",
    subject_id="author",
)
forgotten(client, "reviews", subject_ids=["author 9"])
weights, model = published(client, "reviews", FACTORY)


class Tokens(torch.utils.data.Dataset):
    """What the Trainer evaluates on: the tokens that the service makes of a text."""

    def __len__(self) -> int:
        return len(frame)

    def __getitem__(self, row: int) -> dict[str, object]:
        tokens = np.zeros(LENGTH, dtype=np.int64)
        letters = np.frombuffer(frame["text"][row].encode()[:LENGTH], dtype=np.uint8)
        tokens[: len(letters)] = letters.astype(np.int64) + 1
        mask = (tokens != PADDING).astype(np.int64)
        return {
            "input_ids": tokens,
            "attention_mask": mask,
            "labels": int(frame["mood"][row] == "good"),
        }


own = transformer(LENGTH, 2)
prefixed = build(input_shape=(LENGTH,), classes=2)
prefixed.load_state_dict(load_file(weights))
own.load_state_dict(prefixed.model.state_dict())
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, per_device_eval_batch_size=64, report_to=[], use_cpu=True)
    predicted = Trainer(model=own, args=arguments).predict(Tokens())
    own.save_pretrained(folder)  # a folder that every tool of theirs loads

answers = model.predict(frame)
names = np.array(["bad", "good"])[predicted.predictions.argmax(axis=1)]
assert names.tolist() == answers["prediction"].to_pylist()
accuracy = (names == frame["mood"].to_numpy()).mean()
assert accuracy > 0.9, accuracy
print(f"Hugging Face: {accuracy:.1%} of the reviews right")
