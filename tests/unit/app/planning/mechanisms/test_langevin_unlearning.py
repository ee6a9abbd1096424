import math

from app.accounting.histories.history import History, Recipe
from app.accounting.published import full_batch
from app.planning.mechanisms.langevin_unlearning import LangevinUnlearning
from benchmarks.calibration import noise_std_of

RATE = 2.0
JOB = {"learning_rate": RATE, "weight_decay": 0.05, "smoothness": 0.25, "lipschitz": 1.0}
CONTRACTION = 0.9
TARGET = {"epsilon": 0.1, "delta": 1e-5}


def trained(noise_std, *, steps=10_000, records=1000):
    """Long noisy training on the whole data as one batch; one record of it asks to leave."""
    recipe = Recipe(**JOB, batch_size=records, batches=1, neighbours="replacement")
    return History(recipe).after_steps(steps, noise_std=noise_std).after_request({0: 1})


def test_mu_in_closed_form():
    history = trained(0.1, steps=20).after_steps(7, noise_std=0.1)
    drift = CONTRACTION**7 * 0.004 * (1 - CONTRACTION**20) / (1 - CONTRACTION)
    variance = 0.01 * (1 - CONTRACTION**54) / (1 - CONTRACTION**2)
    found = LangevinUnlearning(history=history).account().mu
    assert math.isclose(found, drift / math.sqrt(variance), rel_tol=1e-11)


def test_needs_fewer_steps_than_the_published_theorem():
    noise_std = noise_std_of(learning_rate=RATE, noise_scale=0.02)

    def published_meets(steps):
        return full_batch.chien_theorem_p_2(
            **JOB, records=1000, noise_scale=0.02, steps=steps
        ).meets(**TARGET)

    def ours_meets(steps):
        history = trained(noise_std).after_steps(steps, noise_std=noise_std)
        return LangevinUnlearning(history=history).account().meets(**TARGET)

    ours = next(steps for steps in range(10**4) if ours_meets(steps))
    assert not published_meets(2 * ours)
    assert published_meets(1000 * ours)


def test_its_source_is_named():
    assert "Langevin" in LangevinUnlearning.terms.source
    assert LangevinUnlearning.name == "langevin_unlearning"
