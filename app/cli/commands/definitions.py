"""``expunge model create``: from a definition, or from a dataset and what is to be predicted."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.connection import service
from app.cli.files import json_file
from app.cli.options import Decimal, Delimiter, Encoding, argument, option
from app.cli.output import conclude, say
from app.cli.waiting import Wait, show_model
from app.domain.errors import InvalidInputError
from app.domain.schema import TableSchema


def create(
    definition: Annotated[
        str, argument("DEFINITION", "A definition's JSON file; with --dataset, the model's name.")
    ],
    *,
    dataset: Annotated[
        str | None, option("Propose a model of this dataset, in place of a file's.")
    ] = None,
    target: Annotated[
        str | None, option("The column to predict; by default the next token of a text.")
    ] = None,
    data: Annotated[
        list[Path] | None,
        option("A file of rows, such as the one that was pushed, for values and scales."),
    ] = None,
    features: Annotated[
        list[str] | None, option("The columns to read, separated by commas; by default all others.")
    ] = None,
    drop: Annotated[list[str] | None, option("Columns that are not read.")] = None,
    classes: Annotated[
        str | None,
        option("The classes' names, separated by commas; or their number if they are 0, 1…"),
    ] = None,
    regression: Annotated[
        bool, option("The target is a quantity, although its numbers are whole.", "--regression")
    ] = False,
    category: Annotated[
        list[str] | None,
        option(
            "A column's public values; * means all others, and missing ones.",
            metavar="COLUMN=VALUE,…",
        ),
    ] = None,
    bounds: Annotated[
        list[str] | None, option("Public bounds, which become 0 and 1.", metavar="COLUMN=LOW:HIGH")
    ] = None,
    missing: Annotated[
        list[str] | None,
        option("A public constant that replaces missing values.", metavar="COLUMN=VALUE"),
    ] = None,
    shape: Annotated[
        list[str] | None,
        option("The shape of an array or an image.", metavar="COLUMN=8,8"),
    ] = None,
    vocabulary: Annotated[
        int | None, option("Lists of numbers are tokens: whole numbers from 0 to below this.")
    ] = None,
    splines: Annotated[
        bool, option("Numbers become B-splines, of which a head makes curves.", "--splines")
    ] = False,
    architecture: Annotated[
        str, option("A network by its name, its factory's path, or a JSON file.")
    ] = "linear_head",
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
    accept_values: Annotated[
        bool,
        option(
            "The values and scales that are found in --data may be published.", "--accept-values"
        ),
    ] = False,
    dry_run: Annotated[bool, option("Only print the definition.", "--dry-run")] = False,
    wait: Wait = False,
) -> None:
    """Define a model and start its training.

    DEFINITION is a file as POST /v1/models takes it. With --dataset, the definition is proposed:
    the inputs from the columns of the dataset, values of text and scales from --data. It is
    printed and sent.
    """
    unconfirmed: Sequence[str] = ()
    with service() as client:
        if dataset is None:
            document = json_file(Path(definition))
        else:
            # Definitions in files need no pyarrow.
            from app.cli import altering, proposing  # noqa: PLC0415
            from app.registry.datasets.columns.delimited import Dialect  # noqa: PLC0415
            from app.registry.datasets.columns.reading import read_source  # noqa: PLC0415

            choices = proposing.choices_of(
                target=target,
                regression=regression,
                features=features,
                drop=drop,
                classes=classes,
                category=category,
                bounds=bounds,
                missing=missing,
                shape=shape,
                vocabulary=vocabulary,
                splines=splines,
            )
            schema = TableSchema.from_json(client.dataset(dataset))
            dialect = Dialect.of_options(delimiter, encoding, decimal)
            source = read_source(*data, dialect=dialect) if data else None
            proposal = proposing.proposal_of(schema, choices, source)
            unconfirmed = proposal.unconfirmed
            said = None if source is None else altering.not_learned(source, proposal.task)
            if said is not None:
                typer.echo(said, err=True)
            document = {
                "name": definition,
                "dataset": dataset,
                "task": proposal.task.to_json(),
                "architecture": _architecture(architecture),
            }
        if dry_run:
            say(json.dumps(document, indent=2, ensure_ascii=False))
            conclude(document)
            return
        if dataset is not None:
            typer.echo(json.dumps(document, indent=2, ensure_ascii=False), err=True)
        _require_consent(unconfirmed, accepted=accept_values)
        show_model(client, client.define_model(document), wait=wait)


def _architecture(text: str) -> dict[str, Any]:
    if text.endswith(".json"):
        return json_file(Path(text))
    return {"name": "custom", "factory": text} if ":" in text else {"name": text}


def _require_consent(unconfirmed: Sequence[str], *, accepted: bool) -> None:
    if accepted or not unconfirmed:
        return
    if sys.stdin.isatty() and sys.stderr.isatty():
        told = "The values and scales above will be published with each version. Go on?"
        if typer.confirm(told, err=True):
            return
    columns = ", ".join(map(repr, unconfirmed))
    raise InvalidInputError(
        f"the values or scales of {columns} above are the file's, and would be published with each "
        "version: look at them, then pass --accept-values, or give your own"
    )
