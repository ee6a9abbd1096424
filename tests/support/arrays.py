"""Datasets of one array and a label, and the task to learn the label."""

from typing import Any

from app.domain.schema import TableSchema


def array_schema(width: int, dtype: str = "float32", *, subjects: bool = True) -> TableSchema:
    """Return the schema of what ``record_table`` writes."""
    return TableSchema.of(
        {"features": f"list<{dtype}, {width}>", "label": "int64"},
        record_id="record_id",
        subject_id="subject_id" if subjects else None,
    )


def array_task(*shape: int, classes: int = 2, **of_array: Any) -> dict[str, Any]:
    """Return classification of arrays of a shape; ``of_array`` are its other fields."""
    return {
        "name": "classification",
        "inputs": [{"name": "features", "kind": "array", "shape": list(shape), **of_array}],
        "target": {"column": "label", "classes": [*range(classes)]},
    }
