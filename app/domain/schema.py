"""Schemas: of what a network reads of a record, and of the columns that a dataset keeps."""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

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


WIDTHS: Final = {
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
}
"""The types of numbers, with their bytes."""
SCALARS: Final = (*WIDTHS, "bool", "string", "binary", "date", "timestamp")
ITEMS: Final = (*WIDTHS, "bool", "string")
"""What lists consist of."""
MOST_COLUMNS: Final = 1000
MOST_CELL_BYTES: Final = 16 << 20
_LONGEST_NAME: Final = 512
_LIST: Final = re.compile(r"list<\s*(\w+)\s*(?:,\s*([0-9]{1,9})\s*)?>")


@dataclass(frozen=True)
class ColumnType:
    """The type of a column's cells.

    One of ``SCALARS``, a list of them of any length (``list<int32>``), or a list of numbers of one
    length (``list<float32, 128>``). A question mark after it allows rows without a value.

    Attributes:
        kind: one of ``SCALARS``; of a list, its items' type, one of ``ITEMS``.
        is_list: whether each cell is a list.
        length: how many items each list has; None if they differ.
        nullable: whether a row may have no value.
    """

    kind: str
    is_list: bool = False
    length: int | None = None
    nullable: bool = False

    @classmethod
    def parse(cls, text: str) -> "ColumnType":
        """Return the type that a text such as ``string?`` or ``list<uint8, 64>`` names."""
        spelt = text.strip()
        nullable = spelt.endswith("?")
        spelt = spelt.removesuffix("?").strip()
        if spelt in SCALARS:
            return cls(spelt, nullable=nullable)
        match = _LIST.fullmatch(spelt)
        if match is None:
            raise InvalidInputError(
                f"must be one of {', '.join(SCALARS)}, list<…> or list<…, length>, with a question "
                "mark where values may be missing"
            )
        kind, length = match[1], None if match[2] is None else int(match[2])
        if kind not in (ITEMS if length is None else WIDTHS):
            listed = ITEMS if length is None else WIDTHS
            sort = "a list" if length is None else "a list of fixed length"
            raise InvalidInputError(f"{sort} consists of {', '.join(listed)}")
        if length is not None and not 1 <= length * WIDTHS[kind] <= MOST_CELL_BYTES:
            raise InvalidInputError(
                f"a list has 1 item or more, and {MOST_CELL_BYTES} bytes at most"
            )
        return cls(kind, is_list=True, length=length, nullable=nullable)

    @property
    def wider(self) -> tuple["ColumnType", ...]:
        """The types that it may become, the narrowest first: each holds all of its numbers.

        Only float64 rounds whole numbers, from 2⁵³ on, as models read them in any case.
        """
        if self.is_list or self.kind not in WIDTHS or self.kind in ("float16", "float64"):
            return ()
        if self.kind == "float32":
            return (replace(self, kind="float64"),)
        fits = ("int", "uint") if self.kind.startswith("u") else ("int",)
        wider = [
            kind
            for kind, width in WIDTHS.items()
            if kind.rstrip("0123456789") in fits and width > WIDTHS[self.kind]
        ]
        return tuple(replace(self, kind=kind) for kind in (*wider, "float64"))

    @property
    def numbers(self) -> int:
        """How many numbers a cell has at least."""
        return 0 if self.kind not in WIDTHS else self.length or int(not self.is_list)

    @property
    def least_bytes(self) -> int:
        """How many bytes a cell takes at least."""
        return self.numbers * WIDTHS.get(self.kind, 0)

    def __str__(self) -> str:
        """Return the text that ``parse`` reads, in its one spelling."""
        spelt = self.kind
        if self.is_list:
            spelt = (
                f"list<{self.kind}>" if self.length is None else f"list<{self.kind}, {self.length}>"
            )
        return f"{spelt}?" if self.nullable else spelt


@dataclass(frozen=True)
class TableSchema:
    """The columns that a dataset keeps of each record, and those that name it.

    Ids are kept as keyed hashes alone, so they are none of the columns. All of it is public.

    Attributes:
        columns: each column's name and type, by name.
        record_id: the column of the records' ids.
        subject_id: the column of the persons' ids, if there is one.
    """

    columns: tuple[tuple[str, ColumnType], ...]
    record_id: str
    subject_id: str | None = None

    def __post_init__(self) -> None:
        """Check names and sort the columns by them."""
        object.__setattr__(self, "columns", tuple(sorted(self.columns, key=lambda each: each[0])))
        if not 1 <= len(self.columns) <= MOST_COLUMNS:
            raise InvalidInputError(f"columns: there must be 1 to {MOST_COLUMNS}")
        ids = [name for name in (self.record_id, self.subject_id) if name is not None]
        for name in (*self.names, *ids):
            if not (1 <= len(name) <= _LONGEST_NAME and name.isprintable()):
                raise InvalidInputError(
                    f"columns: a name must have 1 to {_LONGEST_NAME} printable characters"
                )
        if len(set(ids)) < len(ids):
            raise InvalidInputError("record_id and subject_id must be different columns")
        if kept := set(ids) & set(self.names):
            raise InvalidInputError(
                f"columns: {min(kept)!r} holds ids, which are kept as keyed hashes alone: leave it "
                "out of the columns"
            )

    @property
    def names(self) -> list[str]:
        """The columns' names, in order."""
        return [name for name, _ in self.columns]

    def requiring(self, names: Collection[str]) -> Self:
        """Return it without rows that lack a value in one of these columns."""
        return replace(
            self,
            columns=tuple(
                (name, replace(kind, nullable=kind.nullable and name not in names))
                for name, kind in self.columns
            ),
        )

    def altered(self, columns: Mapping[str, str]) -> "TableSchema":
        """Return the schema with new columns, and others of wider types.

        Every record that fits this one fits the other, too.

        Raises:
            InvalidInputError: an alteration is none of these; it says which ones are allowed.
        """
        asked = TableSchema.of(columns, record_id=self.record_id, subject_id=self.subject_id)
        kept = dict(self.columns)
        for name, kind in asked.columns:
            before = kept.setdefault(name, kind)
            if before is kind and not kind.nullable:
                raise InvalidInputError(
                    f"columns: {name!r} is new, and stored records have no value: make it {kind}?"
                )
            allowed = [before, *before.wider]
            allowed += [replace(each, nullable=True) for each in allowed if not each.nullable]
            if kind not in allowed:
                rest = ", ".join(map(str, allowed[1:])) or "nothing else"
                raise InvalidInputError(
                    f"columns: {name!r} is {before}, and cannot become {kind}, but {rest}"
                )
        return replace(self, columns=tuple((kept | dict(asked.columns)).items()))

    @classmethod
    def of(
        cls, columns: Mapping[str, str], *, record_id: str, subject_id: str | None = None
    ) -> "TableSchema":
        """Return the schema of columns whose types are texts, or raise ``InvalidInputError``."""
        types = []
        for name, kind in columns.items():
            try:
                types.append((name, ColumnType.parse(kind)))
            except InvalidInputError as error:
                shown = name[:_LONGEST_NAME]
                raise InvalidInputError(f"columns: the type of {shown!r} {error}") from error
        return cls(tuple(types), record_id, subject_id)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "columns": {name: str(kind) for name, kind in self.columns},
            "record_id": self.record_id,
            "subject_id": self.subject_id,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "TableSchema":
        """Return what ``to_json`` wrote."""
        return cls.of(
            content["columns"], record_id=content["record_id"], subject_id=content["subject_id"]
        )
