"""What a lineage remembers goes into a database as JSON and comes back as it was."""

import json

import pytest

from app.accounting.histories.history import Forget, History, Release, Steps
from app.accounting.histories.history_account import drift
from app.domain.errors import ParameterError
from app.planning.tracking import Tracking, history_of_run, trained_history
from tests.support.histories import recipe
from tests.support.lineages import NEW, after, planned

HISTORY = (
    History(recipe(radius=2.0))
    .after_steps(10, noise_std=0.1)
    .after_release(noise_std=0.5)
    .after_request({0: 1, 2: 3})
    .after_steps(1)
)


@pytest.mark.parametrize("history", [None, HISTORY], ids=["counted else", "a history"])
def test_tracking_comes_back_from_json_as_it_was(history: History | None) -> None:
    tracking = Tracking("tracked_release", 7, settings={"training_steps": 10.0}, history=history)
    found = Tracking.from_json(json.loads(json.dumps(tracking.to_json())))
    assert found == tracking
    if history is not None:
        assert drift(found.history) == drift(history) > 0


def test_a_history_that_was_tampered_with_is_refused() -> None:
    document = Tracking("tracked_release", 0, history=HISTORY).to_json()
    document["history"]["events"][2] = {"forget": [[5, 1]]}
    with pytest.raises(ParameterError):
        Tracking.from_json(document)


def test_a_first_run_is_its_training_its_steps_and_its_release() -> None:
    plan = planned(NEW, "tracked_release")
    assert history_of_run(plan, steps=0).events == (Steps(50), Release(0.05))
    noisy = planned(NEW, "projected_noisy_sgd", parameters={"noise_std": 0.2})
    assert history_of_run(noisy, steps=3).events == (Steps(50, 0.2), Steps(3, 0.2), Release(0.0))


def test_a_later_run_goes_on_where_the_lineage_was() -> None:
    shape = after(planned(NEW, "tracked_release"), NEW, forget={3: 2})
    plan = planned(shape, "tracked_release", parameters={"steps": 30})
    run = history_of_run(plan, steps=30)
    assert run.events[:3] == (Steps(50), Release(0.05), Forget(((3, 2),)))
    assert run.last_run[0] == Steps(30)
    assert trained_history(plan).events == run.events[:3]


def test_the_plan_claims_the_history_of_its_run_and_no_other() -> None:
    shape = after(planned(NEW, "tracked_release"), NEW, forget={3: 30})
    plan = planned(shape, "tracked_release")
    run = history_of_run(plan, steps=int(plan.settings["steps"]))
    assert plan.parameters == {"history": run.to_json()}


def test_retraining_begins_a_history_of_its_own() -> None:
    shape = after(planned(NEW, "tracked_release"), NEW, forget={3: 30})
    plan = planned(shape, "retraining")
    assert trained_history(plan).events == (Steps(50),)
    assert plan.parameters == {}
