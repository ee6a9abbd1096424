"""``/data``: datasets with their schemas, counts, growth and imports; their destruction."""

from fastapi import Response

from app.api.protocol.access import ServicesOf, require_scope
from app.domain.states import Scope
from app.ledger.models import destruction
from app.registry import repository as registry
from app.registry.datasets import repository
from app.registry.datasets.imports import repository as import_repository
from app.web import figures, pages
from app.web.access import Form, ModelsReader, ModelsSender
from app.web.pages import render

router = pages.router()

_IMPORTS = 20


@router.get("/data")
def show_all(services: ServicesOf, visitor: ModelsReader) -> Response:
    """List datasets with their counts."""
    with services.database.transaction() as session:
        lines = [
            (dataset, *repository.counts(session, dataset.id))
            for dataset in repository.datasets(session)
        ]
        return render("data.html", visitor, lines=lines)


@router.get("/data/{name}")
def show(name: str, services: ServicesOf, visitor: ModelsReader) -> Response:
    """Show one dataset: its schema, counts, growth, models and imports."""
    last = figures.last_weeks()
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
            growth=figures.rows_of(
                last,
                {
                    week: [f"{records:,}"]
                    for week, records in figures.records_by_week(
                        session, dataset.id, last[0]
                    ).items()
                },
            ),
            models=[each.name for each in registry.models(session, dataset=name)],
            gone=destruction.preview(session, name),
            imports=import_repository.page(session, name, after=None, limit=_IMPORTS)
            if may_import
            else None,
        )


@router.post("/data/{name}/destroy")
def destroy(name: str, services: ServicesOf, visitor: ModelsSender, form: Form) -> Response:
    """Destroy a dataset and all that was made of it."""
    require_scope(visitor.caller, Scope.DATA_WRITE)
    named = form.get("backbones", "").split()
    destruction.destroy(services.database, services.signer, name, named)
    return pages.redirect(f"/data/{name}")
