"""Certificates as ledger facts: what they account for, their rows, and how one is issued."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import exists, or_, select
from sqlalchemy.orm import Session

from app.domain.architectures import ArchitectureSpec, BackboneDigest, BaseDigest
from app.domain.errors import RunFailedError
from app.domain.ids import new_id
from app.domain.states import Basis
from app.evidence import log
from app.evidence.certificates.schema import Excluded
from app.evidence.certificates.signing import StatementSigner, statement_of
from app.evidence.certificates.statement import backbone_of, base_of
from app.evidence.certificates.tables import CertificateRow
from app.evidence.log import signing_keys
from app.ledger.certificates.accounts import Account, Lineage
from app.ledger.tables import ObligationRow
from app.planning.tracking import CurrentRelease, Tracking
from app.registry import backbones
from app.registry import repository as registry
from app.registry.tables import ModelRow, VersionRow
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


def begun_at(model: ModelRow) -> int:
    """Return the epoch at which the training of a model's present weights began, if it counts."""
    return 0 if model.tracking is None else Tracking.from_json(model.tracking).begun_at_epoch


def exclude(
    session: Session, model: ModelRow, version: VersionRow, request_ids: Sequence[str]
) -> Excluded:
    """Account for requests whose records never influenced a version; return what says so.

    The model is locked. The requests are all new, or it is one of any age.

    Raises:
        TargetNotMetError: one names a record that the weights may have learned from.
    """
    account = Account(session, Lineage.of(model, version), begun_at_epoch=begun_at(model))
    account.add(request_ids)
    account.store()
    return account.exclusion(request_ids)


def stated_of(session: Session, version: VersionRow) -> dict[str, Any]:
    """Return the newest statement about a certified version."""
    return statement_of(certificate(session, version.certificate_id).envelope)


def present_of(tracking: Tracking, head: VersionRow, stated: Mapping[str, Any]) -> CurrentRelease:
    """Return a tracked head as its newest statement counts it."""
    forgotten = stated["predicate"]["forgotten"]
    return CurrentRelease(
        tracking, head.number, forgotten=forgotten["records"] - forgotten["before_training"]
    )


def require_same_base(
    session: Session, model: ModelRow, newest: CertificateRow | None, base: BaseDigest | None
) -> None:
    """Check that a run's network has the base and the backbone that the newest certificate names.

    One that changed may have been trained on records meanwhile.

    Raises:
        RunFailedError: it has another.
    """
    if newest is None:
        return
    stated = statement_of(newest.envelope)
    if base_of(stated) != base:
        raise RunFailedError(
            "the network's frozen parameters or buffers are not those that the model's "
            "certificates name: restore the factory's files, or define a new model"
        )
    if backbone_of(stated) != digest_of_backbone(session, model):
        raise RunFailedError(
            "the backbone's weights are not those that the model's certificates name: they took "
            "the place of lost ones. Define a new model"
        )


def digest_of_backbone(session: Session, model: ModelRow) -> BackboneDigest | None:
    """Return a model's backbone as its next certificate names it, or None."""
    return backbones.digest_of(session, ArchitectureSpec.from_json(model.architecture))


def digest_of(previous: CertificateRow | None) -> str | None:
    """Return the digest by which a model's next certificate names the one before it, if any."""
    return None if previous is None else previous.sha256


def issue(
    session: Session,
    signer: StatementSigner,
    *,
    model: ModelRow,
    version_id: str,
    statement: dict[str, Any],
    previous: CertificateRow | None,
) -> CertificateRow:
    """Sign a statement and store it with its log entry; the log is signed with it at commit.

    ``previous`` is the model's newest certificate so far, which the statement names.

    Raises:
        ConfigurationError: the signer's key is not the one in use.
    """
    signing_keys.require_in_use(session, signer)
    signed = signer.sign(statement)
    basis = Basis(statement["predicate"]["basis"])
    row = CertificateRow(
        id=new_id("cert"),
        model_id=model.id,
        version_id=version_id,
        basis=basis,
        envelope=signed.envelope,
        sha256=signed.sha256,
        number=1 if previous is None else previous.number + 1,
    )
    session.add(row)
    log.append(
        session,
        "certificate.issued",
        certificate=row.id,
        sha256=signed.sha256,
        model=model.id,
        version=version_id,
        basis=basis,
        number=row.number,
    )
    log.checkpoint_at_commit(session, signer)
    return row
