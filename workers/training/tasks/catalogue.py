"""The task of every description, and what its records look like to a network."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from app.domain.errors import RunFailedError
from app.domain.schema import InputSchema
from app.domain.tasks.built_in import (
    ClassificationSpec,
    LanguageModelSpec,
    MultiLabelSpec,
    RegressionSpec,
)
from app.domain.tasks.custom import CustomSpec
from app.domain.tasks.spec import BuiltInSpec, TaskSpec
from app.registry.datasets.columns.encoding import features_of, labels_of, numbers_in
from workers.training.forms import InputForm
from workers.training.tasks.built_in import Classification, LanguageModel, MultiLabel, Regression
from workers.training.tasks.custom import CustomTask, Encoded
from workers.training.tasks.task import INPUTS, TARGET, WEIGHT, Task

Encoder = Callable[[pa.Table], Encoded]
_BUILT_IN: Final[Mapping[type[TaskSpec], Callable[[Any, bool], Task]]] = {
    ClassificationSpec: Classification,
    MultiLabelSpec: MultiLabel,
    RegressionSpec: Regression,
    LanguageModelSpec: LanguageModel,
}


def task_of(
    spec: TaskSpec,
    *,
    allowed: Sequence[str] = (),
    in_full: bool = False,
    calibrated: bool = True,
) -> Task:
    """Return the task that a description describes.

    Args:
        spec: the description.
        allowed: import paths that ``custom`` may name.
        in_full: whether an exception of the operator's code is shown completely; only before a
            record is read.
        calibrated: whether the network's outputs are logits where the task is to classify.

    Raises:
        RunFailedError: the operator's class is not allowed, or fails.
    """
    if isinstance(spec, CustomSpec):
        return CustomTask(spec, allowed=allowed, in_full=in_full)
    return _BUILT_IN[type(spec)](spec, calibrated)


def encoder_of(spec: TaskSpec, task: Task) -> Encoder:
    """Return what makes tensors of a dataset's rows."""
    if isinstance(spec, BuiltInSpec):
        return lambda rows: encode(rows, spec)
    return cast("CustomTask", task).encode


def form_of(spec: TaskSpec, task: Task, schema: InputSchema) -> InputForm:
    """Return what encoded records look like.

    Args:
        spec: the description.
        task: its task.
        schema: of what the network reads: the task's inputs, or a frozen backbone's features.

    Raises:
        RunFailedError: the operator's class makes no records of its own; what it raised is shown
            completely, so no record may have been read.
    """
    if isinstance(task, CustomTask):
        with task.in_full():
            encoded = task.sample()
        sample = {name: torch.from_numpy(np.array(values)) for name, values in encoded.items()}
        on_features = schema != spec.schema()
        if on_features and task.augments:
            raise RunFailedError(
                "a frozen backbone computes each record's features once: leave augment out of the "
                "task"
            )
        kept = {name: each for name, each in sample.items() if name != INPUTS or not on_features}
        return InputForm.of(schema, kept)
    of_numbers = isinstance(spec, MultiLabelSpec | RegressionSpec)
    samples = {
        TARGET: torch.zeros(1, spec.outputs) if of_numbers else torch.zeros(1, dtype=torch.int64)
    }
    if spec.weight is not None:
        samples[WEIGHT] = torch.ones(1)
    return InputForm.of(schema, samples)


_LARGEST: Final = 1e38
"""Of a scaled target: float32 ends a little above."""


def encode(rows: pa.Table, spec: BuiltInSpec) -> Encoded:
    """Return inputs, target and weight of all rows, each [n, …].

    The target of a row that has none is ``NO_CLASS``, or NaN: losses, metrics, sums and trees leave
    it out, and it counts as a record like any other.

    Raises:
        InvalidRecordsError: some rows cannot be encoded; it says which, and which column.
    """
    found: Encoded = {INPUTS: features_of(rows, spec.inputs)}
    match spec:
        case ClassificationSpec():
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
        weights = numbers_in(
            rows, (spec.weight.column,), least=0.0, most=spec.weight.most, required=True
        )
        found[WEIGHT] = _rounded_down(weights[:, 0])
    return found


def _rounded_down(weights: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the nearest float32 that is not larger: bounds of the loss count on the largest."""
    nearest = weights.astype(np.float32)
    return np.where(nearest > weights, np.nextafter(nearest, np.float32(0)), nearest)
