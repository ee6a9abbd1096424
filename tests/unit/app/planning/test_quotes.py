"""Quotes for shapes: every mechanism answers, with an offer or with a reason."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.domain.errors import ParameterError
from app.domain.policy import Policy
from app.planning.mechanisms import catalogue
from app.planning.planner import quote_all
from app.planning.shape import ConvexShape, ModelShape

NETWORK = {"retained": 50_000, "batch_size": 128, "recipe_epochs": 50.0}
HEAD = {
    "lipschitz": 1.0,
    "smoothness": 0.25,
    "weight_decay": 0.011264,
    "learning_rate": 1 / 0.261264,
}


def quotes(shape: dict[str, Any], policy: dict[str, Any] | None = None) -> dict[str, Any]:
    asked = Policy(**(policy or {}))
    convex = {"convex": ConvexShape(**shape["convex"])} if "convex" in shape else {}
    return quote_all(policy=asked, shape=ModelShape(**shape | convex)).describe(delta=asked.delta)


def offers(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {quote["mechanism"]: quote for quote in answer["quotes"]}


def test_every_mechanism_offers_or_says_why_not() -> None:
    answer = quotes(shape=NETWORK)

    declined = {entry["mechanism"]: entry["reason"] for entry in answer["declined"]}
    assert set(offers(answer)) | set(declined) == set(catalogue.MECHANISMS)
    assert not set(offers(answer)) & set(declined)
    assert all(declined.values())


def test_a_loss_without_a_bound_on_its_curvature_is_declined_by_what_needs_one() -> None:
    asserted = {"smoothness": 1, "loss_bound": 1, "learning_rate": 2e-4, "weight_decay": 21}
    policy = {
        "mechanism": "noisy_gd_nonconvex",
        "epsilon": 50,
        "parameters": {**asserted, "noise_std": 0.0906, "order": 1.5},
    }
    shape = {"retained": 1000, "batch_size": 10, "recipe_epochs": 1, "dimension": 4}
    assert "noisy_gd_nonconvex" in offers(quotes(shape=shape, policy=policy))
    answer = quotes(shape=shape | {"rough": "it has a kink"}, policy=policy)
    (reason,) = (e["reason"] for e in answer["declined"] if e["mechanism"] == "noisy_gd_nonconvex")
    assert reason == "needs a bound on the loss's curvature: it has a kink"


def test_every_offer_meets_the_target_by_its_own_accountant() -> None:
    for shape in (
        NETWORK,
        {**NETWORK, "convex": HEAD},
        {**NETWORK, "convex": HEAD, "dimension": 785},
    ):
        for quote in offers(quotes(shape=shape)).values():
            guarantee = catalogue.account(quote["mechanism"], quote["parameters"])
            assert guarantee.meets(epsilon=1.0, delta=1e-5), quote["mechanism"]


def test_a_fresh_start_is_not_cheaper_than_retraining_and_auto_says_so() -> None:
    answer = quotes(shape=NETWORK)

    of = offers(answer)
    assert of["gradient_clipping"]["surviving_information_bits"] == pytest.approx(0.1112, abs=1e-4)
    assert (
        of["gradient_clipping"]["gradient_computations"]
        == of["retraining"]["gradient_computations"]
    )
    assert answer["choice"] == "retraining"


def test_under_a_smaller_budget_auto_forgets_instead_of_retraining() -> None:
    answer = quotes(shape=NETWORK, policy={"budget_epochs": 5.0})

    assert answer["choice"] in ("gradient_clipping", "model_clipping", "output_perturbation")
    assert (
        "budget_epochs" in {d["mechanism"]: d["reason"] for d in answer["declined"]}["retraining"]
    )


def test_a_tracked_head_is_released_without_a_gradient_where_its_noise_allows() -> None:
    shape = {**NETWORK, "convex": HEAD}
    policy = {"mechanism": "tracked_release", "parameters": {"steps": 0}}
    at_once = offers(quotes(shape=shape, policy=policy))["tracked_release"]
    by_default = offers(quotes(shape=shape))["tracked_release"]

    for quote in (at_once, by_default):
        assert quote["gradient_computations"] == 0
    assert by_default["noise_per_coordinate"] == 0.05
    # Enough for one record at the worst place: the drift of fifty epochs over the target's mu.
    rate, shift, batches = 1 - HEAD["learning_rate"] * 0.011264, HEAD["learning_rate"] / 128, 391
    drift = shift * (1 - rate ** (50 * batches)) / (1 - rate**batches)
    assert at_once["noise_per_coordinate"] == pytest.approx(drift / 0.268051123211, rel=1e-6)


def test_a_quote_of_a_tracked_head_names_the_history_that_it_would_have() -> None:
    shape = {**NETWORK, "convex": HEAD, "dimension": 785}
    history = offers(quotes(shape=shape))["tracked_release"]["parameters"]["history"]

    assert history["events"] == [{"steps": 50 * 391, "noise_std": 0.0}, {"release": 0.05}]
    assert history["recipe"]["dimension"] == 785


def test_only_exact_heads_and_a_mechanism_that_protects_present_records_are_adaptive() -> None:
    shape = {**NETWORK, "convex": HEAD}

    def of(releases: int) -> dict[str, Any]:
        policy = {
            "adaptive": True,
            "mechanism": "noisy_gd_convex",
            "parameters": {"earlier_releases": releases, "unlearning_steps": 20},
        }
        return offers(quotes(shape=shape, policy=policy))

    few, many = of(1), of(40)
    assert set(few) == set(many) == {"exact_training", "noisy_gd_convex"}
    assert all(offer["guarantee"]["adaptive"] for offer in few.values())
    first, last = (found["noisy_gd_convex"]["noise_per_coordinate"] for found in (few, many))
    assert last > 1.5 * first


def test_parameters_belong_to_the_mechanism_that_the_policy_names() -> None:
    policy = {"mechanism": "gradient_clipping", "parameters": {"steps": 7}}
    of = offers(quotes(shape=NETWORK, policy=policy))

    assert of["gradient_clipping"]["parameters"]["steps"] == 7
    assert {"model_clipping", "output_perturbation", "retraining"} < set(of)


def test_a_quote_gives_schedules_back_as_lists() -> None:
    schedules = {"noise_std": [4, 3, 2, 1.5], "gradient_clip": [0.2, 0.1, 0.1, 0.1]}
    policy = {"mechanism": "gradient_clipping", "parameters": schedules}
    parameters = offers(quotes(shape=NETWORK, policy=policy))["gradient_clipping"]["parameters"]

    assert {name: parameters[name] for name in schedules} == schedules
    assert parameters["steps"] == 4


_extremes = st.sampled_from([5e-324, 1e-300, 1e-12, 0.5, 1.0, 1e9, 1e300])


@given(
    policy=st.fixed_dictionaries({"epsilon": _extremes}),
    convex=st.fixed_dictionaries(dict.fromkeys(HEAD, _extremes)),
)
@settings(max_examples=12)
@example(policy={"epsilon": 1.0}, convex=dict.fromkeys(HEAD, 1.0))  # one step contracts to 0
def test_extreme_constants_are_quoted_or_refused(
    policy: dict[str, Any], convex: dict[str, Any]
) -> None:
    shape = {"retained": 10, "batch_size": 1, "recipe_epochs": 100_000, "convex": convex}
    try:
        answer = quotes(shape, policy)
    except ParameterError:
        return
    assert answer["quotes"] or answer["declined"]
