"""Requests accounted for, outside of a publication."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from app.evidence.certificates.schema import Forgotten
from app.ledger.certificates import issuing
from app.ledger.certificates.accounts import Account, Lineage
from app.registry.tables import ModelRow, VersionRow


def covered(
    session: Session,
    model: ModelRow,
    version: VersionRow,
    request_ids: Sequence[str],
    *,
    through_epoch: int,
) -> Forgotten:
    """Account for requests, new ones or not, that a version covers; return what is stated of it."""
    begun = issuing.begun_at(model)
    account = Account(session, Lineage.of(model, version), begun_at_epoch=begun)
    account.add(request_ids)
    coverage = account.coverage(through_epoch=through_epoch)
    account.store()
    return coverage
