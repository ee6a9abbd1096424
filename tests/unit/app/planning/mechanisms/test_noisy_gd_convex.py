import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.accounting.chains.noisy_chain import constant_mu
from app.accounting.histories.history import History, Recipe
from app.accounting.published import full_batch
from app.domain.errors import ParameterError
from app.planning.mechanisms.noisy_gd_convex import NoisyGdConvex

BASE = {"learning_rate": 1.0, "weight_decay": 0.05, "smoothness": 0.25, "lipschitz": 1.0}
NOISE = 0.01


def trained(steps=200, *, records=1000, forgotten=1, noise_std=NOISE, **change):
    """Full-batch noisy training with a shift of 0.002 a step, and a request."""
    recipe = Recipe(
        **{**BASE, "neighbours": "replacement", **change}, batch_size=records, batches=1
    )
    history = History(recipe).after_steps(steps, noise_std=noise_std).after_release()
    return history.after_request({0: forgotten})


def unlearned(steps=30, *, noise_std=NOISE, **change):
    history = trained(noise_std=noise_std, **change)
    return history.after_steps(steps, noise_std=noise_std).after_release()


def account(history, **parameters):
    return NoisyGdConvex(history=history, **parameters).account()


@pytest.mark.parametrize(("training", "unlearning"), [(1, 1), (1, 5), (50, 1), (200, 30)])
def test_mu_in_closed_form(training, unlearning):
    rate = mpmath.mpf("0.95")
    drift = rate**unlearning * mpmath.mpf("0.002") * (1 - rate**training) / (1 - rate)
    steps = training + unlearning
    variance = mpmath.mpf("0.01") ** 2 * (1 - rate ** (2 * steps)) / (1 - rate**2)
    truth = drift / mpmath.sqrt(variance)
    found = account(trained(training).after_steps(unlearning, noise_std=NOISE))
    assert truth <= found.mu * (1 + 1e-13)
    assert found.mu <= truth * (1 + mpmath.mpf("1e-10"))


def test_never_worse_than_forgetting_the_noise_of_training():
    drift = 0.002 * (1 - 0.95**200) / 0.05
    alone = constant_mu(
        start_distance=drift, contraction=0.95, shift=0.0, noise_std=NOISE, steps=30
    )
    assert account(unlearned()).mu <= alone


@pytest.mark.parametrize("steps", [1, 10, 100, 200])
def test_sharper_than_the_papers_bound_at_every_length(steps):
    theirs = full_batch.chourasia_theorem_5_1(
        **BASE, records=1000, noise_scale=NOISE / math.sqrt(2), unlearning_steps=steps
    )
    ours = account(trained(10**5).after_steps(steps, noise_std=NOISE))
    assert 2 * ours.mu**2 <= theirs.curve(4.0) / 1.9
    assert ours.epsilon(delta=1e-5) <= theirs.epsilon(delta=1e-5)


def test_present_records_in_closed_form():
    rate = 0.95**100
    squared = (0.002 / 0.01) ** 2 * (1 - rate) * 1.95 / ((1 + rate) * 0.05)
    assert account(trained(100)).mu == pytest.approx(math.sqrt(squared), rel=1e-11)


def test_drift_grows_with_records_and_halves_with_zero_out():
    one = account(unlearned()).mu
    assert account(unlearned(forgotten=3)).mu == pytest.approx(3 * one, rel=1e-11)
    assert account(unlearned(neighbours="zero_out")).mu == pytest.approx(one / 2, rel=1e-11)


@settings(max_examples=60, deadline=None)
@given(
    training=st.integers(1, 3000),
    unlearning=st.integers(1, 500),
    decay=st.sampled_from([0.0, 1e-6, 0.05, 0.5]),
    factor=st.floats(1.01, 2.0),
)
def test_mu_is_monotone(training, unlearning, decay, factor):
    def mu(steps=training, more=unlearning, noise_std=NOISE, **change):
        history = trained(steps, noise_std=noise_std, **{"weight_decay": decay, **change})
        return account(history.after_steps(more, noise_std=noise_std)).mu

    slack = 1 + 1e-11
    assert mu(steps=training + 1) * slack >= mu()
    assert mu(more=unlearning + 1) <= mu() * slack
    assert mu(noise_std=NOISE * factor) <= mu() * slack
    assert mu(lipschitz=factor) * slack >= mu()


def test_adaptive_requests_pay_for_every_earlier_release():
    history = unlearned()
    fixed = account(history)
    shown = account(history, earlier_releases=1)
    assert shown.mu == pytest.approx(account(trained()).mu, rel=1e-11)
    assert shown.mu > fixed.mu
    assert shown.terms.adaptive
    assert not fixed.terms.adaptive


@pytest.mark.parametrize("earlier", [0, 2, -1, 1.0, True, "1"])
def test_the_earlier_releases_are_those_of_the_history(earlier):
    with pytest.raises(ParameterError) as caught:
        account(unlearned(), earlier_releases=earlier)
    assert caught.value.name == "earlier_releases"


def test_both_sources_are_named():
    assert "Chourasia & Shah" in NoisyGdConvex.terms.source
    assert "Bok, Su & Altschuler" in NoisyGdConvex.terms.source
