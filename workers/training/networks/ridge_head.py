"""A ridge head: linear functions of features that are clipped to a public range."""

import torch
from torch import nn

from workers.training.networks.inner_product import InnerProduct


class RidgeHead(nn.Module):
    """Maps features [n, *shape] to scores [n, outputs], in float64.

    Args:
        size: entries of one record's features.
        outputs: classes, or targets.
        feature_range: to which features are clipped.

    Attributes:
        weight: float64 [outputs, size], initially zero.
        bias: float64 [outputs], initially zero.
    """

    def __init__(self, size: int, outputs: int, *, feature_range: float) -> None:
        super().__init__()
        self.feature_range = feature_range
        self.product = InnerProduct()
        self.weight = nn.Parameter(torch.zeros(outputs, size, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros(outputs, dtype=torch.float64))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return scores: the largest is the predicted class. What is not a number counts as 0."""
        flat = torch.nan_to_num(features.flatten(1).double())
        clipped = flat.clamp(-self.feature_range, self.feature_range)
        scores: torch.Tensor = self.product(clipped, self.weight, self.bias)
        return scores
