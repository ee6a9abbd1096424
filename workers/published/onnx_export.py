"""Writes a published model as ONNX: raw features in, outputs out, any number of records."""

import logging
import warnings
from pathlib import Path

import onnx
import onnxscript  # noqa: F401 - torch's exporter uses it
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass

from app.domain.description import METADATA_NAME, ModelDescription
from app.domain.errors import InvalidInputError
from app.domain.heads import ridge_head
from app.domain.tasks.custom import CustomSpec
from app.domain.tasks.regression import RegressionSpec
from workers.published.model import PublishedModel

_NOISY = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")


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

    The exporter's own notes do not go into the file: they quote source code and where it lies.

    Raises:
        InvalidInputError: the network does something that ONNX cannot express.
    """
    schema = model.description.schema
    example = torch.zeros((2, *schema.shape), dtype=getattr(torch, schema.dtype))
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                model,
                (example,),
                dynamo=True,
                dynamic_shapes={"features": {0: torch.export.Dim("records")}},
                input_names=["features"],
                output_names=[output_name(model.description)],
                verbose=False,
            )
    except (torch.onnx.errors.OnnxExporterError, RuntimeError) as error:
        raise InvalidInputError(
            f"the network cannot be written as ONNX ({type(error).__name__})"
        ) from error
    if program is None:
        raise InvalidInputError("the network cannot be written as ONNX")
    ClearMetadataAndDocStringPass()(program.model)
    written = program.model_proto
    entry = written.metadata_props.add()
    entry.key, entry.value = METADATA_NAME, model.description.to_metadata()[METADATA_NAME]
    onnx.checker.check_model(written)
    onnx.save(written, out)
