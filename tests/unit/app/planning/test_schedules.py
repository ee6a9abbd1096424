"""Schedules in a policy: planning keeps them, fills in the rest, and refuses what cannot be."""

import json

import pytest
from hypothesis import strategies as st

from app.accounting import gradient_clipping
from app.domain.errors import ParameterError, PlanError
from app.domain.plan import Plan
from app.domain.policy import Policy
from app.planning.mechanisms import catalogue
from app.planning.planner import make_plan, quote_all
from app.planning.shape import ConvexShape, DpTrainingShape, ModelShape
from tests.support.invented import invented

SHAPE = ModelShape(
    retained=1000,
    batch_size=100,
    recipe_epochs=30,
    dimension=10,
    convex=ConvexShape(
        lipschitz=1.0,
        smoothness=0.25,
        weight_decay=0.01,
        learning_rate=1.0,
    ),
    dp_training=DpTrainingShape(noise_multiplier=5.0, sampling_rate=0.1, steps=1, forgotten=1),
)

REFUSALS = {
    "retraining": "retraining has no parameters",
    "sufficient_statistics": "needs a ridge_head",
    "sharded_retraining": "needs an ensemble",
    "boosting": "needs boosted_trees",
}
ENOUGH_NOISE = (4.0, 3.0, 2.0, 1.5, 1.0)


def _plan(parameters: dict, **policy: object) -> Plan:
    return make_plan(
        policy=Policy(mechanism="gradient_clipping", parameters=parameters, **policy), shape=SHAPE
    )


def _schedules_of(steps: int) -> st.SearchStrategy[dict]:
    def numbers(low: float, high: float) -> st.SearchStrategy[list[float]]:
        return st.lists(st.floats(low, high), min_size=steps, max_size=steps)

    return st.fixed_dictionaries(
        {},
        optional={
            "gradient_clip": numbers(0.0, 10.0),
            "learning_rate": numbers(1e-3, 1.0),
            "weight_decay": numbers(0.0, 0.9),
        },
    )


@invented(
    few=15,
    many=60,
    drawn=st.integers(1, 12).flatmap(lambda steps: st.tuples(st.just(steps), _schedules_of(steps))),
)
def test_every_plan_keeps_its_schedules_and_meets_its_target(drawn: tuple[int, dict]) -> None:
    steps, schedules = drawn
    plan = _plan({**schedules, "steps": steps})

    assert catalogue.account(plan.mechanism, plan.parameters).meets(epsilon=1.0, delta=1e-5)
    assert {name: list(plan.parameters[name]) for name in schedules} == schedules
    assert plan.parameters["steps"] == steps
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize("name", ["gradient_clip", "learning_rate", "weight_decay", "noise_std"])
def test_the_lists_say_how_many_steps(name: str) -> None:
    scale = 1.0 if name == "noise_std" else 0.1
    plan = _plan({name: [scale * number for number in ENOUGH_NOISE]})

    assert plan.parameters["steps"] == len(ENOUGH_NOISE)
    assert plan.predicted["certifying_gradients"] == len(ENOUGH_NOISE) * SHAPE.batch_size


def test_noise_that_is_left_out_is_one_number_and_no_larger_than_needed() -> None:
    parameters = _plan(
        {"gradient_clip": [2, 1, 0.5], "learning_rate": [0.1, 0.05, 0.02]}
    ).parameters

    assert isinstance(parameters["noise_std"], float)
    less = {**parameters, "noise_std": parameters["noise_std"] * (1 - 1e-9)}
    assert not catalogue.account("gradient_clipping", less).meets(epsilon=1.0, delta=1e-5)


def test_a_noise_schedule_is_taken_as_it_is() -> None:
    plan = _plan({"noise_std": list(ENOUGH_NOISE)})

    assert plan.parameters["noise_std"] == ENOUGH_NOISE
    guarantee = catalogue.account(plan.mechanism, plan.parameters)
    assert plan.predicted["epsilon"] == guarantee.epsilon(delta=1e-5) < 1.0


def test_missing_parameters_suit_the_schedules() -> None:
    rates = (0.4, 0.2, 0.1)
    parameters = _plan({"learning_rate": list(rates)}).parameters

    contractions = {
        round(rate * decay, 12)
        for rate, decay in zip(rates, parameters["weight_decay"], strict=True)
    }
    assert len(contractions) == 1
    # Start and gradients spend half of the drift each, as they do without schedules.
    odometer = gradient_clipping.Odometer(initial_clip=parameters["initial_clip"])
    for rate, decay in zip(rates, parameters["weight_decay"], strict=True):
        size = gradient_clipping.step_size(
            gradient_clip=parameters["gradient_clip"], learning_rate=rate, weight_decay=decay
        )
        odometer.step(size, parameters["noise_std"])
    (contraction,) = {1 - product for product in contractions}
    start = 2 * parameters["initial_clip"] * contraction ** len(rates)
    assert odometer._chain.drift == pytest.approx(2 * start, rel=1e-9)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"noise_std": [2.0, 1.0, 0.1]}, "leave it out"),
        ({"noise_std": [4.0, 4.0], "gradient_clip": [0.1] * 3}, "gradient_clip lists 3 .* 2 steps"),
        ({"learning_rate": [0.1, 0.1], "steps": 3}, "learning_rate lists 2 numbers for 3 steps"),
        ({"initial_clip": [1.0, 1.0]}, "initial_clip must be one number"),
        ({"steps": [3, 3]}, "steps must be one number"),
        ({"noise_std": [4.0] * 301}, "raise budget_epochs or lower steps"),
    ],
)
def test_schedules_that_no_plan_meets_are_refused_in_words(parameters: dict, reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        _plan(parameters)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"noise_std": [4.0, 0.0]}, "noise_std must be above 0"),
        ({"gradient_clip": [1.0, -1.0]}, "gradient_clip must be 0 or above"),
        ({"learning_rate": [0.1, 0.5], "weight_decay": 2}, "weight_decay must be below"),
    ],
)
def test_a_number_out_of_range_is_refused_wherever_it_stands(parameters: dict, reason: str) -> None:
    with pytest.raises(ParameterError, match=reason):
        _plan(parameters)


@pytest.mark.parametrize("mechanism", sorted(set(catalogue.MECHANISMS) - {"gradient_clipping"}))
@pytest.mark.parametrize("name", ["noise_std", "steps", "learning_rate"])
def test_other_mechanisms_take_no_lists(mechanism: str, name: str) -> None:
    policy = Policy(mechanism=mechanism, parameters={name: [1.0, 2.0]})
    quotes = quote_all(policy=policy, shape=SHAPE)

    assert quotes.offer(mechanism) is None
    assert REFUSALS.get(mechanism, f"{name} must be one number here") in quotes.reason(mechanism)


def test_under_auto_only_gradient_clipping_takes_a_list() -> None:
    policy = Policy(parameters={"noise_std": list(ENOUGH_NOISE)})
    quotes = quote_all(policy=policy, shape=SHAPE)

    assert [quote.mechanism for quote in quotes.offers] == ["gradient_clipping"]
    (described,) = quotes.describe(delta=1e-5)["quotes"]
    assert described["parameters"]["noise_std"] == list(ENOUGH_NOISE)
