"""Tasks of which only the outputs and the loss matter: their inputs are an array ``features``."""

from dataclasses import replace
from typing import Any

from app.domain.columns import ArrayColumn, InputColumns
from app.domain.schema import InputSchema
from app.domain.tasks import built_in
from app.domain.tasks.built_in import (
    ClassificationSpec,
    LanguageModelSpec,
    MultiLabelSpec,
    RegressionSpec,
)

_ONE = InputSchema(shape=(1,), classes=2)


def inputs_of(schema: InputSchema) -> InputColumns:
    """Return the column of which a network reads what a schema says."""
    scaling = {} if schema.tokens else {"offset": schema.offset, "scale": schema.scale}
    features = ArrayColumn(
        name="features",
        shape=schema.shape,
        dtype=schema.dtype,
        vocabulary=schema.vocabulary,
        **scaling,
    )
    return InputColumns(columns=(features,))


def classification(classes: int, schema: InputSchema = _ONE, **said: Any) -> ClassificationSpec:
    return replace(built_in.classification(classes), inputs=inputs_of(schema), **said)


def multi_label(labels: tuple[str, ...], **said: Any) -> MultiLabelSpec:
    return MultiLabelSpec(labels=labels, inputs=inputs_of(_ONE), **said)


def regression(targets: tuple[str, ...], **said: Any) -> RegressionSpec:
    return RegressionSpec(targets=targets, inputs=inputs_of(_ONE), **said)


def language_model(vocabulary: int, **said: Any) -> LanguageModelSpec:
    tokens = ArrayColumn(name="features", shape=(1,), dtype="int64", vocabulary=vocabulary)
    return LanguageModelSpec(inputs=InputColumns(columns=(tokens,)), **said)
