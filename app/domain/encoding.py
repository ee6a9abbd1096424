"""How the rows of a plain table become features and classes: a part of a dataset's schema.

Every value in it is public: it is stored, shown and published with each model, and outlives every
record. So the operator gives each constant and listed value; none is computed from the records.
The wording that ``to_json`` returns is also the mapping file of ``expunge dataset push``.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final

from app.domain.checks import require_finite
from app.domain.commitments import normal_id
from app.domain.errors import InvalidInputError
from app.domain.schema import MOST_TOKENS, NUMBER_DTYPES, TOKEN_DTYPES

ClassName = str | int | bool

MAX_COLUMNS: Final = 10_000
MAX_VALUES: Final = 10_000
MAX_CLASSES: Final = 1_000_000
MAX_TEXT_LENGTH: Final = 512


@dataclass(frozen=True, kw_only=True)
class NumberColumn:
    """A number x becomes x, or (x - low) / (high - low) of x clipped to [low, high].

    Attributes:
        name: the column.
        low, high: public bounds; both or neither.
        missing: the number that replaces a missing one; None refuses rows without it.
        flag_missing: whether a further feature is 1 where the number is missing and 0 elsewhere.
    """

    kind: ClassVar = "number"
    name: str
    low: float | None = None
    high: float | None = None
    missing: float | None = None
    flag_missing: bool = False

    def __post_init__(self) -> None:
        _require_text(self.name, "a column's name", shortest=0)
        _require_bool(self.flag_missing, f"{self.name}: flag_missing")
        for side in ("low", "high", "missing"):
            number = getattr(self, side)
            if number is not None:  # no negative zero, which PostgreSQL does not store
                finite = require_finite(f"encoding of {self.name!r}: {side}", number) + 0.0
                object.__setattr__(self, side, finite)
        if (self.low is None) != (self.high is None):
            raise InvalidInputError(f"encoding of {self.name!r}: give both low and high")
        if (
            self.low is not None
            and self.high is not None
            and not 0 < self.high - self.low < math.inf
        ):
            raise InvalidInputError(f"encoding of {self.name!r}: low must be below high")
        if self.flag_missing and self.missing is None:
            raise InvalidInputError(
                f"encoding of {self.name!r}: flag_missing needs a number for missing"
            )

    @property
    def width(self) -> int:
        """Number of features."""
        return 2 if self.flag_missing else 1


@dataclass(frozen=True, kw_only=True)
class CategoryColumn:
    """A value becomes 1 in the feature of this value, and 0 in those of all others.

    Attributes:
        name: the column.
        values: the listed values, as text in NFC, without surrounding space.
        other: whether a further feature stands for all other values, and for missing ones;
            otherwise rows with them are refused.
        missing: the listed value that replaces a missing one, if not None.
    """

    kind: ClassVar = "category"
    name: str
    values: tuple[str, ...]
    other: bool = False
    missing: str | None = None

    def __post_init__(self) -> None:
        _require_text(self.name, "a column's name", shortest=0)
        _require_bool(self.other, f"{self.name}: other")
        where = f"encoding of {self.name!r}: values"
        object.__setattr__(self, "values", _distinct(self.values, where, most=MAX_VALUES))
        if not all(isinstance(value, str) for value in self.values):
            raise InvalidInputError(f"{where} must be text")
        if self.missing is not None and self.missing not in self.values:
            raise InvalidInputError(f"encoding of {self.name!r}: missing must be one of its values")

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.values) + self.other


@dataclass(frozen=True, kw_only=True)
class ArrayColumn:
    """A list or tensor of numbers becomes its elements, in C order.

    Attributes:
        name: the column.
        shape: of each value.
        dtype: one of ``NUMBER_DTYPES``, of tokens one of ``TOKEN_DTYPES``.
        vocabulary: tokens are 0 … vocabulary - 1; None for numbers that are not tokens.
    """

    kind: ClassVar = "array"
    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        _require_text(self.name, "a column's name", shortest=0)
        if not isinstance(self.shape, tuple) or not self.shape:
            raise InvalidInputError(f"encoding of {self.name!r}: shape must list positive sizes")
        if any(type(side) is not int or side < 1 for side in self.shape):
            raise InvalidInputError(f"encoding of {self.name!r}: shape must list positive sizes")
        dtypes = NUMBER_DTYPES if self.vocabulary is None else TOKEN_DTYPES
        if self.dtype not in dtypes:
            raise InvalidInputError(
                f"encoding of {self.name!r}: dtype must be one of {', '.join(dtypes)}"
            )
        if self.vocabulary is not None and (
            type(self.vocabulary) is not int or not 2 <= self.vocabulary <= MOST_TOKENS
        ):
            raise InvalidInputError(
                f"encoding of {self.name!r}: vocabulary must lie between 2 and {MOST_TOKENS:,}"
            )

    @property
    def width(self) -> int:
        """Number of features."""
        return math.prod(self.shape)


Column = NumberColumn | CategoryColumn | ArrayColumn
_KINDS: Final[Mapping[str, type[Column]]] = {
    kind.kind: kind for kind in (NumberColumn, CategoryColumn, ArrayColumn)
}


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
        _require_text(self.name, "the label's column", shortest=0)
        classes = _distinct(self.classes, "encoding: label.classes", most=MAX_CLASSES)
        object.__setattr__(self, "classes", classes)
        if len(classes) < 2:
            raise InvalidInputError("encoding: label.classes must have at least 2 names")
        if len({type(name) for name in classes}) > 1:
            raise InvalidInputError("encoding: label.classes must be of one type")


@dataclass(frozen=True, kw_only=True)
class TableEncoding:
    """The rule by which every table of a dataset is read.

    Attributes:
        columns: the feature columns, in the order of their features.
        label: the label's column and classes.
        record_id: the column of the records' ids.
        subject_id: the column of their persons' ids; None if records have no person.

    Raises:
        InvalidInputError: a rule contradicts itself or another.
    """

    columns: tuple[Column, ...]
    label: LabelColumn
    record_id: str
    subject_id: str | None = None

    def __post_init__(self) -> None:
        _require_text(self.record_id, "encoding: record_id", shortest=0)
        if self.subject_id is not None:
            _require_text(self.subject_id, "encoding: subject_id", shortest=0)
        names = [column.name for column in self.columns]
        if not 1 <= len(names) <= MAX_COLUMNS:
            raise InvalidInputError(f"encoding: columns must have 1 to {MAX_COLUMNS} entries")
        if len(set(names)) < len(names):
            raise InvalidInputError("encoding: columns must have different names")
        ids = {self.record_id, self.subject_id}
        if self.label.name in ids | set(names):
            raise InvalidInputError("encoding: the label is also a feature or an id")
        if ids & set(names):
            raise InvalidInputError("encoding: an id is also a feature")

    @property
    def width(self) -> int:
        """Number of features of one record."""
        return sum(column.width for column in self.columns)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record's features: that of a single array, otherwise flat."""
        only = self._only_array
        return (self.width,) if only is None else only.shape

    @property
    def dtype(self) -> str:
        """Type of the features: that of a single array, otherwise ``float32``."""
        only = self._only_array
        return "float32" if only is None else only.dtype

    @property
    def vocabulary(self) -> int | None:
        """Number of different tokens, if the features are a single array of tokens."""
        only = self._only_array
        return None if only is None else only.vocabulary

    @property
    def _only_array(self) -> ArrayColumn | None:
        only = self.columns[0] if len(self.columns) == 1 else None
        return only if isinstance(only, ArrayColumn) else None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """A name for each feature, such as ``age``, ``age missing``, ``plan=basic``, ``x[3]``."""
        return tuple(name for column in self.columns for name in _feature_names(column))

    @property
    def digest(self) -> str:
        """SHA-256 of the encoding, in hexadecimal."""
        spelt = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(spelt.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; ``from_json`` restores the encoding."""
        return {
            "columns": [_column_to_json(column) for column in self.columns],
            "label": {"name": self.label.name, "classes": list(self.label.classes)},
            "record_id": self.record_id,
            "subject_id": self.subject_id,
        }

    @classmethod
    def from_json(cls, document: object) -> "TableEncoding":
        """Restore an encoding, or read a mapping file.

        Raises:
            InvalidInputError: with the faulty field.
        """
        top = _fields(
            document, "encoding", required={"columns", "label", "record_id"}, more={"subject_id"}
        )
        label = _fields(top["label"], "encoding: label", required={"name", "classes"})
        if not isinstance(top["columns"], list):
            raise InvalidInputError("encoding: columns must be a list")
        return cls(
            columns=tuple(map(_column_from_json, top["columns"])),
            label=LabelColumn(name=label["name"], classes=label["classes"]),
            record_id=top["record_id"],
            subject_id=top.get("subject_id"),
        )


def normal_text(text: str) -> str:
    """Return the one spelling under which cells of a table are compared: NFC, trimmed."""
    return normal_id(text).strip()


def _column_to_json(column: Column) -> dict[str, Any]:
    """Return what differs from the defaults: a table may have thousands of columns."""
    told = {each.name: getattr(column, each.name) for each in fields(column)}
    defaults = {each.name: each.default for each in fields(column)}
    given = {name: value for name, value in told.items() if value != defaults[name]}
    lists = {name: list(value) for name, value in given.items() if isinstance(value, tuple)}
    return {"name": column.name, "kind": column.kind, **given, **lists}


def _column_from_json(document: object) -> Column:
    told = _fields(document, "encoding: columns", required={"name", "kind"}, more=None)
    rest = {field: value for field, value in told.items() if field != "kind"}
    kind = _KINDS.get(told["kind"]) if isinstance(told["kind"], str) else None
    if kind is None:
        raise InvalidInputError(f"encoding: kind must be one of {', '.join(_KINDS)}")
    if kind is ArrayColumn and isinstance(rest.get("shape"), list):
        rest["shape"] = tuple(rest["shape"])
    try:
        return kind(**rest)
    except TypeError as error:
        raise InvalidInputError(
            f"encoding: a column of kind {told['kind']} has a missing or unknown field"
        ) from error


def _feature_names(column: Column) -> list[str]:
    match column:
        case NumberColumn():
            flag = [f"{column.name} missing"] if column.flag_missing else []
            return [column.name, *flag]
        case CategoryColumn():
            other = [f"{column.name} other"] if column.other else []
            return [*(f"{column.name}={value}" for value in column.values), *other]
        case ArrayColumn():
            return [f"{column.name}[{i}]" for i in range(column.width)]


def _fields(
    document: object, where: str, *, required: set[str], more: AbstractSet[str] | None = frozenset()
) -> dict[str, Any]:
    if not isinstance(document, dict) or not required <= document.keys():
        raise InvalidInputError(f"{where} must have the fields {', '.join(sorted(required))}")
    if more is not None and not document.keys() <= required | more:
        unknown = ", ".join(sorted(map(str, document.keys() - required - more)))
        raise InvalidInputError(f"{where} has unknown fields: {unknown}")
    return document


def _distinct(names: object, where: str, *, most: int) -> tuple[ClassName, ...]:
    """Return names in their one spelling, without duplicates."""
    if not isinstance(names, list | tuple) or not 1 <= len(names) <= most:
        raise InvalidInputError(f"{where} must list 1 to {most} names")
    for name in names:
        if isinstance(name, str):
            _require_text(name, where)
        elif not isinstance(name, int) or abs(name) > 2**53:
            raise InvalidInputError(f"{where} must be text, whole numbers, or false and true")
    spelt = tuple(normal_text(name) if isinstance(name, str) else name for name in names)
    if len(set(spelt)) < len(spelt) or "" in spelt:
        raise InvalidInputError(f"{where} must be different and not empty")
    return spelt


def _require_text(text: object, where: str, *, shortest: int = 1) -> None:
    fits = isinstance(text, str) and shortest <= len(text) <= MAX_TEXT_LENGTH
    if not fits or not str(text).isprintable():  # neither NUL nor a lone surrogate can be stored
        raise InvalidInputError(
            f"{where} must be text of {shortest} to {MAX_TEXT_LENGTH} printable characters"
        )


def _require_bool(value: object, where: str) -> None:
    if not isinstance(value, bool):
        raise InvalidInputError(f"encoding of {where} must be true or false")
