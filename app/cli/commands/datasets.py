"""``expunge dataset``: tables are read here, and only what the dataset keeps is sent."""

import csv
import json
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import httpx
import typer

from app.cli.columns import print_columns, print_values
from app.cli.commands.resources import DatasetName
from app.cli.connection import service
from app.cli.files import json_file
from app.cli.options import (
    Decimal,
    Delimiter,
    Encoding,
    argument,
    existing_file,
    option,
    with_options_of,
)
from app.cli.output import show, wants_json
from app.cli.pushing import push_parts, warn_of_notations
from app.client import ApiError, ExpungeClient
from app.client.answers import Json
from app.domain.columns import normal_text
from app.domain.encoding import TableEncoding
from app.domain.errors import ConflictError, InvalidInputError
from app.domain.table_schema import TableSchema
from app.registry.datasets.columns.choices import Choices, Listed, number_of
from app.registry.datasets.columns.delimited import Dialect
from app.registry.datasets.columns.parts import (
    encoded_parts,
    encoding_of,
    is_upload_form,
    typed_parts,
)
from app.registry.datasets.columns.proposal import Proposal, proposed
from app.registry.datasets.columns.reading import read_source
from app.registry.datasets.columns.sources import Source

_PAIR = re.compile(r'(?:"([^"]+)"|([^=]+))=(.*)', re.DOTALL)
T = TypeVar("T")

Table = Annotated[
    list[Path],
    argument("FILE", "CSV, Parquet, Arrow or npz files, or folders of them.", exists=True),
]
Drop = Annotated[list[str] | None, option("Columns that are not read, separated by commas.")]
Subject = Annotated[
    str | None, option("The column of the persons' ids; by default 'subject_id', if present.")
]
RecordId = Annotated[
    str | None, option("The column of the records' ids; by default 'record_id', or pandas' index.")
]


class _Asked(NamedTuple):
    """A table, what the user says about its columns, and the file that says it instead."""

    source: Source
    choices: Choices
    mapping: Path | None


def _read(
    file: Table,
    *,
    label: Annotated[str | None, option("The label's column; by default 'label'.")] = None,
    features: Annotated[
        list[str] | None, option("The feature columns, separated by commas; by default all others.")
    ] = None,
    drop: Drop = None,
    subject: Subject = None,
    record_id: RecordId = None,
    classes: Annotated[
        str | None,
        option("The classes' names, separated by commas; or their number if they are 0, 1…"),
    ] = None,
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
    vocabulary: Annotated[
        int | None, option("Lists of numbers are tokens: whole numbers from 0 to below this.")
    ] = None,
    mapping: Annotated[
        Path | None, existing_file("A JSON file with all of that; see 'inspect'.")
    ] = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
) -> _Asked:
    """Read a table, as the options of all commands on one say."""
    is_count = classes is not None and classes.isdecimal()
    choices = Choices(
        label=label,
        record_id=record_id,
        subject_id=subject,
        features=_listed(features),
        drop=_listed(drop),
        classes=() if classes is None or is_count else _listed([classes]),
        class_count=int(classes) if classes is not None and is_count else None,
        categories=_by_column("--category", category, _category),
        bounds=_by_column("--bounds", bounds, _bounds),
        missing=_by_column("--missing", missing, normal_text),
        vocabulary=vocabulary,
    )
    source = read_source(*file, dialect=Dialect.of_options(delimiter, encoding, decimal))
    return _Asked(source, choices, mapping)


@with_options_of(_read, "read")
def push(
    name: DatasetName,
    read: Callable[[], _Asked],
    *,
    accept_values: Annotated[
        bool,
        option(
            "For a new dataset: the values that 'inspect' lists for its categories and label "
            "may be published.",
            "--accept-values",
        ),
    ] = False,
    offset: Annotated[
        float, option("For a new dataset: models see (feature - offset) * scale.")
    ] = 0.0,
    scale: Annotated[
        float | None, option("For a new dataset: see --offset; by default 1/255 for uint8, else 1.")
    ] = None,
    public: Annotated[
        bool,
        option(
            "For a new dataset: you assert that nobody can ask for its records to be forgotten.",
            "--public",
        ),
    ] = False,
    replace: Annotated[
        bool,
        option("Changed records take the place of those stored, which are forgotten.", "--replace"),
    ] = False,
) -> None:
    """Push the records of FILE to DATASET, which is defined if it is new.

    New records are added, equal ones are left, changed ones are named and left, or replaced with
    --replace. The dataset's definition, from its first push, says how all later files are read.
    """
    with service() as client:
        source, choices, mapping = read()
        existing = _existing(client, name)
        if existing is not None and existing["columns"] is not None:
            if choices != Choices() or mapping is not None:
                raise ConflictError(
                    f"dataset {name!r} consists of columns, whose types its definition says: leave "
                    "out the options about features; see 'expunge dataset show'"
                )
            schema = TableSchema.from_json(existing)
            warn_of_notations(source, schema.record_id, schema.subject_id)
            show(push_parts(client, name, source, typed_parts(source, schema), replace=replace))
            return
        if existing is None:
            proposal = _proposal(source, choices, mapping)
            _require_consent(proposal, accepted=accept_values)
            rule = proposal.encoding
        else:
            rule = encoding_of(existing, source)
            _require_agreement(name, rule, choices, mapping)
            if public and not existing["public"]:
                raise ConflictError(
                    f"dataset {name!r} is not public, and never becomes so: push to another"
                )
        parts = encoded_parts(source, rule)
        warn_of_notations(source, rule.record_id, rule.subject_id)
        if existing is None:
            _define(client, name, rule, offset, scale, public=public)
        try:
            show(push_parts(client, name, source, parts, replace=replace))
        except BaseException:
            if existing is None:  # a first push that fails leaves nothing behind
                with suppress(ApiError, httpx.TransportError):
                    client.delete_dataset(name)
            raise


