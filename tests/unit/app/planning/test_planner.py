"""Plans: every one that is made meets its target; every refusal says what to change."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.errors import CalibrationError, ParameterError, PlanError
from app.domain.plan import Plan
from app.domain.policy import Policy
from app.planning.mechanisms import catalogue
from app.planning.mechanisms.gradient_clipping import complete_gradient_clipping
from app.planning.planner import make_plan, quote_all
from app.planning.shape import ModelShape
from tests.support.invented import invented

PAPER = {
    "initial_clip": 20,
    "gradient_clip": 10,
    "learning_rate": 0.01,
    "weight_decay": 50,
    "steps": 11,
}


SHAPE = ModelShape(retained=1000, batch_size=100, recipe_epochs=30)


def _plan(**policy: object) -> Plan:
    policy = {"mechanism": "gradient_clipping", **policy}
    return make_plan(policy=Policy(**policy), shape=SHAPE)


@invented(
    few=12,
    many=60,
    epsilon=st.floats(0.01, 50),
    delta=st.floats(1e-12, 0.1),
    steps=st.one_of(st.none(), st.integers(1, 100)),
    clip=st.one_of(st.none(), st.floats(0.01, 100)),
    rate=st.one_of(st.none(), st.floats(1e-4, 1)),
)
def test_every_plan_meets_its_target(
    epsilon: float, delta: float, steps: int | None, clip: float | None, rate: float | None
) -> None:
    fixed = {"steps": steps, "initial_clip": clip, "learning_rate": rate}
    fixed = {name: number for name, number in fixed.items() if number is not None}

    plan = _plan(epsilon=epsilon, delta=delta, parameters=fixed)

    assert catalogue.account(plan.mechanism, plan.parameters).meets(epsilon=epsilon, delta=delta)
    assert {name: plan.parameters[name] for name in fixed} == fixed
    assert Plan.from_json(plan.to_json()) == plan


UPLOADED = replace(SHAPE, trained_here=False, begins_again=True)


def test_auto_offers_to_retrain_uploaded_weights_and_does_not() -> None:
    quotes = quote_all(policy=Policy(), shape=UPLOADED)

    assert quotes.offer("retraining") is not None
    assert quotes.choice not in (None, "retraining")
    assert make_plan(policy=Policy(), shape=UPLOADED).mechanism == quotes.choice
    later = replace(UPLOADED, begins_again=False, earlier_releases=3)
    assert make_plan(policy=Policy(), shape=later).mechanism != "retraining"
    assert make_plan(policy=Policy(), shape=SHAPE).mechanism == "retraining"


def test_where_only_retraining_is_left_for_an_upload_it_is_quoted_in_the_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def quote(policy: Policy, shape: ModelShape) -> None:
        raise PlanError("not today")

    for name, mechanism in catalogue.MECHANISMS.items():
        if name != "retraining":
            monkeypatch.setattr(mechanism, "quote", quote)

    with pytest.raises(PlanError, match=r"retraining: it would .* 30,000 gradients, .* upload"):
        make_plan(policy=Policy(), shape=UPLOADED)


@pytest.mark.parametrize("shape", [UPLOADED, replace(SHAPE, trained_here=False)])
def test_retraining_by_name_does_not_ignore_an_upload(shape: ModelShape) -> None:
    policy = Policy(mechanism="retraining")

    with pytest.raises(PlanError, match='define the model with "weights": "train"'):
        make_plan(policy=policy, shape=shape)
    released = replace(shape, begins_again=False, earlier_releases=1)
    assert make_plan(policy=policy, shape=released).mechanism == "retraining"


def test_the_papers_parameters_need_the_papers_noise() -> None:
    parameters = complete_gradient_clipping(epsilon=1.0, delta=1e-5, fixed=PAPER)

    assert parameters.noise_std == pytest.approx(1.3548, abs=5e-5)


@given(
    name=st.sampled_from([*PAPER, "noise_std"]),
    number=st.sampled_from(
        [0, -1, -0.5, 1e-320, 1e-300, 1e300, float("inf"), float("nan"), float("-inf")]
    ),
    epsilon=st.sampled_from([1.0, 1e-300, 1e300]),
)
@settings(max_examples=120, deadline=None)
def test_absurd_numbers_are_refused_in_words(name: str, number: float, epsilon: float) -> None:
    try:
        plan = _plan(epsilon=epsilon, parameters={name: number})
    except (PlanError, ParameterError, CalibrationError):
        return
    assert catalogue.account(plan.mechanism, plan.parameters).meets(epsilon=epsilon, delta=1e-5)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"mechanism": "magic"}, "mechanism must be"),
        ({"adaptive": True}, "set adaptive to false"),
        ({"parameters": {"sigma": 1.0}}, "unknown parameter 'sigma'"),
        ({"parameters": {"noise_std": 0.001}}, "leave it out"),
        ({"parameters": {"steps": 1.5}}, "whole number"),
        ({"parameters": {"steps": 301}}, "raise budget_epochs or lower steps"),
        ({"parameters": {"steps": 10**12}}, "raise budget_epochs or lower steps"),
        ({"budget_epochs": 0.01}, "raise it"),
    ],
)
def test_a_policy_that_no_plan_meets_is_refused_with_what_to_change(
    policy: dict, reason: str
) -> None:
    with pytest.raises(PlanError, match=reason):
        _plan(**policy)


@pytest.mark.parametrize(
    "policy",
    [
        {"mechanism": "model_clipping"},
        {"mechanism": "gradient_clipping", "parameters": {"steps": 11}},
        {"mechanism": "gradient_clipping", "parameters": {"learning_rate": [0.1] * 5}},
        {"mechanism": "gradient_clipping"},
        {"mechanism": "output_perturbation"},
    ],
)
@pytest.mark.parametrize("trained_here", [True, False])
def test_a_model_of_few_records_can_still_forget(policy: dict, trained_here: bool) -> None:
    few = replace(
        SHAPE,
        retained=2,
        recipe_epochs=0.5,
        dimension=100,
        earlier_releases=1,
        trained_here=trained_here,
    )
    plan = make_plan(policy=Policy(**policy), shape=few)
    assert catalogue.account(plan.mechanism, plan.parameters).meets(epsilon=1.0, delta=1e-5)
    with pytest.raises(PlanError, match="budget_epochs"):  # it was asked for
        make_plan(policy=Policy(**policy, budget_epochs=0.4), shape=few)
    with pytest.raises(PlanError, match="budget_epochs"):
        make_plan(policy=Policy(**policy), shape=replace(few, earlier_releases=0))


def test_noisy_steps_leave_most_of_the_budget_to_fine_tuning() -> None:
    shape = ModelShape(retained=50_000, batch_size=100, recipe_epochs=1)
    plan = make_plan(policy=Policy(mechanism="gradient_clipping"), shape=shape)

    assert plan.parameters["steps"] == 2
    assert plan.predicted["certifying_gradients"] == 200
    assert plan.predicted["gradient_computations"] == 50_000


LONG = ModelShape(retained=400_000, batch_size=100, recipe_epochs=1)


def test_default_gradients_are_as_large_as_the_coupling_allows_at_the_same_final_noise() -> None:
    plan = make_plan(policy=Policy(mechanism="gradient_clipping"), shape=LONG)
    guarantee = catalogue.account(plan.mechanism, plan.parameters)

    assert plan.parameters["steps"] == 20
    assert plan.parameters["gradient_clip"] > 10 * 0.0915
    assert plan.predicted["noise_per_coordinate"] == pytest.approx(1.0, rel=1e-9)
    assert guarantee.meets(epsilon=1.0, delta=1e-5)
    assert not guarantee.alone().meets(epsilon=1.0, delta=1e-5)
    more = {**plan.parameters, "gradient_clip": plan.parameters["gradient_clip"] * 1.02}
    assert not catalogue.account(plan.mechanism, more).meets(epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("fixed", [{"gradient_clip": 0.05}, {"weight_decay": 1.3}])
def test_what_a_policy_fixes_keeps_the_others_as_they_were(fixed: dict) -> None:
    plan = make_plan(policy=Policy(mechanism="gradient_clipping", parameters=fixed), shape=LONG)

    assert {name: plan.parameters[name] for name in fixed} == fixed
    assert catalogue.account(plan.mechanism, plan.parameters).meets(epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize(
    "mechanism", ["gradient_clipping", "output_perturbation", "model_clipping"]
)
def test_plans_for_a_known_dimension_count_floats(mechanism: str) -> None:
    known = replace(LONG, dimension=10**6)
    plan = make_plan(policy=Policy(mechanism=mechanism), shape=known)

    assert plan.parameters["dimension"] == 10**6
    assert catalogue.account(plan.mechanism, plan.parameters).meets(epsilon=1.0, delta=1e-5)
    unknown = make_plan(policy=Policy(mechanism=mechanism), shape=LONG)
    assert "dimension" not in unknown.parameters


@pytest.mark.parametrize("name", ["dimension", "records"])
@pytest.mark.parametrize(
    "mechanism", ["gradient_clipping", "output_perturbation", "model_clipping"]
)
def test_no_policy_says_how_large_a_model_is(mechanism: str, name: str) -> None:
    with pytest.raises(PlanError, match="unknown parameter"):
        make_plan(policy=Policy(mechanism=mechanism, parameters={name: 1}), shape=LONG)


@pytest.mark.parametrize("mechanism", ["gradient_clipping", "model_clipping"])
def test_more_noisy_steps_than_can_be_counted_in_time_are_refused(mechanism: str) -> None:
    shape = ModelShape(retained=10**9, batch_size=1, recipe_epochs=1.0)
    policy = Policy(mechanism=mechanism, parameters={"steps": 10**9})
    with pytest.raises(PlanError, match="at most 1,000,000 noisy steps"):
        make_plan(policy=policy, shape=shape)


@pytest.mark.parametrize(
    ("size", "most"),
    [("retained", 10**9), ("batch_size", 10**9), ("recipe_epochs", 10**5), ("dimension", 10**12)],
)
def test_sizes_have_a_stated_maximum(size: str, most: int) -> None:
    usual = {"retained": 100, "batch_size": 10, "recipe_epochs": 1.0}
    ModelShape(**usual | {size: most})
    with pytest.raises(ParameterError, match=f"{size} must be at most {most}"):
        ModelShape(**usual | {size: most + 1})
