"""Small published files of every built-in architecture, made without a service."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

from app.domain.architecture import ArchitectureSpec
from app.domain.description import BackboneDescription, ModelDescription
from app.domain.encoding import TableEncoding
from app.domain.schema import FeatureSchema
from workers.training.architectures import build, build_features

PLAIN = TableEncoding.from_json(
    {
        "columns": [
            {"name": "age", "kind": "number", "low": 0, "high": 100, "missing": 50},
            {"name": "plan", "kind": "category", "values": ["basic", "plus"], "other": True},
        ],
        "label": {"name": "churned", "classes": ["no", "yes"]},
        "record_id": "customer",
        "subject_id": "customer",
    }
)
IMAGES = FeatureSchema(shape=(8, 8), dtype="uint8", offset=3.0, scale=0.0625, classes=5)
_BACKBONE = ArchitectureSpec(name="mlp", options={"hidden": [7]})


def _of(architecture: dict, **fields) -> ModelDescription:
    spec = ArchitectureSpec.from_json(architecture)
    return ModelDescription(
        **{"model": "m", "version": 2, "architecture": spec, "schema": IMAGES, **fields}
    )


def _on_backbone(name: str) -> ModelDescription:
    described = _of({"name": name, "backbone": {"name": "public"}})
    backbone = BackboneDescription(
        name="public", sha256="0" * 64, frozen=True, architecture=_BACKBONE, classes=11
    )
    return replace(described, backbone=backbone)


DESCRIPTIONS = {
    "logistic": _of({"name": "logistic"}),
    "mlp": _of({"name": "mlp", "options": {"hidden": [6]}}),
    "cnn": _of({"name": "cnn", "options": {"channels": [3]}}),
    "linear_head": _of({"name": "linear_head"}),
    "bounded_head": _of({"name": "linear_head", "options": {"feature_norm": 20.0, "bias": 0}}),
    "head_of_two": _of({"name": "linear_head"}, schema=replace(IMAGES, classes=2)),
    "head_of_a_table": _of(
        {"name": "linear_head"},
        schema=FeatureSchema(shape=(4,), dtype="float32", offset=0.5, scale=2.0, classes=2),
        encoding=PLAIN,
    ),
    "ridge_head": _of({"name": "ridge_head", "options": {"feature_range": 0.5}}),
    "ridge_head_of_two": _of(
        {"name": "ridge_head", "options": {"feature_range": 16.0}},
        schema=replace(IMAGES, classes=2),
    ),
    "logistic_on_backbone": _on_backbone("logistic"),
    "head_on_backbone": _on_backbone("linear_head"),
}
HEADS = (
    *("linear_head", "bounded_head", "head_of_two", "head_of_a_table"),
    *("ridge_head", "ridge_head_of_two"),
)


def written(description: ModelDescription, path: Path) -> Path:
    """Write a file of random weights."""
    schema, tensors = description.schema, {}
    torch.manual_seed(5)
    if description.backbone is not None:
        whole, _ = build_features(
            description.backbone.architecture,
            input_shape=schema.shape,
            classes=description.backbone.classes,
            allowed_factories=(),
        )
        tensors = {f"backbone.{name}": tensor for name, tensor in whole.state_dict().items()}
        schema = replace(schema, shape=(7,))
    network = build(
        description.architecture,
        input_shape=schema.shape,
        classes=schema.classes,
        allowed_factories=(),
    )
    own = {name: torch.randn_like(tensor) for name, tensor in network.state_dict().items()}
    safetensors.torch.save_file({**own, **tensors}, path, metadata=description.to_metadata())
    return path


def raw_features(description: ModelDescription, rows: int = 9) -> np.ndarray:
    """Return random features; the first row is of zeros."""
    schema = description.schema
    numbers = np.random.default_rng(3).uniform(0, 16, (rows, *schema.shape))
    numbers[0] = 0
    return numbers.astype(schema.dtype)
