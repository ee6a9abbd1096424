"""``/v1/datasets``."""

from datetime import datetime
from functools import partial
from typing import Annotated, Literal, Self

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Response
from pydantic import Field
from sqlalchemy.orm import Session

from app.api.protocol.access import (
    DataWriter,
    GuardedRoute,
    ModelsReader,
    ServicesOf,
    require_scope,
)
from app.api.protocol.bodies import RawBody, file_body
from app.api.protocol.errors import answers
from app.api.protocol.schemas import Answer, Body, Name, Page, PageByName
from app.domain.encoding import TableEncoding
from app.domain.errors import InvalidInputError
from app.domain.schema import FeatureSchema
from app.domain.scopes import Scope
from app.domain.table_schema import MOST_COLUMNS, SCALARS, RecordSchema, TableSchema
from app.ledger.models import endings
from app.registry.datasets import repository, service
from app.registry.datasets.reading import READERS
from app.registry.datasets.tables import DatasetRow

router = APIRouter(prefix="/v1/datasets", tags=["datasets"], route_class=GuardedRoute)
_MOST_ROWS = 1000
ColumnName = Annotated[str, Field(max_length=512)]
Columns = Annotated[
    dict[ColumnName, Annotated[str, Field(max_length=64)]],
    Field(min_length=1, max_length=MOST_COLUMNS),
]
_PUSHES = CapacityLimiter(READERS)
"""Pushes wait for each other, but not in the threads of other calls."""


class FeaturesBody(Body):
    """Shape and encoding of a record's features.

    Models see (raw - offset) * scale in float32, or tokens as they are: int32 or int64 from 0 to
    below vocabulary, without offset and scale.
    """

    shape: list[int] = Field(examples=[[8, 8]], min_length=1, max_length=8)
    dtype: Literal["uint8", "float32", "float64", "int32", "int64"] = "float32"
    offset: float = 0.0
    scale: float = Field(default=1.0, examples=[0.0625])
    vocabulary: int | None = Field(
        default=None, description="For int32 and int64: how many different tokens there are."
    )

    @classmethod
    def of(cls, source: FeatureSchema | TableEncoding) -> Self:
        """Return the features of a schema, or those that an encoding makes."""
        return cls.model_validate(source, from_attributes=True, strict=False)


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


class DatasetBody(Body):
    """A dataset's definition."""

    name: Name = Field(examples=["digits"])
    features: FeaturesBody | None = Field(
        default=None, description="May be left out if there is an encoding, which implies it."
    )
    classes: int | None = Field(
        default=None,
        examples=[10],
        description="The number of classes; may be left out if there is an encoding.",
    )
    encoding: EncodingBody | None = Field(
        default=None, description="How plain tables become records; see docs/tables.md."
    )
    columns: Columns | None = Field(
        default=None,
        description="In place of features: the columns that are kept, by name, each with its type: "
        f"{', '.join(SCALARS)}, list<…> or list<…, length>; a question mark after it allows rows "
        "without a value. See docs/how-to/columns.md.",
    )
    record_id: ColumnName | None = Field(
        default=None, description="With columns: which column has the records' ids."
    )
    subject_id: ColumnName | None = Field(
        default=None, description="With columns: which column has the persons' ids."
    )
    public: bool = Field(
        default=False,
        description="You assert that nobody can ask for these records to be forgotten; forget "
        "requests for them are refused. It never changes.",
    )


class DatasetAnswer(Answer):
    """A dataset with its counts; record ids are never stored, so never shown."""

    name: str
    features: FeaturesBody | None = Field(description="Null for a dataset of columns.")
    classes: int | None
    encoding: EncodingBody | None
    columns: dict[str, str] | None = Field(description="Null for a dataset of features.")
    record_id: str | None
    subject_id: str | None
    public: bool
    records: int
    forgotten_not_yet_erased: int
    erased: int
    created_at: datetime
    archived_at: datetime | None


class PushAnswer(Answer):
    """The result of a push. Rows count from 0."""

    added: int
    already_present: int = Field(description="Records that the dataset holds as they are.")
    changed: int = Field(
        description="Records with a known id and another subject or other values. The dataset "
        "keeps what it has."
    )
    changed_rows: list[int] = Field(description="The first 1,000 of these rows.")
    replaced: int = Field(
        description="Changed records that took the place of those stored, with `replace`."
    )
    replaced_rows: list[int] = Field(description="All of these rows.")
    forget_request: str | None = Field(
        description="The forget request for the records that were replaced."
    )
    warnings: list[str] = Field(
        description="Other datasets in which the same people's ids may be written otherwise."
    )


