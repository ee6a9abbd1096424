"""An existing training loop of PyTorch, and what becomes of it."""

import numpy as np
import torch
from certified import forgotten, published, trained
from digits_network import build
from digits_table import COLUMNS, IDS, SHAPE, TASK, digits
from safetensors.torch import load_file

frame = digits()
pictures = torch.from_numpy(np.stack(frame["picture"])).reshape(-1, *SHAPE)
labels = torch.tensor(frame["digit"].to_numpy())

# Before: the loop trains the network. It stays for experiments.
network = build(input_shape=SHAPE, classes=10, width=16)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
for _ in range(2):
    for batch in torch.randperm(len(labels)).split(64):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(pictures[batch]), labels[batch]).backward()
        optimizer.step()

# Now: what was in the loop is the recipe, and the network comes from the same function.
FACTORY = "digits_network:build"
client = trained(
    frame,
    {
        "name": "digits-loop",
        "dataset": "loop",
        "task": TASK,
        "architecture": {"name": "custom", "factory": FACTORY, "options": {"width": 16}},
        "recipe": {
            "epochs": 5,
            "batch_size": 64,
            "learning_rate": 0.1,
            "momentum": 0.9,
            "held_out_fraction": 0,
        },
        "policy": {"mechanism": "retraining"},
    },
    COLUMNS,
    **IDS,
)
forgotten(client, "loop", subject_ids=["writer-7"])

# The certified weights go into the network of the loop; evaluation and serving stay.
weights, model = published(client, "digits-loop", FACTORY)
network.load_state_dict(load_file(weights))
network.eval()
with torch.inference_mode():
    own = network(pictures)
assert torch.equal(own, model.outputs_of(pictures))
accuracy = (own.argmax(dim=1) == labels).float().mean().item()
assert accuracy > 0.5, accuracy
print(f"the loop's network: {accuracy:.1%} of the digits right")
