"""What the command line's options say of a model's task, and the task that follows."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pyarrow as pa

from app.cli.options import listed, whole_numbers
from app.domain.columns import normal_text
from app.domain.errors import InvalidInputError
from app.domain.schema import TableSchema
from app.registry.datasets.columns.proposal import Choices, Listed, Proposal, proposed
from app.registry.datasets.columns.sources import Source, check_rows, typed_parts

_PAIR = re.compile(r'(?:"([^"]+)"|([^=]+))=(.*)', re.DOTALL)
T = TypeVar("T")
Texts = Sequence[str] | None


def choices_of(
    *,
    target: str | None,
    regression: bool,
    features: Texts,
    drop: Texts,
    classes: str | None,
    category: Texts,
    bounds: Texts,
    missing: Texts,
    shape: Texts,
    vocabulary: int | None,
    splines: bool,
) -> Choices:
    """Return what options say, or raise ``InvalidInputError``."""
    is_count = classes is not None and classes.isdecimal()
    return Choices(
        target=target,
        regression=regression,
        features=listed(features),
        drop=listed(drop),
        classes=() if classes is None or is_count else listed([classes]),
        class_count=int(classes) if classes is not None and is_count else None,
        categories=by_column("--category", category, _category),
        bounds=by_column("--bounds", bounds, _bounds),
        missing=by_column("--missing", missing, normal_text),
        shapes=by_column("--shape", shape, partial(whole_numbers, "--shape …")),
        vocabulary=vocabulary,
        splines=splines,
    )


def proposal_of(schema: TableSchema, choices: Choices, source: Source | None) -> Proposal:
    """Return a task on a dataset's columns, with the values of a table that fits them."""
    if source is None:
        return proposed(schema, choices)
    there = source.types  # not what the dataset got later
    schema = replace(
        schema, columns=tuple(c for c in schema.columns if c[0] in there or not c[1].nullable)
    )
    check_rows(source, schema)
    rows = pa.concat_tables([part.records for part in typed_parts(source, schema)])
    with source.places():
        return proposed(schema, choices, rows)


def by_column(name: str, texts: Texts, value_of: Callable[[str], T]) -> dict[str, T]:
    """Return the values of an option's texts COLUMN=…, by column."""
    pairs = [_PAIR.fullmatch(text) for text in texts or ()]
    if None in pairs:
        raise InvalidInputError(f"{name} must have the form COLUMN=…")
    return {normal_text(pair[1] or pair[2]): value_of(pair[3]) for pair in pairs if pair}


def _category(text: str) -> Listed:
    values = listed([text])
    return Listed(values=tuple(v for v in values if v != "*"), other="*" in values)


def _bounds(text: str) -> tuple[float, float]:
    try:
        low, high = map(float, text.split(":"))
    except ValueError as error:
        raise InvalidInputError(f"--bounds …={text}: not two numbers, LOW:HIGH") from error
    return low, high
