import math

import pytest

from app.accounting import gaussian, output_perturbation
from app.accounting.published import koloskova
from app.domain.errors import ParameterError
from benchmarks.calibration import calibrate


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
    classical = calibrate(koloskova.classical_output_perturbation, **target)
    assert classical / output_perturbation.calibrate(**target) == pytest.approx(1.30, abs=0.005)


@pytest.mark.parametrize("name", ["initial_clip", "noise_std"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_refuses_parameters_outside_their_range(name, bad):
    with pytest.raises(ParameterError) as caught:
        output_perturbation.account(**{"initial_clip": 1.0, "noise_std": 1.0, name: bad})
    assert caught.value.name == name


def test_floats_leave_what_one_draw_leaves():
    found = output_perturbation.account(initial_clip=1.0, noise_std=5.0, dimension=10**6)
    assert found.mu == pytest.approx(0.4 + 2 * (2.2e-4 + 6e-10 / 5), rel=1e-9)
    assert found.slack == pytest.approx(10**6 * 2.0**-56 + 2.0**-58, rel=1e-9)


def test_calibration_counts_floats():
    target = {"epsilon": 1.0, "delta": 1e-5, "initial_clip": 1.0}
    real = output_perturbation.calibrate(**target)
    noise_std = output_perturbation.calibrate(**target, dimension=10**6)
    assert real * 1.001 < noise_std < real * 1.01
    found = output_perturbation.account(initial_clip=1.0, noise_std=noise_std, dimension=10**6)
    assert found.meets(epsilon=1.0, delta=1e-5)
    less = noise_std * (1 - 1e-6)
    below = output_perturbation.account(initial_clip=1.0, noise_std=less, dimension=10**6)
    assert not below.meets(epsilon=1.0, delta=1e-5)


def test_noise_that_floats_would_show_through_is_refused():
    with pytest.raises(ParameterError) as caught:
        output_perturbation.account(initial_clip=1.0, noise_std=1e-9, dimension=10)
    assert caught.value.name == "noise_std"
