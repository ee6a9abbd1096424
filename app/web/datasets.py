"""``/datasets``: schemas, counts, growth, imports; archiving."""

from datetime import UTC, datetime
from typing import Any

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from app.api.protocol.access import ServicesOf
from app.datasets import repository, service
from app.datasets.tables import DatasetRow
from app.domain.errors import InvalidInputError
from app.domain.scopes import Scope
from app.domain.table_schema import TableSchema
from app.imports import repository as import_repository
from app.imports import service as imports
from app.log import actor
from app.models import endings
from app.registry import repository as registry
from app.web import pages, queries
from app.web.access import DataSender, ModelsReader
from app.web.charts import bars
from app.web.forms import Form
from app.web.rendering import render
from app.web.statistics import by_week

router = pages.router()

_IMPORTS = 20
_WEEKS = 26


@router.get("/datasets")
def show_all(request: Request, services: ServicesOf, visitor: ModelsReader) -> Response:
    """List datasets with their counts."""
    with services.database.transaction() as session:
        lines = [
            (dataset, *repository.counts(session, dataset.id))
            for dataset in repository.datasets(session)
        ]
        return render(request, "datasets.html", visitor, lines=lines)


@router.get("/datasets/{name}")
def show(name: str, request: Request, services: ServicesOf, visitor: ModelsReader) -> Response:
    """Show one dataset: its schema, counts, growth, models and imports."""
    weeks = queries.last_weeks(_WEEKS, now=datetime.now(UTC))
    with services.database.transaction() as session:
        dataset = repository.dataset_named(session, name)
        remembered, pending, erased = repository.counts(session, dataset.id)
        may_import = visitor.caller.allows(Scope.DATA_WRITE)
        return render(
            request,
            "dataset.html",
            visitor,
            dataset=dataset,
            remembered=remembered,
            pending=pending,
            erased=erased,
            columns=_columns(dataset),
            growth=bars(
                by_week(weeks, queries.records_by_week(session, dataset.id, weeks[0])),
                title="Records by the week in which they came",
            ),
            models=[each.name for each in registry.models(session, dataset=name)],
            imports=import_repository.page(session, name, after=None, limit=_IMPORTS)
            if may_import
            else None,
        )


@router.post("/datasets/{name}/imports")
def import_records(
    name: str, services: ServicesOf, visitor: DataSender, form: Form
) -> RedirectResponse:
    """Have a worker read files from one of the operator's places."""
    url = form.get("url", "").strip()
    if not url:
        raise InvalidInputError("give an address")
    with actor.acting_as(visitor.caller.key_id), services.database.transaction() as session:
        imports.request(session, dataset=name, url=url, prefixes=services.settings.import_prefixes)
    return RedirectResponse(f"/datasets/{name}", status_code=303)


@router.post("/datasets/{name}/imports/{import_id}/cancel")
def cancel_import(
    name: str, import_id: str, services: ServicesOf, visitor: DataSender
) -> RedirectResponse:
    """Cancel an import; what it has added stays."""
    with actor.acting_as(visitor.caller.key_id), services.database.transaction() as session:
        imports.cancel(session, name, import_id)
    return RedirectResponse(f"/datasets/{name}", status_code=303)


@router.post("/datasets/{name}/imports/{import_id}/retry")
def retry_import(
    name: str, import_id: str, services: ServicesOf, visitor: DataSender
) -> RedirectResponse:
    """Let an import go on that failed or was cancelled."""
    prefixes = services.settings.import_prefixes
    with actor.acting_as(visitor.caller.key_id), services.database.transaction() as session:
        imports.retry(session, name, import_id, prefixes=prefixes)
    return RedirectResponse(f"/datasets/{name}", status_code=303)


@router.post("/datasets/{name}/archive")
def archive(name: str, services: ServicesOf, visitor: DataSender) -> RedirectResponse:
    """Shred a dataset's records for good."""
    with actor.acting_as(visitor.caller.key_id), services.database.transaction() as session:
        endings.archive_dataset(session, services.blobs, name)
    return RedirectResponse(f"/datasets/{name}", status_code=303)


def _columns(dataset: DatasetRow) -> list[tuple[str, str]]:
    """Return names and types of what a record has."""
    schema = service.schema_of(dataset)
    if isinstance(schema, TableSchema):
        document: dict[str, Any] = schema.to_json()
        return [*document["columns"].items()]
    shape = " × ".join(map(str, schema.shape))
    return [("features", f"{schema.dtype}, {shape}"), ("label", f"one of {schema.classes} classes")]
