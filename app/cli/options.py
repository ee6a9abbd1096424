"""Options and arguments of commands; some are those of several."""

import csv
import functools
import inspect
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from app.domain.columns import normal_text
from app.domain.errors import InvalidInputError


def option(says: str, *names: str, **more: Any) -> Any:  # noqa: ANN401 - as typer.Option
    """Return an option with its help, under other names than its parameter's if there are some."""
    return typer.Option(*names, help=says, **more)


def argument(shown: str, says: str, **more: Any) -> Any:  # noqa: ANN401 - as typer.Argument
    """Return an argument with its help; ``shown`` is what a command line's usage calls it."""
    return typer.Argument(metavar=shown, help=says, **more)


def existing_file(says: str) -> Any:  # noqa: ANN401 - as typer.Option
    """Return an option that names a file which is there, with its help."""
    return option(says, exists=True, dir_okay=False)


def with_options_of(made: Callable[..., object], name: str) -> Callable[..., Callable[..., None]]:
    """Return what gives a command a function's options in place of the parameter of this name.

    The command gets the function, ready to be called with what these options were.
    """
    own = inspect.signature(made).parameters

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**options: Any) -> None:  # noqa: ANN401
            given = {each: options.pop(each) for each in own}
            command(**options, **{name: functools.partial(made, **given)})

        signature = inspect.signature(command)
        groups = (
            own.values() if each.name == name else (each,) for each in signature.parameters.values()
        )
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*chain.from_iterable(groups)]
        )
        run.__annotations__ = command.__annotations__ | made.__annotations__ | {"return": None}
        return run

    return decorated


def listed(texts: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names in an option that lists them, separated by commas."""
    return tuple(normal_text(name) for row in csv.reader(texts or ()) for name in row)


def whole_numbers(name: str, text: str) -> tuple[int, ...]:
    """Return the whole numbers in an option, such as 4,8 or 3x32x32.

    Raises:
        InvalidInputError: it has others; ``name`` is the option's.
    """
    try:
        return tuple(int(each) for each in text.replace("x", ",").split(","))
    except ValueError as error:
        raise InvalidInputError(
            f"{name} {text}: expected whole numbers such as 21 or 3,32,32"
        ) from error


Trusted = Annotated[
    Path | None,
    existing_file("The operator's trusted-keys.json; by default the one from 'expunge init' here."),
]


Delimiter = Annotated[
    str | None, option("For CSV; by default found in the first line. 'tab' for tabs.")
]
Encoding = Annotated[str | None, option("For CSV, such as cp1252; by default UTF-8, or as marked.")]
Decimal = Annotated[str, option("For CSV: the decimal sign, a point or a comma.")]
