"""A linear map of a backbone's features by the mean and the covariance of public ones."""

import torch
from torch import nn

MEAN, TRANSFORM = "whitening.mean", "whitening.transform"
BASE = "base."


class Whitening(nn.Module):
    """Maps features [n, size] to (features - mean) transform, in float32.

    Attributes:
        mean: float32 [size].
        transform: float32 [size, size].
    """

    mean: torch.Tensor
    transform: torch.Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("transform", torch.zeros(size, size))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the whitened features."""
        whitened: torch.Tensor = (features.to(torch.float32) - self.mean) @ self.transform
        return whitened


def whitened(whole: nn.Module, features: nn.Module, size: int) -> tuple[nn.Module, nn.Module]:
    """Return what ``build_features`` does, for a whitened backbone whose base it built.

    Args:
        whole: the base's network, whose tensors get names after ``base.``.
        features: the part of it that computes features.
        size: how many.
    """
    whitening = Whitening(size)
    both = nn.ModuleDict({"base": whole, "whitening": whitening})
    return both, nn.Sequential(features, whitening)
