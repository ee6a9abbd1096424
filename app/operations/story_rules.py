"""Rules for stories: how an entry's facts change a row's columns."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from app.operations.replay import Birth, Columns, Rule


def sets(**values: object) -> Rule:
    """Return a rule that sets columns to constants."""
    return lambda _facts, _row: values


def takes(**names: str) -> Rule:
    """Return a rule that sets columns to facts."""
    return lambda facts, _row: {column: facts[name] for column, name in names.items()}


def counts(column: str) -> Rule:
    """Return a rule that adds an entry's number of records to a column."""
    return lambda facts, row: {column: row[column] + facts["records"]}


def both(*rules: Rule) -> Rule:
    """Return a rule that combines several rules."""

    def combined(facts: Mapping[str, Any], row: Columns) -> Columns:
        return {column: value for rule in rules for column, value in rule(facts, row).items()}

    return combined


def born(*rules: Rule) -> Rule:
    """Return a rule that creates a row, which no earlier entry may have created."""
    return Birth(both(*rules), once=True)


def born_or_changed(*rules: Rule) -> Rule:
    """Return a rule that creates a row, or changes it if there is one."""
    return Birth(both(*rules), once=False)


def moment(text: str | None) -> datetime | None:
    """Parse an entry's time."""
    return None if text is None else datetime.fromisoformat(text)


LIVE: Mapping[str, bool] = {"archived": False, "deleted": False}


def endings(kind: str) -> dict[str, Rule]:
    """Return the rules for the end of a model, dataset or backbone."""
    return {f"{kind}.archived": sets(archived=True), f"{kind}.deleted": sets(deleted=True)}


def is_set(column: str) -> Callable[[Row[Any]], bool]:
    """Return what reads whether a column of a row is not null."""
    return lambda row: getattr(row, column) is not None


ENDED: Mapping[str, Callable[[Row[Any]], bool]] = {
    "archived": is_set("archived_at"),
    "deleted": is_set("deleted_at"),
}
"""How to read whether one has ended."""
