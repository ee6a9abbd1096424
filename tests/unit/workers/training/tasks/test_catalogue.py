"""What enters a loss is within what its bounds count on; other records are named."""

import numpy as np
import pyarrow as pa
import pytest

from app.domain.columns import InputColumns, NumberColumn
from app.domain.errors import InvalidRecordsError
from app.domain.tasks.built_in import MultiLabelSpec, RegressionSpec
from app.domain.tasks.spec import WeightColumn
from workers.training.tasks.catalogue import encode
from workers.training.tasks.task import TARGET, WEIGHT

INPUTS = InputColumns(columns=(NumberColumn(name="x"),))
LABELS = MultiLabelSpec(inputs=INPUTS, labels=("a",))
NUMBERS = RegressionSpec(inputs=INPUTS, targets=("y",), loss="huber", scale=1e300)


def weighted(most):
    return MultiLabelSpec(inputs=INPUTS, labels=("a",), weight=WeightColumn(column="w", most=most))


def rows(**columns):
    count = len(next(iter(columns.values())))
    return pa.table({"x": [0.0] * count, **columns})


@pytest.mark.parametrize("most", [0.1, 0.3, 1.0, 1 / 3, 1e-6, 1e6, 123.456])
def test_no_weight_is_above_the_largest_after_rounding(most):
    """0.1 in float32 is above 0.1, and a slope would be above its bound."""
    weights = [most, most * (1 - 1e-9), most / 3, 0.0]
    found = encode(rows(a=[1.0] * 4, w=weights), weighted(most))[WEIGHT]
    assert found.dtype == np.float32
    assert (found.astype(np.float64) <= weights).all()
    assert found == pytest.approx(weights, rel=2e-7)


@pytest.mark.parametrize("weight", [0.1000001, -1e-9, np.inf, None, np.nan, 1e308])
def test_a_weight_beyond_its_bounds_is_refused(weight):
    with pytest.raises(InvalidRecordsError, match="'w'"):
        encode(rows(a=[1.0, 1.0], w=[0.1, weight]), weighted(0.1))


@pytest.mark.parametrize("label", [1.0000001, -0.001, np.inf])
def test_a_label_that_is_neither_yes_nor_no_nor_between_is_refused(label):
    with pytest.raises(InvalidRecordsError, match="'a'"):
        encode(rows(a=[0.5, label]), LABELS)


@pytest.mark.parametrize("number", [1.0, -1.0, np.inf])
def test_a_target_that_scaling_takes_out_of_range_is_refused(number):
    assert np.isfinite(encode(rows(y=[1e-263, -9e-263]), NUMBERS)[TARGET]).all()
    with pytest.raises(InvalidRecordsError, match="'y'"):
        encode(rows(y=[0.0, number]), NUMBERS)
