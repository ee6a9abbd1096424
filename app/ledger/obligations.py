"""State changes of obligations, and so of the requests that they belong to.

Locks have one order: a run, the dataset, its models, their requests. What two models owe is changed
in two steps, whose requests are in no order among each other. So requests are only locked by those
who hold a lock of their dataset, or of a model that owes them something.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from sqlalchemy.orm import Session

from app import log
from app.domain.states import Basis, ObligationState, RequestState
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
    """Let a run take on every open obligation whose records it leaves out."""
    if run.forget_epoch is None:
        return
    owed = repository.obligations_of_model(session, run.model_id, (ObligationState.OPEN,))
    requests, waiting = _locked(session, owed)
    epochs = {request.id: request.forget_epoch for request in requests}
    started = [each for each in waiting if epochs[each.request_id] <= run.forget_epoch]
    for obligation in started:
        obligation.run_id = run.id
        enter(session, obligation, ObligationState.RUNNING)
    _settle(session, requests, started)


def certify_obligations(session: Session, run: RunRow, certificate_id: str) -> int:
    """End a run's obligations with its certificate; return how many."""
    requests, obligations = _locked(session, repository.obligations_of_run(session, run.id))
    for obligation in obligations:
        obligation.certificate_id = certificate_id
        enter(session, obligation, ObligationState.CERTIFIED)
    _settle(session, requests, obligations)
    return len(obligations)


def meet(session: Session, obligations: Sequence[ObligationRow], certificate_id: str) -> None:
    """End unmet obligations with a certificate that covers their requests' records, too."""
    requests, met = _locked(session, obligations)
    for obligation in met:
        obligation.certificate_id = certificate_id
        obligation.failure_reason = None
        enter(session, obligation, ObligationState.CERTIFIED)
    _settle(session, requests, met)


def exclude(
    session: Session,
    obligations: Sequence[ObligationRow],
    run: RunRow,
    issue: Callable[[ForgetRequestRow], str],
) -> None:
    """End unmet obligations to which a training was the answer: it read none of their records.

    Args:
        session: of the transaction.
        obligations: what is owed.
        run: the training.
        issue: makes the certificate of a request that says so, and returns its id.
    """
    requests, excluded = _locked(session, obligations)
    for obligation in excluded:
        obligation.certificate_id = issue(repository.request(session, obligation.request_id))
        obligation.basis = Basis.EXCLUDED_FROM_TRAINING
        obligation.run_id = run.id
        obligation.failure_reason = None
        enter(session, obligation, ObligationState.CERTIFIED)
    _settle(session, requests, excluded)


def fail_obligations(session: Session, obligations: Sequence[ObligationRow], reason: str) -> None:
    """End obligations in failure, cancelled ones apart; the reason reaches the requests."""
    requests, failed = _locked(session, obligations)
    for obligation in failed:
        obligation.failure_reason = reason
        enter(session, obligation, ObligationState.FAILED)
    _settle(session, requests, failed)


def reopen_obligations(session: Session, run: RunRow) -> None:
    """Let the obligations of a failed or cancelled run wait for the model's next run."""
    requests, owed = _locked(session, repository.obligations_of_run(session, run.id))
    reopened = reopen(session, owed, ObligationState.FAILED, ObligationState.RUNNING)
    _settle(session, requests, reopened)


def reopen(
    session: Session, obligations: Iterable[ObligationRow], *states: ObligationState
) -> list[ObligationRow]:
    """Reopen the obligations in these states and return them; the caller updates their requests."""
    reopened = [o for o in obligations if o.state in states]
    for obligation in reopened:
        obligation.run_id = None
        obligation.failure_reason = None
        enter(session, obligation, ObligationState.OPEN)
    return reopened


def void(session: Session, obligations: Sequence[ObligationRow], reason: str) -> None:
    """End unmet obligations because no weights that have to forget exist any more."""
    requests, voided = _locked(session, obligations)
    for obligation in voided:
        obligation.failure_reason = reason
        enter(session, obligation, ObligationState.CANCELLED)
    _settle(session, requests, voided)


def settle_requests(session: Session, requests: Sequence[ForgetRequestRow]) -> None:
    """Derive the states of requests, which are locked, from their obligations."""
    session.flush()
    owed = repository.obligations_of_requests(session, [request.id for request in requests])
    for request in requests:
        obligations = owed[request.id]
        state = state_of({ObligationState(obligation.state) for obligation in obligations})
        request.failure_reason = next(
            (o.failure_reason for o in obligations if o.state == ObligationState.FAILED), None
        )
        if state != request.state:
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


def _locked(
    session: Session, obligations: Collection[ObligationRow]
) -> tuple[Sequence[ForgetRequestRow], list[ObligationRow]]:
    """Lock the requests of obligations; return them, and the obligations that are still open."""
    requests = repository.lock_requests(session, {each.request_id for each in obligations})
    if requests:
        repository.refresh_obligations(session, obligations)
    return requests, [each for each in obligations if each.state not in _SETTLED]


def _settle(
    session: Session,
    requests: Iterable[ForgetRequestRow],
    changed: Collection[ObligationRow],
) -> None:
    """Derive the states of those of the requests whose obligations have changed."""
    ids = {obligation.request_id for obligation in changed}
    if ids:
        settle_requests(session, [request for request in requests if request.id in ids])
