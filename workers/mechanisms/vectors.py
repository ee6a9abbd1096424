"""Arithmetic of the update rules in float32, rounded so that it errs on the safe side."""

import math
from typing import Final

import numpy as np
import torch

from workers.noise import NoiseSource

# Covers the rounding of the factor and of every product to float32, 2^-24 relative each.
_CLIP_MARGIN: Final = 1 - 2.0**-22


def clip_(vector: torch.Tensor, clip_norm: float) -> None:
    """Scale ``vector`` down to ``clip_norm`` in place; a vector that is not finite becomes zero.

    The norm is accumulated in float64.
    """
    norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
    if not math.isfinite(norm):
        vector.zero_()
    elif norm > clip_norm * _CLIP_MARGIN:
        vector.mul_(clip_norm / norm * _CLIP_MARGIN)


def add_noise_(
    position: torch.Tensor, noise_std: float, noise: NoiseSource, *, scratch: torch.Tensor
) -> None:
    """Add N(0, noise_std^2 I) in place, its standard deviation rounded up.

    Args:
        position: float32 [size].
        noise_std: per coordinate.
        noise: fresh for this run.
        scratch: float32 [size]; all zeros afterwards, so that no copy of the noise is left.
    """
    try:
        noise.normal_(scratch)
        position.add_(scratch, alpha=rounded_up(noise_std))
    finally:
        scratch.zero_()


def rounded_down(number: float) -> float:
    """Return the largest float32 that is not above ``number``."""
    nearest = np.float32(number)
    return float(nearest if nearest <= number else np.nextafter(nearest, np.float32(-np.inf)))


def rounded_up(number: float) -> float:
    """Return the smallest float32 that is not below ``number``."""
    return -rounded_down(-number)
