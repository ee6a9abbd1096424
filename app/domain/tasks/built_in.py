"""The built-in tasks: classification, several labels, regression and language models."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from app.domain.columns import ArrayColumn, ClassName, InputColumns, LabelColumn
from app.domain.errors import InvalidInputError
from app.domain.tasks.spec import (
    Bounds,
    BuiltInSpec,
    factors,
    require_columns,
    require_factor,
    require_number,
)


def rows_of(classes: int) -> int:
    """Return how many rows of weights some classes need: two share one."""
    return 1 if classes == 2 else classes


@dataclass(frozen=True, kw_only=True)
class ClassificationSpec(BuiltInSpec):
    """One class a record.

    Attributes:
        target: the column of the classes and their names.
        class_weights: a factor for the loss of each class's records; none: 1 for each.
        label_smoothing: share of the target that is spread over all classes.
    """

    name: ClassVar = "classification"
    target: LabelColumn
    class_weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        weights = factors(self.class_weights, self.classes)
        object.__setattr__(self, "class_weights", weights)
        require_number("label_smoothing", self.label_smoothing, least=0, below=1)

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.target.classes)

    @property
    def outputs(self) -> int:
        """The number of classes."""
        return self.classes

    @property
    def rows(self) -> int:
        """One row for two classes."""
        return rows_of(self.classes)

    @property
    def names(self) -> tuple[ClassName, ...]:
        """The names of the classes."""
        return self.target.classes

    @property
    def target_columns(self) -> tuple[str, ...]:
        """The column of the classes."""
        return (self.target.name,)

    @property
    def bounds(self) -> Bounds:
        """Those of one logit for two classes, of softmax for more (docs/guarantees.md, 6)."""
        plain = Bounds(1.0, 0.25) if self.classes == 2 else Bounds(math.sqrt(2), 0.5)
        return plain.times(self.heaviest * max(self.class_weights, default=1.0))

    def options(self) -> dict[str, Any]:
        """Return target, class weights and smoothing."""
        return {
            "target": {"column": self.target.name, "classes": list(self.target.classes)},
            **({"class_weights": list(self.class_weights)} if self.class_weights else {}),
            **({"label_smoothing": self.label_smoothing} if self.label_smoothing else {}),
        }


def classification(classes: int) -> ClassificationSpec:
    """Return the task of a network of which only the number of classes is known."""
    return ClassificationSpec(
        inputs=InputColumns(columns=(ArrayColumn(name="features", shape=(1,)),)),
        target=LabelColumn(name="label", classes=tuple(range(classes))),
    )


MOST_LABELS: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class MultiLabelSpec(BuiltInSpec):
    """Any number of labels a record.

    Attributes:
        labels: one column of yes or no, 1 or 0, for each label; their names are the labels'.
        class_weights: a factor for each label's loss; none: 1 for each.
        label_smoothing: moves 0 and 1 by half of it towards one half.
    """

    name: ClassVar = "multi_label"
    labels: tuple[str, ...]
    class_weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        require_columns(self.labels, most=MOST_LABELS)
        weights = factors(self.class_weights, len(self.labels))
        object.__setattr__(self, "class_weights", weights)
        require_number("label_smoothing", self.label_smoothing, least=0, below=1)

    @property
    def names(self) -> tuple[str, ...]:
        """The labels."""
        return self.labels

    @property
    def target_columns(self) -> tuple[str, ...]:
        """The labels."""
        return self.labels

    @property
    def bounds(self) -> Bounds:
        """Each label adds a slope of at most 1; their curvatures are apart, 1/4 each."""
        weights = self.class_weights or (1.0,) * len(self.labels)
        return Bounds(math.hypot(*weights), max(weights) / 4).times(self.heaviest)

    def options(self) -> dict[str, Any]:
        """Return target, class weights and smoothing."""
        return {
            "target": {"columns": list(self.labels)},
            **({"class_weights": list(self.class_weights)} if self.class_weights else {}),
            **({"label_smoothing": self.label_smoothing} if self.label_smoothing else {}),
        }


MOST_TARGETS: Final = 10_000
SQUARED, HUBER, QUANTILE = LOSSES = ("squared", "huber", "quantile")


@dataclass(frozen=True, kw_only=True)
class RegressionSpec(BuiltInSpec):
    """One or more numbers a record.

    Attributes:
        targets: their columns.
        offset, scale: public constants: the network learns (number - offset) * scale.
        loss: ``squared`` (half of it), ``huber`` or ``quantile``; added up over the targets.
        threshold: of Huber's loss, after scaling: the error above which it grows linearly.
        quantile: of the quantile loss.
    """

    name: ClassVar = "regression"
    targets: tuple[str, ...]
    offset: float = 0.0
    scale: float = 1.0
    loss: str = SQUARED
    threshold: float = 1.0
    quantile: float = 0.5

    def __post_init__(self) -> None:
        require_columns(self.targets, most=MOST_TARGETS)
        if self.loss not in LOSSES:
            raise InvalidInputError(f"task: loss must be one of {', '.join(LOSSES)}")
        require_number("target.offset", self.offset)
        if require_number("target.scale", self.scale) == 0:
            raise InvalidInputError("task: target.scale must not be 0")
        require_factor("threshold", self.threshold)
        require_number("quantile", self.quantile, above=0, below=1)
        for field, loss, default in (("threshold", HUBER, 1.0), ("quantile", QUANTILE, 0.5)):
            if self.loss != loss and getattr(self, field) != default:
                raise InvalidInputError(f"task: {field} is for the loss {loss} only")

    @property
    def names(self) -> tuple[str, ...]:
        """The targets."""
        return self.targets

    @property
    def target_columns(self) -> tuple[str, ...]:
        """The targets."""
        return self.targets

    @property
    def rough(self) -> str | None:
        """The kink of the quantile loss."""
        return "the quantile loss has a kink" if self.loss == QUANTILE else super().rough

    @property
    def bounds(self) -> Bounds | None:
        """Huber's slope is at most the threshold for each target; its curvature is at most 1.

        The squared loss has no bound on its slope. The quantile loss has a kink, so none on its
        curvature either.
        """
        if self.loss == QUANTILE:
            return None
        slope = self.threshold * math.sqrt(len(self.targets)) if self.loss == HUBER else None
        return Bounds(slope, 1.0).times(self.heaviest)

    def in_units(self, outputs: Any) -> Any:  # noqa: ANN401 - arrays of NumPy and of PyTorch
        """Return a network's outputs as numbers in the targets' units."""
        return outputs / self.scale + self.offset

    def options(self) -> dict[str, Any]:
        """Return target, loss and its number."""
        scaled = (self.offset, self.scale) != (0.0, 1.0)
        scaling = {"offset": self.offset, "scale": self.scale} if scaled else {}
        return {
            "target": {"columns": list(self.targets), **scaling},
            "loss": self.loss,
            **({"threshold": self.threshold} if self.loss == HUBER else {}),
            **({"quantile": self.quantile} if self.loss == QUANTILE else {}),
        }


@dataclass(frozen=True, kw_only=True)
class LanguageModelSpec(BuiltInSpec):
    """The next token; the text is its own target.

    Attributes:
        padding: the token that fills up short texts.
    """

    name: ClassVar = "language_model"
    padding: int = 0

    def __post_init__(self) -> None:
        if type(self.padding) is not int or not 0 <= self.padding < self.vocabulary:
            raise InvalidInputError("task: padding must be a token of the vocabulary")

    @property
    def vocabulary(self) -> int:
        """How many different tokens there are."""
        if self.inputs.vocabulary is None:
            raise InvalidInputError(
                "task: language_model reads tokens: a text, or an array of tokens"
            )
        return self.inputs.vocabulary

    @property
    def outputs(self) -> int:
        """The size of the vocabulary."""
        return self.vocabulary

    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return [places, vocabulary]: the scores of the next token at every place."""
        return (*input_shape, self.vocabulary)

    def options(self) -> dict[str, Any]:
        """Return the padding, if it is not 0."""
        return {"padding": self.padding} if self.padding else {}
