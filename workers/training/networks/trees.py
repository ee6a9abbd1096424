"""Boosted trees as a network: see ``app.domain.heads.boosted_trees``."""

from collections.abc import Sequence

import torch
from torch import nn

from app.domain.heads.boosted_trees import WORD_BITS, require_nodes, words_of


class BoostedTrees(nn.Module):
    """Maps features [n, *shape] to outputs [n, outputs]; two classes may share a row of trees.

    Args:
        outputs: classes, labels or targets.
        rows: of trees: 1 for two classes, else as many as outputs.
        trees: in each row.
        leaves: of a tree, at most.
        depth: of a tree, at most.
        categories: where the features of each column of categories begin, and how many they are.

    Attributes:
        column: float64 [rows, trees, nodes]: which column of what is ``seen`` a node compares.
        threshold: a record goes left where the number is at most this.
        categories: float64 [rows, trees, nodes, words]: of a column of categories a record goes
            left where its category's bit is set, 32 of them in each whole number; None without
            such a column.
        left: the place of the left child, beside which the right one is; 0 for leaves.
        value: of leaves.
        baseline: float64 [rows], added to the sum over the trees.
    """

    def __init__(
        self,
        outputs: int,
        *,
        rows: int,
        trees: int,
        leaves: int,
        depth: int,
        categories: Sequence[tuple[int, int]] = (),
    ) -> None:
        super().__init__()
        self.widths = tuple(width for _, width in categories)
        self._categories = tuple(categories)
        self._depth = min(depth, leaves - 1)
        self._paired = rows < outputs
        shape = (rows, trees, 2 * leaves - 1)
        self.column = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
        self.threshold = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
        self.left = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
        self.value = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
        words = torch.zeros((*shape, words_of(categories)), dtype=torch.float64)
        self.categories = nn.Parameter(words) if categories else None
        self.baseline = nn.Parameter(torch.zeros(rows, dtype=torch.float64))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits or numbers, float64 [n, outputs]."""
        seen = self.seen(features)
        rows, trees, nodes = self.column.shape
        root = torch.arange(rows * trees, device=seen.device) * nodes
        node = torch.zeros_like(root).expand(len(seen), -1)
        for _ in range(self._depth):
            place = root + node
            left = self.left.flatten()[place].long()
            column = self.column.flatten()[place].long()
            value = seen.gather(1, column)
            beyond = value > self.threshold.flatten()[place]
            if self.categories is not None:
                is_category = column < len(self._categories)
                is_out = ~self._holds(place, value, is_category)
                beyond = (is_category & is_out) | (~is_category & beyond)
            node = torch.where(left > 0, left + beyond.long(), node)
        values = self.value.flatten()[root + node].view(-1, rows, trees)
        outputs: torch.Tensor = values.sum(dim=2) + self.baseline
        if self._paired:
            return torch.cat([torch.zeros_like(outputs), outputs], dim=1)
        return outputs

    def _holds(
        self, place: torch.Tensor, value: torch.Tensor, is_category: torch.Tensor
    ) -> torch.Tensor:
        """Return whether nodes' sets hold the categories; where ``is_category`` alone."""
        if self.categories is None:
            return is_category
        code = torch.where(is_category, value, 0.0).long()
        words = self.categories.flatten()
        word = words[place * self.categories.shape[-1] + code // WORD_BITS]
        bits = words.new_tensor([2.0**bit for bit in range(WORD_BITS)])
        return torch.floor(word / bits[code % WORD_BITS]) % 2 > 0

    def require_nodes(self, features: int) -> None:
        """Raise ``InvalidInputError`` unless the nodes are ones of trees that see features."""
        inner = (tensor.flatten().tolist() for tensor in (self.column, self.left))
        seen = features - sum(width - 1 for width in self.widths)
        require_nodes(*inner, nodes=self.left.shape[-1], seen=seen)

    def seen(self, features: torch.Tensor) -> torch.Tensor:
        """Return what the trees see, float64 [n, columns]: places of categories, then numbers.

        What is not a finite number is 0.
        """
        flat = torch.nan_to_num(features.flatten(1).double(), nan=0.0, posinf=0.0, neginf=0.0)
        places: list[torch.Tensor] = []
        numbers: list[torch.Tensor] = []
        end = 0
        for start, width in self._categories:
            numbers.append(flat[:, end:start])
            end = start + width
            places.append(flat[:, start:end].argmax(dim=1, keepdim=True).double())
        return torch.cat([*places, *numbers, flat[:, end:]], dim=1)
