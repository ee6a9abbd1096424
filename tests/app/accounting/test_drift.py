import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.accounting.drift import DriftLedger, Recipe, Steps, worst_case_drift
from app.accounting.terms import Neighbours
from app.domain.errors import ParameterError

N = 11264
DECAY = 1e-6 * N


def recipe(batch_size=128, neighbours=Neighbours.REPLACEMENT, **change):
    given_ = {
        "learning_rate": 1 / (0.25 + DECAY),
        "weight_decay": DECAY,
        "smoothness": 0.25,
        "lipschitz": 1.0,
        "batch_size": batch_size,
        "batches": N // batch_size,
        "neighbours": neighbours,
    }
    return Recipe(**{**given_, **change})


def small(**change):
    return recipe(
        **{"batch_size": 4, "batches": 5, "learning_rate": 1.0, "weight_decay": 0.05, **change}
    )


def stepwise(ledger):
    """Walk every step of the recursion, with all records forgotten so far counted in."""
    constants, drift, position = ledger.recipe, 0.0, 0
    for index, event in enumerate(ledger.events):
        if not isinstance(event, Steps):
            continue
        present = [0] * constants.batches
        for later in ledger.events[index:]:
            if not isinstance(later, Steps):
                for batch, count in later.records:
                    present[batch] += count
        for _ in range(event.count):
            pushed = constants.shift * present[position % constants.batches]
            drift = min(constants.cap, constants.contraction * drift + pushed)
            position += 1
    return drift


def test_reference_worst_case_drifts():
    assert worst_case_drift(recipe=recipe()) == pytest.approx(0.0610687987, abs=5e-11)
    assert worst_case_drift(recipe=recipe(N)) == pytest.approx(0.0157632118, abs=5e-11)
    zero_out = Neighbours.ZERO_OUT
    assert worst_case_drift(recipe=recipe(128, zero_out)) == pytest.approx(
        0.0610687987 / 2, abs=5e-11
    )
    assert worst_case_drift(recipe=recipe(N, zero_out)) == pytest.approx(
        0.0157632118 / 2, abs=5e-11
    )


def test_a_batch_of_records_multiplies_the_drift():
    one = worst_case_drift(recipe=recipe())
    assert worst_case_drift(recipe=recipe(), records=7) == pytest.approx(7 * one, rel=1e-12)


def test_long_training_with_the_record_last_in_the_cycle_is_the_worst_case():
    ledger = DriftLedger(recipe()).after_steps(88 * 2000).after_request({87: 1})
    assert ledger.drift() == pytest.approx(worst_case_drift(recipe=recipe()), rel=1e-9)


def test_one_record_in_closed_form():
    ledger = DriftLedger(small()).after_steps(7).after_request({1: 1})
    # Batch 1 is visited at steps 2 and 7; the drift after step 7 is s (1 + c^5).
    shift, rate = 2 * 1.0 / 4, 0.95
    assert ledger.drift() == pytest.approx(shift * (1 + rate**5), rel=1e-12)


def test_later_steps_contract_and_later_requests_add():
    trained = DriftLedger(small()).after_steps(100)
    first = trained.after_request({0: 1}).after_steps(13)
    assert first.drift() == pytest.approx(
        0.95**13 * trained.after_request({0: 1}).drift(), rel=1e-12
    )
    second = first.after_request({3: 2})
    union = trained.after_request({0: 1}).after_steps(13).drift()
    alone = trained.after_steps(13).after_request({3: 2}).drift()
    assert second.drift() == pytest.approx(union + alone, rel=1e-12)
    assert second.forgotten() == 3
    assert second.steps == 113


def test_sequential_requests_never_exceed_the_papers_recursion():
    constants = recipe()
    ledger, bound = DriftLedger(constants).after_steps(20 * 88), 0.0
    for request in range(5):
        ledger = ledger.after_request({17 * request % 88: 1})
        bound = bound * constants.contraction ** (88 if request else 0)
        bound += worst_case_drift(recipe=constants)
        assert ledger.drift() <= bound * (1 + 1e-12)
        ledger = ledger.after_steps(88)


def test_stops_in_the_middle_of_an_epoch():
    ledger = DriftLedger(small()).after_steps(3).after_request({4: 1})
    assert ledger.drift() == 0.0
    assert DriftLedger(small()).after_steps(5).after_request({4: 1}).drift() > 0


