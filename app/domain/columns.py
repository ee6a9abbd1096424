"""How the columns of a table become the numbers or tokens that a network reads.

Every value in it is public: it is stored, shown and published with each model, and outlives every
record. So the operator gives each constant and listed value; none is computed from the records.
"""

import math
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar, Final

from app.domain.checks import require_finite
from app.domain.errors import InvalidInputError
from app.domain.ids import normal_id
from app.domain.schema import MOST_TOKENS, NUMBER_DTYPES, TOKEN_DTYPES

MAX_COLUMNS: Final = 10_000
MAX_VALUES: Final = 10_000
MAX_CLASSES: Final = 1_000_000
MAX_TEXT_LENGTH: Final = 512
MAX_TOKENS: Final = 1_000_000
MAX_PIXELS: Final = 10_000
MAX_KNOTS: Final = 256
SPLINE_DEGREE: Final = 3
_LEAST_STEP: Final = 1e-30
TRUTH: Final = frozenset({"false", "true"})
"""What cells of truth are called, in lower case."""


@dataclass(frozen=True, kw_only=True)
class NumberColumn:
    """A number x becomes (x - offset) * scale, or its place between bounds to which it is clipped.

    With knots it becomes the values at x of the cubic B-splines on them, which are constant beyond
    the first and the last knot and have the sum 1: a linear function of these is a curve.

    Attributes:
        name: the column.
        low, high: public bounds, which become 0 and 1; both or neither.
        offset, scale: public constants, in place of bounds.
        knots: public constants in the column's units, in place of either, increasing; at their ends
            the outer distances go on, as in scikit-learn's ``SplineTransformer``.
        missing: the number that replaces a missing one; None refuses rows without it.
        flag_missing: whether a further feature is 1 where the number is missing and 0 elsewhere.
    """

    kind: ClassVar = "number"
    name: str
    low: float | None = None
    high: float | None = None
    offset: float = 0.0
    scale: float = 1.0
    missing: float | None = None
    flag_missing: bool = False
    knots: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require_text(self.name, "a column's name", shortest=0)
        _require_bool(self.flag_missing, f"{self.name}: flag_missing")
        self._check_knots()
        for side in ("low", "high", "offset", "scale", "missing"):
            number = getattr(self, side)
            if number is not None:  # no negative zero, which PostgreSQL does not store
                finite = require_finite(f"input {self.name!r}: {side}", number) + 0.0
                object.__setattr__(self, side, finite)
        if (self.low is None) != (self.high is None):
            raise _unfit(self.name, "give both low and high")
        if (
            self.low is not None
            and self.high is not None
            and not 0 < self.high - self.low < math.inf
        ):
            raise _unfit(self.name, "low must be below high")
        if self.scale == 0:
            raise _unfit(self.name, "scale must not be 0")
        if self.low is not None and (self.offset, self.scale) != (0, 1):
            raise _unfit(self.name, "give low and high, or offset and scale")
        if self.flag_missing and self.missing is None:
            raise _unfit(self.name, "flag_missing needs a number for missing")

    def _check_knots(self) -> None:
        if self.knots == ():
            return
        where = f"input {self.name!r}: knots"
        if not isinstance(self.knots, list | tuple) or not 2 <= len(self.knots) <= MAX_KNOTS:
            raise InvalidInputError(f"{where} must list 2 to {MAX_KNOTS} numbers")
        knots = tuple(require_finite(where, each) + 0.0 for each in self.knots)
        object.__setattr__(self, "knots", knots)
        steps = (after - before for before, after in pairwise(self.all_knots))
        if not all(_LEAST_STEP <= step <= 1 / _LEAST_STEP for step in steps):
            raise InvalidInputError(
                f"{where} must increase, each by {_LEAST_STEP:g} to {1 / _LEAST_STEP:g}"
            )
        if (self.low, self.offset, self.scale) != (None, 0, 1):
            raise _unfit(self.name, "give knots, or low and high, or offset and scale")

    @property
    def all_knots(self) -> tuple[float, ...]:
        """Its knots, with as many before and after them as the splines' degree."""
        (first, second), (last_but_one, last) = self.knots[:2], self.knots[-2:]
        beyond = range(1, SPLINE_DEGREE + 1)
        before = (first - place * (second - first) for place in reversed(beyond))
        after = (last + place * (last - last_but_one) for place in beyond)
        return (*before, *self.knots, *after)

    @property
    def width(self) -> int:
        """Number of features."""
        return (len(self.knots) + SPLINE_DEGREE - 1 if self.knots else 1) + self.flag_missing


