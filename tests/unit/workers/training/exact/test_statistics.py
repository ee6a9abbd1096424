"""Sums over records: exact, so that nothing but the records matters."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from app.domain.errors import RunFailedError
from app.domain.schema import InputSchema
from tests.support.specs import classification, multi_label, regression
from workers.training.exact import ridge
from workers.training.exact.statistics import LEVELS, Statistics, Targets, one_hot, quantised

LARGEST = LEVELS - 1
INTEGERS = arrays.arrays(
    np.int16, st.tuples(st.integers(1, 40), st.just(5)), elements=st.integers(-LARGEST, LARGEST)
)


def labels_for(features):
    return np.arange(len(features)) % 3


def over(features, **more):
    return Statistics.over(features, one_hot(labels_for(features), 3), **more)


def equal(one, other):
    return all(
        np.array_equal(a, b)
        for a, b in zip(one.named().values(), other.named().values(), strict=True)
    )


def schema(**changes):
    plain = {"shape": (4,), "dtype": "float32", "offset": 0.0, "scale": 1.0, "classes": 3}
    return InputSchema(**plain, **changes)


@given(features=INTEGERS, chunk=st.integers(1, 50), seed=st.integers(0, 9))
@settings(deadline=None)
def test_neither_order_nor_chunks_matter(features, chunk, seed):
    order = np.random.default_rng(seed).permutation(len(features))
    targets = one_hot(labels_for(features), 3)
    shuffled = Statistics.over(features[order], targets[order], chunk_rows=chunk)
    assert equal(shuffled, over(features))


@given(features=INTEGERS, split=st.integers(0, 40))
@settings(deadline=None)
def test_subtraction_undoes_addition(features, split):
    targets = one_hot(labels_for(features), 3)
    both = over(features)
    gone = Statistics.over(features[:split], targets[:split])
    both.subtract(gone)
    assert equal(both, Statistics.over(features[split:], targets[split:]))
    both.add(gone)
    assert equal(both, over(features))


def test_sums_are_those_of_whole_numbers_at_the_largest_features():
    """Two chunks of the largest products: float32, or one float64 sum of many, would round."""
    features = np.full((9000, 2), LARGEST, dtype=np.int16)
    features[1::2] -= 1
    exact = features.astype(object)
    found = over(features)
    assert found.products.tolist() == (exact.T @ exact).tolist()
    assert found.features.tolist() == exact.sum(axis=0).tolist()
    assert int(found.records) == 9000
    assert found.crossed.sum(axis=1).tolist() == found.features.tolist()


@pytest.mark.parametrize("chunk", [0, 2**23 + 1])
def test_a_chunk_that_may_round_is_refused(chunk):
    with pytest.raises(RunFailedError, match="exact in chunks"):
        over(np.zeros((2, 5), dtype=np.int16), chunk_rows=chunk)


def test_features_are_rounded_on_the_public_scale_and_clipped():
    raw = np.array([[0.0, 1.0, -2.0, 1e30], [np.inf, -np.inf, np.nan, 2.0**-14]], np.float32)
    found = quantised(raw, schema(), 2.0)
    assert found.tolist() == [[0, 2**14, -LARGEST, LARGEST], [LARGEST, -LARGEST, 0, 1]]


def test_a_record_is_rounded_alike_in_any_company():
    raw = np.random.default_rng(1).normal(size=(700, 4)).astype(np.float32)
    whole = quantised(raw, schema(), 3.0)
    for row in (0, 255, 256, 699):
        assert np.array_equal(quantised(raw[row : row + 1], schema(), 3.0)[0], whole[row])


def test_offset_and_scale_are_those_that_a_network_sees():
    raw = np.array([[0, 128, 255, 3]], np.uint8)
    seen = InputSchema(shape=(4,), dtype="uint8", offset=128.0, scale=0.5, classes=2)
    assert quantised(raw, seen, 2.0**15).tolist() == [[-64, 0, 64, -62]]


LABELS = Targets(multi_label(("a", "b")))
NUMBERS = Targets(regression(("y",)), 4.0)


def test_a_class_is_one_and_the_others_nothing():
    targets = Targets(classification(3))
    assert targets.numbers(np.array([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert targets.unit == 1.0


def test_labels_lie_around_zero_and_may_be_in_doubt():
    found = LABELS.numbers(np.array([[0.0, 1.0], [0.5, 0.25]], dtype=np.float32))
    assert found.tolist() == [[-32767, 32767], [0, -16384]]
    assert 32767 * LABELS.unit == 1.0


@pytest.mark.parametrize("value", [4.0, 9.0, 1e38, np.inf])
def test_numbers_beyond_the_range_are_clipped_to_its_end(value):
    found = NUMBERS.numbers(np.array([[value], [-value], [1.0], [np.nan]]))
    assert found[:, 0].tolist() == [LEVELS - 1, 1 - LEVELS, LEVELS // 4, 0]


def test_every_target_is_rounded_by_itself_alone():
    given = np.random.default_rng(1).normal(size=(50, 1)) * 3
    alone = [NUMBERS.numbers(given[row : row + 1])[0, 0] for row in range(50)]
    assert NUMBERS.numbers(given)[:, 0].tolist() == alone
    assert np.abs(np.array(alone) * NUMBERS.unit - np.clip(given[:, 0], -4, 4)).max() <= 4 / LEVELS


def test_the_solution_learns_numbers_in_their_own_units():
    random = np.random.default_rng(2)
    features = random.normal(size=(400, 3))
    truth = features @ [0.5, -1.0, 0.25] + 0.7
    schema = InputSchema(shape=(3,), dtype="float32", offset=0.0, scale=1.0, classes=1)
    sums = Statistics.over(quantised(features, schema, 8.0), NUMBERS.numbers(truth[:, None]))
    found = ridge.solve(sums, regularisation=1e-5)
    scale = LEVELS / 8.0 * NUMBERS.unit
    assert found.weight[0] * scale == pytest.approx([0.5, -1.0, 0.25], abs=2e-3)
    assert found.bias[0] * NUMBERS.unit == pytest.approx(0.7, abs=2e-3)
