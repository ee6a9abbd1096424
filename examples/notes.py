"""A network that reads a text from left to right."""

from torch import Tensor, nn


class Reader(nn.Module):
    """Remembers what it has read, and scores what may come next."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 32)
        self.memory = nn.GRU(32, 64, batch_first=True)
        self.scores = nn.Linear(64, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of each next token."""
        scores: Tensor = self.scores(self.memory(self.embedding(tokens))[0])
        return scores


def build(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:  # noqa: ARG001
    """Return the network."""
    return Reader(classes)
