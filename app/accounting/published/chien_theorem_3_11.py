"""Chien et al. 2024, Theorem 3.11: sequential requests of one record each, with Corollary 3.7.

    Z(1) = Z,   Z(s+1) = min(c^{K_s n/b} Z(s) + Z, 2R),   Z = min(2 eta M/(b (1 - c^{n/b})), 2R)
    epsilon(alpha) = alpha Z(S)^2 c^{2 K_S n/b} / (2 eta sigma^2)   for the last request

``epochs`` lists K_1 .. K_S. ``sharp`` is as in ``chien_corollary_3_7``.

Guarantee: Renyi curve for the union of all forgotten records. Neighbouring relation: replacement.
Assumptions: 1. as in ``strong_convexity``; 2. projection to radius R; 3. only the final iterate of
a run is released.
"""

import math
from collections.abc import Sequence

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.published import chien
from app.accounting.search import smallest_noise
from app.domain.checks import require_steps
from app.domain.errors import ParameterError

NAME = "chien_theorem_3_11"
VERSION = 1
TERMS = chien.terms("Theorem 3.11")


def account(
    *,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    lipschitz: float,
    batch_size: int,
    records: int,
    noise_scale: float,
    radius: float,
    epochs: Sequence[int],
    sharp: bool = False,
) -> RenyiGuarantee:
    """Return the Renyi curve of the release.

    Raises:
        ParameterError: a parameter is out of its range.
    """
    setting = chien.Setting(
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        smoothness=smoothness,
        lipschitz=lipschitz,
        batch_size=batch_size,
        records=records,
        noise_scale=noise_scale,
        radius=radius,
    )
    if not epochs:
        raise ParameterError("epochs", "a list with one number for each request")
    distance = sequential_distance(setting=setting, epochs=epochs[:-1])
    steps = require_steps("epochs", epochs[-1]) * setting.batches
    factor = setting.divergence_factor(distance) * setting.amplification(steps, sharp=sharp)
    return RenyiGuarantee(terms=TERMS, curve=lambda order: order * factor)


def sequential_distance(*, setting: chien.Setting, epochs: Sequence[int]) -> float:
    """Return Z(S) after the requests that were given ``epochs`` of unlearning each.

    Raises:
        ParameterError: an epoch count is not a whole number above 0.
    """
    fresh = min(setting.epochs_lost() * setting.shift, 2 * setting.radius)
    distance = fresh
    for count in epochs:
        steps = require_steps("epochs", count) * setting.batches
        distance = min(setting.decay(steps) * distance + fresh, 2 * setting.radius)
    return distance


def calibrate(
    *,
    epsilon: float,
    delta: float,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    lipschitz: float,
    batch_size: int,
    records: int,
    radius: float,
    epochs: Sequence[int],
    sharp: bool = False,
) -> float:
    """Return the smallest noise_scale that reaches (epsilon, delta), rounded up.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: no noise of reasonable size reaches the target.
    """

    def meets(noise_scale: float) -> bool:
        guarantee = account(
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            smoothness=smoothness,
            lipschitz=lipschitz,
            batch_size=batch_size,
            records=records,
            noise_scale=noise_scale,
            radius=radius,
            epochs=epochs,
            sharp=sharp,
        )
        return guarantee.epsilon(delta=delta) <= epsilon

    shift = 2 * learning_rate * lipschitz / batch_size
    return smallest_noise(meets, scale=shift / math.sqrt(2 * learning_rate) / epsilon)
