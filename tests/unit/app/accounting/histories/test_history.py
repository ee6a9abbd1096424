import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings

from app.accounting.histories.history import (
    MOST_EVENTS,
    MOST_STEPS,
    Forget,
    History,
    Release,
    Steps,
)
from app.accounting.terms import Neighbours
from app.domain.errors import ParameterError
from tests.support.histories import histories, recipe


def lived():
    """Training, a release, a request, a run with noise, another request."""
    return (
        History(recipe())
        .after_steps(40)
        .after_release(noise_std=0.5)
        .after_request({4: 1})
        .after_steps(20, noise_std=0.1)
        .after_release()
        .after_request({0: 2, 4: 1})
    )


def test_counts_what_happened():
    history = lived()
    assert (history.steps, history.releases, history.forgotten()) == (60, 2, 4)
    assert history.by_batch() == {4: 2, 0: 2}


def test_weights_are_in_their_ball_but_for_the_noise_of_releases_since():
    ball = History(recipe(radius=3.0, dimension=16))
    assert ball.furthest == lived().furthest == math.inf
    stepped = ball.after_release(noise_std=9.0).after_steps(5, noise_std=9.0)
    assert stepped.furthest == stepped.after_release().after_request({0: 1}).furthest == 3.0
    noisy = stepped.after_release(noise_std=0.3).after_release(noise_std=0.4)
    assert noisy.furthest == pytest.approx(3.0 + 0.5 * (4 + 10))


def test_the_last_run_is_what_came_behind_the_release_before_it():
    first = History(recipe()).after_steps(40).after_release(noise_std=0.5)
    assert first.last_run == (Steps(40), Release(0.5))
    second = first.after_request({4: 1}).after_steps(20, noise_std=0.1).after_release()
    assert second.last_run == (Steps(20, 0.1), Release(0.0))
    assert second.after_request({3: 1}).after_release(noise_std=0.1).last_run == (Release(0.1),)


@pytest.mark.parametrize("name", ["batch_size", "batches", "dimension"])
def test_a_count_that_no_float_holds_is_refused(name):
    with pytest.raises(ParameterError) as caught:
        recipe(**{name: 10**400})
    assert caught.value.name == name


def test_nothing_is_added_by_no_steps():
    assert lived().after_steps(0) == lived()


def test_walks_with_the_records_that_were_still_there():
    walked = [(event, position, dict(present)) for event, position, present in lived().walk()]
    assert [position for _, position, _ in walked] == [0, 40, 40, 40, 60, 60]
    there = [present for _, _, present in walked]
    assert there[0] == there[1] == there[2] == {4: 2, 0: 2}
    assert there[3] == there[4] == there[5] == {0: 2, 4: 1}
    assert [event for event, _, _ in walked] == list(lived().events)


def test_noise_that_is_left_contracts():
    rate = 0.95
    after_run = 0.25 * rate**40 + 0.01 * (1 - rate**40) / (1 - rate**2)
    assert lived().noise_std() == pytest.approx(math.sqrt(after_run), rel=1e-13)
    assert History(recipe()).noise_std() == 0.0
    flat = History(recipe(weight_decay=0.0)).after_steps(9, noise_std=0.2)
    assert flat.noise_std() == pytest.approx(0.6, rel=1e-13)
    nearly_flat = History(recipe(weight_decay=1e-15)).after_steps(9, noise_std=0.2)
    assert nearly_flat.noise_std() == pytest.approx(0.6, rel=1e-12)


def test_starts_noisy_only_where_every_step_added_noise():
    begun = History(recipe())
    assert not begun.starts_noisy
    assert begun.after_steps(3, noise_std=0.1).after_release().starts_noisy
    assert not begun.after_steps(3).after_steps(3, noise_std=0.1).starts_noisy
    assert not begun.after_steps(3, noise_std=0.1).after_steps(1).starts_noisy
    assert not begun.after_release(noise_std=0.5).starts_noisy