@dataclass(frozen=True, kw_only=True)
class CategoryColumn:
    """A value becomes 1 in the feature of this value, and 0 in those of all others.

    Attributes:
        name: the column.
        values: the listed values, as text in NFC, without surrounding space.
        other: whether a further feature marks all other values, and missing ones;
            otherwise rows with them are refused.
        missing: the listed value that replaces a missing one, if not None.
    """

    kind: ClassVar = "category"
    name: str
    values: tuple[str, ...]
    other: bool = False
    missing: str | None = None

    def __post_init__(self) -> None:
        require_text(self.name, "a column's name", shortest=0)
        _require_bool(self.other, f"{self.name}: other")
        where = f"input {self.name!r}: values"
        object.__setattr__(self, "values", distinct(self.values, where, most=MAX_VALUES))
        if not all(isinstance(value, str) for value in self.values):
            raise InvalidInputError(f"{where} must be text")
        if self.missing is not None and self.missing not in self.values:
            raise _unfit(self.name, "missing must be one of its values")

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.values) + self.other


@dataclass(frozen=True, kw_only=True)
class ArrayColumn:
    """A list or tensor of numbers becomes (element - offset) * scale of each, in C order.

    Attributes:
        name: the column.
        shape: of each value.
        dtype: one of ``NUMBER_DTYPES``, of tokens one of ``TOKEN_DTYPES``.
        offset, scale: public constants; by default the scale of bytes is 1/255, of others 1.
        vocabulary: tokens are 0 … vocabulary - 1; None for numbers that are not tokens.
    """

    kind: ClassVar = "array"
    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    offset: float = 0.0
    scale: float | None = None
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        require_text(self.name, "a column's name", shortest=0)
        sides = self.shape if isinstance(self.shape, tuple) else ()
        if not sides or any(type(side) is not int or side < 1 for side in sides):
            raise _unfit(self.name, "shape must list positive sizes")
        dtypes = NUMBER_DTYPES if self.vocabulary is None else TOKEN_DTYPES
        if self.dtype not in dtypes:
            raise _unfit(self.name, f"dtype must be one of {', '.join(dtypes)}")
        if self.vocabulary is not None and (
            type(self.vocabulary) is not int or not 2 <= self.vocabulary <= MOST_TOKENS
        ):
            raise _unfit(self.name, f"vocabulary must lie between 2 and {MOST_TOKENS:,}")
        if self.vocabulary is not None and (self.offset, self.scale) != (0, None):
            raise _unfit(self.name, "tokens have no offset and no scale")
        offset = require_finite(f"input {self.name!r}: offset", self.offset) + 0.0
        object.__setattr__(self, "offset", offset)
        if self.scale is not None:
            scale = require_finite(f"input {self.name!r}: scale", self.scale)
            if scale == 0:
                raise _unfit(self.name, "scale must not be 0")
            object.__setattr__(self, "scale", scale + 0.0)

    @property
    def width(self) -> int:
        """Number of features."""
        return math.prod(self.shape)

    @property
    def scaling(self) -> tuple[float, float]:
        """Offset and scale."""
        of_bytes = 1 / 255 if self.dtype == "uint8" else 1.0
        return self.offset, of_bytes if self.scale is None else self.scale


ClassName = str | int | bool


