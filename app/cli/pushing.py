"""Sends a table's parts to a dataset, and names the rows that were not added."""

from collections.abc import Sequence
from typing import Any, Final

import typer

from app.cli.output import printable
from app.cli.waiting import rows_progress
from app.client import ExpungeClient
from app.client.answers import Json
from app.domain.ids import Notation
from app.registry.datasets.columns.cells import notations_of, plain
from app.registry.datasets.columns.parts import Part
from app.registry.datasets.columns.sources import Source
from app.registry.datasets.files import to_parquet

_MOST_NAMED: Final = 20


def push_parts(
    client: ExpungeClient, name: str, source: Source, parts: Sequence[Part], *, replace: bool
) -> Json:
    """Push a table's parts in order; return the sums of the answers, with rows counted from 1."""
    total: dict[str, Any] = {"added": 0, "already_present": 0}
    rows: dict[str, list[int]] = {"changed": [], "replaced": []}
    counts = dict.fromkeys(rows, 0)
    requests: list[str] = []
    warnings: set[str] = set()
    with rows_progress(source.table.num_rows, parts=len(parts)) as advance:
        for part in parts:
            answer = client.push_records(name, to_parquet(part.records), replace=replace)
            for field in total:
                total[field] += answer[field]
            for field, found in rows.items():
                counts[field] += answer[field]
                found += [part.first + row for row in answer[f"{field}_rows"]]
            requests += filter(None, [answer["forget_request"]])
            warnings.update(answer["warnings"])
            advance(part.records.num_rows)
    for warning in sorted(warnings):
        _warn(warning)
    _name_rows(source, "changed, and left as stored", rows["changed"])
    for kind, found in rows.items():
        total |= {kind: counts[kind], f"{kind}_rows": [row + 1 for row in found]}
    return total | {"forget_requests": requests}


def warn_of_notations(source: Source, *columns: str | None) -> None:
    """Say which columns of ids write whole numbers in more than one way."""
    for column in columns:
        if column not in source.table.column_names:
            continue
        found = notations_of(plain(source.table[column]))
        words = " and ".join(sorted(found))
        if len(found) > 1 and Notation.ZEROS in found:
            _warn(f"column {column!r} has {words}: 007 and 7 are two ids")
        elif len(found) > 1:
            _warn(f"column {column!r} has {words}: 5.0 and 5 are one id")


def _warn(what: str) -> None:
    typer.secho(printable(what), fg="yellow", err=True)


def _name_rows(source: Source, what: str, rows: Sequence[int]) -> None:
    if not rows:
        return
    shown = ", ".join(source.place(row) for row in rows[:_MOST_NAMED])
    more = ", …" if len(rows) > _MOST_NAMED else ""
    _warn(f"{what} ({len(rows)}): {shown}{more}")
