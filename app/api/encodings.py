"""The encoding of plain tables, in a dataset's definition; see ``app/domain/encoding.py``."""

from typing import Annotated, Literal

from pydantic import Field

from app.api.protocol.schemas import Body
from app.domain.encoding import TableEncoding

ColumnName = Annotated[str, Field(max_length=512)]


class NumberBody(Body):
    """A number x is used as it is, or as (x - low) / (high - low) after clipping to these bounds.

    `missing` replaces a missing number; without it, rows with a missing number are refused.
    `flag_missing` adds a feature that is 1 where the number is missing.
    """

    kind: Literal["number"]
    name: ColumnName
    low: float | None = None
    high: float | None = None
    missing: float | None = None
    flag_missing: bool = False


class CategoryBody(Body):
    """One feature for each listed value, of which one is 1 (one-hot).

    `other` adds a feature for values that are not listed, and for missing ones; without it, rows
    with them are refused. `missing` is the listed value that replaces a missing one.
    """

    kind: Literal["category"]
    name: ColumnName
    values: list[str] = Field(min_length=1, max_length=10_000, examples=[["basic", "plus"]])
    other: bool = False
    missing: str | None = None


class ArrayBody(Body):
    """A list or tensor of numbers; its elements are the features."""

    kind: Literal["array"]
    name: ColumnName
    shape: list[int] = Field(min_length=1, max_length=8)
    dtype: str = "float32"
    vocabulary: int | None = Field(default=None, description="For tokens: how many there are.")


class LabelBody(Body):
    """The label's column, and the names of the classes 0, 1, …."""

    name: ColumnName
    classes: list[str] | list[int] | list[bool] = Field(examples=[["no", "yes"]])


class EncodingBody(Body):
    """How plain tables become records. All of it is public: it is published with each model."""

    columns: list[Annotated[NumberBody | CategoryBody | ArrayBody, Field(discriminator="kind")]] = (
        Field(min_length=1, max_length=10_000)
    )
    label: LabelBody
    record_id: ColumnName = Field(examples=["customer_id"])
    subject_id: ColumnName | None = None

    def encoding(self) -> TableEncoding:
        """Return the encoding that the body describes."""
        return TableEncoding.from_json(self.model_dump())
