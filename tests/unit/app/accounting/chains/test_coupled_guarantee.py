import pytest

from app.accounting.chains.coupled_guarantee import CoupledGuarantee
from app.accounting.exact import RETRAINING as TERMS
from app.accounting.guarantees import GaussianGuarantee, PointGuarantee, ProfileGuarantee
from app.domain.errors import CalibrationError

ALONE = GaussianGuarantee(terms=TERMS, mu=1.0)


def better_of(coupled, *, least=lambda _: 0.0, slack=0.0):
    return CoupledGuarantee(terms=TERMS, mu=1.0, slack=slack, coupled=coupled, least=least)


def profile(delta):
    """delta at every epsilon; epsilon 0 from there on, none below."""

    def epsilon_at(target):
        if target < delta:
            raise CalibrationError("none")
        return 0.0

    return ProfileGuarantee(terms=TERMS, delta_at=lambda _: delta, epsilon_at=epsilon_at)


def refuse():
    raise AssertionError("the coupling was asked for nothing")


def test_the_better_of_both_counts_at_each_epsilon():
    both = better_of(lambda: profile(1e-4))
    assert both.delta(epsilon=0.5) == 1e-4 < ALONE.delta(epsilon=0.5)
    assert both.delta(epsilon=8.0) == ALONE.delta(epsilon=8.0) < 1e-4
    assert both.epsilon(delta=1e-3) == 0.0
    assert both.epsilon(delta=1e-5) == ALONE.epsilon(delta=1e-5)
    assert both.advantage() == 1e-4
    assert both.meets(epsilon=0.0, delta=1e-4)
    assert both.meets(epsilon=5.0, delta=1e-5)
    assert not both.meets(epsilon=0.1, delta=1e-5)
    assert both.kind == "gaussian"


def test_the_coupling_is_not_asked_where_it_cannot_help():
    both = better_of(refuse, least=lambda _: 1.0)
    assert both.delta(epsilon=1.0) == ALONE.delta(epsilon=1.0)
    assert both.epsilon(delta=1e-5) == ALONE.epsilon(delta=1e-5)
    assert both.advantage() == ALONE.advantage()
    assert not both.meets(epsilon=1.0, delta=1e-5)
    assert better_of(refuse).meets(epsilon=5.0, delta=1e-5)


def test_a_coupling_that_cannot_be_evaluated_does_not_help():
    def fails():
        raise CalibrationError("too far apart")

    both = better_of(fails)
    assert both.delta(epsilon=1.0) == ALONE.delta(epsilon=1.0)
    assert both.epsilon(delta=1e-5) == ALONE.epsilon(delta=1e-5)


def test_where_rounding_leaves_the_gaussian_no_epsilon_the_coupling_answers():
    both = better_of(lambda: profile(1e-7), slack=1e-6)
    assert both.epsilon(delta=1e-6) == 0.0


def test_any_form_may_come_from_the_coupling():
    point = PointGuarantee(terms=TERMS, at_epsilon=0.0, at_delta=1e-6)
    assert better_of(lambda: point).delta(epsilon=1.0) == pytest.approx(1e-6)
