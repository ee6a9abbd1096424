"""A noisy chain as a worker computes it: what floats add to its shifts, and how far it can go.

A step's map first rounds the position to the grid and then takes at most four roundings of 2^-53 of
what it handles. ``precision.sampling_residue`` refuses a reach above 2^26 times the noise, so that
those are at most 2^-24 of the noise for both worlds together. Source: docs/guarantees.md, section
11.5.
"""

import math
from dataclasses import replace

from app.accounting.chains.noisy_step import NoisyStep, Run
from app.accounting.precision import Residue, cell_diagonal, noise_norm, sampling_residue

_ARITHMETIC = 2.0**-24


def with_rounding(step: NoisyStep, *, after_noise_std: float, dimension: int) -> NoisyStep:
    """Return a step, from the grid of the noise before it, with what floats add to its shift."""
    cell = cell_diagonal(dimension=dimension, noise_std=after_noise_std)
    moved = step.contraction * cell + _ARITHMETIC * step.noise_std
    return replace(step, shift=(step.shift + moved) * (1 + 1e-15))


def chain_residue(*, start_norm: float, run: Run, dimension: int) -> Residue:
    """Return what sampler and addition leave after a run of steps with rounding.

    A position is a sum of two parts: one that is bounded, by half the drift of the worlds, and the
    noise of all steps so far, contracted, which is Gaussian.
    """
    bounded = furthest = start_norm
    variance = largest = 0.0
    for step, count in run:
        # Both grow or fall throughout a block, so that its end and its start are the extremes.
        left = step.contraction**count
        bounded = left * bounded + step.shift / 2 * _passes(step.contraction, count)
        variance = left**2 * variance + step.noise_std**2 * _passes(step.contraction**2, count)
        furthest, largest = max(furthest, bounded), max(largest, variance)
    reach = furthest + noise_norm(dimension=dimension, noise_std=math.sqrt(largest))
    return sampling_residue(
        dimension=dimension,
        draws=sum(count for _, count in run),
        reach=reach * (1 + 1e-9),
        noise_std=min(step.noise_std for step, _ in run),
    )


def _passes(contraction: float, count: int) -> float:
    """Return 1 + c + ... + c^(count - 1)."""
    if contraction >= 1:
        return float(count)
    return (1 - contraction**count) / (1 - contraction)
