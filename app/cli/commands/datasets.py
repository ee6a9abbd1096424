"""``expunge dataset``: tables are read here, and only what the dataset keeps is sent."""

import json
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from app.cli.altering import learners, meanings, not_learned
from app.cli.commands.resources import DatasetName
from app.cli.connection import service
from app.cli.files import json_file
from app.cli.options import (
    Decimal,
    Delimiter,
    Encoding,
    argument,
    existing_file,
    listed,
    option,
    with_options_of,
)
from app.cli.output import print_table, printable, show, wants_json
from app.cli.proposing import by_column
from app.cli.pushing import new_dataset, push_table
from app.client import ApiError, ExpungeClient
from app.client.answers import Json
from app.domain.errors import ConflictError, InvalidInputError, TableError
from app.domain.schema import TableSchema
from app.registry.datasets.columns.column_types import proposed_schema
from app.registry.datasets.columns.delimited import Dialect
from app.registry.datasets.columns.reading import read_source
from app.registry.datasets.columns.sources import Source, check_rows

Table = Annotated[
    list[Path],
    argument("FILE", "CSV, Parquet, Arrow or npz files, or folders of them.", exists=True),
]
Drop = Annotated[list[str] | None, option("Columns that are not kept, separated by commas.")]
Text = Annotated[
    list[str] | None, option("Columns of a CSV that are kept as text, whatever they look like.")
]
Public = Annotated[
    bool, option("You assert that nobody can ask for its records to be forgotten.", "--public")
]


class Asked(NamedTuple):
    """A table, and what the user says about its columns."""

    source: Source
    record_id: str | None
    subject_id: str | None
    drop: tuple[str, ...]
    text: tuple[str, ...]

    def schema(self, held: TableSchema | None = None) -> TableSchema:
        """Read all rows; return the columns of a dataset that takes them."""
        ids = held or self
        return proposed_schema(
            self.source,
            record_id=ids.record_id,
            subject_id=ids.subject_id,
            drop=self.drop,
            text=self.text,
            held=held,
        )


def asked_table(
    file: Table,
    *,
    record_id: Annotated[
        str | None,
        option("The column of the records' ids; by default 'record_id', or pandas' index."),
    ] = None,
    subject_id: Annotated[
        str | None, option("The column of the persons' ids; by default 'subject_id', if present.")
    ] = None,
    drop: Drop = None,
    text: Text = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
) -> Asked:
    """Read a table, as the options of all commands on one say."""
    source = read_source(*file, dialect=Dialect.of_options(delimiter, encoding, decimal))
    return Asked(source, record_id, subject_id, listed(drop), listed(text))


@with_options_of(asked_table, "read")
def push(
    name: DatasetName,
    read: Callable[[], Asked],
    *,
    public: Public = False,
    replace: Annotated[
        bool,
        option("Changed records take the place of those stored, which are forgotten.", "--replace"),
    ] = False,
    alter: Annotated[
        bool,
        option("New columns of FILE are added, and types that are too narrow widened.", "--alter"),
    ] = False,
) -> None:
    """Push the records of FILE to DATASET, which is defined if it is new.

    A new dataset keeps the columns of FILE, each with the type of its cells; 'dataset columns'
    shows them. New records are added, equal ones are left, changed ones are named and left, or
    replaced with --replace. With --alter, what it means for each model is printed first.
    """
    with service() as client:
        asked = read()
        existing = existing_dataset(client, name)
        schema = held = asked.schema() if existing is None else _schema_of(existing, asked)
        if public and existing is not None and not existing["public"]:
            raise ConflictError(
                f"dataset {name!r} is not public, and never becomes so: push to another"
            )
        if existing is not None:
            models = learners(client, name)
            if alter:
                schema = asked.schema(held)
                _tell(meanings(models, held, schema, asked.source))
            needed = schema.requiring({each for model in models for each in model.task.required})
            try:
                check_rows(asked.source, needed)
            except TableError:
                _tell(
                    f"rows need a value in {each!r}, for which a model's task has no rule 'missing'"
                    for each, _ in needed.columns
                    if (each, _) not in schema.columns
                )
                raise
            if absent := [each for each in schema.names if each not in asked.source.types]:
                _tell([f"not in {asked.source.name}, and so without values: {', '.join(absent)}"])
            for model in models:
                said = not_learned(asked.source, model.task)
                if said is not None:
                    _tell([f"{model.name}: {said}"])
            _send(client, name, held, schema)
        with ExitStack() as undone:
            if existing is None:
                undone.enter_context(new_dataset(client, name, schema, public=public))
            show(push_table(client, name, asked.source, schema, replace=replace))


