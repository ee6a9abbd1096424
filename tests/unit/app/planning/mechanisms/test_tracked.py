"""Plans of linear heads: only noise that the history lists counts, and only what lacks is added."""

import math
from dataclasses import replace

import pytest

from app.accounting.histories.history import History, Release, Steps
from app.domain.errors import ParameterError, PlanError
from app.domain.plan import Plan
from app.planning.lineage import DEFAULT_RELEASE_NOISE
from app.planning.mechanisms import catalogue
from app.planning.mechanisms.tracked import fewest_steps
from app.planning.shape import ModelShape
from app.planning.tracking import history_of_run
from tests.support.independent_accountant import independent_mu
from tests.support.lineages import NEW, after, planned, trained

TARGET = {"epsilon": 1.0, "delta": 1e-5}
NOISY = ("projected_noisy_sgd", "langevin_unlearning", "noisy_gd_convex")
RELEASED = ("tracked_release", "delete_to_descent")
MU = 0.268051123211


def run_of(plan: Plan) -> History:
    return history_of_run(plan, steps=int(plan.settings["steps"]))


def noise_after(plan: Plan) -> float:
    return run_of(plan).noise_std()


@pytest.mark.parametrize("mechanism", [*RELEASED, *NOISY])
def test_every_plan_of_a_life_meets_its_target_by_an_independent_accountant(mechanism: str) -> None:
    shape = NEW
    for records in range(1, 6):
        plan = planned(shape, mechanism)
        assert catalogue.account(plan.mechanism, plan.parameters).meets(**TARGET)
        run = run_of(plan)
        assert plan.parameters["history"] == run.to_json()
        assert independent_mu(run.to_json()) <= MU
        shape = after(plan, shape, forget={0: records})


@pytest.mark.parametrize("mechanism", RELEASED)
def test_noise_in_all_stays_what_the_policy_says(mechanism: str) -> None:
    noise = {"noise_std": 0.02}
    shape, added = trained(mechanism, parameters=noise), 0
    for records in (3, 10, 1, 25, 5):
        plan = planned(shape, mechanism, parameters=noise)
        assert noise_after(plan) <= 0.02 * (1 + 1e-9)
        added += plan.settings["release_noise_std"] > 0
        shape = after(plan, shape, forget={0: records})
    assert added > 1


def test_a_top_up_is_what_lacks_after_the_steps() -> None:
    shape = trained("tracked_release", forget={9: 40})
    plan = planned(shape, "tracked_release")
    steps = int(plan.settings["steps"])
    assert steps > 0
    left = 0.95**steps * DEFAULT_RELEASE_NOISE
    expected = math.sqrt(DEFAULT_RELEASE_NOISE**2 - left**2)
    assert plan.settings["release_noise_std"] == pytest.approx(expected, rel=1e-9)
    assert noise_after(plan) == pytest.approx(DEFAULT_RELEASE_NOISE, rel=1e-9)


@pytest.mark.parametrize("mechanism", RELEASED)
def test_a_release_that_covers_the_request_needs_no_step_and_no_noise(mechanism: str) -> None:
    plan = planned(trained(mechanism, parameters={"noise_std": 0.5}), mechanism)
    assert (plan.settings["steps"], plan.settings["release_noise_std"]) == (0, 0.0)
    assert run_of(plan).events[-1] == Release(0.0)
    assert plan.predicted["gradient_computations"] == 0


@pytest.mark.parametrize("mechanism", ["projected_noisy_sgd", "langevin_unlearning"])
def test_noise_of_training_that_covers_the_request_needs_no_step(mechanism: str) -> None:
    shape = trained(mechanism, parameters={"noise_std": 0.5})
    assert planned(shape, mechanism).settings["steps"] == 0


@pytest.mark.parametrize("mechanism", NOISY)
@pytest.mark.parametrize("before", ["tracked_release", "delete_to_descent", "retraining"])
@pytest.mark.parametrize("parameters", [{}, {"noise_std": 0.3}], ids=["default", "named noise"])
def test_a_lineage_that_was_trained_without_noise_has_none(
    mechanism: str, before: str, parameters: dict[str, float]
) -> None:
    """Whatever a policy says of noise to come, no step of the past added any."""
    whole = replace(NEW, batch_size=1000)
    if before == "retraining":
        first = planned(whole, before)
        begun = replace(first, settings={**first.settings, "steps": 0})
        shape = after(begun, whole, forget={0: 1})
    else:
        shape = trained(before, shape=whole)
    with pytest.raises(PlanError, match="noise at every step"):
        planned(shape, mechanism, parameters=parameters)
    with pytest.raises(PlanError, match="noise at every step"):
        planned(shape, mechanism, parameters=parameters, epsilon=8.0)


