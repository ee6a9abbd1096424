import math

import pytest

from app.accounting import gaussian, output_perturbation
from app.accounting.published import koloskova_output_perturbation
from app.domain.errors import ParameterError


def test_mu_is_distance_over_noise():
    guarantee = output_perturbation.account(initial_clip=1.5, noise_std=4.0)
    assert guarantee.mu == pytest.approx(0.75, rel=1e-14)


def test_calibrated_noise_meets_its_target_and_is_smallest():
    for epsilon, delta in ((1.0, 1e-5), (1e-3, 1e-15), (50.0, 1e-15)):
        noise_std = output_perturbation.calibrate(epsilon=epsilon, delta=delta, initial_clip=2.0)
        guarantee = output_perturbation.account(initial_clip=2.0, noise_std=noise_std)
        assert guarantee.meets(epsilon=epsilon, delta=delta)
        assert noise_std == pytest.approx(
            4.0 / gaussian.mu_of(epsilon=epsilon, delta=delta), rel=1e-12
        )


def test_the_classical_formula_is_larger_by_the_stated_factor():
    target = {"epsilon": 1.0, "delta": 1e-5, "initial_clip": 1.0}
    classical = koloskova_output_perturbation.calibrate(**target)
    assert classical / output_perturbation.calibrate(**target) == pytest.approx(1.30, abs=0.005)


@pytest.mark.parametrize("name", ["initial_clip", "noise_std"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_refuses_parameters_outside_their_range(name, bad):
    with pytest.raises(ParameterError) as caught:
        output_perturbation.account(**{"initial_clip": 1.0, "noise_std": 1.0, name: bad})
    assert caught.value.name == name
