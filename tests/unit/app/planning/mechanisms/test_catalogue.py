"""What every mechanism does alike: each is looked up by name, here and at the workers'."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from app.accounting import (
    dp_sgd,
    gradient_clipping,
    output_perturbation,
)
from app.accounting.guarantees import Guarantee
from app.domain.errors import NotFoundError, ParameterError, PlanError, VerificationError
from app.domain.plan import Plan, TrainingKind
from app.domain.schedules import to_json
from app.evidence.certificates.parameters import read_parameters
from app.planning.mechanisms import catalogue
from app.planning.mechanisms.mechanism import Needs
from app.planning.shape import ModelShape
from tests.support import parameters as meeting
from tests.support.lineages import ENSEMBLE, NEW, RIDGE, planned
from workers.mechanisms.catalogue import rule_of, solver_of

CONVEX = {"learning_rate": 1.0, "weight_decay": 0.05, "smoothness": 0.25}
CLIPPING = {
    "initial_clip": 1.0,
    "gradient_clip": 1.0,
    "learning_rate": 0.01,
    "weight_decay": 0.0,
    "noise_std": 10.0,
    "steps": 10,
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
    "sharded_retraining": {},
    "exact_training": meeting.TRAINED_EXACTLY,
    "sufficient_statistics": meeting.SOLVED,
}
# Complete, as certificates have them.
COMPLETE: Mapping[str, Mapping[str, Any]] = {
    "gradient_clipping": meeting.CLIPPED,
    "model_clipping": meeting.PROJECTED,
    "output_perturbation": meeting.PERTURBED,
    "tracked_release": meeting.RELEASED,
    "delete_to_descent": meeting.DESCENDED,
    "projected_noisy_sgd": meeting.NOISY_BATCHES,
    "langevin_unlearning": meeting.NOISY,
    "noisy_gd_convex": meeting.NOISY | {"earlier_releases": 1},
    "noisy_gd_nonconvex": meeting.NONCONVEX,
    "dp_sgd": meeting.PRIVATE,
    "retraining": {},
    "sharded_retraining": {},
    "exact_training": meeting.TRAINED_EXACTLY,
    "sufficient_statistics": meeting.SOLVED,
}
NAMES = sorted(catalogue.MECHANISMS)
CALIBRATED = {module.NAME: module for module in (gradient_clipping, output_perturbation, dp_sgd)}
NONCONVEX = {
    "smoothness": 1.0,
    "loss_bound": 0.5,
    "learning_rate": 1e-6,
    "weight_decay": 1.0,
    "noise_std": 0.02,
    "order": 40.0,
}


def plan_of(name: str) -> Plan:
    """Return the plan of a lineage's first run under a mechanism."""
    if name == "noisy_gd_nonconvex":
        network = ModelShape(retained=1000, batch_size=100, recipe_epochs=5, dimension=1)
        return planned(network, name, epsilon=5.0, parameters=NONCONVEX)
    if name == "sufficient_statistics":
        return planned(RIDGE, name)
    if name == "sharded_retraining":
        return planned(ENSEMBLE, name)
    fixed = {"steps": 3} if name == "gradient_clipping" else {}
    return planned(NEW, name, epsilon=8.0, parameters=fixed)


def test_every_mechanism_is_in_the_lists_of_this_module() -> None:
    assert set(PARAMETERS) == set(COMPLETE) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_mechanism_describes_itself(name: str) -> None:
    mechanism = catalogue.mechanism_named(name)
    assert mechanism.name == name
    assert mechanism.version >= 1
    on_linear_heads = "history" in PARAMETERS[name] or name == "exact_training"
    assert (mechanism.needs is Needs.LINEAR_HEAD) == on_linear_heads


@pytest.mark.parametrize("name", NAMES)
def test_every_mechanism_is_reached_by_name(name: str) -> None:
    guarantee = catalogue.account(name, PARAMETERS[name])
    assert isinstance(guarantee, Guarantee)
    assert guarantee.epsilon(delta=1e-5) >= 0
    assert 0 <= guarantee.advantage() <= 1
    assert guarantee.terms.source
    assert guarantee.terms.assumptions


@pytest.mark.parametrize("name", NAMES)
def test_parameters_come_back_from_json_as_they_were(name: str) -> None:
    read = read_parameters(name, COMPLETE[name])
    document = json.loads(json.dumps(to_json(read.parameters())))
    assert document == COMPLETE[name]
    assert catalogue.mechanism_named(name).of(document) == read


