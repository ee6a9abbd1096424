"""The service's URL and key for the command line, and the output of errors."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import typer

from app.cli.output import fail, show
from app.client import ApiError, ExpungeClient
from app.client.configured import configured_client
from app.domain.errors import ConfigurationError, ExpungeError, TableError

service = configured_client
"""Opens the client of the configured service."""


def show_answer(
    call: Callable[[ExpungeClient], object],
    columns: Sequence[str] = (),
    **options: Any,  # noqa: ANN401 - as of ``show``
) -> None:
    """Call the service and show its answer."""
    with service() as client:
        show(call(client), columns, **options)


@contextmanager
def errors_in_words() -> Iterator[None]:
    """Print an expected error as one line, with its details below, and exit with 1."""
    try:
        yield
    except (*_IN_WORDS, *_of_databases()) as error:
        words = (words for kind, words in _IN_WORDS.items() if isinstance(error, kind))
        for line in next(words, _database)(error):
            fail(line)
        raise typer.Exit(1) from error


def _problem(error: ApiError) -> Iterator[str]:
    yield f"error: {error}"
    problems = error.problem.get("problems", [])
    if [f"{_place(problem)}: {problem['reason']}" for problem in problems] == [str(error)]:
        problems = []
    for problem in problems:
        more = f" (and in {problem['rows'] - 1} more)" if problem.get("rows", 1) > 1 else ""
        yield f"  {_place(problem)}: {problem['reason']}{more}"
    for unknown in error.problem.get("unknown", []):
        yield f"  unknown id: {unknown}"


def _place(problem: Mapping[str, Any]) -> str:
    if "field" in problem:
        return str(problem["field"])
    row = "" if problem["row"] is None else f"row {problem['row']}, "
    return f"{row}column {problem['column']}"


def _system(error: OSError) -> Iterator[str]:
    yield ": ".join(
        str(part) for part in ("error", error.strerror or error, error.filename) if part
    )


def _with_details(error: ExpungeError) -> Iterator[str]:
    first, _, details = str(error).partition("\n")
    yield f"error: {first}"
    yield from _below(details)


def _below(details: str) -> Iterator[str]:
    return (f"  {line}".expandtabs(2) for line in details.splitlines() if line.strip())


def _database(error: Any) -> Iterator[str]:  # noqa: ANN401 - clients have no library for it
    """Say what a database's error was: its own words could quote values once it has answered."""
    cause = error.orig
    if getattr(cause, "sqlstate", None) is None:
        yield "error: the database (EXPUNGE_DATABASE_URL) does not answer, or refuses to connect"
        yield from _below(str(cause))
        return
    advice = {
        "42501": "; EXPUNGE_MIGRATION_URL must name the role that owns the tables",
        "42P01": "; run 'expunge init' first",
    }.get(cause.sqlstate, "")
    yield f"error: the database refused a statement: {type(cause).__name__}{advice}"


def _of_databases() -> tuple[type[Exception], ...]:
    """Return a database's errors where one is used: clients have no library for it."""
    found = sys.modules.get("sqlalchemy.exc")
    return () if found is None else (found.DBAPIError,)


_AWAY = "error: the service cannot be reached; start it with 'expunge up' or set EXPUNGE_API_URL"
_IN_WORDS: Mapping[type[Exception], Callable[[Any], Iterable[str]]] = {
    ApiError: _problem,
    TableError: lambda error: [f"error: {line}" for line in error.lines],
    ConfigurationError: lambda error: (f"error: {line}" for line in str(error).splitlines()),
    ExpungeError: _with_details,
    TimeoutError: lambda error: [f"error: {error}"],
    BrokenPipeError: lambda _: [],
    OSError: _system,
    httpx.TransportError: lambda _: [_AWAY],
    httpx.InvalidURL: lambda error: [f"error: {error}"],
}
"""The first kind that fits decides."""
