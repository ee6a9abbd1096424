"""What every mechanism does alike: each is looked up by name, here and at the workers'."""

import json
from dataclasses import replace

import pytest

from app.accounting import (
    dp_sgd,
    gradient_clipping,
    output_perturbation,
)
from app.accounting.guarantees import Guarantee
from app.domain.errors import NotFoundError, ParameterError, PlanError, VerificationError
from app.domain.plan import Plan, TrainingKind
from app.domain.policy import Policy
from app.domain.schedules import to_json
from app.evidence.certificates.parameters import read_parameters
from app.planning.mechanisms import catalogue
from app.planning.mechanisms.mechanism import Needs
from app.planning.planner import quote_all
from app.planning.shape import EnsembleShape, ModelShape
from tests.support.lineages import ENSEMBLE, NEW, RIDGE, TREES, planned
from tests.support.mechanisms import CASES, CLIPPED
from workers.mechanisms.catalogue import rule_of, solver_of

NAMES = sorted(catalogue.MECHANISMS)
CALIBRATED = {module.NAME: module for module in (gradient_clipping, output_perturbation, dp_sgd)}
COMPLETE = {name: case.parameters for name, case in CASES.items()}
SHAPES = {
    Needs.ENSEMBLE: ENSEMBLE,
    Needs.RIDGE_HEAD: RIDGE,
    Needs.BOOSTED_TREES: TREES,
    Needs.LINEAR_HEAD: NEW,
    Needs.ANY_NETWORK: NEW,
}
NETWORK = ModelShape(retained=1000, batch_size=100, recipe_epochs=5, dimension=1)


def plan_of(name: str) -> Plan:
    """Return the plan of a lineage's first run under a mechanism."""
    bounded = name == "noisy_gd_nonconvex"
    shape = NETWORK if bounded else SHAPES[catalogue.mechanism_named(name).needs]
    return planned(shape, name, **CASES[name].planned)


def test_the_catalogue_and_the_cases_name_the_same_mechanisms() -> None:
    assert set(COMPLETE) == set(NAMES)


def test_a_round_of_boosting_grows_a_tree_for_each_output() -> None:
    options = TREES.trees
    assert options is not None
    of_two, of_five = (
        planned(replace(TREES, trees=replace(options, rows=rows)), "boosting") for rows in (1, 5)
    )
    counted = [each.predicted["gradient_computations"] for each in (of_two, of_five)]
    assert counted == [100 * 1000, 5 * 100 * 1000]
    assert of_two.parameters == of_five.parameters


@pytest.mark.parametrize("members", [None, 4])
def test_only_what_grows_trees_is_offered_for_them(members: int | None) -> None:
    shape = TREES if members is None else replace(TREES, ensemble=EnsembleShape(members))
    quotes = quote_all(policy=Policy(), shape=shape)
    (offer,) = quotes.offers
    assert offer.mechanism == ("boosting" if members is None else "sharded_retraining")
    assert offer.gradient_computations == 100 * 1000
    with pytest.raises(PlanError, match="budget"):
        planned(shape, offer.mechanism, budget_epochs=99)


@pytest.mark.parametrize("name", NAMES)
def test_every_mechanism_describes_itself(name: str) -> None:
    mechanism = catalogue.mechanism_named(name)
    assert mechanism.name == name
    assert mechanism.version >= 1
    on_linear_heads = "history" in COMPLETE[name] or name == "exact_training"
    assert (mechanism.needs is Needs.LINEAR_HEAD) == on_linear_heads


@pytest.mark.parametrize("name", NAMES)
def test_every_mechanism_is_reached_by_name(name: str) -> None:
    guarantee = catalogue.account(name, COMPLETE[name])
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
    setting = {key: value for key, value in COMPLETE[name].items() if key != noise}
    found = CALIBRATED[name].calibrate(**setting, epsilon=0.5, delta=1e-5)
    again = {**setting, noise: found}
    assert catalogue.account(name, again).epsilon(delta=1e-5) <= 0.5 * (1 + 1e-9)


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
    for parameter in set(COMPLETE[name]):
        with pytest.raises(ParameterError, match=parameter):
            catalogue.account(name, {**COMPLETE[name], parameter: [1.0, 2.0]})


@pytest.mark.parametrize("value", [None, "ten", [10.0] * 2, [10.0] * 4, {}, [10.0] * 2 + [None]])
def test_a_schedule_is_a_list_of_one_number_per_step(value: object) -> None:
    with pytest.raises(ParameterError, match="noise_std"):
        catalogue.account("gradient_clipping", {**CLIPPED, "noise_std": value})


@pytest.mark.parametrize("name", catalogue.MECHANISMS)
def test_a_mechanism_says_what_survives_of_an_upload(name: str) -> None:
    mechanism = catalogue.MECHANISMS[name]
    said = mechanism.worth_of_upload(0.0 if mechanism.trains_anew else 0.7)
    assert name in said
    assert ("nothing of it survives" in said) == mechanism.trains_anew
