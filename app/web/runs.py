"""``/runs``: runs and workers, live; retries."""

from collections.abc import Callable

from fastapi import Request, Response
from redis import RedisError
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from app.api.protocol.access import Make, ServicesOf
from app.api.protocol.schemas import Answer, PageByMoment
from app.api.protocol.waiting import Found, Prefer, answer_with_news
from app.api.runs import RunAnswer
from app.domain.plan import Plan
from app.domain.states import RunState
from app.ledger import runs
from app.ledger.tables import OutboxRow
from app.ledger.views import run_views
from app.ledger.views.changes import ALL_RUNS, Kind
from app.operations.monitoring.queue_state import QueueState, queue_state
from app.planning.mechanisms.catalogue import epsilon_by_step
from app.registry import repository as registry
from app.web import figures, pages
from app.web.access import ModelsReader, ModelsSender, Sessions, SessionsOf, Visitor, visitor
from app.web.figures import by_name, epsilon_curve
from app.web.pages import render

router = pages.router()

_MOST_FAILED = 100


class _Going(Answer):
    """The runs that are queued or going."""

    runs: list[RunAnswer]


@router.get("/runs")
def show_going(services: ServicesOf, sessions: SessionsOf, visitor: ModelsReader) -> Response:
    """Show the runs that are queued, going or failed, and who works on them."""
    last = figures.last_weeks()
    with services.database.transaction() as session:
        return render(
            "runs.html",
            visitor,
            active=run_views.active(session),
            failed=run_views.failed(session, limit=_MOST_FAILED),
            outbox=session.scalar(select(func.count()).select_from(OutboxRow)),
            queue=queue_or_none(sessions),
            weekly=figures.rows_of(
                last,
                {
                    week: [f"{runs}", f"{epsilon:.4g}"]
                    for week, (_, epsilon, runs) in figures.costs_by_week(session, last[0]).items()
                },
            ),
        )


@router.get("/runs/all")
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
        "all.html",
        visitor,
        what="run",
        lines=found,
        models=names,
        states=list(RunState),
        wanted=wanted,
        model=model,
        first=page.after is None,
        next_cursor=next_cursor,
    )


@router.get("/runs/progress")
async def progress_of_all(
    request: Request, visitor: ModelsReader, prefer: Prefer = None
) -> Response:
    """Return the runs that are queued or going; ``Prefer: wait`` waits for news of any."""

    def read(session: Session) -> Found:
        going = [RunAnswer.of(line) for line in run_views.active(session)]
        return Found(ALL_RUNS, _Going(runs=going), is_final=False)

    return await _news(request, visitor, Kind.ALL_RUNS, read, prefer)


@router.get("/runs/{run_id}")
def show(run_id: str, services: ServicesOf, visitor: ModelsReader) -> Response:
    """Show one run with the curve of its mechanism."""
    with services.database.transaction() as session:
        line = run_views.one(session, run_id)
        released = registry.version_of_run(session, run_id, shown=True)
    plan = Plan.from_json(line.plan)
    planned = epsilon_by_step(plan)
    reports = line.reports or []
    reported = [(each["step"], each["epsilon"]) for each in reports if each["epsilon"] is not None]
    losses = [(each["step"], each["loss"]) for each in reports if each["loss"] is not None]
    return render(
        "run.html",
        visitor,
        line=line,
        plan=plan,
        version=None if released is None else released.number,
        phase_seconds=line.phase_seconds or {},
        planned=planned,
        reported=reported,
        curve=epsilon_curve(planned, reported, target=plan.epsilon, steps=line.total_steps or 1),
        losses=by_name(
            [str(step) for step, _ in losses], [loss for _, loss in losses], title="Loss by step"
        ),
    )


@router.get("/runs/{run_id}/progress")
async def progress(
    run_id: str, request: Request, visitor: ModelsReader, prefer: Prefer = None
) -> Response:
    """Return a run as the API does; ``Prefer: wait`` waits for news of its progress."""

    def read(session: Session) -> Found:
        line = run_views.one(session, run_id)
        return Found(line.id, RunAnswer.of(line), is_final=line.has_ended)

    return await _news(request, visitor, Kind.RUN, read, prefer)


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


def queue_or_none(sessions: Sessions) -> QueueState | None:
    """Return the queue's state, or None if Redis cannot be reached."""
    try:
        return queue_state(sessions.redis)
    except RedisError:
        return None


async def _news(
    request: Request,
    someone: Visitor,
    kind: Kind,
    read: Callable[[Session], Found],
    prefer: str | None,
) -> Response:
    async def look_again(_: Request) -> None:
        services, sessions = request.app.state.services, request.app.state.sessions
        await run_in_threadpool(visitor, request, services, sessions)

    return await answer_with_news(
        request, someone.caller, kind, read, prefer=prefer, look_again=look_again
    )
