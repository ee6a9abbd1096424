"""What the user says about a table's columns; the rest of its encoding follows from the file."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.domain.columns import ArrayColumn, CategoryColumn, ClassName, Column, NumberColumn
from app.domain.encoding import TableEncoding
from app.domain.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A category's values, and whether all others count as one more."""

    values: tuple[str, ...]
    other: bool


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The columns' roles and public constants, as far as the user gives them.

    Attributes:
        label, record_id, subject_id: columns.
        features: the feature columns; empty for all that have no other role.
        drop: columns that are not read.
        classes: the label's names.
        class_count: instead of names: the label is 0 … class_count - 1.
        categories: values of columns that are encoded one-hot.
        bounds: low and high of number columns.
        missing: what replaces missing values, by column.
        vocabulary: lists of numbers are tokens below it.
    """

    label: str | None = None
    record_id: str | None = None
    subject_id: str | None = None
    features: Sequence[str] = ()
    drop: Sequence[str] = ()
    classes: tuple[str, ...] = ()
    class_count: int | None = None
    categories: Mapping[str, Listed] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    vocabulary: int | None = None

    @property
    def named(self) -> set[str]:
        """All columns that it names."""
        roles = {self.label, self.record_id, self.subject_id} - {None}
        rules = {*self.categories, *self.bounds, *self.missing}
        return {str(role) for role in roles} | rules | {*self.features, *self.drop}

    @property
    def class_names(self) -> tuple[ClassName, ...]:
        """The classes as whole numbers or truth values, if all are."""
        if {name.lower() for name in self.classes} == {"false", "true"}:
            return tuple(name.lower() == "true" for name in self.classes)
        if all(re.fullmatch(r"-?\d{1,15}", name) for name in self.classes):
            return tuple(map(int, self.classes))
        return self.classes

    def rules_of(self, column: Column) -> Column:
        """Return a column with the constants that are given for it."""
        given: dict[str, Any] = {}
        if column.name in self.missing:
            text = self.missing[column.name]
            is_number = isinstance(column, NumberColumn)
            given["missing"] = number_of(text, f"--missing {column.name}") if is_number else text
        if column.name in self.bounds:
            given["low"], given["high"] = self.bounds[column.name]
        if self.vocabulary is not None and isinstance(column, ArrayColumn):
            given |= {"dtype": "int64", "vocabulary": self.vocabulary}
        try:
            return replace(column, **given)
        except TypeError as error:
            raise InvalidInputError(
                f"column {column.name!r} is of kind {column.kind}, which takes no "
                f"{' and '.join(given)}"
            ) from error

    def contradicts(self, encoding: TableEncoding) -> str | None:
        """Return the option that says something else than an encoding; None if all agree."""
        columns = {column.name: column for column in encoding.columns}
        classes = encoding.label.classes
        said = (
            ("--label", self.label, encoding.label.name),
            ("--record-id", self.record_id, encoding.record_id),
            ("--subject", self.subject_id, encoding.subject_id),
            ("--classes", self.class_names, classes),
            ("--classes", self.class_count, len(classes)),
            ("--features", set(self.features), set(columns)),
            ("--drop", set(self.drop), set(self.drop) - set(columns)),
            ("--vocabulary", self.vocabulary, encoding.vocabulary),
        )
        for option, choice, fact in said:
            if choice and choice != fact:
                return option
        for name in {*self.categories, *self.bounds, *self.missing}:
            column = columns.get(name)
            listed = self.categories.get(name)
            if column is None or column != self.rules_of(column):
                return f"{'--bounds' if name in self.bounds else '--missing'} {name}"
            if listed is not None and not (
                isinstance(column, CategoryColumn)
                and (column.values, column.other) == (listed.values, listed.other)
            ):
                return f"--category {name}"
        return None


def number_of(text: str, where: str) -> float:
    """Return a number that the user wrote."""
    try:
        return float(text)
    except ValueError as error:
        raise InvalidInputError(f"{where}: not a number") from error


def spelt(name: str) -> str:
    """Return a column's name as an option takes it: in double quotes if it has a comma or =."""
    return repr(f'"{name}"' if {",", "="} & {*name} else name)
