"""Certificates for new requests that a model's present head covers already.

A new request for records that are forgotten already gets a new certificate of the head, over the
old commitments and its own, so that its receipt fits it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from app.backbones.use import digest_of
from app.certificates.signing import StatementSigner, statement_of
from app.certificates.statement import Subject, Times, exclusion_statement, restated
from app.certificates.tables import CertificateRow
from app.domain.architecture import ArchitectureSpec
from app.domain.ids import new_id
from app.domain.states import Basis, ObligationState
from app.ledger import certifying, obligations, repository
from app.ledger.tables import ForgetRequestRow, ObligationRow
from app.registry.tables import ModelRow, VersionRow


@dataclass(frozen=True)
class Settled:
    """What a model's present head covers already, so that it is certified at once."""

    model_id: str
    basis: Basis


def certify(
    session: Session,
    signer: StatementSigner,
    request: ForgetRequestRow,
    settled: Sequence[Settled],
    *,
    now: datetime,
) -> None:
    """Certify what is settled of a request; the caller holds the models' locks."""
    for one in settled:
        # The model has been locked since the decision, and its head with it.
        model = session.get_one(ModelRow, one.model_id, populate_existing=True)
        head = session.get_one(VersionRow, model.head_version_id)
        certify_one = certify_again if one.basis == Basis.UNLEARNED else _exclusion
        certificate = certify_one(session, signer, request, model=model, head=head, now=now)
        session.flush()
        obligation = ObligationRow(
            id=new_id("ob"),
            request_id=request.id,
            model_id=model.id,
            state=ObligationState.CERTIFIED,
            basis=one.basis,
            certificate_id=certificate.id,
        )
        session.add(obligation)
        obligations.record(session, obligation)
    obligations.settle_request(session, request)


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


def _exclusion(
    session: Session,
    signer: StatementSigner,
    request: ForgetRequestRow,
    *,
    model: ModelRow,
    head: VersionRow,
    now: datetime,
) -> CertificateRow:
    statement = exclusion_statement(
        subject=Subject(model=model.name, version=head.number, weights_sha256=head.sha256),
        coverage=certifying.accounted_in(session, request.id).coverage(),
        previous_certificate=certifying.previous_digest(session, model.id),
        times=Times(started_at=request.received_at, certified_at=now),
        backbone=digest_of(session, ArchitectureSpec.from_json(model.architecture)),
    )
    return certifying.issue(
        session,
        signer,
        model=model,
        version_id=head.id,
        basis=Basis.EXCLUDED_FROM_TRAINING,
        statement=statement,
    )
