"""Certificates as ledger facts: what they cover, and their rows."""

from typing import Any

from sqlalchemy import func
from sqlalchemy.orm import Session

from app.certificates.signing import StatementSigner
from app.certificates.statement import Coverage
from app.certificates.tables import CertificateRow
from app.domain import merkle
from app.domain.ids import new_id
from app.domain.states import Basis
from app.ledger import log, repository
from app.registry.membership import membership_of
from app.registry.tables import ModelRow


def coverage_of(session: Session, model: ModelRow, *, through_epoch: int) -> Coverage:
    """Return the union of all that was forgotten for a model up to an epoch."""
    membership = membership_of(model)
    covered = [
        (record.seq, request_id, commitment)
        for record, request_id, commitment in repository.forgotten_for(
            session, model.dataset_id, through_epoch=through_epoch
        )
        if membership is not None
        and membership.touched(
            seq=record.seq,
            forgotten_epoch=record.forgotten_epoch,
            record_key=record.record_key,
        )
    ]
    return coverage(
        requests={request_id for _, request_id, _ in covered},
        records={seq for seq, _, _ in covered},
        commitments=[commitment for _, _, commitment in covered],
    )


def coverage(*, requests: set[str], records: set[int], commitments: list[bytes]) -> Coverage:
    """Summarise requests, records and their commitments."""
    return Coverage(
        requests=len(requests),
        records=len(records),
        commitments_root=merkle.root(sorted(commitments)).hex(),
    )


def previous_digest(session: Session, model_id: str) -> str | None:
    """Return the digest of the model's newest certificate, to chain the next one to it."""
    previous = repository.last_certificate(session, model_id)
    return None if previous is None else previous.sha256


def issue(
    session: Session,
    signer: StatementSigner,
    *,
    model: ModelRow,
    version_id: str,
    basis: Basis,
    statement: dict[str, Any],
) -> CertificateRow:
    """Sign a statement and store it with its log entry; the log is signed with it at commit."""
    signed = signer.sign(statement)
    row = CertificateRow(
        id=new_id("cert"),
        model_id=model.id,
        version_id=version_id,
        basis=basis,
        envelope=signed.envelope,
        sha256=signed.sha256,
        # Not the transaction's start: certificates are chained in the order of the model's lock.
        created_at=func.clock_timestamp(),
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
    )
    log.checkpoint_at_commit(session, signer)
    return row
