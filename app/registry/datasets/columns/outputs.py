"""What a network's outputs say of each record: one way for PyTorch and for NumPy.

A prediction is a table with a row for each record. Its columns depend on the task alone; see
docs/tasks.md.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from app.domain.columns import TextColumn
from app.domain.description import ModelDescription
from app.domain.errors import InvalidInputError
from app.domain.heads import ridge_head
from app.domain.tasks.built_in import LanguageModelSpec, MultiLabelSpec, RegressionSpec
from app.domain.tasks.spec import BuiltInSpec
from app.registry.datasets.columns.cells import plain
from app.registry.datasets.columns.encoding import features_of

Numbers = npt.NDArray[Any]

PREDICTION: Final = "prediction"
PROBABILITIES: Final = "probabilities"
SCORES: Final = "scores"
_FIRST_OF_MANY_BYTES: Final = 128


def inputs_of(rows: pa.Table | Numbers, description: ModelDescription) -> Numbers:
    """Return what a network reads of rows, a table or an array of features: [n, *shape]."""
    if isinstance(rows, pa.Table):
        if not isinstance(description.task, BuiltInSpec):
            raise InvalidInputError("the operator's own task reads tables by its class alone")
        rows = features_of(rows, description.task.inputs)
    shape = description.schema.shape
    try:
        return rows.reshape(-1 if rows.size else 0, *shape)
    except ValueError as error:
        raise InvalidInputError(
            f"features of shape {list(rows.shape[1:])}, where the model reads {list(shape)}"
        ) from error


def predictions_of(description: ModelDescription, outputs: Numbers, inputs: Numbers) -> pa.Table:
    """Return the predictions of records by a built-in task.

    ``outputs`` [n, …] are the network's, of regression in the targets' units, and ``inputs`` [n,
    *shape] what it has read.
    """
    exact = outputs.astype(np.float64)
    match description.task:
        case RegressionSpec(targets=targets):
            return pa.table({name: exact[:, place] for place, name in enumerate(targets)})
        case LanguageModelSpec() as task:
            return pa.table(_of_texts(task, exact, inputs))
        case MultiLabelSpec(labels=labels):
            found = {PREDICTION: _chosen(labels, exact > 0)}
            share = 0.5 * (1 + np.tanh(exact / 2))
        case _:
            names = pa.array(description.output_names)
            found = {PREDICTION: names.take(pa.array(exact.argmax(axis=1)))}
            weights = np.exp(exact - exact.max(axis=-1, keepdims=True, initial=-np.inf))
            share = np.asarray(weights / weights.sum(axis=-1, keepdims=True))
    if description.architecture.name == ridge_head.NAME:
        return pa.table(found | {SCORES: _lists(exact)})
    return pa.table(found | {PROBABILITIES: _lists(share)})


def table_of(tensors: Mapping[str, Numbers]) -> pa.Table:
    """Return arrays [n, …] as columns; those of more than one number a record become lists."""
    try:
        return pa.table(
            {
                name: pa.array(values) if values.ndim == 1 else _lists(values)
                for name, values in tensors.items()
            }
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError("the task's predictions are no columns of numbers") from error


def _lists(values: Numbers) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, int(np.prod(values.shape[1:])))


def _chosen(labels: tuple[str, ...], chosen: npt.NDArray[np.bool_]) -> pa.Array:
    """Return each record's labels, as lists of their names."""
    ends = np.concatenate([[0], chosen.sum(axis=1).cumsum()])
    names = pa.array(labels, pa.string()).take(pa.array(np.nonzero(chosen)[1]))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), names)


def _of_texts(task: LanguageModelSpec, scores: Numbers, tokens: Numbers) -> dict[str, Any]:
    """Return the likeliest next token after each text, and how likely the text is.

    ``scores`` [n, places, vocabulary] are of the token after each of ``tokens`` [n, places].
    """
    written = tokens != task.padding
    last = np.maximum(written.sum(axis=1), 1) - 1
    following = tokens[:, 1:].astype(np.int64)
    predicted = written[:, 1:]
    largest = scores.max(axis=2, keepdims=True, initial=-np.inf)
    total = largest[..., 0] + np.log(np.exp(scores - largest).sum(axis=2))
    picked = np.take_along_axis(scores[:, :-1], following[..., None], axis=2)[..., 0]
    log_likelihood = ((picked - total[:, :-1]) * predicted).sum(axis=1)
    counts = predicted.sum(axis=1)
    mean = log_likelihood / np.maximum(counts, 1)
    next_token = scores[np.arange(len(scores)), last].argmax(axis=1)
    return {
        "next_token": next_token,
        **({"next_text": _texts(next_token)} if isinstance(task.inputs.only, TextColumn) else {}),
        "log_likelihood": log_likelihood,
        "tokens": counts,
        "perplexity": pa.array(np.exp(np.minimum(-mean, 700.0)), mask=counts == 0),
    }


def _texts(tokens: Numbers) -> pa.Array:
    """Return tokens as text: nothing at a text's end, null for a part of a longer character."""
    spelt = ["", *map(chr, range(_FIRST_OF_MANY_BYTES)), *[None] * _FIRST_OF_MANY_BYTES]
    return pa.array(spelt, pa.string()).take(pa.array(tokens))


def write_predictions(
    path: Path, rows: pa.Table, predictions: pa.Table, description: ModelDescription
) -> None:
    """Write predictions as Parquet, after the record ids, if the rows have them."""
    if path.suffix != ".parquet":
        raise InvalidInputError(f"{path.name}: expected a .parquet file")
    record_id = description.record_id
    if record_id in rows.schema.names and record_id not in predictions.schema.names:
        predictions = predictions.add_column(0, record_id, plain(rows.column(record_id)))
    try:
        pq.write_table(predictions, path)
    except OSError as error:
        reason = type(error).__name__ if error.errno is None else os.strerror(error.errno)
        raise InvalidInputError(f"{path} cannot be written: {reason}") from error
