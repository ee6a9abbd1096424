"""What a network reads of a record."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from app.domain.checks import require_finite
from app.domain.errors import InvalidInputError

NUMBER_DTYPES = ("uint8", "float32", "float64")
TOKEN_DTYPES = ("int32", "int64")
MOST_TOKENS = 10_000_000


@dataclass(frozen=True, kw_only=True)
class InputSchema:
    """Shape and type of one record's inputs, and the number of outputs.

    Networks see ``(raw - offset) * scale`` in float32, or tokens as they are, in int64. All numbers
    are declared, never computed from the records: a statistic of the data would carry forgotten
    records into later models.

    Attributes:
        shape: the shape of one record's inputs; encoded rows are flat, in C order.
        dtype: ``uint8``, ``float32`` or ``float64``, as they are encoded; of tokens, ``int32`` or
            ``int64``.
        offset, scale: public constants.
        classes: the numbers that a network gives for a record: of classification, the classes.
        vocabulary: tokens are 0 … vocabulary - 1; None for inputs that are not tokens.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    offset: float = 0.0
    scale: float = 1.0
    classes: int
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        """Reject impossible shapes and numbers."""
        if not self.shape or any(side < 1 for side in self.shape):
            raise InvalidInputError("inputs.shape must list positive sizes")
        if self.size > 10_000_000:
            raise InvalidInputError("inputs.shape must have at most 10,000,000 elements")
        dtypes = TOKEN_DTYPES if self.tokens else NUMBER_DTYPES
        if self.dtype not in dtypes:
            kind = "with" if self.tokens else "without"
            raise InvalidInputError(
                f"inputs.dtype must be one of {', '.join(dtypes)} {kind} a vocabulary"
            )
        if not 1 <= self.classes <= 1_000_000:
            raise InvalidInputError("classes must lie between 1 and 1,000,000")
        require_finite("inputs.offset", self.offset)
        if require_finite("inputs.scale", self.scale) == 0:
            raise InvalidInputError("inputs.scale must not be 0")
        if self.vocabulary is None:
            return
        if not 2 <= self.vocabulary <= MOST_TOKENS:
            raise InvalidInputError(f"inputs.vocabulary must lie between 2 and {MOST_TOKENS:,}")
        if (self.offset, self.scale) != (0, 1):
            raise InvalidInputError("tokens have no inputs.offset and no inputs.scale")

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "InputSchema":
        """Return what ``to_json`` wrote."""
        return cls(**{**document, "shape": tuple(document["shape"])})

    @property
    def tokens(self) -> bool:
        """Whether the features are tokens: numbers of words, not quantities."""
        return self.vocabulary is not None

    @property
    def size(self) -> int:
        """Number of elements in one record's features."""
        return math.prod(self.shape)
