"""``/v1/runs``: progress, and another try."""

from datetime import datetime
from typing import Any

from fastapi import APIRouter

from app.api.access import GuardedRoute, ModelsReader, ModelsWriter, ServicesOf
from app.api.errors import problem_responses
from app.api.schemas import Answer
from app.ledger import repository, runs
from app.ledger.tables import RunRow

router = APIRouter(prefix="/v1/runs", tags=["runs"], route_class=GuardedRoute)


class RunAnswer(Answer):
    """A run. ``epsilon`` is what the steps so far guarantee; ``loss`` begins after the target."""

    id: str
    kind: str
    state: str
    attempt: int
    phase: str | None
    step: int | None
    total_steps: int | None
    epsilon: float | None
    loss: float | None
    failure_reason: str | None
    plan: dict[str, Any]
    phase_seconds: dict[str, float] | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


def run_answer(row: RunRow) -> RunAnswer:
    """Return a run as it is shown."""
    return RunAnswer(**{name: getattr(row, name) for name in RunAnswer.model_fields})


@router.get("/{run_id}", responses=problem_responses(404))
def get_run(run_id: str, services: ServicesOf, _: ModelsReader) -> RunAnswer:
    """Show one run."""
    with services.database.transaction() as session:
        return run_answer(repository.run(session, run_id))


@router.post("/{run_id}/retry", status_code=202, responses=problem_responses(404, 409, 422))
def retry_run(run_id: str, services: ServicesOf, _: ModelsWriter) -> RunAnswer:
    """Start a new run like one that failed."""
    with services.database.transaction() as session:
        row = runs.retry_run(session, run_id)
        session.refresh(row)
        return run_answer(row)
