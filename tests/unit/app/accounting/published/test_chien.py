import math

import pytest

from app.accounting.chains import noisy_chain
from app.accounting.guarantees import GaussianGuarantee
from app.accounting.histories.history import Recipe
from app.accounting.histories.history_account import worst_case_drift
from app.accounting.published import chien
from app.accounting.terms import Neighbours
from app.domain.errors import ParameterError
from app.planning.mechanisms.projected_noisy_sgd import ProjectedNoisySgd
from benchmarks.calibration import calibrate, noise_std_of

BASE = {
    "learning_rate": 2.0,
    "weight_decay": 0.05,
    "smoothness": 0.25,
    "lipschitz": 1.0,
    "batch_size": 8,
    "records": 40,
    "noise_scale": 0.5,
    "radius": 100.0,
}
RATE, BATCHES, SHIFT, SPREAD = 0.9, 5, 0.5, 2 * 2.0 * 0.25
LOST = 1 / (1 - RATE**BATCHES)


def test_corollary_3_7_in_closed_form():
    found = chien.corollary_3_7(**BASE, epochs=2)
    factor = (LOST * SHIFT) ** 2 / SPREAD * RATE**20
    assert found.curve(3.0) == pytest.approx(3 * factor, rel=1e-10)
    sharp = chien.corollary_3_7(**BASE, epochs=2, sharp=True)
    assert sharp.curve(3.0) == pytest.approx(3 * factor * (1 - RATE**2) / (1 - RATE**20), rel=1e-10)


def test_corollary_3_7_is_capped_by_the_ball():
    found = chien.corollary_3_7(**{**BASE, "radius": 0.1}, epochs=1)
    assert found.curve(2.0) == pytest.approx(2 * 0.04 / SPREAD * RATE**10, rel=1e-10)


def test_ours_is_at_most_half_of_the_sharp_form():
    recipe = Recipe(2.0, 0.05, 0.25, 1.0, 8, BATCHES, Neighbours.REPLACEMENT)
    from_the_drift = noisy_chain.constant_mu(
        start_distance=worst_case_drift(recipe=recipe),
        contraction=0.9,
        shift=0.0,
        noise_std=noise_std_of(learning_rate=2.0, noise_scale=0.5),
        steps=10,
    )
    ours = GaussianGuarantee(terms=ProjectedNoisySgd.terms, mu=from_the_drift)
    theirs = chien.corollary_3_7(**BASE, epochs=2, sharp=True)
    assert 1.5 * ours.mu**2 == pytest.approx(theirs.curve(3.0) / 2, rel=1e-9)


def test_corollary_3_8_averages_over_positions():
    found = chien.corollary_3_8(**BASE, epochs=1)
    order = 4.0
    terms = [
        math.exp(order * (order - 1) * (LOST * SHIFT * RATE**later) ** 2 / SPREAD * RATE**10)
        for later in range(BATCHES)
    ]
    expected = math.log(sum(terms) / BATCHES) / (order - 1)
    assert found.curve(order) == pytest.approx(expected, rel=1e-9)
    worst = chien.corollary_3_7(**BASE, epochs=1)
    assert found.curve(order) < worst.curve(order)


def test_corollary_3_10_in_closed_form():
    flat = {**BASE, "weight_decay": 0.0}
    found = chien.corollary_3_10(**flat, training_epochs=6, epochs=2)
    assert found.curve(2.0) == pytest.approx(2 * (6 * SHIFT) ** 2 / SPREAD / 10, rel=1e-10)
    capped = chien.corollary_3_10(**{**flat, "radius": 0.2}, training_epochs=6, epochs=2)
    assert capped.curve(2.0) == pytest.approx(2 * 0.16 / SPREAD / 10, rel=1e-10)
    with pytest.raises(ParameterError) as caught:
        chien.corollary_3_10(**BASE, training_epochs=6, epochs=2)
    assert caught.value.name == "weight_decay"


