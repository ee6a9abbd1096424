"""``/v1/datasets``, and imports: records that workers read by reference."""

from datetime import datetime
from functools import partial
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Query, Request, Response
from pydantic import Field
from sqlalchemy.orm import Session

from app.api.protocol.access import (
    DatasetDefiner,
    DataWriter,
    DefinitionReader,
    GuardedRoute,
    ModelsReader,
    OwnDataWriter,
    ServicesOf,
    require_scope,
)
from app.api.protocol.bodies import RawBody, file_body
from app.api.protocol.errors import answers
from app.api.protocol.idempotency import ClaimOf, keep
from app.api.protocol.schemas import Answer, Body, Name, Page, PageByMoment, PageByName, shaped_as
from app.api.protocol.waiting import Found, Prefer, answer_with_news, json_response
from app.domain.places import MOST_URL_CHARACTERS
from app.domain.schema import MOST_COLUMNS, SCALARS, TableSchema
from app.domain.states import ImportState, Scope
from app.ledger.models import destruction, endings
from app.ledger.models.destruction import Destruction
from app.ledger.views.changes import Kind
from app.registry.datasets import repository, service
from app.registry.datasets.imports import repository as imports
from app.registry.datasets.imports import service as importing
from app.registry.datasets.reading import READERS
from app.registry.datasets.tables import DatasetRow, ImportRow

router = APIRouter(prefix="/v1/datasets", tags=["datasets"], route_class=GuardedRoute)
_MOST_ROWS = 1000
ColumnName = Annotated[str, Field(max_length=512)]
Columns = Annotated[
    dict[ColumnName, Annotated[str, Field(max_length=64)]],
    Field(min_length=1, max_length=MOST_COLUMNS),
]
_PUSHES = CapacityLimiter(READERS)
"""Pushes wait for each other, but not in the threads of other calls."""


class DatasetBody(Body):
    """A dataset's definition."""

    name: Name = Field(examples=["members"])
    columns: Columns = Field(
        description="The columns that are kept, by name, each with its type: "
        f"{', '.join(SCALARS)}, list<…> or list<…, length>; a question mark after it allows rows "
        "without a value. See docs/how-to/tables.md.",
        examples=[{"age": "int16?", "plan": "string", "pixels": "list<uint8, 64>"}],
    )
    record_id: ColumnName = Field(
        description="Which column has the records' ids.", examples=["member"]
    )
    subject_id: ColumnName | None = Field(
        default=None, description="Which column has the persons' ids.", examples=["person"]
    )
    public: bool = Field(
        default=False,
        description="You assert that nobody can ask for these records to be forgotten; forget "
        "requests for them are refused. It never changes.",
    )


class DatasetChange(Body):
    """What is altered of a dataset's columns."""

    columns: Columns = Field(
        description="New columns, whose types have a question mark, and those of the dataset that "
        "get a wider type: a larger int, float64, or a question mark. All others stay.",
        examples=[{"tenure": "int16?", "age": "int32?"}],
    )


class DatasetAnswer(Answer):
    """A dataset with its counts; record ids are never stored, so never shown."""

    name: str
    columns: dict[str, str]
    record_id: str
    subject_id: str | None
    public: bool
    records: int
    forgotten_not_yet_erased: int
    erased: int
    created_at: datetime
    archived_at: datetime | None


@shaped_as(
    service.PushResult,
    changed=(int, {}),
    replaced=(int, {}),
    warnings=(
        list[str],
        {"description": "Other datasets in which the same people's ids may be written otherwise."},
    ),
)
class PushAnswer(Answer):
    """The result of a push. Rows count from 0; at most 1,000 of the changed ones are listed."""


