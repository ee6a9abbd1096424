"""Chien et al. 2024, Theorem 3.2: training of T epochs, K epochs of unlearning, fixed batches.

    epsilon(alpha) = (alpha - 1/2)/(alpha - 1) (e1(2 alpha) + e2(2 alpha))
    e1(alpha) = alpha (2R)^2 c^{2Tn/b} / (2 eta sigma^2)
    e2(alpha) = alpha Z^2 c^{2Kn/b} / (2 eta sigma^2)
    Z = 2R c^{Tn/b} + min((1 - c^{Tn/b})/(1 - c^{n/b}) 2 eta M/b, 2R)

The weak triangle inequality pays for comparing with plain training on the other data, whose last K
epochs did not happen; against the same pipeline (``projected_noisy_sgd``) it is not needed.

Guarantee: Renyi curve. Neighbouring relation: replacement of one record. Assumptions: 1. as in
``strong_convexity``; 2. projection to radius R; 3. only the final iterate is released.
"""

import math

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.published import chien
from app.accounting.search import smallest_noise
from app.domain.checks import require_steps

NAME = "chien_theorem_3_2"
VERSION = 1
TERMS = chien.terms(
    "Theorem 3.2",
    reference="training for the same epochs, from the same start, without the forgotten record",
)


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
    training_epochs: int,
    epochs: int,
) -> RenyiGuarantee:
    """Return the Renyi curve after ``epochs`` of unlearning.

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
    before = require_steps("training_epochs", training_epochs) * setting.batches
    after = require_steps("epochs", epochs) * setting.batches
    lost = setting.epochs_lost(training_epochs)
    distance = 2 * radius * setting.decay(before) + min(lost * setting.shift, 2 * radius)
    first = setting.divergence_factor(2 * radius) * setting.amplification(before, sharp=False)
    second = setting.divergence_factor(distance) * setting.amplification(after, sharp=False)

    def curve(order: float) -> float:
        return (order - 0.5) / (order - 1) * 2 * order * (first + second) * (1 + 1e-14)

    return RenyiGuarantee(terms=TERMS, curve=curve)


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
            training_epochs=training_epochs,
            epochs=epochs,
        )
        return guarantee.epsilon(delta=delta) <= epsilon

    shift = 2 * learning_rate * lipschitz / batch_size
    return smallest_noise(meets, scale=shift / math.sqrt(2 * learning_rate) / epsilon)