def test_theorem_3_2_in_closed_form():
    found = chien.theorem_3_2(**BASE, training_epochs=4, epochs=2)
    first = 200.0**2 / SPREAD * RATE**40
    distance = 200 * RATE**20 + (1 - RATE**20) * LOST * SHIFT
    second = distance**2 / SPREAD * RATE**20
    order = 3.0
    expected = (order - 0.5) / (order - 1) * 2 * order * (first + second)
    assert found.curve(order) == pytest.approx(expected, rel=1e-10)


def test_theorem_3_11_in_closed_form():
    found = chien.theorem_3_11(**BASE, epochs=[1, 2, 3])
    fresh = LOST * SHIFT
    distance = (fresh * RATE**5 + fresh) * RATE**10 + fresh
    assert found.curve(2.0) == pytest.approx(2 * distance**2 / SPREAD * RATE**30, rel=1e-10)
    with pytest.raises(ParameterError) as caught:
        chien.theorem_3_11(**BASE, epochs=[])
    assert caught.value.name == "epochs"


def test_corollary_j_1_with_its_exponents_mended():
    found = chien.corollary_j_1(
        **BASE, records_by_batch=[[0, 2], [3, 1]], training_epochs=3, epochs=1
    )
    total = (2 * RATE**4 + RATE**1) * SHIFT
    distance = (1 - RATE**15) * LOST * total
    assert found.curve(2.0) == pytest.approx(2 * distance**2 / SPREAD * RATE**10, rel=1e-10)


def test_corollary_j_1_agrees_with_corollary_3_7_for_one_record_seen_last():
    batch = chien.corollary_j_1(**BASE, records_by_batch=[[4, 1]], training_epochs=10**6, epochs=1)
    one = chien.corollary_3_7(**BASE, epochs=1)
    assert batch.curve(2.0) == pytest.approx(one.curve(2.0), rel=1e-9)


def test_each_calibration_meets_its_target_and_is_smallest():
    setting = {key: value for key, value in BASE.items() if key != "noise_scale"}
    flat = {**setting, "weight_decay": 0.0}
    cases = [
        (chien.corollary_3_7, {**setting, "epochs": 1}),
        (chien.corollary_3_8, {**setting, "epochs": 1}),
        (chien.corollary_3_10, {**flat, "training_epochs": 3, "epochs": 1}),
        (chien.theorem_3_2, {**setting, "training_epochs": 50, "epochs": 1}),
        (chien.theorem_3_11, {**setting, "epochs": [1, 1]}),
        (
            chien.corollary_j_1,
            {**setting, "records_by_batch": [[0, 1]], "training_epochs": 5, "epochs": 1},
        ),
    ]
    for account, given in cases:
        noise_scale = calibrate(account, epsilon=1.0, delta=1e-5, **given)
        found = account(noise_scale=noise_scale, **given)
        assert found.epsilon(delta=1e-5) == pytest.approx(1.0, rel=1e-7)
        assert found.meets(epsilon=1.0 * (1 + 1e-9), delta=1e-5)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("learning_rate", 4.0),
        ("learning_rate", math.nan),
        ("weight_decay", -1.0),
        ("lipschitz", 0.0),
        ("noise_scale", math.inf),
        ("radius", 0.0),
        ("batch_size", 0),
        ("records", 41),
    ],
)
def test_refuses_parameters_outside_their_range(name, bad):
    with pytest.raises(ParameterError) as caught:
        chien.Setting(**{**BASE, name: bad})
    assert caught.value.name == name


@pytest.mark.parametrize("pairs", [[], [[5, 1]], [[0, 0]], [[0, 9]], [[-1, 1]]])
def test_corollary_j_1_refuses_records_outside_the_partition(pairs):
    with pytest.raises(ParameterError) as caught:
        chien.corollary_j_1(**BASE, records_by_batch=pairs, training_epochs=3, epochs=1)
    assert caught.value.name == "records_by_batch"
