"""Arithmetic of the update rules in float64, rounded so that it errs on the safe side.

Positions are float64 throughout. Gradients may be float32: they are converted a piece at a time, so
that no float64 copy of one is ever whole.
"""

import math
from collections.abc import Iterator
from typing import Final

import torch

from app.domain.errors import PlanError
from workers.training.team import Team

# Covers the rounding of a norm, of the factor and of every product.
CLIP_MARGIN: Final = 1 - 2.0**-22
# 128 KiB of float64 stay in a core's cache; from 2^15 on, torch would wake its other threads.
_PIECE_ON_CPU: Final = 1 << 14
_PIECE_ON_DEVICE: Final = 1 << 22


def pieces(*vectors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the same stretch of every vector, all 1-D of one size, from beginning to end."""
    size = _PIECE_ON_CPU if vectors[0].device.type == "cpu" else _PIECE_ON_DEVICE
    return zip(*(torch.split(vector, size) for vector in vectors), strict=True)


def shrinkage(vector: torch.Tensor, clip_norm: float, team: Team) -> float:
    """Return the factor, at most 1, that clips ``vector``: 0 if its norm is not finite.

    Of a vector that is divided each process has a stretch, and all get the very same factor.

    The norm is accumulated in float64, in pieces of 2^14 (on a device by its own tree), so that up
    to 2^28 numbers give a norm within 2^-39 of itself in whatever order they are added, and a
    factor within 2^-38. A clipped vector is then within 2^-38 clip_norm of the exact projection on
    the ball of CLIP_MARGIN * clip_norm.
    """
    norms = [torch.linalg.vector_norm(piece, dtype=torch.float64) for (piece,) in pieces(vector)]
    norm = team.norm(float(torch.linalg.vector_norm(torch.stack(norms))))
    if not math.isfinite(norm):
        return 0.0
    return 1.0 if norm <= clip_norm * CLIP_MARGIN else clip_norm / norm * CLIP_MARGIN


def clip_(vector: torch.Tensor, clip_norm: float, team: Team) -> None:
    """Scale ``vector`` down to ``clip_norm`` in place; a vector that is not finite becomes zero."""
    factor = shrinkage(vector, clip_norm, team)
    if factor == 0:
        vector.zero_()
    elif factor < 1:
        vector.mul_(factor)


def move_(
    position: torch.Tensor, gradient: torch.Tensor, *, contraction: float, rate: float
) -> None:
    """Replace ``position`` by contraction * position - rate * gradient, with three roundings.

    The contraction is taken as it is, so that it is the number that was accounted for. At rate 0
    the gradient is left out, and may hold anything.

    Raises:
        ValueError: ``position`` is not float64.
    """
    if position.dtype != torch.float64:
        raise ValueError("positions are float64")
    for here, slope in pieces(position, gradient):
        here.mul_(contraction)
        if rate != 0:
            here.sub_(slope, alpha=rate)


def require_dimension(dimension: int | None, position: torch.Tensor, team: Team) -> None:
    """Raise ``PlanError`` if a plan was made for another number of weights; None fits any."""
    size = team.count(position.numel())
    if dimension not in (None, size):
        raise PlanError(f"dimension must be {size}, not {dimension}")


_LARGEST_FLOAT16: Final = 65504.0


def as_float16(features: torch.Tensor) -> torch.Tensor:
    """Return a frozen backbone's features as they are stored; numbers out of reach are clamped.

    Training, evaluation and a published model round alike, so that all see the same numbers.
    """
    return features.to(torch.float32).clamp(-_LARGEST_FLOAT16, _LARGEST_FLOAT16).half()
