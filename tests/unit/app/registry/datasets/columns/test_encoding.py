"""What columns become: each by its public constants."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from sklearn.preprocessing import SplineTransformer

from app.domain.columns import (
    ArrayColumn,
    CategoryColumn,
    Column,
    ImageColumn,
    InputColumns,
    LabelColumn,
    NumberColumn,
)
from app.domain.errors import InvalidInputError, InvalidRecordsError, ParameterError
from app.registry.datasets.columns.encoding import features_of, labels_of
from tests.support.specs import classification

_BYTES = pa.array([[0, 51], [255, 102]], pa.list_(pa.uint8(), 2))


def test_scales_numbers_and_truth() -> None:
    age = NumberColumn(name="age", offset=40, scale=0.05)
    member = NumberColumn(name="member")
    for truth in ([True, False], ["True", "false"]):  # as CSV has them, too
        table = pa.table({"age": [60, 20], "member": truth})

        found = features_of(table, InputColumns(columns=(age, member)))

        assert found.tolist() == [[1, 1], [-1, 0]]


@pytest.mark.parametrize("names", [("false", "true"), ("False", "True")])
@pytest.mark.parametrize("cells", [[True, False], ["true", "false"], ["True", "FALSE"]])
def test_truth_is_a_value_or_a_class_however_it_is_spelt(
    names: tuple[str, ...], cells: list[object]
) -> None:
    table = pa.table({"open": cells})

    both = InputColumns(columns=(CategoryColumn(name="open", values=names, missing=names[0]),))
    one = InputColumns(columns=(CategoryColumn(name="open", values=names[1:], other=True),))

    assert features_of(table, both).tolist() == [[0, 1], [1, 0]]
    assert features_of(table, one).tolist() == [[1, 0], [0, 1]]
    assert labels_of(table, LabelColumn(name="open", classes=names)).tolist() == [1, 0]


@pytest.mark.parametrize("cells", [pa.array([0.1, 1], pa.float32()), [0.1, 1.0], ["0.1", "1"]])
def test_a_number_is_the_same_value_in_each_precision(cells: object) -> None:
    size = CategoryColumn(name="size", values=("0.1", "1"))

    found = features_of(pa.table({"size": cells}), InputColumns(columns=(size,)))

    assert found.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        (NumberColumn(name="n", scale=1e308), [0.0, 100.0]),
        (NumberColumn(name="n", offset=-1e308, scale=1e10), [-1e308, 0.0]),
        (ArrayColumn(name="n", shape=(1,), scale=1e30), [[0.0], [1e30]]),
    ],
)
def test_what_scaling_makes_too_large_is_refused_by_row(column: Column, cells: list) -> None:
    inputs = InputColumns(columns=(column, NumberColumn(name="m")))

    with pytest.raises(InvalidRecordsError) as refused:
        features_of(pa.table({"n": cells, "m": [0, 0]}), inputs)

    (problem,) = refused.value.problems
    assert (problem.row, problem.column, problem.rows) == (1, "n", 1)
    assert problem.reason == "a number too large for float32"


def test_scales_a_missing_number_as_one_that_is_there() -> None:
    age = NumberColumn(name="age", offset=40, scale=0.5, missing=50, flag_missing=True)

    found = features_of(pa.table({"age": [None, 42.0]}), InputColumns(columns=(age,)))

    assert found.tolist() == [[5, 1], [1, 0]]


def test_knots_make_the_splines_of_scikit_learn_constant_beyond_the_outer_ones() -> None:
    knots = (-2.0, -1.0, 0.5, 3.0)
    curve = NumberColumn(name="x", knots=knots, missing=0.5, flag_missing=True)
    numbers = np.concatenate([np.linspace(-9, 9, 500), knots, [np.nextafter(3, 0), 1e30]])

    found = features_of(
        pa.table({"x": [*numbers, None], "y": [2.0] * 507}),
        InputColumns(columns=(NumberColumn(name="y"), curve)),
    )

    splines = SplineTransformer(knots=np.reshape(knots, (-1, 1)), extrapolation="constant")
    expected = splines.fit_transform(np.array([*numbers, 0.5])[:, None])
    assert found.shape == (507, 1 + 6 + 1)
    assert np.abs(found[:, 1:-1] - expected).max() < 1e-7
    assert np.abs(found[:, 1:-1].sum(axis=1) - 1).max() < 1e-6
    assert found[:, -1].tolist() == [0] * 506 + [1]


def test_an_array_beside_others_is_scaled_when_it_is_read() -> None:
    inputs = InputColumns(
        columns=(
            ArrayColumn(name="bytes", shape=(2,), dtype="uint8"),
            ArrayColumn(name="shifted", shape=(2,), offset=51, scale=2),
        )
    )

    found = features_of(pa.table({"bytes": _BYTES, "shifted": _BYTES}), inputs)

    expected = [[0, 0.2, -102, 0], [1, 0.4, 408, 102]]
    assert np.allclose(found, expected)


def test_an_array_alone_is_stored_as_it_is_and_scaled_when_it_is_seen() -> None:
    digits = ArrayColumn(name="digits", shape=(1, 2), dtype="uint8", offset=8, scale=0.0625)
    inputs = InputColumns(columns=(digits,))

    schema = replace(classification(2), inputs=inputs).schema()

    assert features_of(pa.table({"digits": _BYTES}), inputs).tolist() == [[0, 51], [255, 102]]
    assert (schema.shape, schema.dtype) == ((1, 2), "uint8")
    assert (schema.offset, schema.scale) == (8, 0.0625)


@pytest.mark.parametrize(
    ("column", "scaling"),
    [
        (ArrayColumn(name="x", shape=(2,)), (0, 1)),
        (ArrayColumn(name="x", shape=(2,), dtype="uint8"), (0, 1 / 255)),
        (ImageColumn(name="x", shape=(3, 8, 8)), (0, 1 / 255)),
    ],
)
def test_bytes_are_scaled_to_1_by_default(
    column: ArrayColumn | ImageColumn, scaling: tuple[float, float]
) -> None:
    assert InputColumns(columns=(column,)).scaling == scaling


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: NumberColumn(name="x", scale=0), "scale must not be 0"),
        (lambda: NumberColumn(name="x", low=0, high=1, offset=3), "or offset and scale"),
        (lambda: NumberColumn(name="x", offset=float("nan")), "offset"),
        (lambda: ArrayColumn(name="x", shape=(2,), scale=0), "scale must not be 0"),
        (lambda: ArrayColumn(name="x", shape=(2,), offset=float("inf")), "offset"),
        (
            lambda: ArrayColumn(name="x", shape=(2,), dtype="int64", vocabulary=9, scale=2),
            "tokens have no offset",
        ),
    ],
)
def test_refuses_constants_that_make_no_sense(make: type, words: str) -> None:
    with pytest.raises((InvalidInputError, ParameterError), match=words):
        make()
