import pytest

from app.accounting import gaussian
from app.accounting.histories.history import History, Recipe
from app.accounting.histories.strong_convexity import largest_learning_rate
from app.accounting.published import neel
from app.planning.mechanisms.delete_to_descent import DeleteToDescent
from app.planning.mechanisms.tracked_release import TrackedRelease
from benchmarks.calibration import calibrate

CONVEX = {"weight_decay": 0.05, "smoothness": 0.25}
TARGET = {"epsilon": 1.0, "delta": 1e-5}
GAMMA = 0.25 / (0.25 + 2 * 0.05)


def trained(records=1000, steps=30):
    """The whole data as one batch, at the longest step, with one record to forget."""
    recipe = Recipe(
        **CONVEX,
        learning_rate=largest_learning_rate(**CONVEX),
        lipschitz=1.0,
        batch_size=records,
        batches=1,
    )
    return History(recipe).after_steps(steps).after_request({0: 1})


def mu(history):
    return DeleteToDescent(history=history).account().mu


def test_mu_decays_by_the_papers_gamma():
    drift = 2 / (0.25 + 0.1) / 1000 * (1 - GAMMA**30) / (1 - GAMMA)
    for steps in (0, 1, 10):
        found = mu(trained().after_steps(steps).after_release(noise_std=0.01))
        assert found == pytest.approx(GAMMA**steps * drift / 0.01, rel=1e-11)


def test_it_is_tracked_release_at_the_largest_step():
    history = trained().after_steps(3).after_release(noise_std=0.01).to_json()
    assert (
        DeleteToDescent.of({"history": history}).account().mu
        == TrackedRelease.of({"history": history}).account().mu
    )
    assert "Neel" in DeleteToDescent.terms.source


def test_far_less_noise_than_the_published_theorem():
    """One record among a thousand; the theorem needs long training and one record at a time."""
    published = calibrate(
        neel.theorem_28, **TARGET, **CONVEX, lipschitz=1.0, records=1000, dimension=10, steps=30
    )
    history = trained().after_steps(30).after_release(noise_std=published / 100)
    assert mu(history) < gaussian.mu_of(**TARGET)
