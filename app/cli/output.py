"""What commands print: tables and words for people, JSON for programs.

``show`` prints an answer of the service: a table on a terminal, else JSON. Commands that tell what
they do print lines with ``say``, and the same facts at their end with ``conclude``. With ``--json``
both print nothing but one JSON document. Errors and progress go to standard error.
"""

import functools
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Annotated, Any

import typer
from rich.cells import cell_len, set_cell_size

from app.cli.options import option
from app.domain.errors import VerificationError

_JSON: ContextVar[bool] = ContextVar("json", default=False)
_FRACTION = re.compile(r"(?<=:\d\d)\.\d+(?=Z|[+-]\d\d:)")
_ABSENT = "–"
_ONLY_IN_JSON = {"plan", "links", "phase_seconds"}


def with_json(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that also has the option ``--json``."""

    @functools.wraps(command)
    def run(*arguments: Any, as_json: bool, **options: Any) -> None:  # noqa: ANN401
        token = _JSON.set(as_json)
        try:
            command(*arguments, **options)
        finally:
            _JSON.reset(token)

    json_option = Annotated[bool, option("Print JSON, also on a terminal.", "--json")]
    kind = inspect.Parameter.KEYWORD_ONLY
    added = inspect.Parameter("as_json", kind, default=False, annotation=json_option)
    signature = inspect.signature(command)
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), added]
    )
    run.__annotations__ = {**command.__annotations__, "as_json": json_option}
    return run


def wants_json() -> bool:
    """Return whether the command was called with ``--json``."""
    return _JSON.get()


def say(line: str, **style: Any) -> None:  # noqa: ANN401 - as of typer.secho
    """Print a line for people."""
    if not _JSON.get():
        typer.secho(printable(line, keep="\n"), **style)


def conclude(facts: object) -> None:
    """Print what a command has found if it was asked for JSON: people have the lines."""
    if _JSON.get():
        _print_json(facts)


@contextmanager
def checked_steps(width: int) -> Iterator[tuple[list[dict[str, str]], Callable[[str, str], None]]]:
    """Offer a list of steps that hold, and what adds one and prints it, its name in ``width``.

    A ``VerificationError`` is told as the step that fails, and ends the command with 1.
    """
    steps: list[dict[str, str]] = []

    def tell(name: str, finding: str) -> None:
        steps.append({"step": name, "finding": finding})
        say(f"{len(steps)}. ok    {name:<{width}} {finding}")

    try:
        yield steps, tell
    except VerificationError as error:
        say(f"{len(steps) + 1}. FAIL  {error}", fg="red")
        conclude({"holds": False, "steps": steps, "failure": str(error)})
        raise typer.Exit(1) from error


def fail(line: str) -> None:
    """Print an error, or with leading blanks more about it."""
    typer.secho(printable(line), fg=None if line.startswith(" ") else "red", err=True)


def show(
    answer: object,
    columns: Sequence[str] = (),
    *,
    derived: Mapping[str, Callable[[Mapping[str, Any]], object]] = MappingProxyType({}),
) -> None:
    """Print an answer of the service.

    Args:
        answer: an object, or a list of objects.
        columns: the members of a list's objects that a table shows; dots lead to inner ones.
        derived: columns of a table that are worked out from an object.
    """
    if _JSON.get() or not _is_terminal():
        _print_json(answer)
    elif isinstance(answer, list):
        rows = [{**row, **{name: of(row) for name, of in derived.items()}} for row in answer]
        print_table(rows, columns)
    else:
        _print_object(answer)


def printable(text: str, *, keep: str = "") -> str:
    """Return a text without characters that would control a terminal."""
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def _print_json(document: object) -> None:
    typer.echo(json.dumps(document, indent=2))


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _print_object(answer: Any) -> None:  # noqa: ANN401 - whatever the service answers
    """Print a line for each member but tables; lines are not wrapped, so that one can copy them."""
    flat: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    for name, value in _flattened(answer):
        is_table = isinstance(value, list) and any(isinstance(item, Mapping) for item in value)
        (tables if is_table else flat)[name] = value
    width = max(map(len, flat), default=0)
    for name, value in flat.items():
        typer.echo(f"{name:<{width}}  {_cell(name, value)}")
    for name, rows in tables.items():
        typer.echo(f"\n{name}:")
        print_table(rows)


def print_table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = (), *, err: bool = False
) -> None:
    """Print a table; by default it has a column for each member, and goes to standard output."""
    if not rows:
        typer.echo("none", err=True)
        return
    flat = [dict(_flattened(row)) for row in rows]
    found = dict.fromkeys(name for row in flat for name in row)
    absent = {name for name in found if any(other.startswith(f"{name}.") for other in found)}
    names = columns or [name for name in found if name not in absent]  # an object in other rows
    headings = [name.replace(".", " ").replace("_", " ") for name in names]
    lines = [headings, *([_cell(name, row.get(name)) for name in names] for row in flat)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        # Never cut or folded: ids are there to be copied.
        padded = (set_cell_size(cell, width) for cell, width in zip(line, widths, strict=True))
        typer.secho("  ".join(padded).rstrip(), bold=True if number == 0 else None, err=err)


def _flattened(document: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield each member that is not an object, under a dotted name."""
    for name, value in document.items():
        if name in _ONLY_IN_JSON:
            continue
        if isinstance(value, Mapping) and value:
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _cell(name: str, value: object) -> str:
    if value is None or value in ({}, []):
        return _ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(_cell(name, item) for item in value)
    text = printable(str(value))
    return _FRACTION.sub("", text) if name.endswith("_at") else text
