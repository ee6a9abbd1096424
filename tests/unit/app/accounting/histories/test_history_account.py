import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.accounting.chains.minorant import minorant_mu
from app.accounting.histories.history import History, Release, Steps
from app.accounting.histories.history_account import HistoryAccountant, drift
from app.domain.errors import ParameterError
from app.planning.mechanisms.tracked_release import TrackedRelease
from tests.support.histories import histories, recipe
from tests.support.independent_accountant import independent_mu

TERMS = TrackedRelease.terms
TARGET = {"epsilon": 1.0, "delta": 1e-5}


def reference(**change):
    """MATH.md, section 11: contraction 0.99, a cycle of ten, shift 0.01."""
    constants = {"weight_decay": 0.01, "batch_size": 100, "batches": 10, **change}
    return History(recipe(**constants)).after_steps(40).after_release(noise_std=0.5)


def mu(history, **more):
    return HistoryAccountant(history, TERMS).guarantee(**more).mu


def mu_or_nothing(history, **how):
    try:
        return HistoryAccountant(history, TERMS, **how).guarantee().mu
    except ParameterError:
        return math.inf


def one_by_one(history):
    """Every step of the history, one after the other, in the accountant of any schedule."""
    recipe_, schedule = history.recipe, []
    for event, position, present in history.walk():
        if isinstance(event, Release):
            schedule.append((1.0, 0.0, event.noise_std))
        if isinstance(event, Steps):
            for step in range(position, position + event.count):
                records = present.get(step % recipe_.batches, 0)
                schedule.append((recipe_.contraction, recipe_.shift * records, event.noise_std))
    if not schedule or not any(shift for _, shift, _ in schedule):
        return 0.0
    contractions, shifts, noise_stds = map(list, zip(*schedule, strict=True))
    try:
        return minorant_mu(
            start_distance=0.0, contractions=contractions, shifts=shifts, noise_stds=noise_stds
        )
    except ParameterError:
        return math.inf


def test_reference_values_of_one_history():
    asked = reference().after_request({4: 1})
    assert drift(asked) == pytest.approx(0.0329231746, abs=5e-11)
    assert mu(asked) == pytest.approx(0.0658463492, abs=5e-11)
    answered = asked.after_steps(20).after_release(noise_std=0.3)
    assert mu(answered) == pytest.approx(0.0530925843, abs=5e-11)
    there = reference().after_steps(20).after_release(noise_std=0.3).after_request({4: 1})
    assert mu(there) == pytest.approx(0.0893312428, abs=5e-11)
    alone = (
        History(asked.recipe)
        .after_steps(40)
        .after_request({4: 1})
        .after_steps(20)
        .after_release(noise_std=0.3)
    )
    # MATH.md prints 0.0897603098; the last digit is a rounding slip.
    assert mu(alone) == pytest.approx(0.0897603097, abs=5e-11)


@settings(max_examples=150, deadline=None)
@given(histories(), st.booleans())
def test_agrees_with_an_independent_accountant(history, adaptive):
    truth = independent_mu(history.to_json(), adaptive=adaptive and history.releases > 0)
    found = mu_or_nothing(history, adaptive=adaptive)
    assert math.isinf(found) == math.isinf(truth)
    if math.isfinite(truth):
        assert truth * (1 - 1e-12) <= found <= truth * (1 + 1e-9)


@settings(max_examples=80, deadline=None)
@given(histories())
def test_agrees_with_every_step_walked_one_by_one(history):
    walked = one_by_one(history)
    found = mu_or_nothing(history)
    assert found == walked or found == pytest.approx(walked, rel=1e-9)


@settings(max_examples=80, deadline=None)
@given(histories(radius=True))
def test_with_a_ball_it_stays_an_upper_bound(history):
    truth = independent_mu(history.to_json())
    without = replace(history, recipe=replace(history.recipe, radius=None))
    found = mu_or_nothing(history)
    assert truth * (1 - 1e-12) <= found <= mu_or_nothing(without)


def test_a_ball_bounds_what_the_last_run_must_hide():
    balled = recipe(radius=0.1, weight_decay=0.0)
    trained = History(balled).after_steps(500, noise_std=1e-3).after_request({4: 4})
    asked = trained.after_steps(25, noise_std=0.1)
    assert mu(asked) == pytest.approx(0.2 / (0.1 * 5), rel=1e-9)


