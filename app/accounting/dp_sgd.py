"""DP-SGD with group privacy: train privately once, and forgetting needs no step at all.

``steps`` steps; each takes every record with probability ``sampling_rate`` (Poisson), clips its
gradient to norm C and adds N(0, (noise_multiplier C)^2 I) to the sum. A step is dominated by a
mixture of Gaussians whose means are 0, 1, ..., k clips apart, for ``group_size`` = k forgotten
records. The composition is numerical and pessimistic (Google's dp_accounting, connect the dots);
without sampling it is one Gaussian. With a ``dimension``, floats count, too.

Guarantee: privacy profile. Neighbouring relation: add_remove. Assumptions: ``TERMS``; the bound is
for gradients of any norm up to C, 0 included, so that it holds for every smaller group as well.
Source: docs/guarantees.md, section 8.
"""

import math
from functools import lru_cache
from typing import Any

from app.accounting import gaussian
from app.accounting.computed_guarantee import computed
from app.accounting.guarantees import Guarantee, ProfileGuarantee
from app.accounting.precision import sampling_residue
from app.accounting.search import smallest_noise_by_secant
from app.accounting.terms import Neighbours, Terms, enforced
from app.domain.checks import require_fraction, require_positive, require_steps
from app.domain.errors import CalibrationError, ParameterError
from app.domain.extras import ACCOUNTING, loaded

NAME = "dp_sgd"
LARGEST_GROUP = 200
LEAST_NOISE_MULTIPLIER = 0.1  # less guarantees next to nothing

# Composition by Fourier transform rounds in float64: what it may lose is added to every delta.
FOURIER_ROUNDING = 1e-11
SMALLEST_DELTA = 1e-10
_WIDTH = 1e-3
_LARGEST_DELTA = 1 - 1e-9
# What clipping one record's gradient may leave above the clip.
_CLIP_ROUNDING = 2.0**-40
# What rounding adds to the difference of two sums, in clips: for each record of a sample, and for
# each pair of them (docs/guarantees.md, section 8).
_SUM_ROUNDING = 2.0**-25
_PAIR_ROUNDING = 2.0**-51
_LOG_LARGER_SAMPLE = 60 * math.log(2)

TERMS = Terms(
    neighbours=Neighbours.ADD_REMOVE,
    adaptive=False,
    assumptions=enforced(
        "records were sampled independently (Poisson) at the stated rate",
        "the gradient of each record was clipped and the stated noise added",
        "group_size is at least the number of all records forgotten so far",
        "the weights were not changed since by anything that read a forgotten record",
    ),
    source="Koloskova et al. 2025, section 5.3; Ganesh 2024 (arXiv 2401.10294)",
)


def account(
    *,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    group_size: int,
    records: int | None = None,
    dimension: int | None = None,
) -> Guarantee:
    """Return the tight guarantee for ``group_size`` forgotten records, within a second.

    With a ``dimension``, the numbers in a gradient, it counts floats, and needs the number of
    ``records`` in the training for the largest sample.
    """
    multiplier = require_positive("noise_multiplier", noise_multiplier)
    rate = require_fraction("sampling_rate", sampling_rate)
    steps = require_steps("steps", steps)
    group = require_group(group_size)
    if dimension is None:
        return _ideal(multiplier, rate, steps, group)
    if records is None:
        raise ParameterError("records", "given where dimension is")
    sample = largest_sample(records=records, sampling_rate=rate)
    try:
        residue = sampling_residue(
            dimension=dimension, draws=steps, reach=sample, noise_std=multiplier
        )
    except ParameterError as error:
        renamed = "noise_multiplier" if error.name == "noise_std" else error.name
        raise ParameterError(renamed, error.allowed) from error
    inexact = _SUM_ROUNDING * sample + _PAIR_ROUNDING * sample**2
    sensitivity = 1 + _CLIP_ROUNDING + inexact
    return computed(_ideal(multiplier / sensitivity * (1 - 1e-15), rate, steps, group), residue)


def largest_sample(*, records: int, sampling_rate: float) -> int:
    """Return what a Poisson sample exceeds with chance below 2^-60, by Bernstein's inequality."""
    records = require_steps("records", records)
    rate = require_fraction("sampling_rate", sampling_rate)
    third = _LOG_LARGER_SAMPLE / 3
    variance = records * rate * (1 - rate)
    above = third + math.sqrt(third**2 + 2 * variance * _LOG_LARGER_SAMPLE)
    return min(records, math.ceil((records * rate + above) * (1 + 1e-12)))


