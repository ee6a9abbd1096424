"""Rules for stories: how an entry's facts change a row's columns."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from app.maintenance.replay import Columns, Rule


def sets(**values: object) -> Rule:
    """Return a rule that sets columns to constants."""
    return lambda _facts, _told: values


def takes(**names: str) -> Rule:
    """Return a rule that sets columns to facts."""
    return lambda facts, _told: {column: facts[name] for column, name in names.items()}


def both(*rules: Rule) -> Rule:
    """Return a rule that combines several rules."""

    def combined(facts: Mapping[str, Any], told: Columns) -> Columns:
        return {column: value for rule in rules for column, value in rule(facts, told).items()}

    return combined


def once(rule: Rule) -> Rule:
    """Return a rule that creates a row, which no earlier entry may have created."""

    def making(facts: Mapping[str, Any], told: Columns) -> Mapping[str, Any]:
        if told:
            raise ValueError("made twice")
        return rule(facts, told)

    return making


def moment(text: str | None) -> datetime | None:
    """Parse an entry's time."""
    return None if text is None else datetime.fromisoformat(text)


def columns(*names: str) -> Callable[[Row[Any]], Columns]:
    """Return a reader of these columns of a row."""
    return lambda row: {name: getattr(row, name) for name in names}
