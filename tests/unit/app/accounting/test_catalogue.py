import pytest

from app.accounting import catalogue
from app.accounting.guarantees import Guarantee
from app.domain.errors import NotFoundError, ParameterError
from benchmarks.calibration import calibrate

CONVEX = {"learning_rate": 1.0, "weight_decay": 0.05, "smoothness": 0.25}
FULL = {**CONVEX, "lipschitz": 1.0, "records": 1024}
CHIEN = {**FULL, "batch_size": 128, "noise_scale": 0.2, "radius": 100.0}
CLIPPING = {
    "initial_clip": 1.0,
    "gradient_clip": 1.0,
    "learning_rate": 0.01,
    "weight_decay": 0.0,
    "noise_std": 10.0,
    "steps": 10,
}
NEEL = {
    "delta": 1e-5,
    "weight_decay": 0.05,
    "smoothness": 0.25,
    "lipschitz": 1.0,
    "records": 1024,
    "noise_std": 0.05,
}
PARAMETERS = {
    "koloskova_theorem_4_1": {**CLIPPING, "delta": 1e-5},
    "koloskova_theorem_a_9": CLIPPING,
    "koloskova_theorem_4_2": {
        "epsilon": 1.0,
        "initial_clip": 1.0,
        "model_clip": 0.5,
        "noise_std": 0.5,
        "steps": 18,
    },
    "koloskova_output_perturbation": {"delta": 1e-5, "initial_clip": 1.0, "noise_std": 12.0},
    "chien_theorem_3_2": {**CHIEN, "training_epochs": 50, "epochs": 1},
    "chien_corollary_3_7": {**CHIEN, "epochs": 1},
    "chien_corollary_3_8": {**CHIEN, "epochs": 1},
    "chien_corollary_3_10": {**CHIEN, "weight_decay": 0.0, "training_epochs": 5, "epochs": 1},
    "chien_theorem_3_11": {**CHIEN, "epochs": [1, 1]},
    "chien_corollary_j_1": {
        **CHIEN,
        "records_by_batch": [[0, 2]],
        "training_epochs": 5,
        "epochs": 1,
    },
    "neel_theorem_9": {**NEEL, "steps": 20},
    "neel_theorem_28": {**NEEL, "steps": 100, "dimension": 10},
    "chien_theorem_p_2": {**FULL, "noise_scale": 0.1, "steps": 10},
    "chourasia_theorem_5_1": {**FULL, "noise_scale": 0.1, "unlearning_steps": 10},
    "dp_sgd_group_privacy": {
        "delta": 1e-5,
        "noise_multiplier": 20.0,
        "sampling_rate": 1.0,
        "steps": 1,
        "group_size": 2,
    },
}


def test_every_bound_has_parameters_here():
    assert set(PARAMETERS) == set(catalogue.PUBLISHED)


@pytest.mark.parametrize("name", catalogue.PUBLISHED)
def test_every_bound_is_reached_by_name(name):
    guarantee = catalogue.account(name, PARAMETERS[name])
    assert isinstance(guarantee, Guarantee)
    assert guarantee.epsilon(delta=1e-5) >= 0
    assert 0 <= guarantee.advantage() <= 1
    assert guarantee.terms.source
    assert guarantee.terms.assumptions


@pytest.mark.parametrize("name", sorted(set(catalogue.PUBLISHED) - {"dp_sgd_group_privacy"}))
def test_every_calibration_meets_its_target(name):
    noise = next(key for key in ("noise_std", "noise_scale") if key in PARAMETERS[name])
    setting = {key: value for key, value in PARAMETERS[name].items() if key != noise}
    found = calibrate(catalogue.PUBLISHED[name], **{**setting, "epsilon": 0.5, "delta": 1e-5})
    again = {**setting, noise: found}
    if "epsilon" in setting:
        again["epsilon"] = 0.5
    assert catalogue.account(name, again).epsilon(delta=1e-5) <= 0.5 * (1 + 1e-9)


@pytest.mark.parametrize("call", [catalogue.account, catalogue.compute])
def test_unknown_names_are_refused(call):
    with pytest.raises(NotFoundError):
        call("magic", {})


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"initial_clip": 1.0, "delta": 1e-5, "nois_std": 1.0}, "noise_std"),
        ({"initial_clip": 1.0, "delta": 1e-5, "noise_std": 9.0, "nois_std": 1.0}, "nois_std"),
        ({"initial_clip": 1.0, "delta": 1e-5, "noise_std": True}, "noise_std"),
        ({"initial_clip": 1.0, "delta": 1e-5, "noise_std": [9.0]}, "noise_std"),
        ({"initial_clip": 1.0, "delta": 1e-5, "noise_std": "9.0"}, "noise_std"),
    ],
)
def test_a_parameter_that_is_missing_unknown_or_no_number_is_named(parameters, name):
    with pytest.raises(ParameterError) as caught:
        catalogue.account("koloskova_output_perturbation", parameters)
    assert caught.value.name == name
