"""How many more records a release covers, wherever they were."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.accounting.histories.history import History
from app.accounting.histories.history_account import placed_worst
from app.domain.errors import PlanError
from app.domain.plan import TrainingKind
from app.domain.policy import Policy
from app.planning.coverage import Capacity, Covered, capacity, coverage
from app.planning.planner import make_plan, quote_all
from app.planning.shape import DpTrainingShape, ModelShape
from app.planning.tracking import CurrentRelease, Tracking, history_of_run, trained_history
from tests.support.histories import histories, recipe
from tests.support.lineages import NEW, planned, trained

LARGE = (
    History(recipe(batch_size=128, batches=391, weight_decay=1e-3))
    .after_steps(391 * 20)
    .after_release(noise_std=0.3)
)
POLICY = Policy(mechanism="tracked_release")


def present(
    history: History | None, mechanism: str = "tracked_release", **how: Any
) -> CurrentRelease:
    counted = 0 if history is None else history.forgotten()
    return CurrentRelease(
        Tracking(mechanism, 0, history=history, **how),
        version=1 if history is None else history.releases,
        forgotten=counted,
    )


def is_covered(head: CurrentRelease, policy: Policy, records: dict[int, int]) -> bool:
    return isinstance(coverage(head, policy, records), Covered)


def left(head: CurrentRelease, policy: Policy = POLICY) -> int:
    found = capacity(head, policy)
    assert found is not None
    return found.left


def test_is_the_most_at_the_worst_position() -> None:
    head = present(LARGE)
    most, last = left(head), 390
    assert 1 < most <= 128
    assert is_covered(head, POLICY, {last: most})
    assert not is_covered(head, POLICY, {last: most + 1})
    assert is_covered(head, POLICY, {0: most + 1})


def test_falls_by_what_is_forgotten_at_the_worst_position_and_not_by_more() -> None:
    most = left(present(LARGE))
    assert capacity(present(LARGE), POLICY) == Capacity(most, most)
    assert capacity(present(LARGE.after_request({390: 3})), POLICY) == Capacity(most - 3, most)
    assert most - 3 <= left(present(LARGE.after_request({5: 3}))) <= most


def test_grows_with_the_noise_and_the_target() -> None:
    more = History(LARGE.recipe).after_steps(391 * 20).after_release(noise_std=3.0)
    assert left(present(more)) > left(present(LARGE))
    lax = Policy(mechanism="tracked_release", epsilon=2.0)
    assert left(present(LARGE), lax) > left(present(LARGE))


def test_goes_on_in_the_batch_before_where_one_is_full() -> None:
    history = History(recipe(batch_size=4, batches=5)).after_steps(7).after_release(noise_std=9.0)
    assert placed_worst(history.after_request({1: 3}), 7) == {1: 1, 0: 4, 4: 2}
    assert left(present(history), Policy(epsilon=20.0)) == 20


@settings(max_examples=150, deadline=None)
@given(
    histories(radius=True),
    st.dictionaries(st.integers(0, 4), st.integers(1, 6), min_size=1),
    st.sampled_from([0.05, 0.5, 5.0]),
)
def test_that_many_are_covered_wherever_they_were(
    history: History, records: dict[int, int], noise_std: float
) -> None:
    head = present(history.after_release(noise_std=noise_std))
    policy = Policy(epsilon=8.0, delta=1e-3)
    if sum(records.values()) <= left(head, policy):
        assert is_covered(head, policy, records)


@pytest.mark.parametrize(
    ("head", "policy", "expected"),
    [
        (present(None, "retraining"), Policy(), None),
        (present(None, "exact_training", training=TrainingKind.EXACT), Policy(), None),
        (present(LARGE), Policy(adaptive=True), None),
        (present(LARGE), Policy(mechanism="retraining"), None),
        (present(LARGE), Policy(mechanism="tracked_release", parameters={"steps": 1}), None),
        (present(History(LARGE.recipe).after_steps(9).after_release()), Policy(), 0),
    ],
)
def test_none_and_nothing(head: CurrentRelease, policy: Policy, expected: int | None) -> None:
    nothing = None if expected is None else Capacity(expected, expected)
    assert capacity(head, policy) == nothing


def test_of_a_group_is_what_is_left_of_it() -> None:
    settings_ = {
        "noise_multiplier": 20.0,
        "sampling_rate": 1.0,
        "private_steps": 20,
        "records": 1000,
        "dimension": 500,
    }
    tracking = Tracking("dp_sgd", 0, settings=settings_, training=TrainingKind.PRIVATE)
    policy = Policy(mechanism="dp_sgd", epsilon=8.0)
    most = left(CurrentRelease(tracking, 1), policy)
    assert most > 2
    assert left(CurrentRelease(tracking, 1, forgotten=2), policy) == most - 2
    assert capacity(CurrentRelease(tracking, 1, forgotten=2), policy).full == most
    assert left(CurrentRelease(tracking, 1, forgotten=most), policy) == 0
    assert left(CurrentRelease(tracking, 1, forgotten=most + 5), policy) == 0
    assert left(CurrentRelease(tracking, 1), Policy(mechanism="dp_sgd", epsilon=1e-3)) == 0


@pytest.mark.parametrize("mechanism", ["tracked_release", "noisy_gd_convex", "retraining"])
def test_a_quote_says_what_its_release_will_cover(mechanism: str) -> None:
    policy = Policy(mechanism=mechanism, epsilon=4.0)
    quote = quote_all(policy=policy, shape=NEW).offer(mechanism)
    assert quote is not None
    if mechanism == "retraining":
        assert quote.capacity is None
        return
    plan = make_plan(policy=policy, shape=NEW)
    history = history_of_run(plan, steps=int(plan.settings["steps"]))
    assert quote.capacity == left(present(history, mechanism), policy) > 0
    assert quote.describe(delta=1e-5)["capacity"] == quote.capacity


def test_a_quote_of_dp_sgd_says_what_is_left_of_its_group() -> None:
    shape = ModelShape(retained=1000, batch_size=1000, recipe_epochs=20)
    policy = Policy(mechanism="dp_sgd", epsilon=8.0, parameters={"capacity": 7})
    quote = quote_all(policy=policy, shape=shape).offer("dp_sgd")
    assert quote is not None
    assert quote.capacity == 7
    trained = DpTrainingShape(quote.settings["noise_multiplier"], 1.0, 20, forgotten=3)
    later = replace(shape, earlier_releases=1, dp_training=trained)
    assert quote_all(policy=policy, shape=later).offer("dp_sgd").capacity == 4


class TestAPolicyThatChoosesTheNoiseByCapacity:
    @pytest.mark.parametrize("mechanism", ["tracked_release", "delete_to_descent"])
    @pytest.mark.parametrize("records", [1, 60, 250])
    def test_the_release_covers_so_many_and_its_noise_is_the_least(
        self, mechanism: str, records: int
    ) -> None:
        policy = Policy(mechanism=mechanism, parameters={"capacity": records})
        plan = make_plan(policy=policy, shape=NEW)
        history = history_of_run(plan, steps=int(plan.settings["steps"]))
        assert plan.settings["steps"] == 0
        assert left(present(history, mechanism), policy) == records
        noise = plan.settings["release_noise_std"]
        less = trained_history(plan).after_release(noise_std=noise * (1 - 1e-6))
        assert left(present(less, mechanism), policy) < records

    @pytest.mark.parametrize("steps", [0, 30])
    def test_after_a_request_the_next_release_covers_as_many_again(self, steps: int) -> None:
        fixed = {"capacity": 40.0, "steps": steps}
        shape = trained("tracked_release", parameters=fixed, forget={9: 60})
        plan = planned(shape, "tracked_release", parameters=fixed)
        history = history_of_run(plan, steps=int(plan.settings["steps"]))
        assert plan.settings["steps"] == steps
        assert left(present(history)) == 40
        before = shape.tracking.history.noise_std()
        assert history.noise_std() > before * (0.99**steps)

    def test_a_run_adds_what_lacks_and_no_more(self) -> None:
        shape = trained("tracked_release", parameters={"capacity": 100.0}, forget={9: 60})
        for records, lacks in ((0, False), (40, False), (41, True)):
            plan = planned(shape, "tracked_release", parameters={"capacity": records})
            assert plan.settings["steps"] == 0
            assert (plan.settings["release_noise_std"] > 0) == lacks
            assert left(present(history_of_run(plan, steps=0))) >= min(records, 40)
        asked = Policy(mechanism="tracked_release", parameters={"capacity": 90.0})
        quote = quote_all(policy=asked, shape=shape).offer("tracked_release")
        assert quote is not None
        assert quote.capacity == 90
        nothing = quote_all(policy=POLICY, shape=shape).offer("tracked_release")
        assert nothing is not None
        assert nothing.capacity == 40

    @pytest.mark.parametrize(
        ("parameters", "reason"),
        [
            ({"capacity": 1001.0}, "more than all records"),
            ({"capacity": 2.5}, "whole"),
            ({"capacity": -1.0}, "whole"),
            ({"capacity": 5.0, "noise_std": 1.0}, "leave noise_std out"),
        ],
    )
    def test_what_cannot_be(self, parameters: dict[str, float], reason: str) -> None:
        with pytest.raises(PlanError, match=reason):
            planned(NEW, "tracked_release", parameters=parameters)

    def test_auto_takes_the_release_that_can_have_one(self) -> None:
        assert planned(NEW, "auto", parameters={"capacity": 5.0}).mechanism == "tracked_release"

    @pytest.mark.parametrize("records", [0, 201])
    def test_a_group_of_dp_sgd_has_a_limit(self, records: int) -> None:
        with pytest.raises(PlanError, match="1 to 200"):
            planned(
                replace(NEW, convex=None), "dp_sgd", epsilon=8.0, parameters={"capacity": records}
            )
