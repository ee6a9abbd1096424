"""How the rows of a plain table become features and classes: a part of a dataset's schema.

All of it is public, as ``app.domain.columns`` says. The wording that ``to_json`` returns is also
the mapping file of ``expunge dataset push``.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

from app.domain import columns
from app.domain.checks import known_fields
from app.domain.errors import InvalidInputError

MAX_CLASSES: Final = 1_000_000


@dataclass(frozen=True, kw_only=True)
class LabelColumn:
    """Which column holds the label, and the names of the classes 0, 1, ….

    Attributes:
        name: the column.
        classes: distinct names of one type: text, whole numbers, or false and true.
    """

    name: str
    classes: tuple[columns.ClassName, ...]

    def __post_init__(self) -> None:
        columns.require_text(self.name, "the label's column", shortest=0)
        classes = columns.distinct(self.classes, "encoding: label.classes", most=MAX_CLASSES)
        object.__setattr__(self, "classes", classes)
        if len(classes) < 2:
            raise InvalidInputError("encoding: label.classes must have at least 2 names")
        if len({type(name) for name in classes}) > 1:
            raise InvalidInputError("encoding: label.classes must be of one type")


@dataclass(frozen=True, kw_only=True)
class TableEncoding(columns.InputColumns):
    """The rule by which every table of a dataset is read.

    Attributes:
        columns: the feature columns, in the order of their features.
        label: the label's column and classes.
        record_id: the column of the records' ids.
        subject_id: the column of their persons' ids; None if records have no person.

    Raises:
        InvalidInputError: a rule contradicts itself or another.
    """

    label: LabelColumn
    record_id: str
    subject_id: str | None = None

    def __post_init__(self) -> None:
        columns.require_text(self.record_id, "encoding: record_id", shortest=0)
        if self.subject_id is not None:
            columns.require_text(self.subject_id, "encoding: subject_id", shortest=0)
        super().__post_init__()
        names = [column.name for column in self.columns]
        ids = {self.record_id, self.subject_id}
        if self.label.name in ids | set(names):
            raise InvalidInputError("encoding: the label is also a feature or an id")
        if ids & set(names):
            raise InvalidInputError("encoding: an id is also a feature")

    @property
    def digest(self) -> str:
        """SHA-256 of the encoding, in hexadecimal."""
        spelt = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(spelt.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; ``from_json`` restores the encoding."""
        return {
            "columns": [columns.column_to_json(column) for column in self.columns],
            "label": {"name": self.label.name, "classes": list(self.label.classes)},
            "record_id": self.record_id,
            "subject_id": self.subject_id,
        }

    @classmethod
    def from_json(cls, document: object) -> "TableEncoding":
        """Restore an encoding, or read a mapping file; ``InvalidInputError`` names the fault."""
        top = known_fields(
            document, "encoding", ("subject_id",), required=("columns", "label", "record_id")
        )
        label = known_fields(top["label"], "encoding: label", required=("name", "classes"))
        if not isinstance(top["columns"], list):
            raise InvalidInputError("encoding: columns must be a list")
        return cls(
            columns=tuple(map(columns.column_from_json, top["columns"])),
            label=LabelColumn(name=label["name"], classes=label["classes"]),
            record_id=top["record_id"],
            subject_id=top.get("subject_id"),
        )
