"""What a table's columns hold, and what they become, for people on a terminal."""

import numpy as np
import pyarrow as pa
import typer

from app.cli.output import print_table
from app.domain.columns import CategoryColumn, Column, NumberColumn
from app.registry.datasets.columns.cells import (
    has_numbers,
    has_texts,
    kind_in_words,
    numbers_of,
    plain,
    texts_of,
)
from app.registry.datasets.columns.proposal import Proposal
from app.registry.datasets.columns.sources import Source


def print_columns(source: Source) -> None:
    """Show each column's cells: type, number of different ones, number of missing ones."""
    typer.echo(f"{source.name}: {source.kind}, {source.table.num_rows} rows")
    names = source.table.column_names
    print_table([{"column": name} | _held(plain(source.table[name])) for name in names])


def print_values(proposal: Proposal, *, err: bool = False) -> None:
    """Show what the columns become."""
    encoding = proposal.encoding
    names = ", ".join(map(str, encoding.label.classes[:100]))
    rows = [
        *((column.name, _becomes(column, proposal)) for column in encoding.columns),
        (encoding.label.name, f"the label: classes {names}"),
        (encoding.record_id, "the records' ids"),
        (encoding.subject_id, "the persons' ids"),
        *((name, "not read") for name in proposal.ignored),
    ]
    print_table([{"column": name, "becomes": what} for name, what in rows if name], err=err)
    typer.echo(f"{encoding.width} features, {len(encoding.label.classes)} classes", err=err)


def _held(column: pa.Array) -> dict[str, object]:
    kind = kind_in_words(column.type)
    if not has_texts(column.type):
        return {"holds": kind, "different": None, "missing": column.null_count}
    texts = texts_of(column)
    numbers = numbers_of(column) if has_numbers(column.type) else None
    if numbers is not None and kind == "text":
        fits = int((~numbers.faulty & ~numbers.missing).sum())
        if fits:
            kind = "numbers" if not numbers.faulty.any() else f"text, and {fits} numbers"
    missing = texts.missing if numbers is None else texts.missing | numbers.missing
    count = int(np.count_nonzero(missing))
    return {"holds": kind, "different": len(texts.distinct), "missing": count}


def _becomes(column: Column, proposal: Proposal) -> str:
    match column:
        case NumberColumn():
            parts = ["a number"]
            if column.low is not None:
                parts.append(f"from {column.low:g}…{column.high:g} to 0…1")
            if column.missing is not None:
                parts.append(f"{column.missing:g} where missing")
            return ", ".join(parts)
        case CategoryColumn():
            other = ", and one for all others" if column.other else ""
            confirm = " (to be confirmed)" if column.name in proposal.unconfirmed else ""
            return f"a feature each for {', '.join(column.values)}{other}{confirm}"
        case _:
            return f"{column.width} numbers, shape {list(column.shape)}, {column.dtype}"
