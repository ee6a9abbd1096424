"""Every task by its name, their JSON, and what they predict in words."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from app.domain.checks import known_fields
from app.domain.columns import InputColumns, LabelColumn, column_from_json
from app.domain.errors import InvalidInputError
from app.domain.tasks.built_in import (
    HUBER,
    QUANTILE,
    ClassificationSpec,
    LanguageModelSpec,
    MultiLabelSpec,
    RegressionSpec,
)
from app.domain.tasks.custom import CustomSpec
from app.domain.tasks.spec import Augmentation, TaskSpec, WeightColumn

Fields = dict[str, Any]


def from_json(document: object) -> TaskSpec:
    """Return the task of a JSON object that is complete, or raise ``InvalidInputError``."""
    if not isinstance(document, Mapping):
        raise InvalidInputError("task: must be an object")
    fields = {str(name): value for name, value in document.items()}
    name = fields.pop("name", None)
    make = _KINDS.get(name) if isinstance(name, str) else None
    if make is None:
        raise InvalidInputError(f"task: name must be one of {', '.join(_KINDS)}")
    own = name == CustomSpec.name
    common: Fields = {} if own else {"inputs": _inputs(fields.pop("inputs", None))}
    weight = fields.pop("weight", None)
    if weight is not None:
        weight = WeightColumn(**_only(weight, "weight", "column", "most"))
    listed = fields.pop("augment", [])
    if not isinstance(listed, list):
        raise InvalidInputError("task: augment must be a list")
    common |= {"weight": weight, "augment": tuple(map(Augmentation.from_json, listed))}
    try:
        spec = make(fields, common)
    except (TypeError, KeyError, AttributeError) as error:
        raise InvalidInputError(f"task: {name} has a missing or malformed field") from error
    if fields:
        raise InvalidInputError(f"task: {name} has no field {min(fields)!r}")
    read = spec.columns
    if len(set(read)) < len(read):
        twice = next(name for name in read if read.count(name) > 1)
        raise InvalidInputError(f"task: column {twice!r} is read as two things")
    return spec


def task_in_words(spec: TaskSpec) -> str:
    """Return what a task predicts of a record; no name of a column is in it."""
    match spec:
        case ClassificationSpec():
            return f"classification: one of {spec.classes} classes"
        case MultiLabelSpec(labels=labels):
            return f"multi-label classification: any of {_counted(len(labels), 'label')}"
        case RegressionSpec():
            loss = {
                HUBER: f"Huber's loss with threshold {spec.threshold:g}",
                QUANTILE: f"the {spec.quantile:g} quantile",
            }.get(spec.loss, "squared loss")
            return f"regression: {_counted(len(spec.targets), 'number')}, {loss}"
        case LanguageModelSpec():
            return f"language model: the next of {spec.vocabulary} tokens"
    return "a task of the operator's own"


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _inputs(document: object) -> InputColumns:
    if document is None:
        raise InvalidInputError("task: it needs inputs, the columns that are read")
    if not isinstance(document, list):
        raise InvalidInputError("task: inputs must be a list of columns")
    return InputColumns(columns=tuple(map(column_from_json, document)))


def _classification(fields: Fields, common: Fields) -> TaskSpec:
    if "target" not in fields:
        raise InvalidInputError("task: classification needs a target: a column and its classes")
    named = _only(fields.pop("target"), "target", "column", "classes")
    label = LabelColumn(name=named["column"], classes=named["classes"])
    return ClassificationSpec(target=label, **_smoothed(fields), **common)


def _multi_label(fields: Fields, common: Fields) -> TaskSpec:
    target = _only(fields.pop("target"), "target", "columns")
    return MultiLabelSpec(labels=_names(target["columns"]), **_smoothed(fields), **common)


def _regression(fields: Fields, common: Fields) -> TaskSpec:
    target = _only(fields.pop("target"), "target", "columns", "offset", "scale")
    own = {name: fields.pop(name) for name in ("loss", "threshold", "quantile") if name in fields}
    return RegressionSpec(targets=_names(target.pop("columns")), **target, **own, **common)


def _language_model(fields: Fields, common: Fields) -> TaskSpec:
    return LanguageModelSpec(padding=fields.pop("padding", 0), **common)


def _custom(fields: Fields, common: Fields) -> TaskSpec:
    given = _only(fields.pop("inputs"), "inputs", "shape", "dtype", "vocabulary")
    target = _only(fields.pop("target", {"columns": []}), "target", "columns")
    return CustomSpec(
        path=fields.pop("path"),
        reads=_names(fields.pop("columns")),
        targets=_names(target["columns"]),
        shape=tuple(given.pop("shape")),
        **given,
        network_outputs=fields.pop("outputs"),
        arguments=fields.pop("options", {}),
        **common,
    )


_KINDS: Final[Mapping[str, Callable[[Fields, Fields], TaskSpec]]] = {
    "classification": _classification,
    "multi_label": _multi_label,
    "regression": _regression,
    "language_model": _language_model,
    "custom": _custom,
}


def _smoothed(fields: Fields) -> Fields:
    own = ("class_weights", "label_smoothing")
    return {name: fields.pop(name) for name in own if name in fields}


def _names(columns: object) -> tuple[str, ...]:
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        raise InvalidInputError("task: columns must be a list of names")
    return tuple(columns)


def _only(given: object, where: str, *known: str) -> Fields:
    return known_fields(given, f"task: {where}", known)