@router.post("", **answers(409, 410, status=201, headers=("Location",)))
def define_dataset(
    body: DatasetBody, services: ServicesOf, caller: DatasetDefiner, response: Response
) -> DatasetAnswer:
    """Define a dataset. Repeating the same definition changes nothing."""
    if body.public:
        require_scope(caller, Scope.DATA_WRITE)
    schema = TableSchema.of(body.columns, record_id=body.record_id, subject_id=body.subject_id)
    with services.database.transaction() as session:
        row = service.define_dataset(session, name=body.name, schema=schema, public=body.public)
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
def get_dataset(name: str, services: ServicesOf, _: DefinitionReader) -> DatasetAnswer:
    """Show one dataset."""
    with services.database.transaction() as session:
        return _answer(session, repository.dataset_named(session, name))


@router.patch("/{name}", **answers(404, 409, 410))
def alter_dataset(
    name: str, body: DatasetChange, services: ServicesOf, _: DataWriter
) -> DatasetAnswer:
    """Add columns and widen types. Repeating it changes nothing; models keep their tasks."""
    with services.database.transaction() as session:
        return _answer(session, service.alter_dataset(session, name, body.columns))


@router.post("/{name}/archive", **answers(404, 409, 410))
def archive_dataset(name: str, services: ServicesOf, _: OwnDataWriter) -> DatasetAnswer:
    """Shred a dataset's records for good; its models must have been archived or deleted before."""
    with services.database.transaction() as session:
        return _answer(session, endings.archive_dataset(session, name))


class DestructionBody(Body):
    """What goes with a dataset beyond the models that were trained on it here."""

    backbones: list[Name] = Field(
        default=[],
        max_length=100,
        description="Backbones that were made of its records elsewhere. Those whose weights are a "
        "version's of its models are found without being named.",
    )


@shaped_as(
    Destruction,
    statement=(dict[str, Any] | None, {}),
)
class DestructionAnswer(Answer):
    """What came from a dataset and goes with it, or went."""


@router.get("/{name}/destruction", **answers(404))
def get_destruction(
    name: str,
    services: ServicesOf,
    _: ModelsReader,
    backbones: Annotated[list[str], Query(alias="backbone", max_length=100)] = [],  # noqa: B006
) -> DestructionAnswer:
    """Show what would be destroyed with a dataset, or what has been, and what is left of it."""
    with services.database.snapshot() as session:
        return _destruction(destruction.preview(session, name, backbones))


@router.post("/{name}/destroy", **answers(404, 409))
def destroy_dataset(
    name: str, body: DestructionBody, services: ServicesOf, caller: DataWriter
) -> DestructionAnswer:
    """Destroy a dataset and all that was made of it here; it needs the scope `models:write`, too.

    Its models and the backbones made of them are archived, copies at targets are removed, and one
    signed entry of the log lists them. Called again, it adds backbones that are named now, and
    tells how far it is.
    """
    require_scope(caller, Scope.MODELS_WRITE)
    destruction.destroy(services.database, services.signer, name, body.backbones)
    with services.database.snapshot() as session:
        return _destruction(destruction.preview(session, name, body.backbones))


def _destruction(found: Destruction) -> DestructionAnswer:
    statement = None if found.statement is None else found.statement.to_json()
    return DestructionAnswer.of(found, statement=statement)


@router.delete("/{name}", **answers(404, 409, 410, status=204))
def delete_dataset(name: str, services: ServicesOf, _: DataWriter) -> None:
    """Shred a dataset that no certificate and no forget request names; its name is free again."""
    with services.database.transaction() as session:
        endings.delete_dataset(session, name)


@router.put(
    "/{name}/records",
    **answers(404, 410, 413),
    response_model=PushAnswer,
    openapi_extra=file_body("application/vnd.apache.parquet"),
)
async def push_records(
    name: str,
    services: ServicesOf,
    caller: OwnDataWriter,
    content: RawBody,
    claim: ClaimOf,
    *,
    replace: bool = False,
) -> Response:
    """Add the new records of a Parquet file: all of them or, if a row is invalid, none.

    With `replace`, changed records take the place of those stored: these are forgotten, by a forget
    request that comes with it or not at all. It needs the scope `forget:write`, too.
    """
    forget = None
    if replace:
        require_scope(caller, Scope.FORGET_WRITE)
        forget = services.acceptance.replacing(name, api_key_id=caller.key_id)
    response = Response()

    def answer(result: service.PushResult, session: Session) -> None:
        nonlocal response
        answer = PushAnswer.of(
            result,
            changed=len(result.changed_rows),
            changed_rows=result.changed_rows[:_MOST_ROWS],
            replaced=len(result.replaced_rows),
            warnings=service.warnings(session, name),
        )
        response = json_response(answer)
        # Else a repeated call might restore what was forgotten meanwhile.
        keep(session, claim, response)

    push = partial(services.records.push, name, content, forget=forget, also=answer)
    await to_thread.run_sync(push, limiter=_PUSHES)
    return response


