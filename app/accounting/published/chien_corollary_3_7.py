"""Chien et al. 2024, Corollary 3.7: K epochs of unlearning after training, fixed batches.

    epsilon(alpha) = alpha Z^2 c^{2Kn/b} / (2 eta sigma^2),   Z = min(2 eta M/(b (1 - c^{n/b})), 2R)

``sharp`` puts c^{2K'} (1 - c^2) / (1 - c^{2K'}), K' = Kn/b, in place of c^{2K'}; the authors' code
does so for all requests but the first. The paper assumes converged training; against the same
pipeline on the other data no such assumption is needed, because Lemma 3.3 holds for any T.

Guarantee: Renyi curve. Neighbouring relation: replacement of one record. Assumptions: 1. as in
``strong_convexity``; 2. projection to radius R; 3. only the final iterate is released.
"""

import math

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.published import chien
from app.accounting.search import smallest_noise
from app.domain.checks import require_steps

NAME = "chien_corollary_3_7"
VERSION = 1
TERMS = chien.terms("Corollary 3.7")


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
    epochs: int,
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
    steps = require_steps("epochs", epochs) * setting.batches
    distance = min(setting.epochs_lost() * setting.shift, 2 * radius)
    factor = setting.divergence_factor(distance) * setting.amplification(steps, sharp=sharp)
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
    epochs: int,
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
