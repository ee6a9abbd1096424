import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_mechanism
from scipy.stats import binom

from app.accounting import gaussian, mixture_of_gaussians
from app.accounting.dp_sgd import FOURIER_ROUNDING

GROUP = 7
CHANCES = [float(binom.pmf(taken, GROUP, 0.03)) for taken in range(GROUP + 1)]
SENSITIVITIES = [float(taken) for taken in range(GROUP + 1)]
WAYS = [privacy_loss_mechanism.AdjacencyType.ADD, privacy_loss_mechanism.AdjacencyType.REMOVE]


@pytest.mark.parametrize(
    ("mu", "steps"),
    [
        *((mu, steps) for mu in (0.02, 0.1, 0.5, 2.0, 10.0) for steps in (1, 100, 10_000)),
        (10.0, 1_000_000),
        *(pytest.param(mu, 1_000_000, marks=pytest.mark.slow) for mu in (0.02, 0.1, 0.5, 2.0)),
    ],
)
def test_one_member_in_every_step_is_bounded_by_its_gaussian_from_above(mu, steps):
    noise = math.sqrt(steps) / mu
    losses = mixture_of_gaussians.composed(
        noise_multiplier=noise,
        sensitivities=[1.0],
        chances=[1.0],
        steps=steps,
        resolution=min(1e-3, 1 / (16 * noise)),
    )
    for delta in (1e-3, 1e-5, 1e-7, 1e-9):
        found = losses.get_epsilon_for_delta(delta - FOURIER_ROUNDING)
        exact = gaussian.epsilon_of(mu=mu, delta=delta)
        assert exact <= found <= exact * 1.005


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("noise", [0.5, 2.0, 50.0])
def test_the_inverse_takes_each_loss(way, noise):
    loss = mixture_of_gaussians.MixtureLoss(noise, SENSITIVITIES, CHANCES, adjacency_type=way)
    points = np.linspace(-9 * noise, 9 * noise, 41)
    losses = np.sort([loss.privacy_loss(point) for point in points])
    found = loss.inverse_privacy_losses(losses)
    again = np.array([loss.privacy_loss(point) for point in found])
    assert again == pytest.approx(losses, rel=1e-9, abs=1e-11)


@pytest.mark.parametrize("way", WAYS)
def test_a_loss_that_no_point_takes_has_its_inverse_at_infinity(way):
    loss = mixture_of_gaussians.MixtureLoss(1.0, SENSITIVITIES, CHANCES, adjacency_type=way)
    removed = way == privacy_loss_mechanism.AdjacencyType.REMOVE
    bound = math.log(CHANCES[0]) * (1 if removed else -1)
    beyond = bound - 0.1 if removed else bound + 0.1
    assert loss.inverse_privacy_losses(np.array([beyond])) == [math.inf if removed else -math.inf]


@pytest.mark.parametrize("way", WAYS)
def test_deltas_are_never_below_the_librarys(way):
    given = (0.8, SENSITIVITIES, CHANCES)
    ours = mixture_of_gaussians.MixtureLoss(*given, adjacency_type=way)
    theirs = privacy_loss_mechanism.MixtureGaussianPrivacyLoss(*given, adjacency_type=way)
    epsilons = np.linspace(-0.2, 0.2, 21)
    found, expected = (loss.get_delta_for_epsilon(epsilons) for loss in (ours, theirs))
    assert np.all(found >= expected - 1e-15)
    assert found == pytest.approx(expected, abs=1e-10)
