"""Boosted trees as a network: see ``app.domain.heads.boosted_trees``."""

import torch
from torch import nn


class BoostedTrees(nn.Module):
    """Maps features [n, *shape] to outputs [n, outputs]; two classes may share a row of trees.

    Args:
        outputs: classes, labels or targets.
        rows: of trees: 1 for two classes, else as many as outputs.
        trees: in each row.
        leaves: of a tree, at most.
        depth: of a tree, at most.

    Attributes:
        column: float64 [rows, trees, nodes]: which feature a node compares.
        threshold: a record goes left where the feature is at most this.
        left: the place of the left child, beside which the right one is; 0 for leaves.
        value: of leaves.
        baseline: float64 [rows], added to the sum over the trees.
    """

    def __init__(self, outputs: int, *, rows: int, trees: int, leaves: int, depth: int) -> None:
        super().__init__()
        self._depth = min(depth, leaves - 1)
        self._paired = rows < outputs
        shape = (rows, trees, 2 * leaves - 1)
        self.column = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
        self.threshold = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
        self.left = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
        self.value = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
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
            beyond = (
                seen.gather(1, self.column.flatten()[place].long())
                > (self.threshold.flatten()[place])
            )
            node = torch.where(left > 0, left + beyond.long(), node)
        values = self.value.flatten()[root + node].view(-1, rows, trees)
        outputs: torch.Tensor = values.sum(dim=2) + self.baseline
        if self._paired:
            return torch.cat([torch.zeros_like(outputs), outputs], dim=1)
        return outputs

    def seen(self, features: torch.Tensor) -> torch.Tensor:
        """Return what the trees see: float64 [n, size], 0 for what is not a finite number."""
        flat = features.flatten(1).double()
        return torch.nan_to_num(flat, nan=0.0, posinf=0.0, neginf=0.0)
