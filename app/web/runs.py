"""``/runs``: runs, their progress, and retries."""

from dataclasses import asdict

from fastapi import Response
from fastapi.responses import JSONResponse

from app.api.protocol.access import ServicesOf
from app.api.protocol.cursors import PageByMoment
from app.api.protocol.dependencies import Make
from app.domain.plan import Plan
from app.domain.states import RunState
from app.ledger import runs
from app.ledger.views import run_views
from app.ledger.views.changes import progress_of
from app.planning.curve import epsilon_by_step
from app.registry import repository as registry
from app.web import pages
from app.web.access import ModelsReader, ModelsSender
from app.web.rendering import render

router = pages.router()


@router.get("/runs")
def show_all(
    services: ServicesOf,
    visitor: ModelsReader,
    page: PageByMoment,
    state: str = "",
    model: str = "",
) -> Response:
    """List runs, newest first."""
    wanted = RunState(state) if state in list(RunState) else None
    with services.database.transaction() as session:
        found = run_views.page(
            session,
            state=wanted,
            model=model or None,
            after=page.after,
            limit=page.limit + 1,
        )
        names = registry.model_names(session)
    found, next_cursor = page.cut(found, lambda line: (line.created_at, line.id))
    return render(
        "runs.html",
        visitor,
        lines=found,
        models=names,
        states=list(RunState),
        wanted=wanted,
        model=model,
        first=page.after is None,
        next_cursor=next_cursor,
    )


@router.get("/runs/{run_id}")
def show(run_id: str, services: ServicesOf, visitor: ModelsReader) -> Response:
    """Show one run with the curve of its mechanism."""
    with services.database.transaction() as session:
        line = run_views.one(session, run_id)
        released = registry.version_of_run(session, run_id, shown=True)
    plan = Plan.from_json(line.plan)
    reports = line.reports or []
    return render(
        "run.html",
        visitor,
        line=line,
        plan=plan,
        version=None if released is None else released.number,
        phase_seconds=line.phase_seconds or {},
        curve=epsilon_by_step(plan),
        reported=[each for each in reports if each["epsilon"] is not None],
        losses=[each for each in reports if each["loss"] is not None],
    )


@router.get("/runs/{run_id}/progress")
def progress(run_id: str, services: ServicesOf, _: ModelsReader) -> JSONResponse:
    """Return a run's progress in the format of its events."""
    with services.database.transaction() as session:
        return JSONResponse(asdict(progress_of(session, run_id)))


@router.post("/runs/{run_id}/retry")
def retry(run_id: str, services: ServicesOf, _: ModelsSender, make: Make) -> Response:
    """Retry a failed run with a new one."""
    new = runs.retry_run(services.database, run_id, make=make).id
    return pages.redirect(f"/runs/{new}")


@router.post("/runs/{run_id}/cancel")
def cancel(run_id: str, services: ServicesOf, _: ModelsSender) -> Response:
    """Cancel a run that has not ended; its obligations wait for the model's next one."""
    with services.database.transaction() as session:
        runs.cancel_run(session, run_id)
    return pages.redirect(f"/runs/{run_id}")