@pytest.mark.parametrize("mechanism", NOISY)
def test_one_run_without_noise_ends_a_noisy_lineage(mechanism: str) -> None:
    shape = trained(mechanism, shape=replace(NEW, batch_size=1000))
    quiet = planned(shape, "tracked_release", parameters={"steps": 5})
    with pytest.raises(PlanError, match="noise at every step"):
        planned(after(quiet, shape, forget={0: 1}), mechanism)


def test_a_noisy_lineage_may_go_on_as_a_tracked_release_and_keeps_its_noise() -> None:
    shape = trained("projected_noisy_sgd", parameters={"noise_std": 0.3})
    plan = planned(shape, "tracked_release")
    assert (plan.settings["steps"], plan.settings["release_noise_std"]) == (0, 0.0)


def test_new_noise_speaks_of_new_steps_alone() -> None:
    shape = trained("projected_noisy_sgd", parameters={"noise_std": 0.01}, forget={0: 50})
    plan = planned(shape, "projected_noisy_sgd", parameters={"noise_std": 0.02})
    events = run_of(plan).events
    assert events[0] == Steps(50, 0.01)
    assert events[3] == Steps(int(plan.settings["steps"]), 0.02)


def test_later_steps_add_the_noise_that_the_last_ones_did() -> None:
    shape = trained("projected_noisy_sgd", parameters={"noise_std": 0.01}, forget={0: 50})
    plan = planned(shape, "projected_noisy_sgd")
    assert plan.settings["noise_std"] == 0.01
    assert plan.settings["steps"] > 0


def test_the_fewest_steps_are_taken() -> None:
    shape = trained("tracked_release", forget={9: 40})
    plan = planned(shape, "tracked_release")
    steps = int(plan.settings["steps"])
    with pytest.raises(PlanError, match=f"needs {steps} steps"):
        planned(
            shape,
            "tracked_release",
            parameters={"noise_std": DEFAULT_RELEASE_NOISE, "steps": steps - 1},
        )


@pytest.mark.parametrize("steps", [0, 3, 40])
def test_steps_that_are_fixed_decide_the_noise(steps: int) -> None:
    shape = trained("tracked_release", parameters={"noise_std": 0.001}, forget={9: 40})
    plan = planned(shape, "tracked_release", parameters={"steps": steps})
    assert plan.settings["steps"] == steps
    mu = independent_mu(run_of(plan).to_json())
    assert 0.95 * MU < mu <= MU


def test_a_first_plan_with_fixed_steps_can_forget_one_record() -> None:
    plan = planned(NEW, "tracked_release", parameters={"steps": 0})
    later = after(plan, NEW, forget={9: 1})
    assert planned(later, "tracked_release", parameters={"steps": 0}).settings["steps"] == 0
    assert independent_mu(run_of(plan).after_request({9: 1}).to_json()) <= MU


def test_steps_that_are_fixed_need_no_noise_where_there_is_enough() -> None:
    shape = trained("projected_noisy_sgd", parameters={"noise_std": 0.3})
    plan = planned(shape, "tracked_release", parameters={"steps": 5})
    assert (plan.settings["steps"], plan.settings["release_noise_std"]) == (5, 0.0)


def test_noise_that_floats_cannot_add_is_refused() -> None:
    shape = trained("tracked_release", parameters={"noise_std": 1e-3})
    with pytest.raises((PlanError, ParameterError), match=r"noise_std|steps"):
        planned(shape, "tracked_release", parameters={"noise_std": 1e-12, "steps": 1})


@pytest.mark.parametrize("mechanism", NOISY[:2])
def test_noise_from_the_first_step_is_taken_by_name_only(mechanism: str) -> None:
    assert planned(NEW, "auto").mechanism not in NOISY
    assert planned(NEW, mechanism).mechanism == mechanism


def test_a_budget_that_is_too_small_is_named() -> None:
    shape = trained("tracked_release", forget={9: 90})
    with pytest.raises(PlanError, match="budget_epochs"):
        planned(shape, "tracked_release", budget_epochs=0.5)


def test_an_uploaded_head_has_no_history() -> None:
    shape = ModelShape(
        retained=10, batch_size=5, recipe_epochs=1, convex=NEW.convex, trained_here=False
    )
    with pytest.raises(PlanError, match="known from the start"):
        planned(shape, "tracked_release")


@pytest.mark.parametrize("least", [0, 3])
@pytest.mark.parametrize("enough", [0, 1, 2, 3, 17, 1000])
def test_a_search_ends_at_the_first_count_that_is_enough(least: int, enough: int) -> None:
    assert fewest_steps(lambda count: count >= enough, least=least) == max(least, enough)


def test_a_search_without_an_end_is_refused() -> None:
    with pytest.raises(PlanError, match="raise noise_std"):
        fewest_steps(lambda _: False)
