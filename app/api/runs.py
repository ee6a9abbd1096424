"""``/v1/runs``: progress, cancellation, and retries."""

from fastapi import APIRouter, Request, Response
from sqlalchemy.orm import Session

from app.api.protocol.access import (
    GuardedRoute,
    Make,
    ModelsReader,
    ModelsWriter,
    OwnModelsReader,
    ServicesOf,
)
from app.api.protocol.errors import answers
from app.api.protocol.schemas import Answer, Page, PageByMoment, shaped_as
from app.api.protocol.waiting import Found, Prefer, answer_with_news
from app.domain.states import RunState
from app.ledger import runs
from app.ledger.views import run_views
from app.ledger.views.changes import Kind
from app.ledger.views.run_views import RunView

router = APIRouter(prefix="/v1/runs", tags=["runs"], route_class=GuardedRoute)


@shaped_as(RunView, without=("reports", "retryable"))
class RunAnswer(Answer):
    """A run. ``epsilon`` holds for the steps so far; ``loss`` is present once the target is met.

    If the operator's own code failed before a record was read, its traceback follows the first line
    of ``failure_reason``.
    """


@router.get("", **answers())
def list_runs(
    services: ServicesOf,
    _: ModelsReader,
    page: PageByMoment,
    model: str | None = None,
    state: RunState | None = None,
) -> Page[RunAnswer]:
    """List runs, newest first; optionally filtered by model or state."""
    with services.database.transaction() as session:
        views = run_views.page(
            session, model=model, state=state, after=page.after, limit=page.limit + 1
        )
    return page.answer(views, lambda view: (view.created_at, view.id), RunAnswer.of)


@router.get("/{run_id}", **answers(404), response_model=RunAnswer)
async def get_run(
    run_id: str, request: Request, caller: OwnModelsReader, prefer: Prefer = None
) -> Response:
    """Show one run; ``Prefer: wait=N`` waits for news of its progress."""

    def read(session: Session) -> Found:
        view = run_views.one(session, run_id)
        return Found(view.id, RunAnswer.of(view), is_final=view.has_ended)

    return await answer_with_news(request, caller, Kind.RUN, read, prefer=prefer)


@router.post("/{run_id}/cancel", **answers(404, 409))
def cancel_run(run_id: str, services: ServicesOf, _: ModelsWriter) -> RunAnswer:
    """Cancel a queued or active run; its obligations wait for the model's next run."""
    with services.database.transaction() as session:
        runs.cancel_run(session, run_id)
        session.flush()
        return RunAnswer.of(run_views.one(session, run_id))


@router.post("/{run_id}/retry", **answers(404, 409, 410, status=202, headers=("Location",)))
def retry_run(
    run_id: str, services: ServicesOf, _: ModelsWriter, make: Make, response: Response
) -> RunAnswer:
    """Start a new run like one that failed or was cancelled, or train a withdrawn model again."""
    created = runs.retry_run(services.database, run_id, make=make)
    with services.database.transaction() as session:
        response.headers["Location"] = f"/v1/runs/{created.id}"
        return RunAnswer.of(run_views.one(session, created.id))
