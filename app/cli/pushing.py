"""Sends a table's parts to a dataset, and names the rows that were not added."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

import httpx
import typer

from app.cli.output import printable
from app.cli.waiting import rows_progress
from app.client import ApiError, ExpungeClient
from app.client.answers import Json
from app.domain.ids import Notation
from app.domain.schema import TableSchema
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.columns.sources import Part, Source, typed_parts

_MOST_NAMED: Final = 20


@contextmanager
def new_dataset(
    client: ExpungeClient, name: str, schema: TableSchema, *, public: bool = False
) -> Iterator[None]:
    """Define a dataset; what fails within, or is interrupted, leaves nothing behind."""
    client.define_dataset(name, **schema.to_json(), public=public)
    try:
        yield
    except BaseException:
        with suppress(ApiError, httpx.TransportError):
            for model in client.models(dataset=name):
                _end(client.delete_model, client.archive_model, model["name"])
            _end(client.delete_dataset, client.archive_dataset, name)
        raise


def _end(delete: Callable[[str], object], archive: Callable[[str], object], name: str) -> None:
    """Delete what has this name; what released a version, or held records, is archived."""
    try:
        delete(name)
    except ApiError:
        archive(name)


class _Upload(NamedTuple):
    """Some rows of a table, as they are sent."""

    first: int
    rows: int
    content: bytes


def push_table(
    client: ExpungeClient, name: str, source: Source, schema: TableSchema, *, replace: bool
) -> Json:
    """Push a checked table in order; return the sums of the answers, with rows counted from 1."""
    _warn_of_notations(source)
    total: dict[str, Any] = {"added": 0, "already_present": 0}
    rows: dict[str, list[int]] = {"changed": [], "replaced": []}
    counts = dict.fromkeys(rows, 0)
    requests: list[str] = []
    without, warnings = Counter[str](), set[str]()
    count, uploads = source.rows, map(_packed, typed_parts(source, schema))
    upload = next(uploads, None)
    at_once = 0 if upload is None else upload.rows
    # All is read in one thread, whose memory Arrow uses again.
    with ThreadPoolExecutor(1) as sender, rows_progress(count, at_once=at_once) as advance:
        while upload is not None:
            sending = sender.submit(client.push_records, name, upload.content, replace=replace)
            following = next(uploads, None)
            answer = sending.result()
            for field in total:
                total[field] += answer[field]
            for field, found in rows.items():
                counts[field] += answer[field]
                found += [upload.first + row for row in answer[f"{field}_rows"]]
            requests += filter(None, [answer["forget_request"]])
            without.update(answer["without_target"])
            warnings.update(answer["warnings"])
            advance(upload.rows)
            upload = following
    for warning in sorted(warnings):
        _warn(warning)
    _name_rows(source, "changed, and left as stored", rows["changed"])
    for kind, found in rows.items():
        total |= {kind: counts[kind], f"{kind}_rows": [row + 1 for row in found]}
    return total | {"forget_requests": requests, "without_target": dict(without)}


def _packed(part: Part) -> _Upload:
    return _Upload(part.first, len(part.records), to_parquet(part.records))


def _warn_of_notations(source: Source) -> None:
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