@settings(max_examples=100, deadline=None)
@given(
    histories(),
    st.sampled_from([0, 1, 7, 60]),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([0.0, 0.3]),
)
def test_an_outlook_says_what_the_longer_history_will(history, steps, noise_std, release):
    longer = history.after_steps(steps, noise_std=noise_std).after_release(noise_std=release)
    try:
        ahead = HistoryAccountant(history, TERMS).guarantee(
            steps=steps, noise_std=noise_std, release_noise_std=release
        )
    except ParameterError:
        assert mu_or_nothing(longer) == math.inf
    else:
        assert ahead.mu == pytest.approx(mu_or_nothing(longer), rel=1e-11)


@settings(max_examples=100, deadline=None)
@given(histories(), st.sampled_from([1, 20]), st.sampled_from([0.0, 0.3]))
def test_later_steps_and_noise_never_harm_a_guarantee(history, steps, noise_std):
    before = mu_or_nothing(history)
    assert mu_or_nothing(history.after_steps(steps, noise_std=noise_std)) <= before * (1 + 1e-11)
    assert mu_or_nothing(history.after_release(noise_std=0.1)) <= before * (1 + 1e-11)


@settings(max_examples=100, deadline=None)
@given(histories(), st.integers(0, 4))
def test_one_more_record_never_helps(history, batch):
    more = history.after_request({batch: 1})
    assert mu_or_nothing(more) >= mu_or_nothing(history) * (1 - 1e-11)


def test_noise_that_was_never_added_is_not_counted():
    """A head trained without noise has none, whatever a policy says of the future."""
    trained = History(recipe(batches=1)).after_steps(40).after_release()
    asked = trained.after_request({0: 1})
    with pytest.raises(ParameterError) as caught:
        HistoryAccountant(asked, TERMS).guarantee()
    assert caught.value.name == "noise_std"
    assert not HistoryAccountant(asked, TERMS).meets(epsilon=50.0, delta=0.9)
    assert not HistoryAccountant(asked, TERMS).meets(epsilon=50.0, delta=0.9, steps=10**6)


def test_contraction_alone_is_no_noise():
    asked = History(recipe(weight_decay=0.7)).after_steps(40).after_request({0: 1})
    for _ in range(4):
        asked = asked.after_steps(10**6).after_release()
    assert mu_or_nothing(asked) == math.inf


def test_nothing_forgotten_and_nothing_read_are_exact():
    assert mu(History(recipe()).after_steps(40)) == 0.0
    unread = History(recipe()).after_steps(3).after_request({4: 1})
    assert mu(unread.after_steps(100)) == 0.0
    assert mu(History(recipe()).after_request({0: 1}).after_steps(9)) == 0.0


def test_a_release_already_made_covers_a_later_request():
    history = reference().after_request({4: 1}).after_release(noise_std=0.0)
    later = history.after_request({7: 1})
    assert HistoryAccountant(later, TERMS).meets(**TARGET)
    assert mu(later) > mu(history)


def test_earlier_noise_tops_up():
    asked = reference().after_request({4: 1})
    left = asked.after_steps(20).noise_std()
    total = math.hypot(left, 0.3)
    alone = drift(asked.after_steps(20)) / 0.3
    assert mu(asked, steps=20, release_noise_std=0.3) < alone
    # The drift since the release is none, so all noise counts as one.
    assert mu(asked, steps=20, release_noise_std=0.3) == pytest.approx(
        drift(asked.after_steps(20)) / total, rel=1e-9
    )


def test_dimension_adds_what_floats_leave():
    plain = reference().after_request({4: 1})
    sized = replace(plain, recipe=replace(plain.recipe, dimension=100))
    assert mu(plain) < mu(sized) < mu(plain) + 1e-3


def test_noise_that_rounding_would_show_through_is_refused():
    tiny = (
        History(recipe(dimension=100))
        .after_steps(40)
        .after_request({4: 1})
        .after_release(noise_std=1e-12)
    )
    with pytest.raises(ParameterError) as caught:
        HistoryAccountant(tiny, TERMS).guarantee()
    assert caught.value.name == "noise_std"


