"""Checks the ledger's rows against the log's entries, in both directions.

A story describes how entries change one table. Entries and rows are sorted by row id in Postgres
and read in parallel, so memory grows with neither. The expected row is computed from the entries
alone.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Row, Select, Text, collate, func, literal, select

from app.evidence.log.tables import LogEntryRow

_CHUNK = 4096

Columns = dict[str, Any]
Rule = Callable[[Mapping[str, Any], Columns], Mapping[str, Any]]
"""Maps an entry's facts and the row so far to the changed columns."""


@dataclass(frozen=True)
class Birth:
    """A rule that may create a row; with ``once``, no earlier entry may have created it."""

    rule: Rule
    once: bool

    def __call__(self, facts: Mapping[str, Any], row: Columns) -> Mapping[str, Any]:
        """Apply the rule."""
        if row and self.once:
            raise ValueError("made twice")
        return self.rule(facts, row)


@dataclass(frozen=True)
class Story:
    """How the log describes one table.

    Attributes:
        name: what faults call a row.
        rows: the query for the rows; its first column is ``id``.
        rules: what entries of each kind change.
        derived: how to read the columns that the row itself does not have, or has in another form.
        ends: the kinds that are a row's last.
        named_by: the fact that holds the row's id in an entry, if it is not called as the row is.
    """

    name: str
    rows: Select[*tuple[Any, ...]]
    rules: Mapping[str, Rule]
    derived: Mapping[str, Callable[[Row[Any]], object]] = field(default_factory=dict)
    ends: frozenset[str] = frozenset()
    named_by: str | None = None

    @property
    def field(self) -> str:
        """The fact that holds the row's id in an entry."""
        return self.named_by or self.name.replace(" ", "_")


@dataclass(frozen=True)
class Replay:
    """Builds rows from the entries and compares them with the stored rows."""

    connection: Connection
    fault: Callable[[str, str], None]

    def run(self, stories: Sequence[Story]) -> int:
        """Report every difference; return how many rows were compared."""
        kinds = set(self.connection.scalars(select(LogEntryRow.kind).distinct()))
        return sum(self._compare(story, kinds) for story in stories)

    def _compare(self, story: Story, kinds: set[str]) -> int:
        told = iter(()) if kinds.isdisjoint(story.rules) else self._entries(story)
        rows = self._rows(story)
        row = next(rows, None)
        seen = 0
        for row_id, entries in groupby(told, key=attrgetter("id")):
            where = f"{story.name} {_shown(row_id)}"
            while row is not None and row.id < row_id:
                self._undescribed(story, row)
                row, seen = next(rows, None), seen + 1
            expected = self._expected(story, where, entries)
            if row is None or row.id != row_id:
                self.fault(where, "the log describes it, but it is missing")
                continue
            self._check(story, where, expected, row)
            row, seen = next(rows, None), seen + 1
        for left in chain(() if row is None else (row,), rows):
            self._undescribed(story, left)
            seen += 1
        return seen

    def _expected(self, story: Story, where: str, entries: Iterator[Row[Any]]) -> Columns:
        """Return the row that results from all of its entries."""
        expected: Columns = {}
        ended = False
        for entry in entries:
            if ended or (not expected and not isinstance(story.rules[entry.kind], Birth)):
                when = "after its end" if ended else "before its beginning"
                self.fault(where, f"entry {entry.index}, {_shown(entry.kind)}, comes {when}")
                continue
            try:
                expected.update(story.rules[entry.kind](json.loads(entry.body), expected))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                self.fault(where, f"entry {entry.index} does not fit those before it")
            ended = entry.kind in story.ends
        return expected

    def _check(self, story: Story, where: str, expected: Columns, row: Row[Any]) -> None:
        for column, value in expected.items():
            if story.derived.get(column, attrgetter(column))(row) != value:
                self.fault(where, f"its {column} differs from the log")

    def _undescribed(self, story: Story, row: Row[Any]) -> None:
        self.fault(f"{story.name} {_shown(row.id)}", "no entry describes it")

    def _entries(self, story: Story) -> Iterator[Row[Any]]:
        # Cut out, not parsed as JSON: one damaged entry must not stop the search. Within a value
        # the quotes would be escaped, so this can only be the member.
        entry = LogEntryRow
        member = func.split_part(entry.body, literal(f'"{story.field}":"', Text), 2)
        row_id = func.split_part(member, literal('"', Text), 1)
        query = select(row_id.label("id"), entry.index, entry.kind, entry.body)
        query = query.where(entry.kind.in_(story.rules), row_id != literal("", Text))
        return self._stream(query.order_by(collate(row_id, "C"), entry.index))

    def _rows(self, story: Story) -> Iterator[Row[Any]]:
        return self._stream(story.rows.order_by(collate(story.rows.selected_columns.id, "C")))

    def _stream(self, query: Select[*tuple[Any, ...]]) -> Iterator[Row[Any]]:
        with self.connection.execute(query, execution_options={"yield_per": _CHUNK}) as result:
            yield from result


def _shown(word: str) -> str:
    return word if word.isascii() and word.isprintable() else ascii(word)
