"""Heads: linear functions of features. See ``app.domain.heads``."""

import math
from typing import Final

import torch
from torch import nn
from torch.nn.functional import linear, pad


class InnerProduct(nn.Module):
    """Maps features [n, size] to [n, rows] by weights that the layer around it owns."""

    def forward(
        self, features: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the products with each row of weights [rows, size], plus ``bias`` [rows]."""
        return linear(features, weight, bias)


# Rounding must not lift a norm above 1.
_NORM_MARGIN: Final = 1 - 2.0**-30
_SMALLEST_NORM: Final = 1e-30


class LinearHead(nn.Module):
    """Maps features [n, *shape] to outputs [n, outputs]; two classes may share a row of weights.

    Each record's features are scaled by numbers that depend only on that record and public
    constants, so that the loss is convex, smooth and Lipschitz with known constants for any data.
    Everything is computed in float64, including conversion of the features: drift is tracked
    through every step, and float32 would round steps away.

    Args:
        size: entries of one record's features.
        outputs: classes, labels or targets.
        rows: of weights: 1 for two classes, else as many as outputs.
        feature_norm: public bound that divides the features, with longer ones clipped to it; None
            scales every record to the same norm.
        bias: value of the constant feature, at least 0 (none) and below 1.

    Attributes:
        weight: float64 [rows, size or size + 1], initially zero; the bias is its last
            column.
    """

    def __init__(
        self, size: int, outputs: int, *, rows: int, feature_norm: float | None, bias: float
    ) -> None:
        super().__init__()
        self._feature_norm = feature_norm
        self._bias = bias * _NORM_MARGIN
        self._scale = math.sqrt(1 - bias * bias) * _NORM_MARGIN
        self._paired = rows < outputs
        columns = size + (1 if bias > 0 else 0)
        self.product = InnerProduct()
        self.weight = nn.Parameter(torch.zeros(rows, columns, dtype=torch.float64))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits or numbers, float64 [n, outputs]."""
        logits: torch.Tensor = self.product(self.scaled(features), self.weight)
        if self._paired:
            return torch.cat([torch.zeros_like(logits), logits], dim=1)
        return logits

    def scaled(self, features: torch.Tensor) -> torch.Tensor:
        """Return the scaled features: float64 [n, size (+ 1)], with norms of at most 1."""
        flat = torch.nan_to_num(features.flatten(1).double(), nan=0.0, posinf=0.0, neginf=0.0)
        largest = flat.abs().amax(dim=1, keepdim=True).clamp_min(_SMALLEST_NORM)
        norms = torch.linalg.vector_norm(flat / largest, dim=1, keepdim=True) * largest
        if self._feature_norm is not None:
            norms = norms.clamp_min(self._feature_norm)
        unit: torch.Tensor = flat / norms.clamp_min(_SMALLEST_NORM) * self._scale
        if self._bias == 0:
            return unit
        return pad(unit, (0, 1), value=self._bias)


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