@pytest.mark.parametrize("neighbours", ["zero_out", "replacement"])
def test_the_relation_is_the_histories(neighbours):
    made = HistoryAccountant(
        History(recipe(neighbours=neighbours)).after_steps(1), TERMS
    ).guarantee()
    assert made.terms.neighbours == neighbours


def test_too_many_noisy_visits_are_refused_and_few_are_not():
    history = History(recipe()).after_steps(5 * 10**6, noise_std=0.1)
    with pytest.raises(ParameterError) as caught:
        HistoryAccountant(history.after_request({0: 1, 1: 1, 2: 1}), TERMS)
    assert caught.value.name == "events"
    one_batch = history.after_request({0: 1})
    assert HistoryAccountant(one_batch, TERMS).guarantee().mu > 0
    split = History(recipe())
    for _ in range(50):
        split = split.after_steps(10**5, noise_std=0.1)
    with pytest.raises(ParameterError):
        HistoryAccountant(split.after_request({0: 1, 1: 1, 2: 1}), TERMS)


# Adaptive requests: section 9 of docs/guarantees.md.


def noisy_lineage(runs, *, steps=30, unlearning=5):
    """Full-batch noisy descent with a release after each run."""
    history = History(recipe(batches=1, batch_size=20)).after_steps(steps, noise_std=0.1)
    for _ in range(runs - 1):
        history = history.after_release().after_steps(unlearning, noise_std=0.1)
    return history.after_release()


def closed_form(steps, *, shift=0.05, noise_std=0.1, rate=0.95):
    kept = rate**steps
    return shift / noise_std * math.sqrt((1 - kept) * (1 + rate) / ((1 + kept) * (1 - rate)))


@pytest.mark.parametrize("releases", [1, 2, 5])
def test_adaptive_requests_pay_for_every_release_that_read_the_records(releases):
    asked = noisy_lineage(releases).after_request({0: 1})
    expected = math.hypot(closed_form(30), *[closed_form(5)] * (releases - 1))
    for steps in (0, 5, 500):
        ahead = HistoryAccountant(asked, TERMS, adaptive=True)
        assert ahead.guarantee(steps=steps, noise_std=0.1).mu == pytest.approx(expected, rel=1e-9)


def test_releases_after_the_records_left_cost_nothing():
    asked = noisy_lineage(2).after_request({0: 1})
    later = asked
    for _ in range(7):
        later = later.after_steps(5, noise_std=0.1).after_release()
    found = [mu_or_nothing(history, adaptive=True) for history in (asked, later)]
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_a_first_request_before_any_release_has_nothing_to_adapt_to():
    asked = History(recipe(batches=1)).after_steps(9, noise_std=0.1).after_request({0: 1})
    assert mu_or_nothing(asked, adaptive=True) == mu_or_nothing(asked)


def test_an_earlier_release_without_noise_leaves_nothing_to_compose():
    asked = History(recipe(batches=1)).after_steps(9).after_release().after_request({0: 1})
    assert mu_or_nothing(asked.after_steps(9, noise_std=1.0), adaptive=True) == math.inf


def test_adaptive_terms_say_so():
    terms = HistoryAccountant(noisy_lineage(2), TERMS, adaptive=True).guarantee().terms
    assert terms.adaptive
    assert "Theorem 4.3" in terms.source
    assert len(terms.assumptions) == len(TERMS.assumptions) + 1


def test_the_last_batch_visited_is_the_worst_place_under_any_noise():
    history = (
        History(recipe())
        .after_steps(23, noise_std=0.05)
        .after_release(noise_std=0.4)
        .after_steps(19)
        .after_steps(11, noise_std=0.01)
        .after_release(noise_std=0.1)
    )
    by_batch = [mu(history.after_request({batch: 1})) for batch in range(5)]
    last = (history.steps - 1) % 5
    order = [(last - back) % 5 for back in range(5)]
    assert [by_batch[batch] for batch in order] == sorted(by_batch, reverse=True)


def test_account_reads_plain_json():
    history = reference().after_request({4: 1})
    found = TrackedRelease.of({"history": history.to_json()}).account()
    assert found.mu == pytest.approx(0.0658463492, abs=5e-11)
    with pytest.raises(ParameterError):
        TrackedRelease.of({"history": {"events": []}})
