"""Plans of full-batch noisy descent: adaptive requests, and constants that nothing may change."""

from dataclasses import replace

import pytest

from app.accounting.histories.history import History, Release, Steps
from app.domain.errors import PlanError
from app.domain.plan import Plan
from app.planning.mechanisms import catalogue
from app.planning.mechanisms.mechanism import Claim
from app.planning.shape import ModelShape
from app.planning.tracking import Tracking, history_of_run
from tests.support.independent_accountant import independent_mu
from tests.support.lineages import NEW, after, planned, trained
from tests.support.mechanisms import PLANNED_BOUNDED

MU = 0.268051123211
NAME = "noisy_gd_convex"
ADAPTIVE = {"adaptive": True, "parameters": {"earlier_releases": 4, "forgotten": 10}}
LATER = {"adaptive": True}


def run_of(plan: Plan) -> dict:
    return history_of_run(plan, steps=int(plan.settings["steps"])).to_json()


def test_the_first_noise_carries_its_capacity_and_no_more() -> None:
    plan = planned(NEW, NAME, parameters={"forgotten": 10, "unlearning_steps": 20})
    assert plan.settings["steps"] == 20
    history = history_of_run(plan, steps=0)
    for records, enough in ((10, True), (11, False)):
        asked = history.after_request({0: records}).after_steps(
            20, noise_std=plan.settings["noise_std"]
        )
        assert (independent_mu(asked.to_json()) <= MU) is enough


def test_an_adaptive_life_composes_what_its_releases_showed() -> None:
    shape = NEW
    for request in range(5):
        plan = planned(shape, NAME, **(LATER if request else ADAPTIVE))
        assert plan.parameters["earlier_releases"] == request
        guarantee = catalogue.account(NAME, plan.parameters)
        assert guarantee.terms.adaptive
        assert guarantee.meets(epsilon=1.0, delta=1e-5)
        assert independent_mu(run_of(plan), adaptive=request > 0) <= MU
        shape = after(plan, shape, forget={0: 2})


def test_adaptive_requests_beyond_the_noise_are_refused() -> None:
    shape = after(planned(NEW, NAME, **ADAPTIVE), NEW, forget={0: 30})
    with pytest.raises(PlanError, match="cannot carry 30 forgotten records over 1 releases"):
        planned(shape, NAME, **LATER)


def test_releases_that_are_missing_from_the_history_cannot_be_composed() -> None:
    shape = after(planned(NEW, NAME, **ADAPTIVE), NEW, forget={0: 1})
    planned(shape, NAME, **LATER)
    with pytest.raises(PlanError, match="releases before that are not in this history"):
        planned(replace(shape, earlier_releases=2), NAME, **LATER)


def test_requests_that_were_fixed_in_advance_compose_nothing() -> None:
    plan = planned(trained(NAME), NAME)
    assert set(plan.parameters) == {"history"}
    assert not catalogue.account(NAME, plan.parameters).terms.adaptive


def test_noise_in_later_runs_is_that_of_training_unless_it_is_named() -> None:
    shape = trained(NAME)
    training = shape.tracking.history.events[0]
    assert planned(shape, NAME).settings["noise_std"] == training.noise_std
    louder = planned(shape, NAME, parameters={"noise_std": 1.0, "unlearning_steps": 2})
    events = history_of_run(louder, steps=2).events
    assert (events[0], events[-2:]) == (training, (Steps(2, 1.0), Release(0.0)))


