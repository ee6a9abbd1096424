"""A release that was made already covers later requests as far as its noise goes."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from app.accounting.histories.history import Forget, History
from app.accounting.histories.history_account import HistoryAccountant
from app.domain.plan import TrainingKind
from app.domain.policy import Policy
from app.planning.coverage import Covered, Uncovered, coverage, may_cover
from app.planning.mechanisms.catalogue import MECHANISMS, mechanism_named
from app.planning.mechanisms.dp_sgd import DpSgd, largest_group
from app.planning.mechanisms.mechanism import Claim
from app.planning.mechanisms.tracked import Tracked
from app.planning.mechanisms.tracked_release import TrackedRelease
from app.planning.tracking import CurrentRelease, Tracking
from tests.support.histories import histories, recipe
from tests.support.independent_accountant import independent_mu

REFERENCE = (
    History(recipe(weight_decay=0.01, batch_size=100, batches=10))
    .after_steps(40)
    .after_release(noise_std=0.5)
)
FULL_BATCH = recipe(batch_size=1000, batches=1)
PRIVATE = {
    "noise_multiplier": 5.0,
    "sampling_rate": 0.1,
    "private_steps": 20,
    "gradient_clip": 1.0,
    "records": 1000,
    "dimension": 500,
}


def present(
    history: History | None = REFERENCE,
    mechanism: str = "tracked_release",
    *,
    version: int | None = None,
    forgotten: int | None = None,
    **tracking: Any,
) -> CurrentRelease:
    """Return a lineage as its last release left it."""
    counted = 0 if history is None else history.forgotten()
    return CurrentRelease(
        Tracking(mechanism, 0, history=history, **tracking),
        version=version or (1 if history is None else history.releases),
        forgotten=counted if forgotten is None else forgotten,
    )


def trained_privately(forgotten: int = 0, mechanism: str = "dp_sgd") -> CurrentRelease:
    """Return a model that was trained with DP-SGD."""
    return present(
        None, mechanism, forgotten=forgotten, training=TrainingKind.PRIVATE, settings=PRIVATE
    )


def covered(head: CurrentRelease, policy: Policy, records: dict[int, int]) -> Covered:
    """Return what covers the records; fails where nothing does."""
    found = coverage(head, policy, records)
    assert isinstance(found, Covered), found
    return found


def refusal(head: CurrentRelease, policy: Policy, records: dict[int, int]) -> str:
    """Return why the records need a run."""
    found = coverage(head, policy, records)
    assert isinstance(found, Uncovered)
    return found.reason


def claim(forgotten: int, version: int = 1) -> Claim:
    return Claim(
        epsilon=1.0, version=version, releases=version, forgotten=forgotten, trained_again=False
    )


def test_reference_values() -> None:
    policy = Policy(mechanism="tracked_release")
    asked = covered(present(), policy, {4: 1})
    assert asked.guarantee.mu == pytest.approx(0.0658463492, abs=5e-11)
    later = REFERENCE.after_steps(20).after_release(noise_std=0.3)
    there = covered(present(later), policy, {4: 1})
    assert there.guarantee.mu == pytest.approx(0.0893312428, abs=5e-11)
    assert "does not cover" in refusal(present(), replace(policy, epsilon=0.2), {4: 1})


def test_the_certificate_states_what_a_verifier_recomputes() -> None:
    found = covered(present(), Policy(), {4: 2, 7: 1})
    mechanism = mechanism_named("tracked_release").of(found.mechanism.parameters())
    history = REFERENCE.after_request({4: 2, 7: 1})
    assert mechanism.account() == HistoryAccountant(history, TrackedRelease.terms).guarantee()
    assert found.tracking.history == history
    assert mechanism.contradiction(claim(3)) is None
    for other in (2, 4):
        assert mechanism.contradiction(claim(other)) == "its history forgets other records"
    drawn = replace(mechanism, history=replace(history, recipe=recipe(dimension=3, batches=10)))
    assert [draws.noise_std for draws in drawn.draws(first=True)] == [0.5]


def test_requests_one_after_the_other_are_one_event() -> None:
    head, policy = present(), Policy(mechanism="tracked_release")
    for number in range(50):
        found = covered(head, replace(policy, epsilon=50.0), {number % 10: 1})
        head = replace(head, tracking=found.tracking, forgotten=number + 1)
    once = covered(present(), replace(policy, epsilon=50.0), dict.fromkeys(range(10), 5))
    assert found.mechanism == once.mechanism
    assert found.guarantee == once.guarantee
    assert len(found.tracking.history.events) == len(REFERENCE.events) + 1


@settings(max_examples=100, deadline=None)
@given(histories(radius=True), st.dictionaries(st.integers(0, 4), st.integers(1, 4), min_size=1))
def test_is_what_the_accountant_says_and_falls_with_every_record(
    history: History, records: dict[int, int]
) -> None:
    head = present(history.after_release(noise_std=1.0))
    policy = Policy(epsilon=30.0, delta=1e-2)
    found = coverage(head, policy, records)
    asked = head.tracking.history.after_request(records)
    accountant = HistoryAccountant(asked, TrackedRelease.terms)
    assert isinstance(found, Covered) == accountant.meets(epsilon=30.0, delta=1e-2)
    assume(isinstance(found, Covered))
    assert found.guarantee == accountant.guarantee()
    truth = independent_mu(asked.to_json())
    assert truth <= found.guarantee.mu * (1 + 1e-9)
    for batch, count in records.items():
        fewer = {**records, batch: count - 1}
        less = covered(head, policy, {each: left for each, left in fewer.items() if left})
        assert less.guarantee.mu <= found.guarantee.mu * (1 + 1e-9)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mechanism": "retraining"}, "names retraining"),
        ({"mechanism": "projected_noisy_sgd"}, "names projected_noisy_sgd"),
        ({"adaptive": True}, "adapt"),
        ({"mechanism": "tracked_release", "parameters": {"steps": 5}}, "fixes how many steps"),
    ],
)
def test_what_the_policy_asks_for_comes_first(change: dict[str, Any], reason: str) -> None:
    assert isinstance(coverage(present(), Policy(), {0: 1}), Covered)
    assert reason in refusal(present(), replace(Policy(), **change), {0: 1})


@pytest.mark.parametrize(
    ("head", "records", "reason"),
    [
        (present(REFERENCE, forgotten=1), {0: 1}, "does not forget"),
        (present(REFERENCE.after_steps(1)), {0: 1}, "no released history"),
        (present(History(REFERENCE.recipe).after_steps(40)), {0: 1}, "no released history"),
        (present(None), {0: 1}, "no released history"),
        (present(History(REFERENCE.recipe).after_steps(40).after_release()), {0: 1}, "noise"),
        (present(), {0: 101}, "records"),
        (present(), {10: 1}, "records"),
        (trained_privately(), {0: 1000}, "group budget"),
        (present(None, "dp_sgd", training=TrainingKind.PRIVATE), {0: 1}, "not trained with"),
    ],
)
def test_without_noise_in_a_released_history_a_run_is_needed(
    head: CurrentRelease, records: dict[int, int], reason: str
) -> None:
    assert reason in refusal(head, Policy(), records)


@pytest.mark.parametrize("name", [n for n, m in MECHANISMS.items() if not issubclass(m, Tracked)])
def test_other_mechanisms_cover_nothing_later(name: str) -> None:
    assert refusal(present(REFERENCE, name), Policy(mechanism=name), {0: 1})


class TestAdaptiveRequests:
    """They may have been chosen by looking at the very release that is to cover them."""

    HISTORY = (
        History(FULL_BATCH)
        .after_steps(30, noise_std=0.05)
        .after_release()
        .after_request({0: 1})
        .after_steps(4, noise_std=0.05)
        .after_release()
    )
    POLICY = Policy(mechanism="noisy_gd_convex", adaptive=True, epsilon=8.0)

    def test_the_present_release_composes_with_those_before_it(self) -> None:
        found = covered(present(self.HISTORY, "noisy_gd_convex"), self.POLICY, {0: 2})
        asked = self.HISTORY.after_request({0: 2})
        truth = independent_mu(asked.to_json(), adaptive=True)
        assert found.guarantee.mu == pytest.approx(truth, rel=1e-9)
        assert found.guarantee.terms.adaptive
        first, last = History(FULL_BATCH).after_steps(30, noise_std=0.05), History(FULL_BATCH)
        runs = (  # three records were in the first run, and the last two of them in the second
            first.after_release().after_request({0: 3}),
            last.after_steps(4, noise_std=0.05).after_release().after_request({0: 2}),
        )
        alone = [HistoryAccountant(run, found.guarantee.terms).guarantee().mu for run in runs]
        assert found.guarantee.mu == pytest.approx(math.hypot(*alone), rel=1e-9)
        assert found.mechanism.parameters()["earlier_releases"] == 1
        assert found.mechanism.releases_before() == 2
        assert found.mechanism.contradiction(claim(3, version=2)) is None
        assert found.mechanism.contradiction(claim(3, version=3)) is not None

    def test_costs_more_than_requests_that_were_fixed_before(self) -> None:
        head = present(self.HISTORY, "noisy_gd_convex")
        fixed = covered(head, replace(self.POLICY, adaptive=False), {0: 2})
        assert not fixed.guarantee.terms.adaptive
        assert fixed.guarantee.mu < covered(head, self.POLICY, {0: 2}).guarantee.mu

    def test_releases_that_are_not_in_the_history_end_it(self) -> None:
        head = present(self.HISTORY, "noisy_gd_convex", version=3)
        assert "trained again" in refusal(head, self.POLICY, {0: 1})

    def test_dp_sgd_does_not_compose(self) -> None:
        assert "adapt" in refusal(trained_privately(), Policy(adaptive=True), {0: 1})


class TestGroups:
    POLICY = Policy(mechanism="dp_sgd", epsilon=8.0)

    @pytest.mark.parametrize("rate", [0.1, 1.0])
    def test_the_group_is_the_largest_that_meets_the_target(self, rate: float) -> None:
        noise = 5.0 if rate < 1 else 20.0
        training = DpSgd(noise_multiplier=noise, sampling_rate=rate, steps=20, group_size=1)
        group = largest_group(training, epsilon=8.0, delta=1e-5)
        met = [
            replace(training, group_size=size).account().meets(epsilon=8.0, delta=1e-5)
            for size in (group, group + 1)
        ]
        assert met == [True, False]

    def test_each_record_is_covered_until_the_group_is_spent(self) -> None:
        stated = covered(trained_privately(), self.POLICY, {0: 1}).mechanism
        group = stated.parameters()["group_size"]
        for forgotten in (0, group - 1):
            found = covered(trained_privately(forgotten), self.POLICY, {0: 1})
            assert found.mechanism == stated
            assert found.mechanism.contradiction(claim(forgotten + 1)) is None
        assert "group budget" in refusal(trained_privately(group), self.POLICY, {0: 1})
        assert stated.contradiction(claim(group + 1)) is not None

    def test_the_next_group_after_a_new_training(self) -> None:
        found = covered(trained_privately(2, mechanism="retraining"), self.POLICY, {0: 1})
        assert found.mechanism.name == "dp_sgd"

    def test_too_little_noise_covers_no_record(self) -> None:
        assert "budget is 0" in refusal(
            trained_privately(), replace(self.POLICY, epsilon=0.01), {0: 1}
        )


def test_two_requests_in_a_row_are_not_a_history_of_the_service() -> None:
    events = (*REFERENCE.events, Forget(((0, 1),)), Forget(((0, 1),)))
    found = TrackedRelease(history=replace(REFERENCE, events=events)).contradiction(claim(2))
    assert found == "its history has no final release"


def test_without_looking_at_records_it_is_known_which_releases_cover_none() -> None:
    for name, mechanism in MECHANISMS.items():
        head = trained_privately() if name == "dp_sgd" else present(mechanism=name)
        assert may_cover(head.tracking, Policy()) == mechanism.covers_later
        if not mechanism.covers_later:
            assert refusal(head, Policy(), {0: 1}) == f"with {name} each request needs a run"
    assert not may_cover(present().tracking, Policy(mechanism="retraining"))
    assert may_cover(trained_privately(mechanism="retraining").tracking, Policy())
