"""What floats do to a proof: the public grid, and how far a computed release may be from the ideal.

At each noisy step a worker rounds the sum of position and noise, in float64, to a *grid*, a power
of two near 2^-20 of the noise's standard deviation, which depends on nothing else. In either world,
the computed release is then within a ``Residue`` of the one that the theorem speaks of;
``computed_guarantee`` adds it to a guarantee. Source: docs/guarantees.md, section 11.
"""

import math
from dataclasses import dataclass
from typing import Final

from app.domain.checks import require_noise, require_non_negative, require_steps
from app.domain.errors import ParameterError

GRID_BITS: Final = 20
# How far the chance of a cell may be off, as mu of one number: a factor of e^(2^-22) for the cell
# of a pair, and what that is worth in mu.
_MU_PER_NUMBER: Final = 2.2e-7
# The rounding of position + noise, per unit of position / noise_std.
_MU_PER_REACH: Final = 6e-10
# The chance that a number came from where uniform numbers are too coarse, and that it mattered.
_DELTA_PER_NUMBER: Final = 2.0**-56
# The chance that the norm of d numbers exceeds sqrt(d) + 10: e^-50 for Gaussian ones, and below
# this for others that are up to 0.9-GDP away from them.
_DELTA_PER_NORM: Final = 2.0**-58
_FURTHEST_REACH: Final = 2.0**26
_BEYOND_EXP: Final = 700.0


@dataclass(frozen=True)
class Residue:
    """How far a computed release is from the theorem's, in each world: ``mu``-GDP and ``delta``."""

    mu: float
    delta: float


NONE: Final = Residue(mu=0.0, delta=0.0)


def grid_of(noise_std: float) -> float:
    """Return the grid for some noise: the power of two from 2^-20 noise_std to below twice that."""
    mantissa, exponent = math.frexp(require_noise("noise_std", noise_std))
    return math.ldexp(1.0, exponent - GRID_BITS - (mantissa == 0.5))


def cell_diagonal(*, dimension: int, noise_std: float) -> float:
    """Return the largest distance between two points that are rounded to one grid point."""
    return math.sqrt(dimension) * grid_of(noise_std) * (1 + 1e-15)


def noise_norm(*, dimension: int, noise_std: float) -> float:
    """Return what the norm of ``dimension`` computed numbers exceeds with chance below 2^-58."""
    return noise_std * (math.sqrt(dimension) + 10)


def sampling_residue(*, dimension: int, draws: int, reach: float, noise_std: float) -> Residue:
    """Return what the sampler, the addition and the grid leave after ``draws`` noisy steps.

    ``reach`` bounds the norm of a position before its noise; ``noise_std`` is the smallest of all.
    """
    dimension = require_steps("dimension", dimension)
    ratio = require_non_negative("reach", reach) / require_noise("noise_std", noise_std)
    if not ratio <= _FURTHEST_REACH:
        raise ParameterError(
            "noise_std", f"at least {reach / _FURTHEST_REACH:.3g}: rounding shows through less"
        )
    mu = math.sqrt(draws) * (_MU_PER_NUMBER * math.sqrt(dimension) + _MU_PER_REACH * ratio)
    return Residue(
        mu=mu * (1 + 1e-12),
        delta=draws * (dimension * _DELTA_PER_NUMBER + _DELTA_PER_NORM) * (1 + 1e-12),
    )


def weighed(distance: float, epsilon: float) -> float:
    """Return (1 + e^epsilon) distance, rounded up: what a distance of both worlds adds to delta.

    At least 1 means that nothing is left.
    """
    return distance * (1 + math.exp(min(epsilon, _BEYOND_EXP))) * (1 + 1e-13)
