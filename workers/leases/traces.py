"""What traces say of runs: each attempt is a span, with its phases and helpers below it."""

from collections.abc import Iterable, Sequence

from sqlalchemy.orm import Session

from app.domain.errors import ProcessLostError
from app.domain.states import ObligationState, RunKind
from app.ledger import repository
from app.ledger.tables import OutboxRow, RunRow
from app.registry.tables import ModelRow
from app.runtime.spans import Facts, Span, Step, Work, nanoseconds


def attempt_at(session: Session, run: RunRow, fencing_token: int) -> Work:
    """Return the work that an attempt is."""
    return Work(("run", run.id, fencing_token), _requests_of(session, run))


def spans_of_attempt(
    session: Session, run: RunRow, fencing_token: int, *, begun_ns: int, error: str | None
) -> Iterable[Span]:
    """Return the spans of an attempt that ends now."""
    facts = Facts(
        model=session.get_one(ModelRow, run.model_id).name,
        run=run.id,
        run_kind=run.kind,
        mechanism=run.plan["mechanism"],
        attempt=run.attempt,
    )
    work = attempt_at(session, run, fencing_token)
    return work.spans(Step.RUN, begun_ns=begun_ns, facts=facts, error=error)


def spans_of_silent(session: Session, run: RunRow) -> Iterable[Span]:
    """Return the spans of an attempt whose worker can say nothing any more."""
    begun_ns = nanoseconds(run.started_at or run.created_at)
    error = ProcessLostError.__name__
    return spans_of_attempt(session, run, run.fencing_token, begun_ns=begun_ns, error=error)


def spans_of_enqueued(session: Session, run: RunRow, row: OutboxRow) -> Iterable[Span]:
    """Return the spans of handing a run to the workers; of training, it is not worth a trace."""
    requests = _requests_of(session, run)
    work = Work(("enqueue", run.id, row.id), requests)
    facts = Facts(run=run.id, run_kind=run.kind)
    begun_ns = nanoseconds(row.posted_at)
    return work.spans(Step.ENQUEUE, begun_ns=begun_ns, facts=facts) if requests else ()


def _requests_of(session: Session, run: RunRow) -> Sequence[str]:
    """Return the requests that a run answers, or will answer if it has not begun."""
    owed = repository.obligations_of_run(session, run.id)
    if not owed and run.kind != RunKind.TRAIN:
        owed = repository.obligations_of_model(session, run.model_id, (ObligationState.OPEN,))
    return [each.request_id for each in owed]