@router.post("", **answers(409, 410, status=201, headers=("Location",)))
def define_dataset(
    body: DatasetBody, services: ServicesOf, _: DataWriter, response: Response
) -> DatasetAnswer:
    """Define a dataset. Repeating the same definition changes nothing."""
    encoding = None if body.encoding is None else body.encoding.encoding()
    schema = _schema(body, encoding)
    with services.database.transaction() as session:
        row = service.define_dataset(
            session, name=body.name, schema=schema, encoding=encoding, public=body.public
        )
        session.refresh(row)
        response.headers["Location"] = f"/v1/datasets/{row.name}"
        return _answer(session, row)


@router.get("", **answers())
def list_datasets(services: ServicesOf, _: ModelsReader, page: PageByName) -> Page[DatasetAnswer]:
    """List datasets by name."""
    with services.database.transaction() as session:
        rows = repository.datasets(session, after=page.after, limit=page.limit + 1)
        return page.answer(rows, lambda row: row.name, partial(_answer, session))


@router.get("/{name}", **answers(404))
def get_dataset(name: str, services: ServicesOf, _: ModelsReader) -> DatasetAnswer:
    """Show one dataset."""
    with services.database.transaction() as session:
        return _answer(session, repository.dataset_named(session, name))


@router.post("/{name}/archive", **answers(404, 409, 410))
def archive_dataset(name: str, services: ServicesOf, _: DataWriter) -> DatasetAnswer:
    """Shred a dataset's records for good; its models must have been archived or deleted before."""
    with services.database.transaction() as session:
        return _answer(session, endings.archive_dataset(session, name))


@router.delete("/{name}", **answers(404, 409, status=204))
def delete_dataset(name: str, services: ServicesOf, _: DataWriter) -> None:
    """Delete a dataset that never held a record; its name is free again."""
    with services.database.transaction() as session:
        endings.delete_dataset(session, name)


@router.put(
    "/{name}/records",
    **answers(404, 410, 413),
    openapi_extra=file_body("application/vnd.apache.parquet"),
)
async def push_records(
    name: str, services: ServicesOf, caller: DataWriter, content: RawBody, *, replace: bool = False
) -> PushAnswer:
    """Add the new records of a Parquet file: all of them or, if a row is invalid, none.

    With `replace`, changed records take the place of those stored: these are forgotten, by a forget
    request that comes with it or not at all. It needs the scope `forget:write`, too.
    """
    forget = None
    if replace:
        require_scope(caller, Scope.FORGET_WRITE)
        forget = services.acceptance.replacing(name, api_key_id=caller.key_id)
    push = partial(services.records.push, name, content, forget=forget)
    result = await to_thread.run_sync(push, limiter=_PUSHES)
    return PushAnswer.of(
        result,
        changed=len(result.changed_rows),
        changed_rows=result.changed_rows[:_MOST_ROWS],
        replaced=len(result.replaced_rows),
        warnings=await to_thread.run_sync(services.records.warnings, name),
    )


def _schema(body: DatasetBody, encoding: TableEncoding | None) -> RecordSchema:
    if body.columns is None:
        if (body.record_id, body.subject_id) != (None, None):
            raise InvalidInputError("record_id and subject_id name columns: give columns, too")
        return _feature_schema(body.features, body.classes, encoding)
    if (body.features, body.classes, body.encoding) != (None, None, None):
        raise InvalidInputError("give columns, or features and classes, or an encoding")
    if body.record_id is None:
        raise InvalidInputError("record_id: say which column has the records' ids")
    return TableSchema.of(body.columns, record_id=body.record_id, subject_id=body.subject_id)


def _feature_schema(
    features: FeaturesBody | None, classes: int | None, encoding: TableEncoding | None
) -> FeatureSchema:
    if encoding is not None:
        features = features or FeaturesBody.of(encoding)
        classes = classes or len(encoding.label.classes)
    if features is None or classes is None:
        raise InvalidInputError("give features and classes, or an encoding, or columns")
    return FeatureSchema.from_json({**features.model_dump(), "classes": classes})


def _answer(session: Session, row: DatasetRow) -> DatasetAnswer:
    schema = service.schema_of(row)
    table = schema.to_json() if isinstance(schema, TableSchema) else {}
    remembered, forgotten, erased = repository.counts(session, row.id)
    return DatasetAnswer.of(
        row,
        features=None if isinstance(schema, TableSchema) else FeaturesBody.of(schema),
        classes=row.schema.get("classes"),
        **{name: table.get(name) for name in ("columns", "record_id", "subject_id")},
        records=remembered,
        forgotten_not_yet_erased=forgotten,
        erased=erased,
    )
