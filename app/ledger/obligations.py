"""State changes of obligations, and so of the requests that they belong to."""

from collections.abc import Callable, Iterable, Sequence

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
    for obligation in repository.obligations_of_model(
        session, run.model_id, (ObligationState.OPEN,)
    ):
        request = repository.request(session, obligation.request_id, lock=True)
        if run.forget_epoch is not None and request.forget_epoch <= run.forget_epoch:
            obligation.run_id = run.id
            enter(session, obligation, ObligationState.RUNNING)
            settle_request(session, request)


def certify_obligations(session: Session, run: RunRow, certificate_id: str) -> int:
    """End a run's obligations with its certificate; return how many."""
    obligations = repository.obligations_of_run(session, run.id)
    for obligation in obligations:
        obligation.certificate_id = certificate_id
        enter(session, obligation, ObligationState.CERTIFIED)
    _settle_requests_of(session, obligations)
    return len(obligations)


def meet(session: Session, obligations: Sequence[ObligationRow], certificate_id: str) -> None:
    """End unmet obligations with a certificate that covers their requests' records, too."""
    met = _locked(session, obligations)
    for obligation in met:
        obligation.certificate_id = certificate_id
        obligation.failure_reason = None
        enter(session, obligation, ObligationState.CERTIFIED)
    _settle_requests_of(session, met)


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
    excluded = _locked(session, obligations)
    for obligation in excluded:
        obligation.certificate_id = issue(repository.request(session, obligation.request_id))
        obligation.basis = Basis.EXCLUDED_FROM_TRAINING
        obligation.run_id = run.id
        obligation.failure_reason = None
        enter(session, obligation, ObligationState.CERTIFIED)
    _settle_requests_of(session, excluded)


def fail_obligations(session: Session, obligations: Sequence[ObligationRow], reason: str) -> None:
    """End obligations in failure, cancelled ones apart; the reason reaches the requests."""
    failed = _locked(session, obligations)
    for obligation in failed:
        obligation.failure_reason = reason
        enter(session, obligation, ObligationState.FAILED)
    _settle_requests_of(session, failed)


def reopen_obligations(session: Session, run: RunRow) -> None:
    """Let the obligations of a failed or cancelled run wait for the model's next run."""
    obligations = repository.obligations_of_run(session, run.id)
    reopened = reopen(session, obligations, ObligationState.FAILED, ObligationState.RUNNING)
    _settle_requests_of(session, reopened)


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
    voided = _locked(session, obligations)
    for obligation in voided:
        obligation.failure_reason = reason
        enter(session, obligation, ObligationState.CANCELLED)
    _settle_requests_of(session, voided)


def settle_request(session: Session, request: ForgetRequestRow) -> None:
    """Derive a request's state from its obligations."""
    session.flush()
    obligations = repository.obligations_of_request(session, request.id)
    states = {ObligationState(obligation.state) for obligation in obligations}
    if ObligationState.FAILED in states:
        state = RequestState.FAILED
        request.failure_reason = next(
            o.failure_reason for o in obligations if o.state == ObligationState.FAILED
        )
    elif states <= _SETTLED:
        state = RequestState.CERTIFIED
    elif ObligationState.RUNNING in states or ObligationState.CERTIFIED in states:
        state = RequestState.UNLEARNING
    else:
        state = RequestState.ACCEPTED
    if state != request.state:
        transitions.enter(session, request, state)
    if state != RequestState.FAILED:
        request.failure_reason = None


def _locked(session: Session, obligations: Iterable[ObligationRow]) -> list[ObligationRow]:
    """Lock the requests of obligations; return the obligations that are still open."""
    found = list(obligations)
    for request_id in sorted({obligation.request_id for obligation in found}):
        repository.request(session, request_id, lock=True)
    repository.refresh_obligations(session, found)
    return [obligation for obligation in found if obligation.state not in _SETTLED]


def _settle_requests_of(session: Session, obligations: Iterable[ObligationRow]) -> None:
    for request_id in sorted({obligation.request_id for obligation in obligations}):
        settle_request(session, repository.request(session, request_id, lock=True))
