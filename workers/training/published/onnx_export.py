"""Writes a published model as ONNX: raw features in, outputs out, any number of records."""

import logging
import warnings
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import onnxruntime
import onnxscript  # noqa: F401 - torch's exporter uses it
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass

from app.domain.description import METADATA_NAME, ModelDescription
from app.domain.errors import InvalidInputError
from app.domain.heads import ridge_head
from app.domain.tasks.built_in import RegressionSpec
from app.domain.tasks.custom import CustomSpec
from workers.training.published.model import PublishedModel

_NOISY = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")
_COUNTS: Final = (1, 2, 7)
_TOLERANCE: Final = 1e-3
"""Of the largest output: rounding of other kernels, and no more."""


def output_name(description: ModelDescription) -> str:
    """Return what the file calls the outputs.

    They are ``numbers`` in the targets' units for regression, a ridge head's ``scores``, ``logits``
    of classes, labels and tokens; of the operator's own task, what its network gives: ``outputs``.
    """
    match description.task:
        case RegressionSpec():
            return "numbers"
        case CustomSpec():
            return "outputs"
    return "scores" if description.architecture.name == ridge_head.NAME else "logits"


def export(model: PublishedModel, out: Path) -> None:
    """Write a model; the file says of it what the safetensors file says.

    It is written only once its graph has answered as the model does, for several numbers of records
    other than the number that it was traced with. The exporter's own notes do not go into the file:
    they quote source code and where it lies.

    Raises:
        InvalidInputError: the network does something that ONNX cannot express, or not for any
            number of records.
    """
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(
                _traced(model),
                dynamo=True,
                input_names=["features"],
                output_names=[output_name(model.description)],
                verbose=False,
            )
        except Exception as error:  # whatever the network's code leads to
            raise InvalidInputError(
                "the network cannot be written as ONNX for any number of records "
                f"({type(error).__name__}): it has an operator that ONNX lacks, or fixes their "
                "number; take that from x.shape[0], without int() or a loop over records"
            ) from error
    if program is None:
        raise InvalidInputError("the network cannot be written as ONNX")
    ClearMetadataAndDocStringPass()(program.model)
    written = program.model_proto
    entry = written.metadata_props.add()
    entry.key, entry.value = METADATA_NAME, model.description.to_metadata()[METADATA_NAME]
    onnx.checker.check_model(written)
    _require_same_answers(model, written)
    onnx.save(written, out)


def _traced(model: PublishedModel) -> torch.export.ExportedProgram:
    """Trace a model for any number of records; strictly if the quicker way fixes their number."""
    example = (_features(model.description, 2),)
    shapes = {"features": {0: torch.export.Dim("records")}}
    try:
        return torch.export.export(model, example, dynamic_shapes=shapes)
    except Exception:  # noqa: BLE001 - of the network's own code, which is tried again
        return torch.export.export(model, example, dynamic_shapes=shapes, strict=True)


def _features(description: ModelDescription, records: int) -> torch.Tensor:
    """Return random raw features, of which the network sees numbers around 0, or tokens."""
    schema = description.schema
    shape, dtype = (records, *schema.shape), getattr(torch, schema.dtype)
    if schema.vocabulary is not None or dtype == torch.uint8:
        return torch.randint(schema.vocabulary or 256, shape, dtype=dtype)
    return (torch.randn(shape) / schema.scale + schema.offset).to(dtype)


def _require_same_answers(model: PublishedModel, written: onnx.ModelProto) -> None:
    """Raise ``InvalidInputError`` unless a graph takes any number of records and answers alike."""
    for value in (*written.graph.input, *written.graph.output):
        sides = value.type.tensor_type.shape.dim
        if not sides or not sides[0].dim_param:
            raise InvalidInputError(f"ONNX fixes the number of records of its {value.name!r}")
    session = onnxruntime.InferenceSession(written.SerializeToString())
    for records in _COUNTS:
        features = _features(model.description, records)
        with torch.inference_mode():
            expected = model(features).numpy()
        try:
            (found,) = session.run(None, {"features": features.numpy()})
            largest = np.abs(expected).max(where=np.isfinite(expected), initial=0)
            same = np.allclose(found, expected, rtol=0, atol=_TOLERANCE * largest, equal_nan=True)
        except Exception:  # noqa: BLE001 - the runtime's own kinds, and arrays of other shapes
            same = False
        if not same:
            raise InvalidInputError(
                f"as ONNX the network answers otherwise than in PyTorch, for {records} record(s): "
                "it draws random numbers, or computes otherwise for other numbers of records"
            )
