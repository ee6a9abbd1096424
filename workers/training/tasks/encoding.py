"""Rows of columns as a task's tensors: row i of each depends on row i alone."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from app.domain.tasks.built_in import ClassificationSpec, MultiLabelSpec, RegressionSpec
from app.domain.tasks.spec import TaskSpec
from app.registry.datasets.columns.encoding import features_of, labels_of, numbers_in
from workers.training.tasks.task import INPUTS, TARGET, WEIGHT

_LARGEST: Final = 1e38
"""Of a scaled target: float32 ends a little above."""
Encoded = dict[str, NDArray[Any]]


def encode(rows: pa.Table, spec: TaskSpec) -> Encoded:
    """Return inputs, target and weight of all rows, each [n, …].

    Raises:
        InvalidRecordsError: some rows cannot be encoded; it says which, and which column.
    """
    if spec.inputs is None:
        raise TypeError("a task without inputs reads features")
    found: Encoded = {INPUTS: features_of(rows, spec.inputs)}
    match spec:
        case ClassificationSpec() if spec.target is not None:
            found[TARGET] = labels_of(rows, spec.target)
        case MultiLabelSpec():
            found[TARGET] = numbers_in(rows, spec.labels, least=0.0, most=1.0)
        case RegressionSpec():
            reach = _LARGEST / abs(spec.scale)
            most, least = spec.offset + reach, spec.offset - reach
            numbers = numbers_in(rows, spec.targets, least=least, most=most)
            found[TARGET] = ((numbers - spec.offset) * spec.scale).astype(np.float32)
        case _:
            found[TARGET] = np.zeros(rows.num_rows, dtype=np.int64)
    if spec.weight is not None:
        weights = numbers_in(rows, (spec.weight.column,), least=0.0, most=spec.weight.most)
        found[WEIGHT] = _rounded_down(weights[:, 0])
    return found


def _rounded_down(weights: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the nearest float32 that is not larger: bounds of the loss count on the largest."""
    nearest = weights.astype(np.float32)
    return np.where(nearest > weights, np.nextafter(nearest, np.float32(0)), nearest)