@settings(max_examples=80, deadline=None)
@given(histories(radius=True))
def test_comes_back_from_json_as_it_was(history):
    stored = json.loads(json.dumps(history.to_json()))
    assert History.from_json(stored) == history
    assert History.from_json(stored).to_json() == stored


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("learning_rate", 10.0),
        ("learning_rate", math.nan),
        ("learning_rate", "fast"),
        ("weight_decay", -1.0),
        ("smoothness", -1.0),
        ("smoothness", True),
        ("lipschitz", 0.0),
        ("lipschitz", math.inf),
        ("batch_size", 0),
        ("batch_size", True),
        ("batches", 0),
        ("batches", 2.0),
        ("radius", 0.0),
        ("dimension", 0),
        ("dimension", 1.5),
        ("neighbours", Neighbours.ANY_START),
        ("neighbours", "nobody"),
    ],
)
def test_a_recipe_refuses_constants_outside_their_range(name, bad):
    with pytest.raises(ParameterError) as caught:
        recipe(**{name: bad})
    assert caught.value.name == name
    stored = lived().to_json()
    with pytest.raises(ParameterError) as caught:
        History.from_json({**stored, "recipe": {**stored["recipe"], name: bad}})
    assert caught.value.name == name


@pytest.mark.parametrize("records", [{5: 1}, {-1: 1}, {0: 0}, {0: 5}, {0: 1.5}, {0: True}])
def test_a_request_must_name_batches_of_the_partition(records):
    with pytest.raises(ParameterError):
        History(recipe()).after_request(records)


@pytest.mark.parametrize("pairs", [((1, 1), (0, 1)), ((0, 1), (0, 1))])
def test_a_request_names_each_batch_once_and_in_order(pairs):
    with pytest.raises(ParameterError):
        History(recipe(), (Forget(pairs),))


def test_no_batch_can_lose_more_records_than_it_has():
    history = History(recipe()).after_request({0: 3})
    with pytest.raises(ParameterError):
        history.after_request({0: 2})


@pytest.mark.parametrize("noise_std", [-0.1, math.nan, math.inf, 1e-150, True, "0.1"])
def test_noise_outside_its_range_is_refused(noise_std):
    with pytest.raises(ParameterError) as caught:
        History(recipe()).after_steps(3, noise_std=noise_std)
    assert caught.value.name == "noise_std"
    with pytest.raises(ParameterError):
        History(recipe()).after_release(noise_std=noise_std)


def test_requests_with_nothing_between_them_are_one_event():
    trained = History(recipe()).after_steps(30).after_release(noise_std=0.1)
    merged = trained.after_request({2: 1}).after_request({0: 1, 2: 1})
    assert merged == trained.after_request({0: 1, 2: 2})
    later = merged.after_release().after_request({0: 1})
    assert len(later.events) == len(merged.events) + 2
    with pytest.raises(ParameterError):
        merged.after_request({2: 3})


def test_a_history_has_an_end():
    long = History(recipe()).after_steps(MOST_STEPS)
    with pytest.raises(ParameterError):
        long.after_steps(1)
    with pytest.raises(ParameterError):
        replace(long, events=(Release(),) * (MOST_EVENTS + 1))


@pytest.mark.parametrize(
    "broken",
    [
        {"events": None},
        {"events": {}},
        {"events": [{"steps": 0, "noise_std": 0.0}]},
        {"events": [{"steps": 3}]},
        {"events": [{"steps": True, "noise_std": 0.0}]},
        {"events": [{"steps": 3, "noise_std": None}]},
        {"events": [{"steps": 3, "noise_std": 0.0, "release": 0.1}]},
        {"events": [{"release": "much"}]},
        {"events": [{"release": False}]},
        {"events": [{"forget": [[0]]}]},
        {"events": [{"forget": [["x", 1]]}]},
        {"events": [{"forget": [[True, 1]]}]},
        {"events": [{"forget": {"0": 1}}]},
        {"events": [{"other": 1}]},
        {"events": ["steps"]},
        {"extra": 1},
        {"recipe": None},
        {"recipe": {"learning_rate": 1.0}},
    ],
)
def test_refuses_a_document_that_was_not_written_by_it(broken):
    with pytest.raises(ParameterError):
        History.from_json({**lived().to_json(), **broken})


@pytest.mark.parametrize("document", [None, [], "history", 3, {}])
def test_refuses_what_is_no_object(document):
    with pytest.raises(ParameterError):
        History.from_json(document)


def test_refuses_a_recipe_with_an_unknown_constant():
    stored = lived().to_json()
    with pytest.raises(ParameterError):
        History.from_json({**stored, "recipe": {**stored["recipe"], "momentum": 0.9}})
