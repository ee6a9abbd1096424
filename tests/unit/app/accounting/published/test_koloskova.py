import math

import pytest

from app.accounting import gaussian, gradient_clipping, model_clipping, output_perturbation
from app.accounting.published import koloskova
from app.domain.errors import CalibrationError, ParameterError
from benchmarks.calibration import calibrate, steps_needed

PLAIN = {
    "initial_clip": 2.0,
    "gradient_clip": 1.5,
    "learning_rate": 0.01,
    "weight_decay": 0.0,
    "steps": 30,
}
DECAYED = {**PLAIN, "weight_decay": 70.0}


def test_theorem_4_1_in_closed_form():
    log_term = math.log(1e5)
    plain = 9 * log_term / (0.25 * 30) * (2.0 + 1.5 * 0.01 * 30) ** 2
    found = calibrate(koloskova.theorem_4_1, epsilon=0.5, delta=1e-5, **PLAIN)
    assert found == pytest.approx(math.sqrt(plain), rel=1e-11)
    decayed = 72 * 0.7 * log_term / 0.25 * (2.0 * 0.3**30 + 1.5 / 70) ** 2
    found = calibrate(koloskova.theorem_4_1, epsilon=0.5, delta=1e-5, **DECAYED)
    assert found == pytest.approx(math.sqrt(decayed), rel=1e-11)


def test_theorem_4_1_round_trip():
    for setting in (PLAIN, DECAYED):
        noise_std = calibrate(koloskova.theorem_4_1, epsilon=0.5, delta=1e-5, **setting)
        found = koloskova.theorem_4_1(delta=1e-5, noise_std=noise_std, **setting)
        assert found.at_epsilon == pytest.approx(0.5, rel=1e-11)
        assert found.meets(epsilon=0.5, delta=1e-5)


def test_theorem_4_1_holds_wherever_it_is_offered():
    for delta in (0.3, 1e-2, 1e-5, 1e-15):
        for share in (1e-4, 0.05, 0.1, 0.2, 0.2569, 1.0, 2.999):
            epsilon = share * -math.log(delta)
            for setting in (PLAIN, DECAYED, {**DECAYED, "steps": 1, "weight_decay": 50.01}):
                if setting["weight_decay"] == 0 and share > 0.257:
                    continue
                noise_std = calibrate(
                    koloskova.theorem_4_1, epsilon=epsilon, delta=delta, **setting
                )
                truth = gradient_clipping.account(noise_std=noise_std, **setting)
                assert truth.epsilon(delta=delta) <= epsilon * (1 + 1e-9)


def test_theorem_4_1_without_decay_fails_in_its_stated_range():
    # Stated for epsilon up to 3 log(1/delta) = 34.5; at 12 the truth is 12.27 for the worst chain.
    setting = {**PLAIN, "steps": 4000, "gradient_clip": 0.05}
    epsilon, delta = 12.0, 1e-5
    noise_std = math.sqrt(9 * math.log(1e5) / epsilon**2 / 4000) * (2.0 + 0.05 * 0.01 * 4000)
    truth = gradient_clipping.account(noise_std=noise_std, **setting)
    assert truth.epsilon(delta=delta) == pytest.approx(12.267, abs=1e-3)
    with pytest.raises(ParameterError) as caught:
        calibrate(koloskova.theorem_4_1, epsilon=epsilon, delta=delta, **setting)
    assert caught.value.name == "epsilon"


def test_theorem_4_1_refuses_what_it_does_not_cover():
    with pytest.raises(ParameterError) as caught:
        calibrate(koloskova.theorem_4_1, epsilon=35.0, delta=1e-5, **DECAYED)
    assert caught.value.name == "epsilon"
    with pytest.raises(ParameterError) as caught:
        calibrate(koloskova.theorem_4_1, epsilon=0.5, delta=1e-5, **{**PLAIN, "weight_decay": 30.0})
    assert caught.value.name == "weight_decay"


def test_theorem_a_9_is_the_renyi_curve_of_its_closed_form():
    found = koloskova.theorem_a_9(
        initial_clip=20.0,
        gradient_clip=10.0,
        learning_rate=0.01,
        weight_decay=50.0,
        noise_std=0.25679,
        steps=11,
    )
    for order in (2.0, 10.0):
        assert found.curve(order) == pytest.approx(order * 1.41421246110**2 / 2, rel=1e-10)


