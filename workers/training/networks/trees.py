"""Boosted trees as a network: see ``app.domain.heads.boosted_trees``."""

import math
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
        own = torch.arange(rows * trees * nodes, device=seen.device)
        left, column = self.left.flatten().long(), self.column.flatten().long()
        is_leaf = left == 0
        # From a leaf every record goes on to the leaf itself.
        child = torch.where(is_leaf, own, left + own // nodes * nodes)
        by_set = ~is_leaf & (column < len(self._categories))
        threshold = self.threshold.flatten().masked_fill(is_leaf | by_set, math.inf)
        at = root.expand(len(seen), -1)
        for _ in range(self._depth):
            beyond = seen.gather(1, column[at]) > threshold[at]
            if self.categories is not None:
                beyond = beyond | (by_set[at] & ~self._holds(seen, column, at))
            at = child[at] + beyond.long()
        values = self.value.flatten()[at].view(-1, rows, trees)
        outputs: torch.Tensor = values.sum(dim=2) + self.baseline
        if self._paired:
            return torch.cat([torch.zeros_like(outputs), outputs], dim=1)
        return outputs

    def _holds(self, seen: torch.Tensor, column: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Return whether nodes' sets hold the categories; of other nodes whatever."""
        words, count = self.categories, len(self._categories)
        if words is None:
            return torch.zeros_like(at, dtype=torch.bool)
        code = seen[:, :count].long()
        place = column.clamp(max=count - 1)[at]
        bit = words.new_tensor([2.0**bit for bit in range(WORD_BITS)])[code % WORD_BITS]
        number = at * words.shape[-1] + (code // WORD_BITS).gather(1, place)
        return torch.floor(words.flatten()[number] / bit.gather(1, place)) % 2 > 0

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
