"""Training in memory beside a plain PyTorch loop: ``python -m benchmarks.training_loop``.

The digits' and MNIST's networks, by turns trained as a run trains them and by the loop that every
tutorial has, over the same tensors, batches of the same size and the same optimiser. The least
processor time of several rounds counts. The aim: at most 1.05 times the loop's.
"""

import time
from typing import Any, Final

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from app.domain.architectures.architecture import ArchitectureSpec
from app.domain.recipes.recipe import TrainingRecipe
from benchmarks import harness
from benchmarks.data import CLASSES, Pictures, load
from workers.training.networks.architectures import build
from workers.training.networks.network import Network

ROUNDS: Final = 7
_CPU: Final = torch.device("cpu")
_RECIPE: Final = TrainingRecipe(
    learning_rate=0.05, momentum=0.9, weight_decay=0.0, batch_size=64, schedule="constant"
)


def main() -> None:
    """Measure, print and write."""
    torch.set_num_threads(1)
    rows = [_row(load("digits"), 10), _row(load("mnist"), 1)]
    document = {"rounds": ROUNDS, "batch_size": _RECIPE.batch_size, "rows": rows}
    harness.show(document, harness.parsed(harness.arguments(__doc__), "training_loop").results)


def _row(pictures: Pictures, epochs: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"ours": [], "loop": []}
    for _ in range(ROUNDS):
        for name, train in (("ours", _ours), ("loop", _loop)):
            seconds[name].append(train(pictures, epochs))
    least = {name: min(each) for name, each in seconds.items()}
    return {
        "data": pictures.name,
        "epochs": epochs,
        "seconds": least,
        "ours_to_loop": least["ours"] / least["loop"],
    }


def _ours(pictures: Pictures, epochs: int) -> float:
    network = Network(lambda: _fresh(pictures), device=_CPU)
    began = time.process_time()
    network.train(pictures.train, _RECIPE, epochs=epochs)
    return time.process_time() - began


def _loop(pictures: Pictures, epochs: int) -> float:
    stored, targets = pictures.train.inputs, pictures.train.target
    offset, scale = pictures.train.form.offset, pictures.train.form.scale
    module = _fresh(pictures).train()
    optimizer = torch.optim.SGD(
        module.parameters(), lr=_RECIPE.learning_rate, momentum=_RECIPE.momentum
    )
    began = time.process_time()
    for _ in range(epochs):
        for chosen in torch.randperm(len(stored)).split(_RECIPE.batch_size):
            optimizer.zero_grad()
            inputs = (stored[chosen].to(torch.float32) - offset) * scale
            loss = cross_entropy(module(inputs), targets[chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return time.process_time() - began


def _fresh(pictures: Pictures) -> nn.Module:
    return build(
        ArchitectureSpec("mlp", {"hidden": [64]}),
        input_shape=tuple(pictures.train.inputs.shape[1:]),
        classes=CLASSES,
        allowed_factories=(),
    )


if __name__ == "__main__":
    main()
