"""``/datasets``: schemas, counts, growth, imports; archiving."""

from datetime import UTC, datetime

from fastapi import Response

from app.api.protocol.access import ServicesOf
from app.domain.errors import InvalidInputError
from app.domain.scopes import Scope
from app.ledger.models import endings
from app.registry import repository as registry
from app.registry.datasets import repository
from app.registry.datasets.imports import repository as import_repository
from app.registry.datasets.imports import service as imports
from app.web import pages
from app.web.access import DataSender, ModelsReader
from app.web.figures import queries
from app.web.figures.statistics import by_week
from app.web.forms import Form
from app.web.rendering import render

router = pages.router()

_IMPORTS = 20
_WEEKS = 26


@router.get("/datasets")
def show_all(services: ServicesOf, visitor: ModelsReader) -> Response:
    """List datasets with their counts."""
    with services.database.transaction() as session:
        lines = [
            (dataset, *repository.counts(session, dataset.id))
            for dataset in repository.datasets(session)
        ]
        return render("datasets.html", visitor, lines=lines)


@router.get("/datasets/{name}")
def show(name: str, services: ServicesOf, visitor: ModelsReader) -> Response:
    """Show one dataset: its schema, counts, growth, models and imports."""
    weeks = queries.last_weeks(_WEEKS, now=datetime.now(UTC))
    with services.database.transaction() as session:
        dataset = repository.dataset_named(session, name)
        remembered, pending, erased = repository.counts(session, dataset.id)
        may_import = visitor.caller.allows(Scope.DATA_WRITE)
        return render(
            "dataset.html",
            visitor,
            dataset=dataset,
            remembered=remembered,
            pending=pending,
            erased=erased,
            growth=by_week(weeks, queries.records_by_week(session, dataset.id, weeks[0])),
            models=[each.name for each in registry.models(session, dataset=name)],
            imports=import_repository.page(session, name, after=None, limit=_IMPORTS)
            if may_import
            else None,
        )


@router.post("/datasets/{name}/imports")
def import_records(name: str, services: ServicesOf, _: DataSender, form: Form) -> Response:
    """Have a worker read files from one of the operator's places."""
    url = form.get("url", "").strip()
    if not url:
        raise InvalidInputError("give an address")
    with services.database.transaction() as session:
        imports.request(session, dataset=name, url=url, prefixes=services.settings.import_prefixes)
    return pages.redirect(f"/datasets/{name}")


@router.post("/datasets/{name}/imports/{import_id}/cancel")
def cancel_import(name: str, import_id: str, services: ServicesOf, _: DataSender) -> Response:
    """Cancel an import; what it has added stays."""
    with services.database.transaction() as session:
        imports.cancel(session, name, import_id)
    return pages.redirect(f"/datasets/{name}")


@router.post("/datasets/{name}/imports/{import_id}/retry")
def retry_import(name: str, import_id: str, services: ServicesOf, _: DataSender) -> Response:
    """Let an import go on that failed or was cancelled."""
    prefixes = services.settings.import_prefixes
    with services.database.transaction() as session:
        imports.retry(session, name, import_id, prefixes=prefixes)
    return pages.redirect(f"/datasets/{name}")


@router.post("/datasets/{name}/archive")
def archive(name: str, services: ServicesOf, _: DataSender) -> Response:
    """Shred a dataset's records for good."""
    with services.database.transaction() as session:
        endings.archive_dataset(session, name)
    return pages.redirect(f"/datasets/{name}")
