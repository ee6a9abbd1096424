"""State changes of obligations, and so of the requests that they belong to.

Locks have one order: a run, the dataset, its models, their requests. What two models owe is changed
in two steps, whose requests are in no order among each other. So requests are only locked by those
who hold a lock of their dataset, or of a model that owes them something.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from sqlalchemy.orm import Session

from app.domain.states import (
    WAITING_OBLIGATION_STATES,
    Basis,
    ObligationState,
    RequestState,
)
from app.evidence import log
from app.ledger import repository, transitions
from app.ledger.tables import ForgetRequestRow, ObligationRow, RunRow

_SETTLED = {ObligationState.CERTIFIED, ObligationState.CANCELLED}


def enter(session: Session, obligation: ObligationRow, state: ObligationState) -> None:
    """Move an obligation to a state; its other fields must be set already."""
    obligation.state = state
    record(session, obligation)


def record(session: Session, obligation: ObligationRow) -> None:
    """Log the present state of an obligation."""
    log.append(
        session,
        f"obligation.{obligation.state}",
        obligation=obligation.id,
        request=obligation.request_id,
        model=obligation.model_id,
        basis=obligation.basis,
        run=obligation.run_id,
        certificate=obligation.certificate_id,
    )


def start_obligations(session: Session, run: RunRow) -> None:
    """Let a run take on every obligation whose records it leaves out, failed ones included."""
    if run.forget_epoch is None:
        return
    owed = repository.obligations_of_model(session, run.model_id, WAITING_OBLIGATION_STATES)
    with _unsettled(session, owed) as (requests, waiting):
        for obligation in waiting:
            asked_at = requests[obligation.request_id].forget_epoch
            if asked_at is not None and asked_at <= run.forget_epoch:
                obligation.run_id, obligation.failure_reason = run.id, None
                enter(session, obligation, ObligationState.RUNNING)


def meet(session: Session, obligations: Collection[ObligationRow], certificate_id: str) -> None:
    """End obligations with a certificate that covers their requests' records."""
    with _unsettled(session, obligations) as (_, met):
        for obligation in met:
            _certify(session, obligation, certificate_id)


def exclude(
    session: Session,
    obligations: Collection[ObligationRow],
    run: RunRow,
    issue: Callable[[ForgetRequestRow], str],
) -> None:
    """End obligations that a training has met, since it read none of their records.

    ``issue`` makes the certificate of a request that says so, and returns its id.
    """
    with _unsettled(session, obligations) as (requests, excluded):
        for obligation in excluded:
            certificate_id = issue(requests[obligation.request_id])
            obligation.basis = Basis.EXCLUDED_FROM_TRAINING
            obligation.run_id = run.id
            _certify(session, obligation, certificate_id)


def fail_obligations(session: Session, run: RunRow, reason: str) -> None:
    """End the obligations of a run that failed; of one that never began, all that it was due."""
    owed = repository.obligations_of_run(session, run.id)
    if run.forget_epoch is None:
        owed = repository.obligations_of_model(session, run.model_id, (ObligationState.OPEN,))
    end_unmet(session, owed, ObligationState.FAILED, reason, run=run)


def end_unmet(
    session: Session,
    obligations: Collection[ObligationRow],
    state: ObligationState,
    reason: str,
    *,
    run: RunRow | None = None,
) -> None:
    """End obligations without a certificate; the reason reaches their requests.

    They have failed, as a ``run`` did, or are cancelled because no weights that have to forget
    exist any more.
    """
    with _unsettled(session, obligations) as (_, unmet):
        for obligation in unmet:
            obligation.run_id = obligation.run_id if run is None else run.id
            obligation.failure_reason = reason
            enter(session, obligation, state)


def reopen_obligations(session: Session, run: RunRow) -> None:
    """Let the obligations of a failed or cancelled run wait for the model's next run."""
    with _unsettled(session, repository.obligations_of_run(session, run.id)) as (_, owed):
        reopen(session, owed, ObligationState.FAILED, ObligationState.RUNNING)


def reopen(
    session: Session, obligations: Iterable[ObligationRow], *states: ObligationState
) -> None:
    """Reopen the obligations in these states; the caller updates their requests."""
    for obligation in obligations:
        if obligation.state in states:
            obligation.run_id = obligation.failure_reason = None
            enter(session, obligation, ObligationState.OPEN)


def settle_requests(session: Session, requests: Sequence[ForgetRequestRow]) -> None:
    """Derive the states of requests, which are locked, from their obligations.

    One that was cancelled stays so.
    """
    session.flush()
    owed = repository.obligations_of_requests(session, [request.id for request in requests])
    _settle(session, requests, owed)


def _settle(
    session: Session,
    requests: Iterable[ForgetRequestRow],
    owed: Mapping[str, Collection[ObligationRow]],
) -> None:
    for request in requests:
        obligations = owed[request.id]
        state = state_of({ObligationState(obligation.state) for obligation in obligations})
        request.failure_reason = next(
            (o.failure_reason for o in obligations if o.state == ObligationState.FAILED), None
        )
        if request.state not in (state, RequestState.CANCELLED):
            transitions.enter(session, request, state)


def state_of(owed: Collection[ObligationState]) -> RequestState:
    """Return the state of a request whose obligations have these states."""
    if ObligationState.FAILED in owed:
        return RequestState.FAILED
    if _SETTLED.issuperset(owed):
        return RequestState.CERTIFIED
    if ObligationState.RUNNING in owed or ObligationState.CERTIFIED in owed:
        return RequestState.UNLEARNING
    return RequestState.ACCEPTED


def _certify(session: Session, obligation: ObligationRow, certificate_id: str) -> None:
    obligation.certificate_id = certificate_id
    obligation.failure_reason = None
    enter(session, obligation, ObligationState.CERTIFIED)


@contextmanager
def _unsettled(
    session: Session, obligations: Collection[ObligationRow]
) -> Iterator[tuple[Mapping[str, ForgetRequestRow], list[ObligationRow]]]:
    """Lock the requests of obligations; yield them by id, and the obligations that are unsettled.

    What the block makes of these decides the states of their requests.
    """
    requests = repository.lock_requests(session, {each.request_id for each in obligations})
    owed = repository.obligations_of_requests(session, [request.id for request in requests])
    unsettled = [each for each in obligations if each.state not in _SETTLED]
    yield {request.id: request for request in requests}, unsettled
    ids = {obligation.request_id for obligation in unsettled}
    _settle(session, [request for request in requests if request.id in ids], owed)
