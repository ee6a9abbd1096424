"""Language models: the next token at every place of a text."""

from dataclasses import dataclass
from typing import Any, ClassVar

from app.domain.errors import InvalidInputError
from app.domain.tasks.spec import Bounds, TaskSpec


@dataclass(frozen=True, kw_only=True)
class LanguageModelSpec(TaskSpec):
    """The next token; the text is its own target.

    Attributes:
        vocabulary: how many different tokens there are.
        padding: the token that fills up short texts.
    """

    name: ClassVar = "language_model"
    vocabulary: int
    padding: int = 0

    def __post_init__(self) -> None:
        if type(self.padding) is not int or not 0 <= self.padding < self.vocabulary:
            raise InvalidInputError("task: padding must be a token of the vocabulary")

    @property
    def outputs(self) -> int:
        """The size of the vocabulary."""
        return self.vocabulary

    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return [places, vocabulary]: the scores of the next token at every place."""
        return (*input_shape, self.vocabulary)

    @property
    def target_columns(self) -> tuple[str, ...]:
        """None of its own."""
        return ()

    @property
    def bounds(self) -> Bounds | None:
        """None: it has no linear head."""
        return None

    def options(self) -> dict[str, Any]:
        """Return the padding, if it is not 0, and the vocabulary, where no column says it."""
        return {
            **({"vocabulary": self.vocabulary} if self.inputs is None else {}),
            **({"padding": self.padding} if self.padding else {}),
        }
