"""Which forgotten records a run may read again, to measure an attack on them."""

from sqlalchemy.orm import Session

from app.domain.policy import Policy
from app.ledger import repository
from app.ledger.tables import RunRow
from app.registry.membership import Membership
from app.registry.tables import ModelRow


def audited_records(
    session: Session, run: RunRow, model: ModelRow, membership: Membership
) -> frozenset[int]:
    """Return the sequence numbers of records that a run audits; none unless the policy says so.

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
