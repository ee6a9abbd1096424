"""Certificates for requests that an earlier run has answered already.

A new request for records that are forgotten already gets a new certificate of the head, over the
old commitments and its own, so that its receipt fits it.
"""

from dataclasses import replace
from datetime import datetime

from sqlalchemy.orm import Session

from app.certificates.signing import StatementSigner, statement_of
from app.certificates.statement import Times, restated
from app.certificates.tables import CertificateRow
from app.domain.states import Basis
from app.ledger import certifying, repository
from app.ledger.certifying import Accounted
from app.ledger.tables import ForgetRequestRow
from app.registry.membership import membership_of
from app.registry.tables import ModelRow, VersionRow


def certify_again(
    session: Session,
    signer: StatementSigner,
    request: ForgetRequestRow,
    *,
    model: ModelRow,
    head: VersionRow,
    now: datetime,
) -> CertificateRow:
    """Issue the head's statement again, with one more request."""
    statement = restated(
        statement_of(repository.certificate(session, head.certificate_id).envelope),
        coverage=accounted_with(session, request, model=model, head=head).coverage(),
        previous_certificate=certifying.previous_digest(session, model.id),
        times=Times(started_at=request.received_at, certified_at=now),
    )
    return certifying.issue(
        session,
        signer,
        model=model,
        version_id=head.id,
        basis=Basis(statement["predicate"]["basis"]),
        statement=statement,
    )


def accounted_with(
    session: Session, request: ForgetRequestRow, *, model: ModelRow, head: VersionRow
) -> Accounted:
    """Return what a version accounts for, and a later request for some of the same records."""
    before = certifying.accounted_for(session, model, through_epoch=head.covers_epoch)
    membership = membership_of(model)
    covered, excluded = list(before.covered), list(before.excluded)
    for record, commitment in repository.commitments_by_record(session, request.id):
        touched = membership is not None and membership.touched_by(record)
        (covered if touched else excluded).append(commitment)
    return replace(
        before,
        requests=before.requests + 1,
        covered=sorted(covered),
        excluded_records=before.excluded_records + len(excluded) - len(before.excluded),
        excluded=sorted(excluded),
    )
