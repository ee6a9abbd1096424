"""How far apart the worlds of a history are while they share their noise."""

import math

import mpmath
import pytest
from hypothesis import given, settings

from app.accounting.histories.history import History, Recipe, Steps
from app.accounting.histories.history_account import drift, worst_case_drift
from app.accounting.terms import Neighbours
from app.domain.errors import ParameterError
from tests.support.histories import histories, recipe

N = 11264
DECAY = 1e-6 * N


def paper(batch_size=128, neighbours=Neighbours.REPLACEMENT):
    """The setting of Chien et al. 2024: MNIST, 3 against 8."""
    return Recipe(
        learning_rate=1 / (0.25 + DECAY),
        weight_decay=DECAY,
        smoothness=0.25,
        lipschitz=1.0,
        batch_size=batch_size,
        batches=N // batch_size,
        neighbours=neighbours,
    )


def stepwise(history):
    """The recursion of the drift, one step after the other."""
    recipe_, distance = history.recipe, 0.0
    for event, position, present in history.walk():
        if isinstance(event, Steps):
            for step in range(position, position + event.count):
                pushed = recipe_.shift * present.get(step % recipe_.batches, 0)
                distance = min(recipe_.cap, recipe_.contraction * distance + pushed)
    return distance


@settings(max_examples=100, deadline=None)
@given(histories(radius=True))
def test_the_drift_bounds_the_step_by_step_recursion(history):
    walked = stepwise(history)
    assert drift(history) >= walked * (1 - 1e-15)
    if history.recipe.radius is None:
        assert drift(history) <= walked * (1 + 1e-11)


def test_reference_worst_case_drifts():
    assert worst_case_drift(recipe=paper()) == pytest.approx(0.0610687987, abs=5e-11)
    assert worst_case_drift(recipe=paper(N)) == pytest.approx(0.0157632118, abs=5e-11)
    half = worst_case_drift(recipe=paper(neighbours=Neighbours.ZERO_OUT))
    assert half == pytest.approx(0.0610687987 / 2, abs=5e-11)
    assert worst_case_drift(recipe=paper(), records=7) == pytest.approx(
        7 * worst_case_drift(recipe=paper()), rel=1e-12
    )


@pytest.mark.parametrize("decay", [5e-15, 1e-12, 1e-6])
def test_the_worst_case_keeps_its_digits_near_contraction_one(decay):
    near_one = recipe(weight_decay=decay)
    with mpmath.workdps(40):
        lost = 1 - mpmath.mpf(near_one.contraction) ** 5
        assert worst_case_drift(recipe=near_one) == pytest.approx(float(0.25 / lost), rel=1e-11)


def test_long_training_with_the_record_last_in_the_cycle_is_the_worst_case():
    history = History(paper()).after_steps(88 * 2000).after_request({87: 1})
    assert drift(history) == pytest.approx(worst_case_drift(recipe=paper()), rel=1e-9)


def test_one_record_in_closed_form():
    history = History(recipe()).after_steps(7).after_request({1: 1})
    # Batch 1 is visited at steps 2 and 7; the drift after step 7 is s (1 + c^5).
    assert drift(history) == pytest.approx(0.25 * (1 + 0.95**5), rel=1e-12)


def test_later_steps_contract_and_later_requests_add():
    trained = History(recipe()).after_steps(100)
    first = trained.after_request({0: 1}).after_steps(13)
    assert drift(first) == pytest.approx(0.95**13 * drift(trained.after_request({0: 1})), rel=1e-12)
    alone = drift(trained.after_steps(13).after_request({3: 2}))
    assert drift(first.after_request({3: 2})) == pytest.approx(drift(first) + alone, rel=1e-12)


def test_sequential_requests_never_exceed_the_papers_recursion():
    constants = paper()
    history, bound = History(constants).after_steps(20 * 88), 0.0
    for request in range(5):
        history = history.after_request({17 * request % 88: 1})
        bound = bound * constants.contraction ** (88 if request else 0)
        bound += worst_case_drift(recipe=constants)
        assert drift(history) <= bound * (1 + 1e-12)
        history = history.after_steps(88)


def test_a_ball_caps_the_drift():
    capped = History(recipe(radius=0.1)).after_steps(500).after_request({4: 4})
    assert drift(capped) == pytest.approx(0.2, rel=1e-11)
    assert worst_case_drift(recipe=recipe(weight_decay=0.0, radius=3.0)) == 6.0


def test_without_weight_decay_drift_grows_by_one_shift_a_pass():
    history = History(recipe(weight_decay=0.0)).after_steps(50).after_request({0: 1})
    assert drift(history) == pytest.approx(10 * 0.25, rel=1e-11)
    with pytest.raises(ParameterError) as caught:
        worst_case_drift(recipe=recipe(weight_decay=0.0))
    assert caught.value.name == "weight_decay"


def test_a_million_epochs_and_an_underflowing_contraction():
    history = History(recipe()).after_steps(5 * 10**6).after_request({1: 1})
    assert math.isfinite(drift(history))
    later = history
    for _ in range(3):
        later = later.after_steps(10**6)
        assert 0 < drift(later) < 1e-200
