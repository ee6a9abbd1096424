"""Commands that use a downloaded model: predictions, and its export to other runtimes."""

import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from app.cli.options import Decimal, Delimiter, Encoding, Trusted, argument, existing_file, option
from app.client.published import PublishedFile, head_outputs, read_published
from app.domain.errors import InvalidInputError
from app.domain.extras import ONNX, TABLES, TORCH, loaded

Weights = Annotated[
    list[Path],
    argument(
        "FILE",
        "A downloaded safetensors file; of several versions of a model the newest counts.",
        exists=True,
        dir_okay=False,
    ),
]
_VERSION: Final = re.compile(r"(.*)-v([0-9]+)\.safetensors", re.DOTALL)
Certificate = Annotated[
    Path | None, existing_file("Its certificate; by default the one beside it.")
]
Check = Annotated[bool, option("Whether to check the certificate first.", "--check/--no-check")]
Factories = Annotated[
    list[str] | None,
    option(
        "A factory or task that FILE may name, as package.module:name; may be repeated. It "
        "is found through PYTHONPATH.",
        "--factory",
    ),
]

Base = Annotated[
    Path | None,
    existing_file(
        "The safetensors file of an uploaded backbone whose weights FILE's network keeps frozen."
    ),
]


class ExportFormat(StrEnum):
    """What a model can be exported as."""

    ONNX = "onnx"


def predict(
    weights: Weights,
    *,
    source: Annotated[
        Path,
        option(
            "A table as it is pushed, in a file or a folder; it needs no target.",
            "--input",
            exists=True,
        ),
    ],
    out: Annotated[Path, option("The Parquet file to write.")],
    certificate: Certificate = None,
    trusted: Trusted = None,
    check: Check = True,
    factory: Factories = None,
    base: Base = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
) -> None:
    """Predict each row of a table with a downloaded model.

    The output has the row's record id, if the input has one, and what the model's task predicts:
    a class or labels with their probabilities, one number for each target, or the next token.
    """
    outputs: Any = loaded("app.registry.datasets.columns.outputs", extra=TABLES)
    reading: Any = loaded("app.registry.datasets.columns.reading", extra=TABLES)
    file = _newest(weights)
    published = read_published(file, certificate=certificate, trusted=trusted, check=check)
    _say_unchecked(published)
    dialect = reading.Dialect.of_options(delimiter, encoding, decimal)
    files = reading.read_source(source, dialect=dialect)
    rows = files.whole()
    with files.places():
        predictions = _predictions(published, rows, factories=factory or [], base=base)
    outputs.write_predictions(out, rows, predictions, published.description)
    typer.echo(f"{out}: {len(predictions)} predictions")


def _predictions(
    published: PublishedFile, table: object, *, factories: list[str], base: Path | None
) -> Any:  # noqa: ANN401 - pyarrow.Table
    if not published.is_plain_head:
        modules: Any = loaded("workers.training.published.model", extra=TORCH)
        model = modules.assembled(published, factories=factories, base=base)
        return model.predict(table)
    heads: Any = loaded("app.registry.datasets.columns.outputs", extra=TABLES)
    inputs = heads.inputs_of(table, published.description)
    outputs = head_outputs(published, inputs)
    return heads.predictions_of(published.description, outputs, inputs)


def export(
    weights: Weights,
    *,
    out: Annotated[Path, option("The file to write.")],
    to: Annotated[ExportFormat, option("What to write.", "--format")] = (ExportFormat.ONNX),
    certificate: Certificate = None,
    trusted: Trusted = None,
    check: Check = True,
    factory: Factories = None,
    base: Base = None,
) -> None:
    """Write a downloaded model for another runtime: raw features in, the network's outputs out.

    The exported file is not the certificate's subject; keep FILE and its certificate with it.
    """
    if to is not ExportFormat.ONNX:
        raise InvalidInputError(f"unknown format {to}")
    modules: Any = loaded("workers.training.published.model", extra=ONNX)
    exporting: Any = loaded("workers.training.published.onnx_export", extra=ONNX)
    file = _newest(weights)
    published = read_published(file, certificate=certificate, trusted=trusted, check=check)
    _say_unchecked(published)
    model = modules.assembled(published, factories=factory or [], base=base)
    exporting.export(model, out)
    typer.echo(out)


def _newest(files: Sequence[Path]) -> Path:
    """Return the newest of a model's versions, as a pattern of a folder's files names them."""
    found = [(_VERSION.fullmatch(each.name), each) for each in files]
    numbers = {int(match[2]): each for match, each in found if match}
    models = {match[1] if match else str(each) for match, each in found}
    if len(models) > 1:
        raise InvalidInputError("these files are not versions of one model: name one")
    return numbers[max(numbers)] if numbers else files[0]


def _say_unchecked(published: PublishedFile) -> None:
    if published.predicate is None:
        typer.secho("the certificate was not checked", fg="yellow", err=True)