def test_the_history_of_many_releases_is_checked_once_for_each_noise_that_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not once for each release: five thousand of them would take hours."""
    check, checked = History.__post_init__, 0

    def counted(history: History) -> None:
        nonlocal checked
        checked += 1
        check(history)

    monkeypatch.setattr(History, "__post_init__", counted)
    policy = {"adaptive": True, "parameters": {"earlier_releases": 200, "unlearning_steps": 3}}
    planned(NEW, NAME, **policy)
    assert checked < 2000


def test_more_releases_than_can_be_counted_are_refused() -> None:
    with pytest.raises(PlanError, match="at most 5000"):
        planned(NEW, NAME, adaptive=True, parameters={"earlier_releases": 5001})


# Losses that are not convex.

NETWORK = ModelShape(retained=1000, records=1000, batch_size=100, recipe_epochs=5, dimension=1)
NONCONVEX = "noisy_gd_nonconvex"


def begun() -> ModelShape:
    """Return a network that was trained with the constants, with one record to forget."""
    plan = planned(NETWORK, NONCONVEX, epsilon=5.0, parameters=PLANNED_BOUNDED)
    tracking = Tracking(NONCONVEX, 0, settings=plan.settings)
    return replace(
        NETWORK, retained=999, forgotten=1, newly_forgotten=1, earlier_releases=1, tracking=tracking
    )


def test_the_constants_of_training_are_kept() -> None:
    plan = planned(begun(), NONCONVEX, epsilon=5.0, parameters=PLANNED_BOUNDED)
    assert plan.settings["noise_std"] == PLANNED_BOUNDED["noise_std"]
    assert plan.parameters["training_steps"] == begun().tracking.settings["training_steps"]


@pytest.mark.parametrize(
    "name", ["smoothness", "loss_bound", "learning_rate", "weight_decay", "noise_std"]
)
@pytest.mark.parametrize("factor", [0.99, 1.01, 1.26])
def test_changed_constants_are_refused(name: str, factor: float) -> None:
    """Noise of 0.03 says nothing of a lineage whose training added 0.0238."""
    changed = {**PLANNED_BOUNDED, name: PLANNED_BOUNDED[name] * factor}
    with pytest.raises(PlanError, match=f"was trained with {name}"):
        planned(begun(), NONCONVEX, epsilon=5.0, parameters=changed)


def test_another_dimension_is_refused() -> None:
    with pytest.raises(PlanError, match="was trained with dimension"):
        planned(begun(), NONCONVEX, epsilon=5.0, parameters={**PLANNED_BOUNDED, "dimension": 2})


def test_a_larger_request_than_the_training_was_for_is_refused() -> None:
    shape = replace(begun(), newly_forgotten=3, forgotten=3, retained=997)
    with pytest.raises(PlanError, match="train the model again"):
        planned(shape, NONCONVEX, epsilon=5.0, parameters=PLANNED_BOUNDED)


def test_a_network_that_another_mechanism_trained_is_refused() -> None:
    other = replace(begun(), tracking=Tracking("retraining", 0, settings={}))
    with pytest.raises(PlanError, match="trained by it from the start"):
        planned(other, NONCONVEX, epsilon=5.0, parameters=PLANNED_BOUNDED)


def test_a_tighter_target_than_that_of_training_is_refused() -> None:
    with pytest.raises(PlanError, match="train the model again"):
        planned(begun(), NONCONVEX, epsilon=3.0, parameters=PLANNED_BOUNDED)


def test_what_each_of_several_requests_states_fits_those_before_it() -> None:
    shape = NETWORK
    for version in range(1, 5):
        plan = planned(shape, NONCONVEX, epsilon=5.0, parameters=PLANNED_BOUNDED)
        stated = catalogue.mechanism_of(plan).taken(plan, int(plan.settings["steps"]))
        claim = Claim(
            epsilon=5.0,
            version=version + 6,
            releases=version,
            forgotten=version - 1,
            trained_again=False,
        )
        assert stated.contradiction(claim) is None
        assert stated.contradiction(replace(claim, forgotten=version)) is not None
        assert stated.contradiction(replace(claim, releases=version + 1)) is not None
        shape = replace(
            NETWORK,
            retained=1000 - version,
            forgotten=version,
            newly_forgotten=1,
            earlier_releases=version,
            tracking=Tracking(NONCONVEX, 0, settings=plan.settings),
        )
