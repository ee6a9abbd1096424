import math

import pytest

from app.accounting import gaussian
from app.accounting.computed_guarantee import ComputedGuarantee, computed
from app.accounting.exact import RETRAINING as TERMS
from app.accounting.guarantees import (
    ExactGuarantee,
    GaussianGuarantee,
    PointGuarantee,
    ProfileGuarantee,
    RenyiGuarantee,
)
from app.accounting.precision import NONE, Residue
from app.domain.errors import CalibrationError, ParameterError

RESIDUE = Residue(mu=1e-3, delta=1e-9)


def gaussian_profile(mu):
    return ProfileGuarantee(
        terms=TERMS,
        delta_at=lambda epsilon: gaussian.delta_of(mu=mu, epsilon=epsilon),
        epsilon_at=lambda delta: gaussian.epsilon_of(mu=mu, delta=delta),
    )


def test_forms_are_called_by_their_names():
    point = PointGuarantee(terms=TERMS, at_epsilon=1.0, at_delta=1e-5)
    renyi = RenyiGuarantee(terms=TERMS, curve=lambda order: order * 0.01)
    assert GaussianGuarantee(terms=TERMS, mu=1.0).kind == "gaussian"
    assert point.kind == "point"
    assert ExactGuarantee(terms=TERMS).kind == "exact"
    assert renyi.kind == computed(renyi, RESIDUE).kind == "renyi"
    assert gaussian_profile(1.0).kind == computed(gaussian_profile(1.0), RESIDUE).kind == "profile"


def test_computing_moves_a_gaussian_twice():
    found = computed(GaussianGuarantee(terms=TERMS, mu=0.5), RESIDUE)
    assert isinstance(found, GaussianGuarantee)
    assert found.mu == pytest.approx(0.502, rel=1e-12)
    assert found.slack == 1e-9


def test_computing_a_profile_costs_little_more_than_the_gaussian_that_it_is():
    exact = computed(GaussianGuarantee(terms=TERMS, mu=0.5), RESIDUE)
    found = computed(gaussian_profile(0.5), RESIDUE)
    assert isinstance(found, ComputedGuarantee)
    for epsilon in (0.0, 0.01, 0.5, 2.0):
        assert exact.delta(epsilon=epsilon) <= found.delta(epsilon=epsilon)
        assert found.delta(epsilon=epsilon) <= exact.delta(epsilon=epsilon) * 1.2 + 1e-8
    assert (
        exact.epsilon(delta=1e-5) <= found.epsilon(delta=1e-5) <= exact.epsilon(delta=1e-5) * 1.02
    )
    assert found.delta(epsilon=found.epsilon(delta=1e-5)) <= 1e-5
    assert exact.advantage() <= found.advantage() <= exact.advantage() + 1e-4


def test_a_computed_profile_is_the_three_steps_of_its_proof():
    found = computed(gaussian_profile(1.0), RESIDUE)
    loss = 8e-3 + 1e-6
    beyond = gaussian.delta_of(mu=1e-3, epsilon=loss)
    expected = math.exp(loss) * gaussian.delta_of(mu=1.0, epsilon=2.0 - 2 * loss)
    expected += (1 + math.exp(2.0 - loss)) * beyond + (1 + math.exp(2.0)) * 1e-9
    assert found.delta(epsilon=2.0) == pytest.approx(expected, rel=1e-9)
    near = gaussian.delta_of(mu=1.0, epsilon=0.0) + 2 * gaussian.advantage_of(mu=1e-3) + 2e-9
    assert found.delta(epsilon=0.0) == pytest.approx(near, rel=1e-9)
    assert found.advantage() == pytest.approx(near, rel=1e-9)


def test_a_computed_guarantee_never_gets_worse_with_epsilon():
    found = computed(gaussian_profile(0.5), Residue(mu=1e-3, delta=1e-8))
    deltas = [found.delta(epsilon=epsilon) for epsilon in (0.0, 1.0, 3.0, 10.0, 50.0, 700.0)]
    assert deltas[-1] < 1e-5
    assert deltas[:3] == sorted(deltas[:3], reverse=True)


def test_a_residue_that_eats_the_target_is_an_error():
    with pytest.raises(CalibrationError):
        computed(gaussian_profile(0.5), Residue(mu=1e-6, delta=1e-5)).epsilon(delta=1e-5)
    with pytest.raises(ParameterError) as caught:
        computed(GaussianGuarantee(terms=TERMS, mu=0.5), Residue(mu=1.0, delta=0.0))
    assert caught.value.name == "noise_std"
    with pytest.raises(ParameterError):
        computed(PointGuarantee(terms=TERMS, at_epsilon=1.0, at_delta=1e-5), RESIDUE)


def test_without_a_residue_nothing_changes():
    guarantee = gaussian_profile(0.5)
    assert computed(guarantee, NONE) is guarantee
    exact = ExactGuarantee(terms=TERMS)
    assert computed(exact, RESIDUE) is exact


def test_a_profile_that_falls_slowly_leaves_rounding_a_smaller_share_of_delta() -> None:
    inner = ProfileGuarantee(
        terms=TERMS,
        delta_at=lambda epsilon: 9e-6 * math.exp(-epsilon / 100),
        epsilon_at=lambda delta: max(0.0, 100 * math.log(9e-6 / delta)),
    )
    found = computed(inner, Residue(mu=0.0, delta=1e-13))
    assert inner.epsilon(delta=5e-6) > 50
    assert found.epsilon(delta=1e-5) == 0.0
    assert found.delta(epsilon=0.0) <= 1e-5
    assert 0 < found.epsilon(delta=8.99e-6) < 0.2