def test_zero_out_is_half_of_replacement():
    drifts = [
        DriftLedger(small(neighbours=relation)).after_steps(43).after_request({2: 3}).drift()
        for relation in (Neighbours.ZERO_OUT, Neighbours.REPLACEMENT)
    ]
    assert drifts[1] == pytest.approx(2 * drifts[0], rel=1e-14)


def test_a_ball_caps_the_drift():
    capped = DriftLedger(small(radius=0.1)).after_steps(500).after_request({4: 4})
    assert capped.drift() == pytest.approx(0.2, rel=1e-11)
    flat = recipe(weight_decay=0.0, learning_rate=1.0, radius=3.0)
    assert worst_case_drift(recipe=flat) == 6.0


def test_without_weight_decay_drift_grows_by_one_shift_a_pass():
    ledger = DriftLedger(small(weight_decay=0.0)).after_steps(50).after_request({0: 1})
    assert ledger.drift() == pytest.approx(10 * 0.5, rel=1e-11)
    with pytest.raises(ParameterError) as caught:
        worst_case_drift(recipe=small(weight_decay=0.0))
    assert caught.value.name == "weight_decay"


EVENTS = st.lists(
    st.one_of(
        st.integers(1, 40),
        st.dictionaries(st.integers(0, 4), st.just(1), min_size=1, max_size=2),
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=60, deadline=None)
@given(
    EVENTS,
    st.sampled_from([0.0, 0.05]),
    st.sampled_from([None, 0.3, 5.0]),
    st.sampled_from(list(Neighbours)[1:3]),
)
def test_the_ledger_bounds_the_step_by_step_recursion(events, decay, radius, relation):
    ledger = DriftLedger(
        recipe(
            batch_size=16,
            batches=5,
            learning_rate=1.0,
            weight_decay=decay,
            radius=radius,
            neighbours=relation,
        )
    )
    for event in events:
        ledger = (
            ledger.after_steps(event) if isinstance(event, int) else ledger.after_request(event)
        )
    walked = stepwise(ledger)
    assert ledger.drift() >= walked * (1 - 1e-15)
    if radius is None:
        assert ledger.drift() <= walked * (1 + 1e-11)
    stored = json.loads(json.dumps(ledger.to_json()))
    assert DriftLedger.from_json(stored) == ledger
    assert DriftLedger.from_json(stored).drift() == ledger.drift()
    assert ledger.after_steps(7).drift() <= ledger.drift() * (1 + 1e-11)


def test_a_million_epochs_and_an_underflowing_contraction():
    ledger = DriftLedger(small()).after_steps(5 * 10**6).after_request({1: 1})
    assert math.isfinite(ledger.drift())
    assert 0 < ledger.after_steps(10**6).drift() < 1e-200


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("learning_rate", 10.0),
        ("learning_rate", math.nan),
        ("lipschitz", 0.0),
        ("lipschitz", math.inf),
        ("batch_size", 0),
        ("batches", 0),
        ("radius", 0.0),
        ("smoothness", -1.0),
        ("neighbours", Neighbours.ANY_START),
    ],
)
def test_a_recipe_refuses_parameters_outside_their_range(name, bad):
    with pytest.raises(ParameterError) as caught:
        recipe(**{name: bad} if name != "batch_size" else {"batch_size": 1, "lipschitz": -1.0})
    assert caught.value.name in {name, "lipschitz"}


@pytest.mark.parametrize("records", [{5: 1}, {-1: 1}, {0: 0}, {0: 5}, {"0": 1}, {0: 1.5}])
def test_a_request_must_name_batches_of_the_partition(records):
    with pytest.raises(ParameterError):
        DriftLedger(small()).after_request(records)


def test_no_batch_can_lose_more_records_than_it_has():
    ledger = DriftLedger(small()).after_request({0: 3})
    with pytest.raises(ParameterError):
        ledger.after_request({0: 2})


@pytest.mark.parametrize(
    "broken",
    [
        {"events": None},
        {"events": [{"steps": 0}]},
        {"events": [{"forget": [[0]]}]},
        {"events": [{"other": 1}]},
        {"events": [{"forget": [["x", 1]]}]},
        {"extra": 1},
        {"learning_rate": "fast"},
        {"neighbours": "nobody"},
    ],
)
def test_refuses_a_ledger_that_was_not_written_by_it(broken):
    data = {**DriftLedger(small()).after_steps(3).to_json(), **broken}
    with pytest.raises(ParameterError):
        DriftLedger.from_json(data)
    missing = DriftLedger(small()).to_json()
    del missing["smoothness"]
    with pytest.raises(ParameterError):
        DriftLedger.from_json(missing)