@dataclass(frozen=True, kw_only=True)
class TextColumn:
    """A text becomes tokens: 1 + each byte of its UTF-8, then 0 up to ``length``.

    Attributes:
        name: the column.
        length: how many tokens; what is longer is cut off.
    """

    kind: ClassVar = "text"
    scaling: ClassVar = (0.0, 1.0)
    dtype: ClassVar = "int32"
    vocabulary: ClassVar = 257
    padding: ClassVar = 0
    name: str
    length: int

    def __post_init__(self) -> None:
        require_text(self.name, "a column's name", shortest=0)
        if type(self.length) is not int or not 1 <= self.length <= MAX_TOKENS:
            raise _unfit(self.name, f"length must lie between 1 and {MAX_TOKENS:,}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record's tokens."""
        return (self.length,)

    @property
    def width(self) -> int:
        """Number of tokens."""
        return self.length


@dataclass(frozen=True, kw_only=True)
class ImageColumn:
    """An image file, JPEG or PNG, becomes bytes [channels, height, width].

    It is scaled to the size, without regard to its proportions.

    Attributes:
        name: the column.
        shape: of the result; one channel is grey, three are red, green and blue.
    """

    kind: ClassVar = "image"
    scaling: ClassVar = (0.0, 1 / 255)
    dtype: ClassVar = "uint8"
    vocabulary: ClassVar = None
    name: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        require_text(self.name, "a column's name", shortest=0)
        sides = self.shape if isinstance(self.shape, tuple) else ()
        if len(sides) != 3 or not all(type(side) is int and side >= 1 for side in sides):
            raise _unfit(self.name, "shape must be [channels, height, width]")
        if sides[0] not in (1, 3) or max(sides) > MAX_PIXELS:
            raise _unfit(self.name, f"1 or 3 channels, at most {MAX_PIXELS:,} pixels a side")

    @property
    def width(self) -> int:
        """Number of bytes."""
        return math.prod(self.shape)


Column = NumberColumn | CategoryColumn | ArrayColumn | TextColumn | ImageColumn
Tensor = ArrayColumn | TextColumn | ImageColumn
"""Columns with a shape of their own, which stand alone."""
_KINDS: Final[Mapping[str, type[Column]]] = {
    kind.kind: kind for kind in (NumberColumn, CategoryColumn, ArrayColumn, TextColumn, ImageColumn)
}


@dataclass(frozen=True, kw_only=True)
class InputColumns:
    """The columns that a network reads.

    Attributes:
        columns: in the order of their features.

    Raises:
        InvalidInputError: there is none, or one occurs twice.
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not 1 <= len(names) <= MAX_COLUMNS:
            raise InvalidInputError(f"inputs: columns must have 1 to {MAX_COLUMNS} entries")
        if len(set(names)) < len(names):
            raise InvalidInputError("inputs: columns must have different names")
        if len(names) > 1:
            for column in self.columns:
                if isinstance(column, TextColumn | ImageColumn):
                    raise InvalidInputError(
                        f"input {column.name!r}: {column.kind} is read alone; a task of your "
                        "own can read it beside others"
                    )

    @property
    def width(self) -> int:
        """Number of features of one record."""
        return sum(column.width for column in self.columns)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record's features: that of a single tensor, otherwise flat."""
        return (self.width,) if self.only is None else self.only.shape

    @property
    def dtype(self) -> str:
        """Type of the features: that of a single tensor, otherwise ``float32``."""
        return "float32" if self.only is None else self.only.dtype

    @property
    def vocabulary(self) -> int | None:
        """Number of different tokens, if the features are tokens."""
        return None if self.only is None else self.only.vocabulary

    @property
    def scaling(self) -> tuple[float, float]:
        """Offset and scale by which a network sees a single tensor; others are scaled before."""
        return (0.0, 1.0) if self.only is None else self.only.scaling

    @property
    def only(self) -> Tensor | None:
        """The single tensor that the features are; None if they are single numbers."""
        first = self.columns[0] if len(self.columns) == 1 else None
        return first if isinstance(first, Tensor) else None


@dataclass(frozen=True, kw_only=True)
class LabelColumn:
    """Which column holds the label, and the names of the classes 0, 1, ….

    Attributes:
        name: the column.
        classes: distinct names of one type: text, whole numbers, or false and true.
    """

    name: str
    classes: tuple[ClassName, ...]

    def __post_init__(self) -> None:
        require_text(self.name, "the target's column", shortest=0)
        classes = distinct(self.classes, "target.classes", most=MAX_CLASSES)
        object.__setattr__(self, "classes", classes)
        if len(classes) < 2:
            raise InvalidInputError("target.classes must have at least 2 names")
        if len({type(name) for name in classes}) > 1:
            raise InvalidInputError("target.classes must be of one type")


def normal_text(text: str) -> str:
    """Return the one spelling under which cells of a table are compared: NFC, trimmed."""
    return unicodedata.normalize("NFC", text).strip()


def column_to_json(column: Column) -> dict[str, Any]:
    """Return what differs from the defaults: a table may have thousands of columns."""
    told = {each.name: getattr(column, each.name) for each in fields(column)}
    defaults = {each.name: each.default for each in fields(column)}
    given = {name: value for name, value in told.items() if value != defaults[name]}
    lists = {name: list(value) for name, value in given.items() if isinstance(value, tuple)}
    return {"name": column.name, "kind": column.kind, **given, **lists}


def column_from_json(document: object) -> Column:
    """Restore a column, or raise ``InvalidInputError``."""
    if not isinstance(document, Mapping) or not {"name", "kind"} <= document.keys():
        raise InvalidInputError("inputs: columns must have the fields kind, name")
    rest = dict(document)
    named = rest.pop("kind")
    kind = _KINDS.get(named) if isinstance(named, str) else None
    if kind is None:
        raise InvalidInputError(f"inputs: kind must be one of {', '.join(_KINDS)}")
    if isinstance(rest.get("shape"), list):
        rest["shape"] = tuple(rest["shape"])
    for unknown in rest.keys() - {each.name for each in fields(kind)}:
        raise InvalidInputError(f"input {rest['name']!r}: a {named} has no field {unknown!r}")
    try:
        return kind(**rest)
    except TypeError as error:
        raise InvalidInputError(f"inputs: a column of kind {named} misses a field") from error


def _unfit(name: str, reason: str) -> InvalidInputError:
    return InvalidInputError(f"input {name!r}: {reason}")


def distinct(names: object, where: str, *, most: int) -> tuple[ClassName, ...]:
    """Return names in their one spelling, without duplicates."""
    if not isinstance(names, list | tuple) or not 1 <= len(names) <= most:
        raise InvalidInputError(f"{where} must list 1 to {most} names")
    for name in names:
        if isinstance(name, str):
            require_text(name, where)
        elif not isinstance(name, int) or abs(name) > 2**53:
            raise InvalidInputError(f"{where} must be text, whole numbers, or false and true")
    spelt = tuple(normal_id(name) if isinstance(name, str) else name for name in names)
    if len(set(spelt)) < len(spelt) or "" in spelt:
        raise InvalidInputError(f"{where} must be different and not empty")
    return spelt


def require_text(text: object, where: str, *, shortest: int = 1) -> None:
    """Raise ``InvalidInputError`` unless it is printable text of an allowed length."""
    fits = isinstance(text, str) and shortest <= len(text) <= MAX_TEXT_LENGTH
    if not fits or not str(text).isprintable():  # neither NUL nor a lone surrogate can be stored
        raise InvalidInputError(
            f"{where} must be text of {shortest} to {MAX_TEXT_LENGTH} printable characters"
        )


def _require_bool(value: object, where: str) -> None:
    if not isinstance(value, bool):
        raise InvalidInputError(f"input {where} must be true or false")
