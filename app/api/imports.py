"""``/v1/datasets/{name}/imports``: records that workers read by reference."""

from datetime import datetime

from fastapi import APIRouter, Request, Response
from pydantic import Field
from sqlalchemy.orm import Session

from app.api.protocol.access import DataWriter, GuardedRoute, ServicesOf
from app.api.protocol.errors import answers
from app.api.protocol.schemas import Answer, Body, Page, PageByMoment
from app.api.protocol.waiting import Found, Prefer, answer_with_news
from app.domain.places import MOST_URL_CHARACTERS
from app.domain.states import ImportState
from app.ledger.views.changes import Kind
from app.registry.datasets.imports import repository, service
from app.registry.datasets.imports.tables import ImportRow

router = APIRouter(
    prefix="/v1/datasets/{name}/imports", tags=["datasets"], route_class=GuardedRoute
)
_ENDED = (ImportState.COMPLETED, ImportState.FAILED, ImportState.CANCELLED)


class ImportBody(Body):
    """What to import."""

    url: str = Field(
        min_length=1,
        max_length=MOST_URL_CHARACTERS,
        examples=["s3://exports/members/2026-01-*.parquet"],
        description="A Parquet file, a folder, or a pattern with * and ?, at s3://, gs:// or "
        "file://; or one file at https://. It must lie under one of the operator's prefixes.",
    )


class ImportProblem(Answer):
    """A fault of a file; never a value."""

    file: str
    row: int | None = Field(description="The first row that has it, counted from 0.")
    column: str
    reason: str
    rows: int = Field(description="How many rows have it, of those that were looked at.")


class ImportAnswer(Answer):
    """An import and how far it is. Every count is of rows whose transaction is over."""

    id: str = Field(examples=["imp_5b0c0f6d7a1e4d7f9a3b2c1d0e9f8a7b"])
    dataset: str
    url: str
    state: ImportState
    attempt: int = Field(description="Tries since it last moved on.")
    files: int | None = Field(description="Null until they were listed.")
    files_done: int
    total_rows: int | None
    rows: int = Field(description="Rows read; those of a file that was read again count again.")
    added: int
    already_present: int = Field(description="Records that the dataset holds as they are.")
    changed: int = Field(
        description="Records with a known id and another subject or other values. The dataset "
        "keeps what it has."
    )
    failure_reason: str | None
    problems: list[ImportProblem] = Field(description="The first faults of the file that failed.")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@router.post("", **answers(404, 410, status=202, headers=("Location",)))
def import_records(
    name: str, body: ImportBody, services: ServicesOf, _: DataWriter, response: Response
) -> ImportAnswer:
    """Have a worker read Parquet files by reference and add their new records."""
    with services.database.transaction() as session:
        row = service.request(
            session, dataset=name, url=body.url, prefixes=services.settings.import_prefixes
        )
        response.headers["Location"] = f"/v1/datasets/{name}/imports/{row.id}"
        return _answer(name, row)


@router.get("", **answers(404))
def list_imports(
    name: str, services: ServicesOf, _: DataWriter, page: PageByMoment
) -> Page[ImportAnswer]:
    """List a dataset's imports, newest first."""
    with services.database.transaction() as session:
        rows = repository.page(session, name, after=page.after, limit=page.limit + 1)
        return page.answer(
            rows, lambda row: (row.created_at, row.id), lambda row: _answer(name, row)
        )


@router.get("/{import_id}", **answers(404), response_model=ImportAnswer)
async def get_import(
    name: str, import_id: str, request: Request, caller: DataWriter, prefer: Prefer = None
) -> Response:
    """Show one import; ``Prefer: wait=N`` waits for news of its progress."""

    def read(session: Session) -> Found:
        row = repository.import_of(session, name, import_id)
        return Found(row.id, _answer(name, row), is_final=row.state in _ENDED)

    return await answer_with_news(request, caller, Kind.IMPORT, read, prefer=prefer)


@router.post("/{import_id}/cancel", **answers(404, 409))
def cancel_import(name: str, import_id: str, services: ServicesOf, _: DataWriter) -> ImportAnswer:
    """Cancel an import; what it has added stays."""
    with services.database.transaction() as session:
        return _answer(name, service.cancel(session, name, import_id))


@router.post("/{import_id}/retry", **answers(404, 409, 410, status=202))
def retry_import(name: str, import_id: str, services: ServicesOf, _: DataWriter) -> ImportAnswer:
    """Let an import go on that failed or was cancelled.

    Files that are done are not read again; the file where it stopped is read on, or from its
    beginning if it was changed.
    """
    prefixes = services.settings.import_prefixes
    with services.database.transaction() as session:
        return _answer(name, service.retry(session, name, import_id, prefixes=prefixes))


def _answer(dataset: str, row: ImportRow) -> ImportAnswer:
    files = None if row.files is None else len(row.files)
    return ImportAnswer.of(row, dataset=dataset, files=files, problems=row.problems or [])
