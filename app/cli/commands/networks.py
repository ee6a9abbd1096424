"""``expunge model check``: whether a network of one's own will work, and with which mechanisms."""

import json
import subprocess
from typing import Annotated

import typer

from app.cli.commands.guarantees import parsed
from app.cli.connection import errors_in_words
from app.cli.output import wants_json
from app.domain.architecture import ArchitectureSpec
from app.domain.errors import InvalidInputError
from app.domain.extras import WORKER, require
from app.domain.schema import FeatureSchema
from app.processes.python import python_command


def check(
    factory: Annotated[
        str, typer.Argument(help="The factory's import path, as in a model's definition.")
    ],
    *,
    shape: Annotated[str, typer.Option(help="Shape of a record's features: 21, or 3,32,32.")],
    classes: Annotated[int, typer.Option(help="Number of classes.")],
    option: Annotated[
        list[str] | None,
        typer.Option(help="One of the architecture's options, NAME=VALUE; may be repeated."),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="The features' dtype: float32, float64 or uint8.")
    ] = "float32",
    scale: Annotated[
        float | None,
        typer.Option(help="The dataset's scale; by default 1/255 for uint8, else 1."),
    ] = None,
    vocabulary: Annotated[
        int | None, typer.Option(help="For tokens: how many different ones there are.")
    ] = None,
) -> None:
    """Try a network of your own on random records, mechanism by mechanism.

    It is built, trained and unlearned here as workers would do it, with all that its code raises
    shown in full. No service is needed. Exits with 1 if no mechanism works.
    """
    with errors_in_words():
        require("torch", extra=WORKER)
        options = parsed("--option", option)
        ArchitectureSpec("custom", options, factory)  # refuses a malformed path or option
        schema = FeatureSchema(
            shape=parsed_shape(shape),
            dtype=dtype if vocabulary is None else "int64",
            offset=0.0,
            scale=scale if scale is not None else 1 / 255 if dtype == "uint8" else 1.0,
            classes=classes,
            vocabulary=vocabulary,
        )
    order = {"factory": factory, "options": options, "schema": vars(schema), "json": wants_json()}
    done = subprocess.run(python_command("workers.checking", json.dumps(order)), check=False)
    raise typer.Exit(min(abs(done.returncode), 1))


def parsed_shape(text: str) -> tuple[int, ...]:
    """Parse the sides of a shape, or raise ``InvalidInputError``."""
    try:
        return tuple(int(side) for side in text.replace("x", ",").split(","))
    except ValueError as error:
        raise InvalidInputError(
            f"--shape {text}: expected whole numbers such as 21 or 3,32,32"
        ) from error
