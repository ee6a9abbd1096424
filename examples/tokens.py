"""Short texts of made-up words, and a network that reads them."""

import numpy as np
from torch import Tensor, nn


class Text(nn.Module):
    """The mean of the words decides."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 16)
        self.head = nn.Linear(16, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return a score for each class."""
        scores: Tensor = self.head(self.words(tokens).mean(dim=1))
        return scores


def build(*, input_shape: tuple[int, ...], classes: int, words: int) -> nn.Module:  # noqa: ARG001
    """Return the network."""
    return Text(words, classes)


if __name__ == "__main__":
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 400)
    tokens = random.integers(0, 500, (400, 12)) + 500 * labels[:, None]
    ids = [f"text-{i}" for i in range(400)]
    np.savez("texts.npz", record_id=ids, label=labels, features=tokens)