def test_theorem_a_9_is_looser_than_the_exact_accountant():
    for setting in (PLAIN, DECAYED):
        unit = gradient_clipping.account(noise_std=1.0, **setting).mu
        exact = unit / gaussian.mu_of(epsilon=1.0, delta=1e-5)
        renyi = calibrate(koloskova.theorem_a_9, epsilon=1.0, delta=1e-5, **setting)
        assert 1.05 * exact < renyi < 1.25 * exact
        found = koloskova.theorem_a_9(noise_std=renyi, **setting)
        assert found.epsilon(delta=1e-5) == pytest.approx(1.0, rel=1e-8)


def test_theorem_4_2_in_closed_form():
    given = {
        "epsilon": 1.0,
        "initial_clip": 1.0,
        "model_clip": 0.5,
        "noise_std": 0.5,
        "initial_noise_std": 2.0,
    }
    theta = gaussian.delta_of(mu=2.0, epsilon=1.0)
    start = gaussian.delta_of(mu=1.0, epsilon=1.0)
    found = koloskova.theorem_4_2(steps=7, **given)
    assert found.at_delta == pytest.approx(start * theta**7, rel=1e-10)
    needed = steps_needed(delta=1e-5, **given)
    assert needed == math.ceil((math.log(1e5) + math.log(start)) / -math.log(theta))


def test_theorem_4_2_calibrates():
    given = {"epsilon": 1.0, "initial_clip": 1.0, "model_clip": 0.5, "steps": 6}
    noise_std = calibrate(koloskova.theorem_4_2, delta=1e-5, **given)
    assert koloskova.theorem_4_2(noise_std=noise_std, **given).at_delta <= 1e-5
    below = koloskova.theorem_4_2(noise_std=noise_std * 0.99, **given)
    assert below.at_delta > 1e-5
    assert noise_std > calibrate(model_clipping.account, delta=1e-5, **given)


def test_theorem_4_2_gives_up_on_hopeless_noise():
    with pytest.raises(CalibrationError):
        steps_needed(epsilon=1.0, delta=1e-5, initial_clip=1.0, model_clip=1.0, noise_std=0.01)


def test_classical_output_perturbation_in_closed_form():
    found = koloskova.classical_output_perturbation(delta=1e-5, initial_clip=1.0, noise_std=20.0)
    assert found.at_epsilon == pytest.approx(math.sqrt(8 * math.log(1.25e5)) / 20, rel=1e-12)


def test_classical_output_perturbation_reproduces_the_published_rows():
    for clip, sigma in ((1.0, 9.68961), (0.1, 0.968961), (0.01, 0.096896)):
        found = calibrate(
            koloskova.classical_output_perturbation, epsilon=1.0, delta=1e-5, initial_clip=clip
        )
        assert found == pytest.approx(sigma, rel=2e-5)
        again = koloskova.classical_output_perturbation(
            delta=1e-5, initial_clip=clip, noise_std=found
        )
        assert again.at_epsilon == pytest.approx(1.0, rel=1e-12)


def test_the_classical_formula_holds_up_to_one():
    for delta in (0.3, 0.1, 1e-2, 1e-5, 1e-10, 1e-15):
        for epsilon in (1e-3, 0.3, 1.0):
            noise_std = calibrate(
                koloskova.classical_output_perturbation,
                epsilon=epsilon,
                delta=delta,
                initial_clip=1.0,
            )
            truth = output_perturbation.account(initial_clip=1.0, noise_std=noise_std)
            assert truth.delta(epsilon=epsilon) <= delta


def test_the_classical_formula_refuses_epsilon_above_one():
    with pytest.raises(ParameterError) as caught:
        calibrate(
            koloskova.classical_output_perturbation, epsilon=1.1, delta=1e-5, initial_clip=1.0
        )
    assert caught.value.name == "epsilon"
    with pytest.raises(ParameterError):
        koloskova.classical_output_perturbation(delta=1e-5, initial_clip=1.0, noise_std=1.0)
