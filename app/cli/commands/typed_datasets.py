"""``expunge dataset create`` and ``columns``: datasets whose records are rows of typed columns."""

import csv
import json
from pathlib import Path
from typing import Annotated

from app.cli.commands.datasets import Drop, RecordId, Subject, Table
from app.cli.commands.resources import DatasetName
from app.cli.connection import service
from app.cli.files import json_file
from app.cli.options import Decimal, Delimiter, Encoding, existing_file, option
from app.cli.output import print_table, show, wants_json
from app.domain.columns import normal_text
from app.domain.errors import InvalidInputError
from app.domain.table_schema import TableSchema
from app.registry.datasets.columns.column_types import proposed_schema
from app.registry.datasets.columns.delimited import Dialect
from app.registry.datasets.columns.reading import read_source


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
    public: Annotated[
        bool, option("You assert that nobody can ask for its records to be forgotten.", "--public")
    ] = False,
) -> None:
    """Define DATASET as a table of typed columns.

    'dataset push' then takes files with these columns, of these types.
    """
    with service() as client:
        show(client.define_columns(name, **_read(columns).to_json(), public=public))


def columns(
    file: Table,
    *,
    record_id: RecordId = None,
    subject: Subject = None,
    drop: Drop = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
    write: Annotated[
        Path | None, option("Output file for 'create --columns', to look through.", dir_okay=False)
    ] = None,
) -> None:
    """Show the types of FILE's columns; sends nothing."""
    source = read_source(*file, dialect=Dialect.of_options(delimiter, encoding, decimal))
    dropped = [normal_text(each) for row in csv.reader(drop or ()) for each in row]
    schema = proposed_schema(source, record_id=record_id, subject_id=subject, drop=dropped)
    if wants_json():
        show({"rows": source.table.num_rows, **schema.to_json()})
    else:
        _print(schema)
    if write is not None:
        write.write_bytes(json.dumps(schema.to_json(), indent=1, ensure_ascii=False).encode())


def _read(file: Path) -> TableSchema:
    content = json_file(file)
    known = {"columns", "record_id", "subject_id"}
    if not set(content) <= known or "columns" not in content:
        raise InvalidInputError(f"{file} must hold an object with {', '.join(sorted(known))}")
    types, record_id = content["columns"], content.get("record_id")
    subject_id = content.get("subject_id")
    if (
        not isinstance(types, dict)
        or not all(isinstance(each, str) for each in types.values())
        or not isinstance(record_id, str)
        or not isinstance(subject_id, str | None)
    ):
        raise InvalidInputError(
            f"{file}: columns is an object of names and types, record_id and subject_id are names"
        )
    return TableSchema.of(types, record_id=record_id, subject_id=subject_id)


def _print(schema: TableSchema) -> None:
    ids = ((schema.record_id, "the records' ids"), (schema.subject_id, "the persons' ids"))
    print_table([{"column": n, "type": str(kind)} for n, kind in (*schema.columns, *ids) if n])
