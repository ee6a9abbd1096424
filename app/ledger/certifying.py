"""Certificates as ledger facts: what they cover, and their rows."""

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.orm import Session

from app import log
from app.certificates.signing import StatementSigner
from app.certificates.statement import Coverage
from app.certificates.tables import CertificateRow
from app.datasets.lives import Life
from app.domain import merkle
from app.domain.ids import new_id
from app.domain.states import Basis
from app.ledger import repository
from app.ledger.repository import NamedRecord
from app.log import signing_keys
from app.planning.tracking import Tracking
from app.registry.membership import membership_of
from app.registry.tables import ModelRow


@dataclass(frozen=True)
class Accounted:
    """What a certificate accounts for, as salted commitments.

    Attributes:
        requests, records: how many are covered.
        covered: sorted commitments of the records that the weights may have learned from.
        excluded_records: how many forgotten records never touched the weights.
        excluded: sorted commitments of those.
        before_training: how many of ``records`` the present weights were trained without.
    """

    requests: int
    records: int
    covered: list[bytes]
    excluded_records: int = 0
    excluded: list[bytes] = field(default_factory=list)
    before_training: int = 0

    def coverage(self) -> Coverage:
        """Summarise it for a certificate."""
        return Coverage(
            requests=self.requests,
            records=self.records,
            commitments_root=merkle.root(self.covered).hex(),
            excluded_records=self.excluded_records,
            excluded_root=merkle.root(self.excluded).hex(),
            before_training=self.before_training,
        )


def accounted_for(
    session: Session, model: ModelRow, *, through_epoch: int, later_request: str | None = None
) -> Accounted:
    """Return all that was forgotten up to an epoch, as far as it concerns a model.

    A request whose records were restored before the model was trained does not concern it.

    Args:
        session: of the transaction.
        model: whose version is certified.
        through_epoch: what was forgotten later does not count.
        later_request: one whose records count all the same.
    """
    membership = membership_of(model)
    covered: list[NamedRecord] = []
    excluded: list[NamedRecord] = []
    lives: dict[int, Life] = {}
    found = repository.named_records(
        session, model.dataset_id, through_epoch=through_epoch, later_request=later_request
    )
    for named in found:
        record = named.record
        life = None if membership is None else membership.life_of(record)
        if life is not None and life.began > named.request_epoch:
            continue
        if membership is None or life is None or not membership.learned_from(record.record_key):
            excluded.append(named)
        else:
            covered.append(named)
            lives[record.seq] = life
    begun = 0 if model.tracking is None else Tracking.from_json(model.tracking).begun_at_epoch
    return Accounted(
        requests=len({named.request_id for named in covered}),
        records=len(lives),
        before_training=sum(life.forgotten_by(begun) for life in lives.values()),
        covered=sorted(named.commitment for named in covered),
        excluded_records=len({named.record.seq for named in excluded}),
        excluded=sorted(named.commitment for named in excluded),
    )


def accounted_in(session: Session, request_id: str) -> Accounted:
    """Return one request whose records never touched the weights; its certificate covers it."""
    commitments = sorted(repository.commitments_of(session, request_id))
    return Accounted(requests=1, records=len(commitments), covered=commitments)


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
    """Sign a statement and store it with its log entry; the log is signed with it at commit.

    Raises:
        ConfigurationError: the signer's key is not the one in use.
    """
    signing_keys.require_in_use(session, signer)
    signed = signer.sign(statement)
    previous = repository.last_certificate(session, model.id)
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
