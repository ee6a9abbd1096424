"""DP-SGD with group privacy: train privately once, and forgetting needs no step at all.

``steps`` steps; each takes every record with probability ``sampling_rate`` (Poisson), clips its
gradient to norm C and adds N(0, (noise_multiplier C)^2 I) to the sum. For ``group_size`` forgotten
records the number taken in a step is binomial, so a step is dominated by a mixture of Gaussians
whose means are 0, 1, ..., k clips apart (Ganesh 2024, arXiv 2401.10294). The composition is
numerical and pessimistic (Google's dp_accounting, connect the dots); delta below 1e-10 is refused,
because the composition's own rounding is not far below.

Guarantee: privacy profile. Neighbouring relation: add_remove. Assumptions:
 1. Poisson sampling, per-record clipping and the noise are as stated (Opacus);
 2. the model was trained once and not touched since: later runs need their own accounting;
 3. group_size counts all records forgotten so far.
"""

import importlib
import math
from functools import lru_cache
from typing import Any

from app.accounting import gaussian
from app.accounting.guarantees import ProfileGuarantee
from app.accounting.search import smallest_noise
from app.accounting.terms import Neighbours, Terms, enforced
from app.domain.checks import (
    require_delta,
    require_fraction,
    require_positive,
    require_steps,
)
from app.domain.errors import CalibrationError, ParameterError

NAME = "dp_sgd"
VERSION = 1
LARGEST_GROUP = 200
LEAST_NOISE_MULTIPLIER = 0.1  # an accounting takes minutes where the noise is much smaller

# Width of a cell of the discretised privacy loss. It rounds up: a wider cell only costs tightness.
RESOLUTION = 1e-3
COARSE_RESOLUTION = 1e-2
# Composition by Fourier transform rounds in float64: what it may lose is added to every delta.
FOURIER_ROUNDING = 1e-11
SMALLEST_DELTA = 1e-10
# Beyond this epsilon a coarse composition loses less than 0.2 %, and a fine one takes long.
_COARSE_ENOUGH = 8.0
_PROBE_DELTA = 1e-5

TERMS = Terms(
    neighbours=Neighbours.ADD_REMOVE,
    adaptive=False,
    assumptions=enforced(
        "records were sampled independently (Poisson) at the stated rate",
        "the gradient of each record was clipped and the stated noise added",
        "group_size counts all records forgotten so far",
        "the weights were not changed since by anything that read a forgotten record",
    ),
    source="Koloskova et al. 2025, section 5.3; Ganesh 2024 (arXiv 2401.10294)",
)


def account(
    *, noise_multiplier: float, sampling_rate: float, steps: int, group_size: int
) -> ProfileGuarantee:
    """Return the tight guarantee for ``group_size`` records, in a second or two.

    Raises:
        ParameterError: a parameter is out of its range.
    """
    multiplier = require_positive("noise_multiplier", noise_multiplier)
    rate = require_fraction("sampling_rate", sampling_rate)
    steps = require_steps("steps", steps)
    group = require_steps("group_size", group_size)
    if group > LARGEST_GROUP:
        raise ParameterError("group_size", f"at most {LARGEST_GROUP}")
    coarse = composed(multiplier, rate, steps, group, COARSE_RESOLUTION)
    if coarse.get_epsilon(_PROBE_DELTA) > _COARSE_ENOUGH:
        return _profile(coarse)
    return _profile(composed(multiplier, rate, steps, group, RESOLUTION))


def calibrate(
    *, epsilon: float, delta: float, sampling_rate: float, steps: int, group_size: int
) -> float:
    """Return the smallest noise multiplier that reaches (epsilon, delta), rounded up.

    A search over whole accountings: some seconds. The answer is at most 0.2 % above the smallest.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: no noise of reasonable size meets the target.
    """
    epsilon = require_positive("epsilon", epsilon)
    delta = require_delta(delta)
    rate = require_fraction("sampling_rate", sampling_rate)
    steps = require_steps("steps", steps)
    group = require_steps("group_size", group_size)

    def meets_coarsely(noise: float) -> bool:
        if noise < LEAST_NOISE_MULTIPLIER:
            raise CalibrationError("the target is met without noise of reasonable size")
        accountant = composed(noise, rate, steps, group, COARSE_RESOLUTION)
        return _profile(accountant).meets(epsilon=epsilon, delta=delta)

    def meets(noise: float) -> bool:
        guarantee = account(
            noise_multiplier=noise, sampling_rate=rate, steps=steps, group_size=group
        )
        return guarantee.meets(epsilon=epsilon, delta=delta)

    # Many small samples act like one Gaussian of this size.
    scale = rate * group * math.sqrt(steps) / gaussian.mu_of(epsilon=epsilon, delta=delta)
    high = smallest_noise(meets_coarsely, scale=max(scale, 0.4), relative_width=1e-3)
    if not meets(high):
        raise CalibrationError("the search for the noise did not converge")
    low = high
    while meets(low * (1 - 1e-2)):
        low *= 1 - 1e-2
    high, low = low, low * (1 - 1e-2)
    while high > low * (1 + 1e-3):
        middle = (low + high) / 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def _profile(accountant: Any) -> ProfileGuarantee:  # noqa: ANN401 - dp_accounting has no types
    def epsilon_at(delta: float) -> float:
        if delta < SMALLEST_DELTA:
            raise ParameterError("delta", f"at least {SMALLEST_DELTA:g} for a composed profile")
        return float(accountant.get_epsilon(delta - FOURIER_ROUNDING))

    return ProfileGuarantee(
        terms=TERMS,
        delta_at=lambda epsilon: float(accountant.get_delta(epsilon)) + FOURIER_ROUNDING,
        epsilon_at=epsilon_at,
    )


@lru_cache(maxsize=32)
def composed(
    noise_multiplier: float, sampling_rate: float, steps: int, group_size: int, resolution: float
) -> Any:  # noqa: ANN401 - dp_accounting has no types
    """Return dp_accounting's accountant of the whole training for a group.

    The library takes a second to import, so only this function does.
    """
    events = importlib.import_module("dp_accounting.dp_event")
    pld = importlib.import_module("dp_accounting.pld.pld_privacy_accountant")
    if sampling_rate == 1:
        event = events.GaussianDpEvent(noise_multiplier / group_size)
    else:
        chances = {
            float(taken): _binomial(group_size, taken, sampling_rate)
            for taken in range(group_size + 1)
        }
        # Chances that underflow would break the library; leaving out less than 1e-290 of the
        # probability changes no delta above 1e-280.
        likely = {taken: chance for taken, chance in chances.items() if chance > 1e-290}
        event = events.MixtureOfGaussiansDpEvent(
            noise_multiplier,
            list(likely),
            [chance / math.fsum(likely.values()) for chance in likely.values()],
        )
    accountant = pld.PLDAccountant(value_discretization_interval=resolution)
    try:
        return accountant.compose(event, steps)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise CalibrationError("dp_accounting cannot compose these parameters") from error


def _binomial(trials: int, hits: int, rate: float) -> float:
    return math.comb(trials, hits) * rate**hits * (1 - rate) ** (trials - hits)
