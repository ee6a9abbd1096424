import math

import pytest

from app.accounting import gaussian
from app.accounting.exact import RETRAINING as TERMS
from app.accounting.guarantees import (
    ExactGuarantee,
    GaussianGuarantee,
    PointGuarantee,
    ProfileGuarantee,
    RenyiGuarantee,
)
from app.accounting.precision import Residue
from app.domain.errors import CalibrationError, ParameterError


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1e-9])
def test_a_gaussian_guarantee_refuses_a_mu_that_is_no_bound(bad):
    with pytest.raises(ParameterError):
        GaussianGuarantee(terms=TERMS, mu=bad)


def test_a_gaussian_guarantee_converts_exactly():
    guarantee = GaussianGuarantee(terms=TERMS, mu=0.5)
    assert guarantee.epsilon(delta=1e-5) == gaussian.epsilon_of(mu=0.5, delta=1e-5)
    assert guarantee.delta(epsilon=1.0) == gaussian.delta_of(mu=0.5, epsilon=1.0)
    assert guarantee.advantage() == gaussian.advantage_of(mu=0.5)


def test_mu_zero_is_exact():
    guarantee = GaussianGuarantee(terms=TERMS, mu=0.0)
    assert guarantee.epsilon(delta=1e-15) == guarantee.delta(epsilon=0.0) == 0.0
    assert guarantee.advantage() == guarantee.surviving_information_bits() == 0.0


def test_meets_agrees_with_the_largest_mu_of_the_target():
    mu = gaussian.mu_of(epsilon=1.0, delta=1e-5)
    assert GaussianGuarantee(terms=TERMS, mu=mu).meets(epsilon=1.0, delta=1e-5)
    assert not GaussianGuarantee(terms=TERMS, mu=mu * 1.000001).meets(epsilon=1.0, delta=1e-5)


def test_a_point_answers_for_itself_and_what_monotonicity_implies():
    point = PointGuarantee(terms=TERMS, at_epsilon=1.0, at_delta=1e-5)
    assert point.delta(epsilon=1.0) == point.delta(epsilon=2.0) == 1e-5
    assert point.epsilon(delta=1e-5) == point.epsilon(delta=1e-4) == 1.0
    assert point.meets(epsilon=1.5, delta=1e-4)
    assert not point.meets(epsilon=0.9, delta=1e-5)
    assert not point.meets(epsilon=1.0, delta=1e-6)


def test_a_point_refuses_every_other_question():
    point = PointGuarantee(terms=TERMS, at_epsilon=1.0, at_delta=1e-5)
    with pytest.raises(ParameterError) as caught:
        point.delta(epsilon=0.999)
    assert caught.value.name == "epsilon"
    with pytest.raises(ParameterError) as caught:
        point.epsilon(delta=9e-6)
    assert caught.value.name == "delta"


def test_the_advantage_of_a_point_is_that_of_randomised_response():
    point = PointGuarantee(terms=TERMS, at_epsilon=1.0, at_delta=0.1)
    best = (math.e - 1) / (math.e + 1)
    assert point.advantage() == pytest.approx(0.1 + 0.9 * best, rel=1e-12)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(-1.0, 0.1), (math.nan, 0.1), (1.0, 1.5), (1.0, -0.1), (math.inf, 0.1)]
)
def test_a_point_refuses_numbers_that_are_no_pair(epsilon, delta):
    with pytest.raises(ParameterError):
        PointGuarantee(terms=TERMS, at_epsilon=epsilon, at_delta=delta)


def test_a_renyi_guarantee_converts_both_ways():
    guarantee = RenyiGuarantee(terms=TERMS, curve=lambda order: order * 0.01)
    found = guarantee.epsilon(delta=1e-5)
    assert guarantee.delta(epsilon=found) == pytest.approx(1e-5, rel=1e-6)
    assert guarantee.meets(epsilon=found * 1.01, delta=1e-5)


def test_a_renyi_guarantee_refuses_nan():
    with pytest.raises(ParameterError):
        RenyiGuarantee(terms=TERMS, curve=lambda _: math.nan)
    with pytest.raises(ParameterError):
        RenyiGuarantee(terms=TERMS, curve=lambda order: order, highest_order=1.0)


def test_a_profile_that_has_no_answer_is_an_error():
    profile = ProfileGuarantee(
        terms=TERMS, delta_at=lambda _: math.nan, epsilon_at=lambda _: math.inf
    )
    with pytest.raises(CalibrationError):
        profile.epsilon(delta=1e-5)
    with pytest.raises(CalibrationError):
        profile.delta(epsilon=1.0)


def test_exact_is_zero_everywhere_and_still_checks_its_arguments():
    exact = ExactGuarantee(terms=TERMS)
    assert exact.epsilon(delta=1e-9) == exact.delta(epsilon=0.0) == exact.advantage() == 0.0
    assert exact.meets(epsilon=0.0, delta=1e-300)
    with pytest.raises(ParameterError):
        exact.epsilon(delta=0.0)


RESIDUE = Residue(mu=1e-3, delta=1e-9)


def gaussian_profile(mu):
    return ProfileGuarantee(
        terms=TERMS,
        delta_at=lambda epsilon: gaussian.delta_of(mu=mu, epsilon=epsilon),
        epsilon_at=lambda delta: gaussian.epsilon_of(mu=mu, delta=delta),
    )


def test_slack_is_paid_in_both_worlds():
    guarantee = GaussianGuarantee(terms=TERMS, mu=0.5, slack=1e-7)
    for epsilon in (0.0, 0.5, 1.9):
        exact = gaussian.delta_of(mu=0.5, epsilon=epsilon) + (1 + math.exp(epsilon)) * 1e-7
        assert guarantee.delta(epsilon=epsilon) == pytest.approx(exact, rel=1e-9)
        assert guarantee.delta(epsilon=epsilon) >= exact
    assert guarantee.advantage() == pytest.approx(gaussian.advantage_of(mu=0.5) + 2e-7, rel=1e-12)
    found = guarantee.epsilon(delta=1e-5)
    assert found > gaussian.epsilon_of(mu=0.5, delta=1e-5)
    assert guarantee.delta(epsilon=found) <= 1e-5 < guarantee.delta(epsilon=found * (1 - 1e-9))
    assert guarantee.meets(epsilon=found, delta=1e-5)
    assert not guarantee.meets(epsilon=found * 0.999, delta=1e-5)


def test_what_holds_at_an_epsilon_holds_beyond_it_in_spite_of_the_slack():
    guarantee = GaussianGuarantee(terms=TERMS, mu=0.5, slack=1e-9)
    assert guarantee.delta(epsilon=700.0) <= guarantee.delta(epsilon=2.5)
    assert guarantee.delta(epsilon=1e300) < 1e-6
    assert guarantee.meets(epsilon=50.0, delta=1e-5)


def test_a_slack_that_leaves_no_epsilon_is_an_error():
    guarantee = GaussianGuarantee(terms=TERMS, mu=0.5, slack=1e-5)
    with pytest.raises(CalibrationError):
        guarantee.epsilon(delta=1e-5)
    assert not guarantee.meets(epsilon=1.0, delta=1e-5)
    only_slack = GaussianGuarantee(terms=TERMS, mu=0.0, slack=1e-5)
    assert only_slack.epsilon(delta=1e-4) == 0.0
    assert only_slack.delta(epsilon=5.0) == pytest.approx(2e-5)
