"""A dataset of every kind of column, and a model's task for each."""

import io
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from app.domain.architectures import ArchitectureSpec
from app.domain.schema import TableSchema
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.service import define_dataset
from tests.support.workshop import Workshop

SHOPS = "shops"
COLUMNS = {
    "area": "float32",
    "street": "string",
    "note": "string",
    "front": "binary",
    "open": "bool",
    "cheap": "bool",
    "rent": "float64",
    "trust": "float32",
}
SCHEMA = TableSchema.of(COLUMNS, record_id="shop", subject_id="owner")
AREA: dict[str, Any] = {"name": "area", "kind": "number", "low": 0, "high": 50}
STREET: dict[str, Any] = {"name": "street", "kind": "category", "values": ["north", "south"]}
NUMBERS = {"inputs": [AREA, STREET]}
NOTE = {"inputs": [{"name": "note", "kind": "text", "length": 12}]}
FRONT = {"inputs": [{"name": "front", "kind": "image", "shape": [3, 8, 8]}]}
TASKS: dict[str, dict[str, Any]] = {
    "classification": {
        **NUMBERS,
        "name": "classification",
        "target": {"column": "open", "classes": [False, True]},
    },
    "multi_label": {**NUMBERS, "name": "multi_label", "target": {"columns": ["open", "cheap"]}},
    "huber": {
        **NUMBERS,
        "name": "regression",
        "target": {"columns": ["rent"], "offset": 1000, "scale": 0.001},
        "loss": "huber",
    },
    "squared": {
        **NUMBERS,
        "name": "regression",
        "target": {"columns": ["rent"], "offset": 1000, "scale": 0.001},
    },
    "quantile": {
        **NUMBERS,
        "name": "regression",
        "target": {"columns": ["rent"], "offset": 1000, "scale": 0.001},
        "loss": "quantile",
        "quantile": 0.9,
    },
    "language_model": {**NOTE, "name": "language_model"},
    "images": {
        **FRONT,
        "name": "classification",
        "target": {"column": "open", "classes": [False, True]},
        "weight": {"column": "trust"},
    },
}


def rows(numbers: range, **changed: list[Any]) -> pa.Table:
    """Return an export: the rent follows from area and street, all else from the rent."""
    area = [float(7 * i % 50) for i in numbers]
    south = [i % 3 == 0 for i in numbers]
    rent = [500.0 + 30 * a + 400 * s for a, s in zip(area, south, strict=True)]
    columns = {
        "shop": [f"shop-{i}" for i in numbers],
        "owner": [f"owner-{i // 2}" for i in numbers],
        "area": area,
        "street": ["south" if s else "north" for s in south],
        "note": [f"rent {each:g}" for each in rent],
        "front": [jpeg(each / 2500) for each in rent],
        "open": [each > 1200 for each in rent],
        "cheap": [each < 1000 for each in rent],
        "rent": rent,
        "trust": [1.0 if i % 4 else 0.5 for i in numbers],
    }
    return pa.table(columns | changed)


def jpeg(brightness: float) -> bytes:
    """Return a picture of one brightness from 0 to 1, 10 by 9 pixels."""
    file = io.BytesIO()
    grey = np.full((9, 10, 3), round(255 * brightness), dtype=np.uint8)
    Image.fromarray(grey).save(file, "JPEG")
    return file.getvalue()


def push_shops(workshop: Workshop, numbers: range = range(60), **changed: list[Any]) -> None:
    """Define the dataset and push rows."""
    with workshop.transaction() as session:
        define_dataset(session, name=SHOPS, schema=SCHEMA)
    workshop.services.records.push(SHOPS, to_parquet(rows(numbers, **changed)))


def define_shop_model(
    workshop: Workshop,
    task: str | dict[str, Any],
    *,
    name: str = "model",
    architecture: str | ArchitectureSpec = "logistic",
    **more: Any,
) -> None:
    """Define a model of the shops."""
    spec = TASKS[task] if isinstance(task, str) else task
    workshop.define(name, dataset=SHOPS, architecture=architecture, task=spec, **more)
