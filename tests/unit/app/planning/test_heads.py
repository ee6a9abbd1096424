"""What ``auto`` takes for a head: the minimum of its loss, wherever it may be computed."""

from dataclasses import replace

import pytest

from app.domain.errors import PlanError
from app.domain.policy import Policy
from app.planning.mechanisms.catalogue import MECHANISMS
from app.planning.mechanisms.tracked import Tracked
from app.planning.planner import make_plan, quote_all
from app.planning.shape import ConvexShape, ModelShape, RidgeShape
from tests.support.lineages import HEAD, NEW, RIDGE, trained

TRACKED = [name for name, each in MECHANISMS.items() if issubclass(each, Tracked)]
TWO_CLASSES = NEW
TEN_CLASSES = replace(
    NEW,
    convex=ConvexShape(lipschitz=2**0.5, smoothness=0.5, weight_decay=1e-4, learning_rate=1.9),
)
LARGE = replace(TEN_CLASSES, retained=50_000, records=50_000, batch_size=128, dimension=29_780)
NETWORK = replace(NEW, convex=None)


def choice(shape: ModelShape, **policy: object) -> str | None:
    return quote_all(policy=Policy(**policy), shape=shape).choice


# Exact training reaches in 10 to 40 passes what a recipe of so many epochs does not
# (docs/guarantees.md, section 13.3); a recipe is taken only where the budget allows no more.
@pytest.mark.parametrize(
    ("shape", "policy", "expected"),
    [
        *(
            (shape, policy, "exact_training")
            for shape in (TWO_CLASSES, TEN_CLASSES, LARGE)
            for policy in ({}, {"epsilon": 0.01}, {"epsilon": 8.0}, {"adaptive": True})
        ),
        (replace(LARGE, recipe_epochs=1), {}, "exact_training"),
        (replace(LARGE, recipe_epochs=300), {}, "exact_training"),
        (trained("tracked_release"), {}, "exact_training"),
        (trained("tracked_release", forget={0: 99}), {"epsilon": 0.1}, "exact_training"),
        (LARGE, {"budget_epochs": 5.0}, "retraining"),
        (replace(LARGE, recipe_epochs=50), {"budget_epochs": 60.0}, "exact_training"),
        (RIDGE, {}, "sufficient_statistics"),
        (RIDGE, {"budget_epochs": 0.001, "adaptive": True}, "sufficient_statistics"),
        (trained("tracked_release"), {"budget_epochs": 1.0}, "tracked_release"),
        (replace(LARGE, recipe_epochs=50), {"budget_epochs": 5.0}, "tracked_release"),
        (NETWORK, {}, "retraining"),
    ],
)
def test_the_choice(shape: ModelShape, policy: dict[str, object], expected: str) -> None:
    assert choice(shape, **policy) == expected


def test_no_head_that_began_with_uploaded_weights_is_computed_anew_by_auto() -> None:
    uploaded = replace(LARGE, trained_here=False, earlier_releases=1)
    quotes = quote_all(policy=Policy(), shape=uploaded)
    assert quotes.reason("exact_training").startswith("needs a linear_head that is trained here")
    assert quotes.offer("retraining") is not None
    assert quotes.choice not in {None, "retraining", "exact_training"}
    assert make_plan(policy=Policy(mechanism="retraining"), shape=uploaded)
    ridge = replace(RIDGE, trained_here=False, earlier_releases=1)
    assert quote_all(policy=Policy(), shape=ridge).choice is None


def test_without_an_exact_offer_a_release_that_covers_comes_before_steps_and_noise() -> None:
    covered = trained("tracked_release", parameters={"noise_std": 1.0})
    plan = make_plan(policy=Policy(budget_epochs=1.0), shape=covered)
    assert plan.mechanism == "tracked_release"
    assert (plan.settings["steps"], plan.settings["release_noise_std"]) == (0, 0)


