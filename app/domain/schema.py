"""The schema that all records of a dataset share."""

import math
from dataclasses import dataclass

from app.domain.checks import require_finite
from app.domain.errors import InvalidInputError

FEATURE_DTYPES = ("uint8", "float32", "float64")


@dataclass(frozen=True)
class FeatureSchema:
    """Shape and encoding of one record's features, and the number of classes.

    Models see ``(raw - offset) * scale`` in float32. Both numbers are declared, never computed from
    the records: a statistic of the data would carry forgotten records into later models.

    Attributes:
        shape: the shape of one record's features; rows are stored flat in C order.
        dtype: ``uint8``, ``float32`` or ``float64``, as uploaded.
        offset, scale: public constants.
        classes: labels are 0 … classes - 1.
    """

    shape: tuple[int, ...]
    dtype: str
    offset: float
    scale: float
    classes: int

    def __post_init__(self) -> None:
        """Reject impossible shapes and numbers."""
        if not self.shape or any(side < 1 for side in self.shape):
            raise InvalidInputError("features.shape must list positive sizes")
        if self.size > 10_000_000:
            raise InvalidInputError("features.shape must have at most 10,000,000 elements")
        if self.dtype not in FEATURE_DTYPES:
            raise InvalidInputError(f"features.dtype must be one of {', '.join(FEATURE_DTYPES)}")
        if not 2 <= self.classes <= 1_000_000:
            raise InvalidInputError("classes must lie between 2 and 1,000,000")
        require_finite("features.offset", self.offset)
        if require_finite("features.scale", self.scale) == 0:
            raise InvalidInputError("features.scale must not be 0")

    @property
    def size(self) -> int:
        """Number of elements in one record's features."""
        return math.prod(self.shape)
