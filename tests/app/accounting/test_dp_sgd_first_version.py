"""What certificates of the first version were made with stays, digit for digit."""

import pytest

from app.accounting import catalogue, dp_sgd, dp_sgd_first_version

TRAINING = {"noise_multiplier": 5.0, "sampling_rate": 0.001, "steps": 10_000, "group_size": 1}


def test_a_certificate_of_the_first_version_is_checked_as_it_was_made():
    first = catalogue.account(dp_sgd.NAME, TRAINING, version=1)
    assert first.epsilon(delta=1e-5) == pytest.approx(0.1251588375860376, rel=1e-9)
    present = catalogue.account(dp_sgd.NAME, TRAINING)
    assert present.epsilon(delta=1e-5) < 0.5 * first.epsilon(delta=1e-5)
    stated = catalogue.account(dp_sgd.NAME, TRAINING, version=dp_sgd.VERSION)
    assert stated.epsilon(delta=1e-5) == present.epsilon(delta=1e-5)


@pytest.mark.parametrize("rate", [0.02, 1.0])
@pytest.mark.parametrize("noise", [2.0, 40.0])
def test_both_versions_bound_the_same_release(rate, noise):
    training = {"noise_multiplier": noise, "sampling_rate": rate, "steps": 100, "group_size": 3}
    first = dp_sgd_first_version.account(**training).epsilon(delta=1e-5)
    present = dp_sgd.account(**training).epsilon(delta=1e-5)
    assert present <= first * (1 + 1e-3)
    assert present >= first * 0.9
