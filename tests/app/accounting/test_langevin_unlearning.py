import math

import pytest

from app.accounting import langevin_unlearning, projected_noisy_sgd
from app.accounting.drift import DriftLedger, Recipe
from app.accounting.published import chien_theorem_p_2

RATE, DECAY = 2.0, 0.05
CONTRACTION = 1 - RATE * DECAY
JOB = {"learning_rate": RATE, "weight_decay": DECAY, "smoothness": 0.25}
TARGET = {"epsilon": 1.0, "delta": 1e-5}


def test_mu_in_closed_form():
    found = langevin_unlearning.account(**JOB, drift=0.3, noise_std=0.1, steps=7)
    variance = 0.01 * (1 - CONTRACTION**14) / (1 - CONTRACTION**2)
    assert found.mu == pytest.approx(0.3 * CONTRACTION**7 / math.sqrt(variance), rel=1e-12)


def test_calibration_and_steps_agree():
    noise_std = langevin_unlearning.calibrate(**TARGET, **JOB, drift=0.3, steps=7)
    assert langevin_unlearning.account(**JOB, drift=0.3, noise_std=noise_std, steps=7).meets(
        **TARGET
    )
    given = {**JOB, "drift": 0.3, "noise_std": noise_std}
    assert langevin_unlearning.steps_needed(**TARGET, **given) == 7


def test_needs_fewer_steps_than_the_published_theorem():
    """After long training of the whole data as one batch, one record of a thousand forgotten."""
    scale, records = 0.02, 1000
    recipe = Recipe(**JOB, lipschitz=1.0, batch_size=records, batches=1, neighbours="replacement")
    drift = DriftLedger(recipe).after_steps(10_000).after_request({0: 1}).drift()
    noise_std = projected_noisy_sgd.noise_std_of(learning_rate=RATE, noise_scale=scale)
    ours = langevin_unlearning.steps_needed(
        epsilon=0.1, delta=1e-5, **JOB, drift=drift, noise_std=noise_std
    )

    def published_meets(steps):
        return chien_theorem_p_2.account(
            **JOB, lipschitz=1.0, records=records, noise_scale=scale, steps=steps
        ).meets(epsilon=0.1, delta=1e-5)

    assert not published_meets(2 * ours)
    assert published_meets(1000 * ours)


def test_its_source_is_named():
    assert "Langevin" in langevin_unlearning.TERMS.source
    assert langevin_unlearning.NAME == "langevin_unlearning"
