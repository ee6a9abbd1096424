"""Small published files of every built-in architecture and task, made without a service."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import nn

from app.domain.architectures import ArchitectureSpec
from app.domain.description import BackboneDescription, ModelDescription
from app.domain.schema import InputSchema
from app.domain.tasks import catalogue
from tests.support.own_tasks import OWN
from tests.support.specs import classification
from workers.training.networks.architectures import build, build_features
from workers.training.networks.trees import BoostedTrees

PLAIN = {
    "name": "classification",
    "inputs": [
        {"name": "age", "kind": "number", "low": 0, "high": 100, "missing": 50},
        {"name": "plan", "kind": "category", "values": ["basic", "plus"], "other": True},
    ],
    "target": {"column": "churned", "classes": ["no", "yes"]},
}
IMAGES = InputSchema(shape=(8, 8), dtype="uint8", offset=3.0, scale=0.0625, classes=5)
_BACKBONE = ArchitectureSpec(name="mlp", options={"hidden": [7]})


def _of(architecture: dict, **fields) -> ModelDescription:
    spec = ArchitectureSpec.from_json(architecture)
    described = {
        "model": "m",
        "version": 2,
        "architecture": spec,
        "task": classification(5, IMAGES),
    }
    return ModelDescription(**described | fields)


def _learns(architecture: dict, task: dict) -> ModelDescription:
    spec = catalogue.from_json(task)
    return _of(architecture, task=spec, record_id="shop")


class NextToken(nn.Module):
    """Scores the next token by the token before it."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 4)
        self.scores = nn.Linear(4, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.scores(self.embedding(tokens))


def next_token(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    assert len(input_shape) == 1
    return NextToken(classes)


FACTORIES = (f"{__name__}:next_token",)
_READS_TOKENS = {"name": "custom", "factory": FACTORIES[0]}
_SHOP = [
    {"name": "area", "kind": "number", "low": 0, "high": 50},
    {"name": "street", "kind": "category", "values": ["north", "south"]},
]
_LABELS = {"name": "multi_label", "inputs": _SHOP, "target": {"columns": ["open", "cheap", "old"]}}
_RENT = {
    "name": "regression",
    "inputs": _SHOP,
    "target": {"columns": ["rent"], "offset": 1000, "scale": 0.001},
}
_HUBER = _RENT | {"loss": "huber"}
_RENTS = _RENT | {"target": {"columns": ["rent", "deposit"], "offset": -5, "scale": 20}}
_NOTE = {"name": "language_model", "inputs": [{"name": "note", "kind": "text", "length": 9}]}
_TOKENS = {"name": "array", "kind": "array", "shape": [6], "dtype": "int64", "vocabulary": 11}
_TOKEN_TEXT = {"name": "language_model", "inputs": [_TOKENS], "padding": 10}
_FRONT = {
    "name": "classification",
    "inputs": [{"name": "front", "kind": "image", "shape": [3, 8, 8]}],
    "target": {"column": "open", "classes": [False, True]},
}
_TREES = {"name": "boosted_trees", "options": {"trees": 3, "leaves": 6, "depth": 3}}


def _members(of: dict) -> dict:
    return {"name": "ensemble", "members": 3, "of": of}


def _on_backbone(architecture: dict) -> ModelDescription:
    described = _of(architecture | {"backbone": {"name": "public"}})
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
    "head_of_two": _of({"name": "linear_head"}, task=classification(2, IMAGES)),
    "head_of_a_table": _learns({"name": "linear_head"}, PLAIN),
    "ridge_head": _of({"name": "ridge_head", "options": {"feature_range": 0.5}}),
    "ridge_head_of_two": _of(
        {"name": "ridge_head", "options": {"feature_range": 16.0}},
        task=classification(2, IMAGES),
    ),
    "logistic_on_backbone": _on_backbone({"name": "logistic"}),
    "head_on_backbone": _on_backbone({"name": "linear_head"}),
    "head_of_labels": _learns({"name": "linear_head"}, _LABELS),
    "head_of_a_number": _learns({"name": "linear_head"}, _HUBER),
    "ridge_head_of_labels": _learns(
        {"name": "ridge_head", "options": {"feature_range": 0.5}}, _LABELS
    ),
    "ridge_head_of_numbers": _learns(
        {"name": "ridge_head", "options": {"feature_range": 0.5}}, _RENTS
    ),
    "trees": _of(_TREES),
    "trees_of_a_table": _learns(_TREES, PLAIN),
    "trees_of_numbers": _learns(_TREES, _RENTS),
    "trees_on_backbone": _on_backbone(_TREES),
    "labels": _learns({"name": "mlp", "options": {"hidden": [6]}}, _LABELS),
    "numbers": _learns({"name": "mlp", "options": {"hidden": [6]}}, _RENTS),
    "images": _learns({"name": "cnn", "options": {"channels": [3]}}, _FRONT),
    "texts": _learns(_READS_TOKENS, _NOTE),
    "tokens": _learns(_READS_TOKENS, _TOKEN_TEXT),
    "ensemble": _of(_members({"name": "mlp", "options": {"hidden": [6]}})),
    "ensemble_on_backbone": _on_backbone(_members({"name": "logistic"})),
    "ensemble_of_labels": _learns(_members({"name": "logistic"}), _LABELS),
    "ensemble_of_numbers": _learns(_members({"name": "logistic"}), _RENTS),
    "ensemble_of_texts": _learns(_members(_READS_TOKENS), _NOTE),
}
HEADS = (
    *("linear_head", "bounded_head", "head_of_two", "head_of_a_table"),
    *("ridge_head", "ridge_head_of_two"),
    *("trees", "trees_of_a_table", "trees_of_numbers"),
    *("head_of_labels", "head_of_a_number", "ridge_head_of_labels", "ridge_head_of_numbers"),
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
        allowed_factories=FACTORIES,
        tokens=schema.tokens,
        task=description.task,
    )
    own = {name: torch.randn_like(tensor) for name, tensor in network.state_dict().items()}
    if isinstance(network, BoostedTrees):
        _, _, nodes = own["left"].shape
        left = 2 * torch.arange(nodes) + 1
        own["left"][:] = torch.where(left + 1 < nodes, left, 0)
        own["column"].random_(network.seen(torch.zeros(1, *schema.shape)).shape[1])
        if "categories" in own:
            own["categories"].random_(2**32)
    safetensors.torch.save_file({**own, **tensors}, path, metadata=description.to_metadata())
    return path


def raw_features(description: ModelDescription, rows: int = 9) -> np.ndarray:
    """Return random features, or tokens; the first row is of zeros."""
    schema = description.schema
    most = 16 if schema.vocabulary is None else schema.vocabulary
    numbers = np.random.default_rng(3).uniform(0, most, (rows, *schema.shape))
    numbers[0] = 0
    return numbers.astype(schema.dtype)


def of_own_task(name: str) -> ModelDescription:
    """Return a description whose task is an operator's."""
    task = catalogue.from_json(OWN)
    return replace(DESCRIPTIONS[name], task=task)
