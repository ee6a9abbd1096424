"""``/v1/datasets``."""

from datetime import datetime
from functools import partial
from typing import Literal

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Response
from pydantic import Field
from sqlalchemy.orm import Session

from app.api.protocol.access import DataWriter, GuardedRoute, ModelsReader, ServicesOf
from app.api.protocol.bodies import RawBody, file_body
from app.api.protocol.cursors import PageByName
from app.api.protocol.errors import problem_responses
from app.api.protocol.headers import answer_headers
from app.api.protocol.schemas import Answer, Body, Name, Page
from app.datasets import repository, service
from app.datasets.reading import READERS
from app.datasets.tables import DatasetRow
from app.domain.schema import FeatureSchema

router = APIRouter(prefix="/v1/datasets", tags=["datasets"], route_class=GuardedRoute)
_PUSHES = CapacityLimiter(READERS)
"""Pushes wait for each other, but not in the threads of other calls."""


class FeaturesBody(Body):
    """Shape and encoding of a record's features. Models see (raw - offset) * scale."""

    shape: list[int] = Field(examples=[[8, 8]], min_length=1, max_length=8)
    dtype: Literal["uint8", "float32", "float64"] = "float32"
    offset: float = 0.0
    scale: float = Field(default=1.0, examples=[0.0625])


class DatasetBody(Body):
    """A dataset's definition."""

    name: Name = Field(examples=["digits"])
    features: FeaturesBody
    classes: int = Field(examples=[10])


class DatasetAnswer(Answer):
    """A dataset with its counts; record ids are never stored, so never shown."""

    name: str
    features: FeaturesBody
    classes: int
    records: int
    forgotten_not_yet_erased: int
    erased: int
    created_at: datetime


class DatasetPage(Page[DatasetAnswer]):
    """A page of datasets, by name."""


class PushAnswer(Answer):
    """The result of a push."""

    added: int
    already_present: int


@router.post(
    "",
    status_code=201,
    responses=problem_responses(409, 422) | answer_headers(201, "Location"),
)
def define_dataset(
    body: DatasetBody, services: ServicesOf, _: DataWriter, response: Response
) -> DatasetAnswer:
    """Define a dataset. Repeating the same definition changes nothing."""
    schema = FeatureSchema(
        shape=tuple(body.features.shape),
        dtype=body.features.dtype,
        offset=body.features.offset,
        scale=body.features.scale,
        classes=body.classes,
    )
    with services.database.transaction() as session:
        row = service.define_dataset(session, name=body.name, schema=schema)
        session.refresh(row)
        response.headers["Location"] = f"/v1/datasets/{row.name}"
        return _answer(session, row)


@router.get("", responses=problem_responses())
def list_datasets(services: ServicesOf, _: ModelsReader, page: PageByName) -> DatasetPage:
    """List datasets by name."""
    with services.database.transaction() as session:
        rows = repository.datasets(session, after=page.after, limit=page.limit + 1)
        rows, next_cursor = page.cut(rows, lambda row: row.name)
        return DatasetPage(items=[_answer(session, row) for row in rows], next_cursor=next_cursor)


@router.get("/{name}", responses=problem_responses(404))
def get_dataset(name: str, services: ServicesOf, _: ModelsReader) -> DatasetAnswer:
    """Show one dataset."""
    with services.database.transaction() as session:
        return _answer(session, repository.dataset_named(session, name))


@router.put(
    "/{name}/records",
    responses=problem_responses(404, 413, 422),
    openapi_extra=file_body("application/vnd.apache.parquet"),
)
async def push_records(
    name: str, services: ServicesOf, _: DataWriter, content: RawBody
) -> PushAnswer:
    """Add the records of a Parquet file: all of them or, if a row is invalid, none."""
    push = partial(services.records.push, name, content)
    return PushAnswer.model_validate(await to_thread.run_sync(push, limiter=_PUSHES))


def _answer(session: Session, row: DatasetRow) -> DatasetAnswer:
    schema = service.schema_of(row)
    remembered, forgotten, erased = repository.counts(session, row.id)
    return DatasetAnswer(
        name=row.name,
        features=FeaturesBody.model_validate(
            {
                "shape": list(schema.shape),
                "dtype": schema.dtype,
                "offset": schema.offset,
                "scale": schema.scale,
            }
        ),
        classes=schema.classes,
        records=remembered,
        forgotten_not_yet_erased=forgotten,
        erased=erased,
        created_at=row.created_at,
    )
