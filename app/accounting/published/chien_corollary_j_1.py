"""Chien et al. 2024, Corollary J.1: one request for records in several batches.

    Z = min((1 - c^{Tn/b})/(1 - c^{n/b}) sum_g c^{n/b - j_g - 1} 2 eta M S_g / b, 2R)
    epsilon(alpha) = alpha Z^2 c^{2Kn/b} / (2 eta sigma^2)

The paper prints (1 - c^T)/(1 - c); an epoch contracts by c^{n/b}, as its own Lemma 3.3 says.
``records_by_batch`` lists [batch number, how many] pairs.

Guarantee: Renyi curve. Neighbouring relation: replacement of all these records. Assumptions: 1. as
in ``strong_convexity``; 2. projection to radius R; 3. only the final iterate is released.
"""

import math
from collections.abc import Sequence

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.published import chien
from app.accounting.search import smallest_noise
from app.domain.checks import require_count, require_steps
from app.domain.errors import ParameterError

NAME = "chien_corollary_j_1"
VERSION = 1
TERMS = chien.terms("Corollary J.1")


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
    records_by_batch: Sequence[Sequence[int]],
    training_epochs: int,
    epochs: int,
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
    steps = require_steps("epochs", epochs) * setting.batches
    lost = setting.epochs_lost(require_steps("training_epochs", training_epochs))
    total = 0.0
    for batch, count in records_by_batch:
        if require_count("records_by_batch", batch) >= setting.batches:
            raise ParameterError("records_by_batch", f"batch numbers below {setting.batches}")
        if require_steps("records_by_batch", count) > batch_size:
            raise ParameterError("records_by_batch", f"at most {batch_size} of one batch")
        total += setting.decay(setting.batches - batch - 1) * setting.shift * count
    if total == 0:
        raise ParameterError("records_by_batch", "at least one pair")
    distance = min(lost * total * (1 + 1e-13), 2 * radius)
    factor = setting.divergence_factor(distance) * setting.amplification(steps, sharp=False)
    return RenyiGuarantee(terms=TERMS, curve=lambda order: order * factor)


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
    records_by_batch: Sequence[Sequence[int]],
    training_epochs: int,
    epochs: int,
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
            records_by_batch=records_by_batch,
            training_epochs=training_epochs,
            epochs=epochs,
        )
        return guarantee.epsilon(delta=delta) <= epsilon

    shift = 2 * learning_rate * lipschitz / batch_size
    return smallest_noise(meets, scale=shift / math.sqrt(2 * learning_rate) / epsilon)
