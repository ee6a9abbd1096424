"""An existing training loop of PyTorch, and what becomes of it."""

import numpy as np
import torch
from digits_network import build
from digits_table import RECORDS, SHAPE, digits

import expunge

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
model = expunge.register(
    build,
    frame,
    name="digits-loop",
    options={"width": 16},
    recipe={
        "epochs": 5,
        "batch_size": 64,
        "learning_rate": 0.1,
        "momentum": 0.9,
        "held_out_fraction": 0,
    },
    policy={"mechanism": "gradient_clipping", "epsilon": 1.0, "delta": 1e-5},
    **RECORDS,
)
request = model.forget(["writer-7"], external_id="loop-1")

# The certified weights go into the network of the loop; evaluation and serving stay.
model.load_into(network).eval()
with torch.inference_mode():
    own = network(pictures)
published = model.load()
assert torch.equal(own, published.outputs_of(pictures))
accuracy = (own.argmax(dim=1) == labels).float().mean().item()
assert accuracy > 0.5, accuracy
print(
    f"the loop's network: {accuracy:.1%} of the digits right, version", model.certificate["model"]
)