@pytest.mark.parametrize("name", NAMES)
def test_a_certificate_states_every_parameter_and_no_other(name: str) -> None:
    optional = catalogue.mechanism_named(name).optional
    for parameter in COMPLETE[name]:
        without = {key: value for key, value in COMPLETE[name].items() if key != parameter}
        for broken in (without, {**without, parameter: None}):
            if broken is without and parameter in optional:
                read_parameters(name, broken)
                continue
            with pytest.raises(VerificationError, match=parameter):
                read_parameters(name, broken)
    with pytest.raises(VerificationError, match="sigma"):
        read_parameters(name, {**COMPLETE[name], "sigma": 1.0})


@pytest.mark.parametrize("name", NAMES)
def test_a_quote_is_what_its_parameters_account_for(name: str) -> None:
    plan = plan_of(name)
    guarantee = catalogue.mechanism_of(plan).account()
    assert guarantee.meets(epsilon=plan.epsilon, delta=plan.delta)
    promised = plan.predicted["epsilon"]
    assert guarantee.epsilon(delta=plan.delta) == pytest.approx(promised, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_every_mechanism_has_a_rule_or_needs_none(name: str) -> None:
    plan = plan_of(name)
    if plan.training is TrainingKind.EXACT:
        assert solver_of(plan).args == (catalogue.mechanism_of(plan),)
    if catalogue.mechanism_named(name).trains_anew:
        with pytest.raises(PlanError, match="no rule"):
            rule_of(plan)
        return
    rule = rule_of(plan)
    planned_steps = plan.settings.get("steps", plan.parameters.get("steps", 0))
    assert rule.steps == (0 if name == "dp_sgd" else planned_steps)


@pytest.mark.parametrize("name", NAMES)
def test_the_steps_taken_account_for_the_guarantee_that_is_reported(name: str) -> None:
    """All planned ones; where a part of them is a plan of its own, a part as well."""
    plan, mechanism = plan_of(name), catalogue.mechanism_of(plan_of(name))
    if mechanism.trains_anew:
        return
    steps = rule_of(plan).steps
    assert mechanism.taken(plan, steps).parameters() == dict(plan.parameters)
    if mechanism.stepwise:
        fewer = mechanism.taken(plan, steps - 1)
        assert fewer.parameters()["steps"] == steps - 1
        assert fewer.account() != mechanism.account()


@pytest.mark.parametrize("name", sorted(CALIBRATED))
def test_every_calibration_meets_its_target(name: str) -> None:
    noise = "noise_multiplier" if name == "dp_sgd" else "noise_std"
    epsilon = 0.5 if name != "noisy_gd_nonconvex" else 5.0
    setting = {key: value for key, value in PARAMETERS[name].items() if key != noise}
    found = CALIBRATED[name].calibrate(**{**setting, "epsilon": epsilon, "delta": 1e-5})
    again = {**setting, noise: found}
    if "epsilon" in setting:
        again["epsilon"] = epsilon
    assert catalogue.account(name, again).epsilon(delta=1e-5) <= epsilon * (1 + 1e-9)


def test_unknown_names_and_parameters_are_refused() -> None:
    with pytest.raises(NotFoundError):
        catalogue.account("magic", {})
    with pytest.raises(ParameterError) as caught:
        catalogue.account("output_perturbation", {"initial_clip": 1.0, "nois_std": 1.0})
    assert caught.value.name == "nois_std"
    with pytest.raises(ParameterError) as caught:
        catalogue.account("output_perturbation", {"initial_clip": 1.0})
    assert caught.value.name == "noise_std"


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"gradient_clipping"}))
def test_a_list_is_refused_by_name_where_a_number_is_due(name: str) -> None:
    for parameter in set(PARAMETERS[name]):
        with pytest.raises(ParameterError, match=parameter):
            catalogue.account(name, {**PARAMETERS[name], parameter: [1.0, 2.0]})


@pytest.mark.parametrize("value", [None, "ten", [10.0] * 9, [10.0] * 11, {}, [10.0] * 9 + [None]])
def test_a_schedule_is_a_list_of_one_number_per_step(value: object) -> None:
    with pytest.raises(ParameterError, match="noise_std"):
        catalogue.account("gradient_clipping", {**CLIPPING, "noise_std": value})


@pytest.mark.parametrize("name", catalogue.MECHANISMS)
def test_a_mechanism_says_what_survives_of_an_upload(name: str) -> None:
    mechanism = catalogue.MECHANISMS[name]
    said = mechanism.worth_of_upload(0.0 if mechanism.trains_anew else 0.7)
    assert name in said
    assert ("nothing of it survives" in said) == mechanism.trains_anew
