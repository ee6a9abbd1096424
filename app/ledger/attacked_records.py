"""The forgotten records that a run may read again for a membership attack."""

from sqlalchemy.orm import Session

from app.domain.policy import Policy
from app.ledger import repository
from app.ledger.tables import RunRow
from app.registry.membership import Membership
from app.registry.tables import ModelRow


def audited_records(
    session: Session, run: RunRow, model: ModelRow, membership: Membership
) -> frozenset[int]:
    """Return the sequence numbers of the records a run attacks; none unless the policy asks for it.

    They belong to the obligations that the run has taken over, may have influenced the model's
    weights, and are still stored.
    """
    if not Policy.from_json(model.policy).audit:
        return frozenset()
    return frozenset(
        record.seq
        for obligation in repository.obligations_of_run(session, run.id)
        for record in repository.records_of(session, obligation.request_id)
        if record.erased_at is None and membership.touched_by(record)
    )
