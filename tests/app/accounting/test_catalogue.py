import pytest

from app.accounting import catalogue
from app.accounting.guarantees import Guarantee
from app.accounting.terms import Terms
from app.domain.errors import NotFoundError, ParameterError

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
RECIPE = {**CONVEX, "lipschitz": 1.0, "batch_size": 8, "batches": 4}
RELEASED = {
    "recipe": {**RECIPE, "neighbours": "replacement", "radius": None, "dimension": None},
    "events": [{"steps": 9, "noise_std": 0.0}, {"forget": [[1, 1]]}, {"release": 0.5}],
}
NOISY = {**RELEASED, "events": [{"steps": 9, "noise_std": 0.1}, *RELEASED["events"][1:]]}
PARAMETERS = {
    "gradient_clipping": CLIPPING,
    "output_perturbation": {"initial_clip": 1.0, "noise_std": 5.0},
    "model_clipping": {
        "epsilon": 1.0,
        "initial_clip": 1.0,
        "model_clip": 0.5,
        "noise_std": 0.5,
        "steps": 6,
    },
    "projected_noisy_sgd": {"history": NOISY},
    "tracked_release": {"history": RELEASED},
    "delete_to_descent": {"history": RELEASED},
    "langevin_unlearning": {"history": NOISY},
    "noisy_gd_convex": {"history": NOISY, "earlier_releases": 0},
    "noisy_gd_nonconvex": {
        "learning_rate": 1e-6,
        "weight_decay": 1.0,
        "smoothness": 1.0,
        "loss_bound": 0.5,
        "noise_std": 0.0028,
        "dimension": 10,
        "records": 1000,
        "request_size": 1,
        "training_steps": 10**8,
        "unlearning_steps": 10**7,
    },
    "dp_sgd": {"noise_multiplier": 5.0, "sampling_rate": 1.0, "steps": 1, "group_size": 1},
    "retraining": {},
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


def test_every_accountant_has_parameters_here():
    assert set(PARAMETERS) == set(catalogue.ACCOUNTANTS)
    assert set(catalogue.MECHANISMS) | set(catalogue.PUBLISHED) == set(catalogue.ACCOUNTANTS)


@pytest.mark.parametrize("name", catalogue.ACCOUNTANTS)
def test_every_accountant_has_the_same_interface(name):
    module = catalogue.accountant(name)
    assert name == module.NAME
    assert module.VERSION >= 1
    assert isinstance(module.TERMS, Terms)
    assert module.TERMS.source
    assert module.TERMS.assumptions


@pytest.mark.parametrize("name", catalogue.ACCOUNTANTS)
def test_every_accountant_is_reached_by_name(name):
    guarantee = catalogue.account(name, PARAMETERS[name])
    assert isinstance(guarantee, Guarantee)
    assert guarantee.epsilon(delta=1e-5) >= 0
    assert 0 <= guarantee.advantage() <= 1
    assert guarantee.terms.source


@pytest.mark.parametrize("name", sorted(set(catalogue.ACCOUNTANTS) - {"dp_sgd_group_privacy"}))
def test_every_calibration_is_reached_by_name_and_meets_its_target(name):
    noise = next(
        (
            key
            for key in ("noise_std", "noise_scale", "noise_multiplier")
            if key in PARAMETERS[name]
        ),
        None,
    )
    if "history" in PARAMETERS[name]:  # its noise was added or it was not
        assert not hasattr(catalogue.accountant(name), "calibrate")
        return
    if noise is None:
        assert catalogue.calibrate(name, {}) == 0.0
        return
    epsilon = 0.5 if name != "noisy_gd_nonconvex" else 5.0
    setting = {key: value for key, value in PARAMETERS[name].items() if key != noise}
    setting.pop("neighbours", None)
    found = catalogue.calibrate(name, {**setting, "epsilon": epsilon, "delta": 1e-5})
    again = {**setting, noise: found}
    if "epsilon" in setting:
        again["epsilon"] = epsilon
    assert catalogue.account(name, again).epsilon(delta=1e-5) <= epsilon * (1 + 1e-9)


def test_unknown_names_and_parameters_are_refused():
    with pytest.raises(NotFoundError):
        catalogue.account("magic", {})
    with pytest.raises(ParameterError) as caught:
        catalogue.account("output_perturbation", {"initial_clip": 1.0, "nois_std": 1.0})
    assert caught.value.name == "nois_std"
    with pytest.raises(ParameterError) as caught:
        catalogue.account("output_perturbation", {"initial_clip": 1.0})
    assert caught.value.name == "noise_std"


@pytest.mark.parametrize("name", sorted(set(catalogue.MECHANISMS) - {"gradient_clipping"}))
def test_a_list_is_refused_by_name_where_a_number_is_due(name: str) -> None:
    for parameter in set(PARAMETERS[name]):
        with pytest.raises(ParameterError, match=parameter):
            catalogue.account(name, {**PARAMETERS[name], parameter: [1.0, 2.0]})


@pytest.mark.parametrize("value", [None, "ten", [10.0] * 9, [10.0] * 11, {}, [10.0] * 9 + [None]])
def test_a_schedule_is_a_list_of_one_number_per_step(value: object) -> None:
    with pytest.raises(ParameterError, match="noise_std"):
        catalogue.account("gradient_clipping", {**CLIPPING, "noise_std": value})
