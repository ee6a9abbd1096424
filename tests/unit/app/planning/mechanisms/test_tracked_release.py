import math

import pytest

from app.accounting.histories.history import History
from app.domain.errors import ParameterError
from app.planning.mechanisms.tracked_release import TrackedRelease
from tests.support.histories import recipe


def asked(**change):
    """Training without noise, then a request: the drift is that of one visit each five steps."""
    return History(recipe(**change)).after_steps(40).after_request({4: 1})


def account(history):
    return TrackedRelease(history=history).account()


def test_mu_is_the_drift_that_is_left_over_the_noise():
    drift = 0.25 * (1 - 0.95**40) / (1 - 0.95**5)
    for steps in (0, 1, 12):
        found = account(asked().after_steps(steps).after_release(noise_std=0.1))
        assert found.mu == pytest.approx(drift * 0.95**steps / 0.1, rel=1e-11)


def test_without_noise_nothing_is_guaranteed():
    with pytest.raises(ParameterError) as caught:
        account(asked().after_steps(10**6).after_release())
    assert caught.value.name == "noise_std"


def test_the_second_request_finds_the_noise_of_the_first():
    first = asked().after_release(noise_std=0.5)
    again = first.after_request({4: 1})
    assert account(again).mu == pytest.approx(2 * account(first).mu, rel=1e-11)


def test_the_same_noise_twice_is_root_two_times_as_much():
    once = asked().after_release(noise_std=0.5)
    assert account(once.after_release(noise_std=0.5)).mu == pytest.approx(
        account(once).mu / math.sqrt(2), rel=1e-11
    )


def test_an_underflowing_contraction_stays_a_bound():
    mu = account(asked().after_steps(10**6).after_release(noise_std=0.1)).mu
    assert 0 < mu < 1e-200


def test_the_terms_forbid_a_secret_state():
    terms = account(asked(neighbours="replacement").after_release(noise_std=0.5)).terms
    assert terms.neighbours == "replacement"
    assert not terms.adaptive
    statements = [assumption.statement for assumption in terms.assumptions]
    assert any("nothing else was kept" in statement for statement in statements)


@pytest.mark.parametrize("broken", [None, {}, {"recipe": {}, "events": []}, "history", 3.0])
def test_refuses_what_is_no_history(broken):
    with pytest.raises(ParameterError):
        TrackedRelease.of({"history": broken}).account()
