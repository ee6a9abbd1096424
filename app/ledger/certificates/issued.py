"""Which certificates were issued: reads of their rows."""

from typing import Any

from sqlalchemy import exists, or_, select
from sqlalchemy.orm import Session

from app.evidence.certificates.signing import statement_of
from app.evidence.certificates.tables import CertificateRow
from app.ledger.tables import ObligationRow
from app.registry import repository as registry
from app.registry.tables import VersionRow
from app.runtime.database.queries import known


def has_shown_certificate(session: Session, model_id: str) -> bool:
    """Return whether a model has released a version, or answered a request with a certificate."""
    answered = exists().where(
        ObligationRow.model_id == model_id, ObligationRow.certificate_id.is_not(None)
    )
    return bool(session.scalar(select(or_(registry.has_released(model_id), answered))))


def certificate(session: Session, certificate_id: str) -> CertificateRow:
    """Return a certificate, or raise ``NotFoundError``."""
    return known(session.get(CertificateRow, certificate_id), "certificate", certificate_id)


def predicate_of(session: Session, certificate_id: str) -> dict[str, Any]:
    """Return what a certificate states, or raise ``NotFoundError``."""
    return dict(statement_of(certificate(session, certificate_id).envelope)["predicate"])


def released_certificate(session: Session, certificate_id: str) -> CertificateRow:
    """Return a certificate; raise ``NotFoundError`` also if its version was never released."""
    query = (
        select(CertificateRow)
        .join(VersionRow, VersionRow.id == CertificateRow.version_id)
        .where(CertificateRow.id == certificate_id, registry.is_shown())
    )
    return known(session.scalar(query), "certificate", certificate_id)


def certificate_before(session: Session, certificate: CertificateRow) -> CertificateRow | None:
    """Return the certificate of the same model that a certificate names as the one before it."""
    query = select(CertificateRow).where(
        CertificateRow.model_id == certificate.model_id,
        CertificateRow.number == certificate.number - 1,
    )
    return session.scalar(query)


def last_certificate(session: Session, model_id: str) -> CertificateRow | None:
    """Return the model's newest certificate, of any basis."""
    query = select(CertificateRow).where(CertificateRow.model_id == model_id)
    return session.scalar(query.order_by(CertificateRow.number.desc()).limit(1))