def _answer(session: Session, row: DatasetRow) -> DatasetAnswer:
    remembered, forgotten, erased = repository.counts(session, row.id)
    return DatasetAnswer.of(
        row,
        **row.schema,
        records=remembered,
        forgotten_not_yet_erased=forgotten,
        erased=erased,
    )


_IMPORT_ENDED = (ImportState.COMPLETED, ImportState.FAILED, ImportState.CANCELLED)


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
    without_target: dict[str, int] = Field(
        description="Of the rows read, those that a model does not learn from for lack of a "
        "target, by its name."
    )
    failure_reason: str | None
    problems: list[ImportProblem] = Field(description="The first faults of the file that failed.")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@router.post("/{name}/imports", **answers(404, 410, status=202, headers=("Location",)))
def import_records(
    name: str, body: ImportBody, services: ServicesOf, _: DataWriter, response: Response
) -> ImportAnswer:
    """Have a worker read Parquet files by reference and add their new records."""
    with services.database.transaction() as session:
        row = importing.request(
            session, dataset=name, url=body.url, prefixes=services.settings.import_prefixes
        )
        response.headers["Location"] = f"/v1/datasets/{name}/imports/{row.id}"
        return _import_answer(name, row)


@router.get("/{name}/imports", **answers(404))
def list_imports(
    name: str, services: ServicesOf, _: DataWriter, page: PageByMoment
) -> Page[ImportAnswer]:
    """List a dataset's imports, newest first."""
    with services.database.transaction() as session:
        rows = imports.page(session, name, after=page.after, limit=page.limit + 1)
        return page.answer(
            rows, lambda row: (row.created_at, row.id), lambda row: _import_answer(name, row)
        )


@router.get("/{name}/imports/{import_id}", **answers(404), response_model=ImportAnswer)
async def get_import(
    name: str, import_id: str, request: Request, caller: DataWriter, prefer: Prefer = None
) -> Response:
    """Show one import; ``Prefer: wait=N`` waits for news of its progress."""

    def read(session: Session) -> Found:
        row = imports.import_of(session, name, import_id)
        return Found(row.id, _import_answer(name, row), is_final=row.state in _IMPORT_ENDED)

    return await answer_with_news(request, caller, Kind.IMPORT, read, prefer=prefer)


@router.post("/{name}/imports/{import_id}/cancel", **answers(404, 409))
def cancel_import(name: str, import_id: str, services: ServicesOf, _: DataWriter) -> ImportAnswer:
    """Cancel an import; what it has added stays."""
    with services.database.transaction() as session:
        return _import_answer(name, importing.cancel(session, name, import_id))


@router.post("/{name}/imports/{import_id}/retry", **answers(404, 409, 410, status=202))
def retry_import(name: str, import_id: str, services: ServicesOf, _: DataWriter) -> ImportAnswer:
    """Let an import go on that failed or was cancelled.

    Files that are done are not read again; the file where it stopped is read on, or from its
    beginning if it was changed.
    """
    prefixes = services.settings.import_prefixes
    with services.database.transaction() as session:
        return _import_answer(name, importing.retry(session, name, import_id, prefixes=prefixes))


def _import_answer(dataset: str, row: ImportRow) -> ImportAnswer:
    files = None if row.files is None else len(row.files)
    return ImportAnswer.of(row, dataset=dataset, files=files, problems=row.problems or [])