@with_options_of(_read, "read")
def inspect(
    read: Callable[[], _Asked],
    *,
    write_mapping: Annotated[
        Path | None,
        option("Output file for --mapping, to look through and change.", dir_okay=False),
    ] = None,
) -> None:
    """Show what 'dataset push' would understand of FILE; sends nothing."""
    source, choices, mapping = read()
    if not wants_json():
        print_columns(source)
    proposal = _proposal(source, choices, mapping)
    rule = proposal.encoding
    warn_of_notations(source, rule.record_id, rule.subject_id)
    if wants_json():
        show(
            {
                "rows": source.table.num_rows,
                "encoding": rule.to_json(),
                "unconfirmed": proposal.unconfirmed,
                "ignored": proposal.ignored,
            }
        )
    else:
        print_values(proposal)
    if write_mapping is not None:
        write_mapping.write_bytes(json.dumps(rule.to_json(), indent=1, ensure_ascii=False).encode())
    encoded_parts(source, rule)


def _existing(client: ExpungeClient, name: str) -> Json | None:
    try:
        return client.dataset(name)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def _proposal(source: Source, choices: Choices, mapping: Path | None) -> Proposal:
    if mapping is None:
        return proposed(source, choices)
    if choices != Choices():
        raise InvalidInputError("--mapping says what all columns are; leave out the other options")
    encoding = TableEncoding.from_json(json_file(mapping))
    used = {column.name for column in encoding.columns}
    used |= {encoding.label.name, encoding.record_id, encoding.subject_id or ""}
    ignored = [name for name in source.table.column_names if name not in used]
    return Proposal(encoding, [], ignored)


def _require_consent(proposal: Proposal, *, accepted: bool) -> None:
    if accepted or not proposal.unconfirmed:
        return
    if sys.stdin.isatty() and sys.stderr.isatty():
        print_values(proposal, err=True)
        if typer.confirm("The listed values will be published with each model. Go on?", err=True):
            return
    columns = ", ".join(map(repr, proposal.unconfirmed))
    raise InvalidInputError(
        f"the listed values of {columns} would be published with each model: look at them with "
        "'expunge dataset inspect', then pass --accept-values, or list them with --category"
    )


def _require_agreement(
    name: str, encoding: TableEncoding, choices: Choices, mapping: Path | None
) -> None:
    option = choices.contradicts(encoding)
    if mapping is not None and TableEncoding.from_json(json_file(mapping)) != encoding:
        option = "--mapping"
    if option is not None:
        raise ConflictError(
            f"{option} contradicts the definition of dataset {name!r}, which its first push fixed; "
            "see 'expunge dataset show'"
        )


def _define(
    client: ExpungeClient,
    name: str,
    encoding: TableEncoding,
    offset: float,
    scale: float | None,
    *,
    public: bool,
) -> None:
    default = 1 / 255 if encoding.dtype == "uint8" else 1.0
    features: Json = {
        "shape": list(encoding.shape),
        "dtype": encoding.dtype,
        "offset": offset,
        "scale": default if scale is None else scale,
        "vocabulary": encoding.vocabulary,
    }
    client.define_dataset(
        name,
        features=features,
        classes=len(encoding.label.classes),
        encoding=None if is_upload_form(encoding) else encoding.to_json(),
        public=public,
    )


def _listed(texts: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(normal_text(name) for row in csv.reader(texts or ()) for name in row)


def _by_column(
    option: str, texts: Sequence[str] | None, value_of: Callable[[str], T]
) -> dict[str, T]:
    pairs = [_PAIR.fullmatch(text) for text in texts or ()]
    if None in pairs:
        raise InvalidInputError(f"{option} must have the form COLUMN=…")
    return {normal_text(pair[1] or pair[2]): value_of(pair[3]) for pair in pairs if pair}


def _category(text: str) -> Listed:
    values = _listed([text])
    return Listed(values=tuple(v for v in values if v != "*"), other="*" in values)


def _bounds(text: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    return number_of(low, f"--bounds …={text}"), number_of(high, f"--bounds …={text}")
