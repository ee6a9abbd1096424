"""Certificates for requests that an earlier run has answered already.

A new request for records that are forgotten already gets a new certificate of the head, over the
old commitments and its own, so that its receipt fits it.
"""

from datetime import datetime

from sqlalchemy.orm import Session

from app.certificates.signing import StatementSigner, statement_of
from app.certificates.statement import Times, restated
from app.certificates.tables import CertificateRow
from app.domain.states import Basis
from app.ledger import certifying, repository
from app.ledger.tables import ForgetRequestRow
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
        coverage=certifying.accounted_for(
            session, model, through_epoch=head.covers_epoch, later_request=request.id
        ).coverage(),
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