@with_options_of(asked_table, "read")
def columns(
    read: Callable[[], Asked],
    *,
    write: Annotated[
        Path | None, option("Output file for 'create --columns', to look through.", dir_okay=False)
    ] = None,
) -> None:
    """Show the types of FILE's columns; sends nothing."""
    asked = read()
    schema = asked.schema()
    if wants_json():
        show({"rows": asked.source.rows, **schema.to_json()})
    else:
        ids = ((schema.record_id, "the records' ids"), (schema.subject_id, "the persons' ids"))
        print_table([{"column": n, "type": str(kind)} for n, kind in (*schema.columns, *ids) if n])
    if write is not None:
        write.write_bytes(json.dumps(schema.to_json(), indent=1, ensure_ascii=False).encode())


def create(
    name: DatasetName,
    *,
    columns: Annotated[
        Path,
        existing_file(
            "A JSON file with the columns' types and the names of the ids' columns, as "
            "'dataset columns --write' makes it."
        ),
    ],
    public: Public = False,
) -> None:
    """Define DATASET by the types of its columns, where those of a first file are too narrow."""
    content = json_file(columns)
    known = {"columns", "record_id", "subject_id"}
    if not set(content) <= known or "columns" not in content:
        raise InvalidInputError(f"{columns} must hold an object with {', '.join(sorted(known))}")
    types, record_id = content["columns"], content.get("record_id")
    subject_id = content.get("subject_id")
    if (
        not isinstance(types, dict)
        or not all(isinstance(each, str) for each in types.values())
        or not isinstance(record_id, str)
        or not isinstance(subject_id, str | None)
    ):
        raise InvalidInputError(
            f"{columns}: columns is an object of names and types, record_id and subject_id are "
            "names"
        )
    schema = TableSchema.of(types, record_id=record_id, subject_id=subject_id)
    with service() as client:
        show(client.define_dataset(name, **schema.to_json(), public=public))


def alter(
    name: DatasetName,
    *,
    column: Annotated[
        list[str],
        option("A new column, or one that is widened: COLUMN=TYPE, such as 'tenure=int16?'."),
    ],
) -> None:
    """Add columns to DATASET and widen types; what it means for each model is printed first.

    A new column allows rows without a value: '?'. An int may become a wider int or float64, float32
    may become float64, and any column may get '?'. Nothing else changes.
    """
    with service() as client:
        held = TableSchema.from_json(client.dataset(name))
        schema = held.altered(by_column("--column", column, str.strip))
        _tell(meanings(learners(client, name), held, schema))
        show(_send(client, name, held, schema) or client.dataset(name))


def _tell(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(printable(line), err=True)


def _send(client: ExpungeClient, name: str, held: TableSchema, schema: TableSchema) -> Json | None:
    """Have a dataset altered, if it has to be."""
    columns = {each: str(kind) for each, kind in set(schema.columns) - set(held.columns)}
    return client.alter_dataset(name, columns) if columns else None


def existing_dataset(client: ExpungeClient, name: str) -> Json | None:
    """Return a dataset, also an archived one; None if there is none of this name."""
    try:
        return client.dataset(name)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def _schema_of(existing: Json, asked: Asked) -> TableSchema:
    """Return a dataset's schema; ``ConflictError`` if an option says something else."""
    schema = TableSchema.from_json(existing)
    said = (
        ("--record-id", asked.record_id, (None, schema.record_id)),
        ("--subject-id", asked.subject_id, (None, schema.subject_id)),
        *(("--drop", each, ({each} - set(schema.names))) for each in asked.drop),
    )
    for option_, choice, allowed in said:
        if choice not in allowed:
            raise ConflictError(
                f"{option_} contradicts the definition of dataset {existing['name']!r}; see "
                "'expunge dataset show'"
            )
    return schema
