"""What a model learns from its dataset, and whether that has the columns for it."""

from collections.abc import Callable, Sequence
from typing import Final

from app.domain.columns import (
    TRUTH,
    ArrayColumn,
    CategoryColumn,
    ClassName,
    Column,
    ImageColumn,
    TextColumn,
)
from app.domain.errors import InvalidInputError
from app.domain.schema import WIDTHS, ColumnType, TableSchema
from app.domain.tasks import catalogue
from app.domain.tasks.built_in import ClassificationSpec
from app.domain.tasks.custom import CustomSpec
from app.domain.tasks.spec import TaskSpec
from app.registry.tables import ModelRow


def task_of(model: ModelRow) -> TaskSpec:
    """Return a model's task."""
    return catalogue.from_json(model.task)


Fits = Callable[[ColumnType], bool]


def require_readable(spec: TaskSpec, schema: TableSchema) -> None:
    """Raise ``InvalidInputError`` unless all columns that a task reads are there, and readable."""
    kinds = dict(schema.columns)
    for name in spec.columns:
        if name not in kinds:
            raise InvalidInputError(
                f"task: the dataset has no column {name!r}: it has {', '.join(schema.names[:20])}"
            )
    for column in spec.input_columns:
        _require_input(column, kinds[column.name])
    if isinstance(spec, CustomSpec):
        return
    if isinstance(spec, ClassificationSpec):
        _require_truth(spec.target.name, kinds[spec.target.name], spec.target.classes, "classes")
    words, fits = _NAME if isinstance(spec, ClassificationSpec) else _NUMBER
    for name in spec.target_columns:
        _require(name, kinds[name], words, fits)
    if spec.weight is not None:
        _require(spec.weight.column, kinds[spec.weight.column], *_NUMBER)


def _require(name: str, kind: ColumnType, words: str, fits: Fits) -> None:
    if not fits(kind):
        raise InvalidInputError(f"task: column {name!r} is {kind}, where {words} is expected")


def _require_truth(name: str, kind: ColumnType, listed: Sequence[ClassName], what: str) -> None:
    """Refuse names of truth values that no cell has."""
    if kind.kind == "bool" and not {str(each).lower() for each in listed} <= TRUTH:
        raise InvalidInputError(f"task: column {name!r} is {kind}: its {what} are false and true")


def _require_input(column: Column, kind: ColumnType) -> None:
    _require(column.name, kind, *_READABLE.get(type(column), _NUMBER))
    if isinstance(column, CategoryColumn):
        _require_truth(column.name, kind, column.values, "values")
    if isinstance(column, ArrayColumn) and kind.length not in (None, column.width):
        raise InvalidInputError(
            f"task: column {column.name!r} has {kind.length} numbers, and shape "
            f"{list(column.shape)} has {column.width}"
        )


def _is_number(kind: ColumnType) -> bool:
    return not kind.is_list and kind.kind in (*WIDTHS, "bool")


def _is_name(kind: ColumnType) -> bool:
    return not kind.is_list and kind.kind in (*WIDTHS, "bool", "string")


_NUMBER: Final[tuple[str, Fits]] = ("a number", _is_number)
_NAME: Final[tuple[str, Fits]] = ("text, a number, or true and false", _is_name)
_READABLE: Final[dict[type[Column], tuple[str, Fits]]] = {
    CategoryColumn: _NAME,
    ArrayColumn: ("a list of numbers", lambda kind: kind.is_list and kind.kind in WIDTHS),
    TextColumn: ("text", lambda kind: not kind.is_list and kind.kind == "string"),
    ImageColumn: ("binary", lambda kind: not kind.is_list and kind.kind == "binary"),
}
