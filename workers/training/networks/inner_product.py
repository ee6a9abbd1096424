"""The product of features and weights as a layer of its own, so that it can be watched alone."""

import torch
from torch import nn
from torch.nn.functional import linear


class InnerProduct(nn.Module):
    """Maps features [n, size] to [n, rows] by weights that the layer around it owns."""

    def forward(
        self, features: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the products with each row of weights [rows, size], plus ``bias`` [rows]."""
        return linear(features, weight, bias)