@lru_cache(maxsize=1024)
def calibrate(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    group_size: int,
    records: int | None = None,
    dimension: int | None = None,
) -> float:
    """Return a noise multiplier that reaches (epsilon, delta), at most 0.1 % above the least."""
    rate = require_fraction("sampling_rate", sampling_rate)
    steps = require_steps("steps", steps)
    group = require_group(group_size)
    allowed = math.log(gaussian.mu_of(epsilon=epsilon, delta=delta))

    def excess(noise: float) -> float:
        """Return how far the Gaussian with the same delta at epsilon is beyond the target."""
        guarantee = account(
            noise_multiplier=max(noise, LEAST_NOISE_MULTIPLIER),
            sampling_rate=rate,
            steps=steps,
            group_size=group,
            records=records,
            dimension=dimension,
        )
        found = min(guarantee.delta(epsilon=epsilon), _LARGEST_DELTA)
        beyond = math.log(gaussian.mu_of(epsilon=epsilon, delta=found)) - allowed
        if not guarantee.meets(epsilon=epsilon, delta=delta):
            return max(beyond, math.ulp(0.0))
        if noise < LEAST_NOISE_MULTIPLIER:
            raise CalibrationError("the target is met without noise of reasonable size")
        return min(beyond, 0.0)

    scale = first_guess(
        epsilon=epsilon, delta=delta, sampling_rate=rate, steps=steps, group_size=group
    )
    return smallest_noise_by_secant(excess, scale=scale, relative_width=_WIDTH)


def first_guess(
    *, epsilon: float, delta: float, sampling_rate: float, steps: int, group_size: int
) -> float:
    """Return where the search for the noise begins: many small samples act like one Gaussian."""
    mu = gaussian.mu_of(epsilon=epsilon, delta=delta)
    return max(sampling_rate * group_size * math.sqrt(steps) / mu, 0.4)


def require_group(group_size: int) -> int:
    """Return a group's size, or raise ``ParameterError`` for one that is not accounted for."""
    group = require_steps("group_size", group_size)
    if group > LARGEST_GROUP:
        raise ParameterError("group_size", f"at most {LARGEST_GROUP}")
    return group


def _ideal(multiplier: float, rate: float, steps: int, group: int) -> ProfileGuarantee:
    if rate == 1:
        mu = group * math.sqrt(steps) / multiplier
        return ProfileGuarantee(
            terms=TERMS,
            delta_at=lambda epsilon: gaussian.delta_of(mu=mu, epsilon=epsilon),
            epsilon_at=lambda delta: gaussian.epsilon_of(mu=mu, delta=delta),
        )
    training = (multiplier, rate, steps, group)
    return ProfileGuarantee(
        terms=TERMS,
        delta_at=lambda epsilon: _composed_delta(*training, epsilon),
        epsilon_at=lambda delta: _composed_epsilon(*training, delta),
    )


@lru_cache(maxsize=4096)
def _composed_delta(
    multiplier: float, rate: float, steps: int, group: int, epsilon: float
) -> float:
    losses = composed(multiplier, rate, steps, group)
    return float(losses.get_delta_for_epsilon(epsilon)) + FOURIER_ROUNDING


@lru_cache(maxsize=4096)
def _composed_epsilon(
    multiplier: float, rate: float, steps: int, group: int, delta: float
) -> float:
    if delta < SMALLEST_DELTA:
        raise ParameterError("delta", f"at least {SMALLEST_DELTA:g} for a composed profile")
    losses = composed(multiplier, rate, steps, group)
    return float(losses.get_epsilon_for_delta(delta - FOURIER_ROUNDING))


@lru_cache(maxsize=4)
def composed(noise_multiplier: float, sampling_rate: float, steps: int, group_size: int) -> Any:  # noqa: ANN401 - dp_accounting has no types
    """Return the privacy loss distribution of the whole training for a group, sampled."""
    mixture = loaded("app.accounting.mixture_of_gaussians", extra=ACCOUNTING)
    width = mixture.resolution(
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        steps=steps,
        group_size=group_size,
    )
    sensitivities, chances = members_taken(sampling_rate, group_size)
    try:
        return mixture.composed(
            noise_multiplier=noise_multiplier,
            sensitivities=sensitivities,
            chances=chances,
            steps=steps,
            resolution=width,
        )
    except (ArithmeticError, RecursionError, TypeError, ValueError) as error:
        raise CalibrationError("dp_accounting cannot compose these parameters") from error


def members_taken(sampling_rate: float, group_size: int) -> tuple[list[float], list[float]]:
    """Return how many members of the group a step may take, and the chance of each number.

    Chances that underflow would break the library; leaving out less than 1e-290 of the probability
    changes no delta above 1e-280.
    """
    chances = {
        float(taken): math.comb(group_size, taken)
        * sampling_rate**taken
        * (1 - sampling_rate) ** (group_size - taken)
        for taken in range(group_size + 1)
    }
    likely = {taken: chance for taken, chance in chances.items() if chance > 1e-290}
    total = math.fsum(likely.values())
    return list(likely), [chance / total for chance in likely.values()]
