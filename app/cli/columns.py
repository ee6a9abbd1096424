"""What a table's columns hold, and what they become, for people on a terminal."""

import numpy as np
import pyarrow as pa
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from app.domain.columns import CategoryColumn, Column, NumberColumn
from app.tables.cells import has_numbers, has_texts, kind_in_words, numbers_of, plain, texts_of
from app.tables.proposal import Proposal
from app.tables.sources import Source


def print_columns(source: Source) -> None:
    """Show each column's cells: type, number of different ones, number of missing ones."""
    typer.echo(f"{source.name}: {source.kind}, {source.table.num_rows} rows")
    table = Table("column", "holds", "different", "missing")
    for name in source.table.column_names:
        table.add_row(escape(name), *_held(plain(source.table[name])))
    Console().print(table)


def print_values(proposal: Proposal, *, err: bool = False) -> None:
    """Show what the columns become."""
    encoding = proposal.encoding
    table = Table("column", "becomes")
    for column in encoding.columns:
        table.add_row(escape(column.name), escape(_becomes(column, proposal)))
    names = ", ".join(map(str, encoding.label.classes[:100]))
    table.add_row(escape(encoding.label.name), escape(f"the label: classes {names}"))
    table.add_row(escape(encoding.record_id), "the records' ids")
    if encoding.subject_id is not None:
        table.add_row(escape(encoding.subject_id), "the persons' ids")
    for name in proposal.ignored:
        table.add_row(escape(name), "not read")
    Console(stderr=err).print(table)
    typer.echo(f"{encoding.width} features, {len(encoding.label.classes)} classes", err=err)


def _held(column: pa.Array) -> tuple[str, str, str]:
    kind = kind_in_words(column.type)
    if not has_texts(column.type):
        return kind, "", str(column.null_count)
    texts = texts_of(column)
    numbers = numbers_of(column) if has_numbers(column.type) else None
    if numbers is not None and kind == "text":
        fits = int((~numbers.faulty & ~numbers.missing).sum())
        if fits:
            kind = "numbers" if not numbers.faulty.any() else f"text, and {fits} numbers"
    missing = texts.missing if numbers is None else texts.missing | numbers.missing
    return kind, str(len(texts.distinct)), str(int(np.count_nonzero(missing)))


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
