"""Sends a table's parts to a dataset, and names the rows that were not added."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, Final, NamedTuple

import typer

from app.cli.output import printable
from app.cli.waiting import rows_progress
from app.client import ExpungeClient
from app.client.answers import Json
from app.domain.ids import Notation
from app.domain.schema import TableSchema
from app.registry.datasets.columns.parts import typed_parts
from app.registry.datasets.columns.sources import Source
from app.registry.datasets.files import to_parquet

_MOST_NAMED: Final = 20


class _Upload(NamedTuple):
    """Some rows of a table, as they are sent."""

    first: int
    rows: int
    content: bytes


def push_table(
    client: ExpungeClient, name: str, source: Source, schema: TableSchema, *, replace: bool
) -> Json:
    """Push a checked table in order; return the sums of the answers, with rows counted from 1."""
    total: dict[str, Any] = {"added": 0, "already_present": 0}
    rows: dict[str, list[int]] = {"changed": [], "replaced": []}
    counts = dict.fromkeys(rows, 0)
    requests: list[str] = []
    warnings: set[str] = set()
    count, uploads = source.rows, _uploads(source, schema)
    first = next(uploads)
    with rows_progress(count, at_once=first.rows) as advance:
        for upload in chain([first], uploads):
            answer = client.push_records(name, upload.content, replace=replace)
            for field in total:
                total[field] += answer[field]
            for field, found in rows.items():
                counts[field] += answer[field]
                found += [upload.first + row for row in answer[f"{field}_rows"]]
            requests += filter(None, [answer["forget_request"]])
            warnings.update(answer["warnings"])
            advance(upload.rows)
    for warning in sorted(warnings):
        _warn(warning)
    _name_rows(source, "changed, and left as stored", rows["changed"])
    for kind, found in rows.items():
        total |= {kind: counts[kind], f"{kind}_rows": [row + 1 for row in found]}
    return total | {"forget_requests": requests}


def _uploads(source: Source, schema: TableSchema) -> Iterator[_Upload]:
    """Yield a table's parts; the next one is read while the last one is sent."""
    parts = typed_parts(source, schema)

    def following() -> _Upload | None:
        part = next(parts, None)
        if part is None:
            return None
        return _Upload(part.first, len(part.records), to_parquet(part.records))

    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(following)
        while (upload := reading.result()) is not None:
            reading = reader.submit(following)
            yield upload


def warn_of_notations(source: Source) -> None:
    """Say which columns of ids write whole numbers in more than one way."""
    for column, found in source.notations.items():
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