def test_the_quotes_of_exact_heads() -> None:
    offer = quote_all(policy=Policy(), shape=LARGE).offer("exact_training")
    assert offer is not None
    assert offer.guarantee.delta(epsilon=0.0) == 0.0
    assert offer.guarantee.terms.adaptive
    assert dict(offer.parameters) == {"regularisation": 1e-4, "tolerance": 1e-6}
    assert 10 <= offer.gradient_computations / LARGE.retained <= 40
    solved = quote_all(policy=Policy(), shape=RIDGE).offer("sufficient_statistics")
    assert solved is not None
    assert solved.gradient_computations == 0
    assert dict(solved.parameters) == {"feature_range": 16.0}


@pytest.mark.parametrize(
    ("shape", "mechanism", "reason"),
    [
        (NETWORK, "exact_training", "linear_head"),
        (NETWORK, "sufficient_statistics", "needs a ridge_head"),
        (NEW, "sufficient_statistics", "needs a ridge_head"),
        (RIDGE, "exact_training", "solved, not trained"),
        (RIDGE, "gradient_clipping", "solved, not trained"),
        (replace(RIDGE, trained_here=False), "sufficient_statistics", "imported weights"),
    ],
)
def test_what_is_declined(shape: ModelShape, mechanism: str, reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        make_plan(policy=Policy(mechanism=mechanism), shape=shape)


@pytest.mark.parametrize(
    ("shape", "mechanism", "parameters", "reason"),
    [
        (NEW, "exact_training", {"tolerance": 0.0}, "tolerance"),
        (NEW, "exact_training", {"weight_decay": 1.0}, "unknown parameter"),
        (RIDGE, "sufficient_statistics", {"regularisation": -1.0}, "regularisation"),
        (RIDGE, "sufficient_statistics", {"feature_range": 1.0}, "unknown parameter"),
    ],
)
def test_parameters_out_of_place_or_range_are_refused(
    shape: ModelShape, mechanism: str, parameters: dict[str, float], reason: str
) -> None:
    with pytest.raises(Exception, match=reason):
        make_plan(policy=Policy(mechanism=mechanism, parameters=parameters), shape=shape)


def test_a_range_is_above_zero() -> None:
    with pytest.raises(Exception, match="feature_range"):
        RidgeShape(feature_range=0.0)
    assert NEW.convex == HEAD


SQUARED = replace(NEW, convex=replace(HEAD, lipschitz=None))


def test_without_a_bound_on_its_slope_a_head_is_not_tracked() -> None:
    quotes = quote_all(policy=Policy(), shape=SQUARED)
    assert quotes.choice == "exact_training"
    assert "squared loss has no bound" in quotes.reason("tracked_release")
    for mechanism in TRACKED:
        with pytest.raises(PlanError, match="squared loss has no bound"):
            make_plan(policy=Policy(mechanism=mechanism), shape=SQUARED)
    anew = make_plan(policy=Policy(mechanism="retraining"), shape=SQUARED)
    assert anew.history is None
    assert make_plan(policy=Policy(mechanism="gradient_clipping"), shape=SQUARED)


CAPPED = {
    "loss_bound": 1.0,
    "weight_decay": 21.0,
    "learning_rate": 2.0e-4,
    "noise_std": 0.0906,
    "order": 1.5,
    "request_size": 20,
    "dimension": 4,
}


def capped(smoothness: float) -> Policy:
    return Policy(
        mechanism="noisy_gd_nonconvex",
        epsilon=50.0,
        parameters={**CAPPED, "smoothness": smoothness},
    )


def test_a_smoothness_below_that_of_the_heads_loss_is_not_taken_on_trust() -> None:
    at_least = 1.28 * HEAD.smoothness
    assert make_plan(policy=capped(at_least), shape=NEW)
    with pytest.raises(PlanError, match=f"at least {at_least:g}"):
        make_plan(policy=capped(at_least * 0.999), shape=NEW)
    assert make_plan(policy=capped(0.001), shape=NETWORK)  # the operator's word


def test_no_smoothness_is_that_of_a_loss_with_a_kink() -> None:
    with pytest.raises(PlanError, match="curvature: it has a kink"):
        make_plan(policy=capped(2.0), shape=replace(NETWORK, rough="it has a kink"))
