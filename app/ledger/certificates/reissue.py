"""Certificates for requests that a model's present head answers at once.

Where the head learned from a request's records, it gets a new certificate over the old commitments
and the request's (``present_release``), so that its receipt fits it. One whose records the head
never learned from gets a certificate that says so; a new training is such an answer to all that was
asked before it began. Requests that are accepted together share a certificate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from app.domain.errors import NotReadyError
from app.domain.ids import new_id
from app.domain.states import Basis, ObligationState
from app.evidence import log
from app.evidence.certificates.signing import StatementSigner
from app.evidence.certificates.statement import (
    Subject,
    Times,
    backbone_of,
    base_of,
    exclusion_statement,
)
from app.evidence.certificates.tables import CertificateRow
from app.evidence.log import actor
from app.ledger import obligations, repository, training
from app.ledger.certificates import bundles, issuing
from app.ledger.certificates.present_release import Covering
from app.ledger.locked_models import LockedModel
from app.ledger.tables import ForgetRequestRow, ObligationRow, RunRow
from app.registry.membership import membership_of
from app.registry.tables import ModelRow, VersionRow
from app.runtime.database.queries import database_time


@dataclass(frozen=True)
class Asked:
    """A new request, and who is named in the log."""

    row: ForgetRequestRow
    actor: str


@dataclass(frozen=True)
class Answer:
    """What a model's present head answers at once; the model is locked.

    Attributes:
        covering: the certificate for ``unlearned``.
        unlearned: the requests that name a record that the head learned from.
        held_out: those that name only others, all of which are held out from every training.
        left_out: those with others that this training left out.
    """

    locked: LockedModel
    covering: Covering | None
    unlearned: Sequence[Asked]
    held_out: Sequence[Asked]
    left_out: Sequence[Asked]

    @property
    def asked(self) -> list[Asked]:
        """All of them."""
        return [*self.unlearned, *self.held_out, *self.left_out]


def certify(session: Session, signer: StatementSigner, answer: Answer, *, now: datetime) -> None:
    """Certify what a model answers at once; the caller holds the model's lock."""
    first = next(iter(answer.asked), None)
    if first is None:
        return
    model, head = answer.locked.model, answer.locked.head
    if head is None:
        raise NotReadyError("a model without a head answers nothing")
    with actor.acting_as(first.actor):
        if answer.covering is not None:
            certificate = answer.covering.issue(session, signer)
            _settle(session, signer, answer.unlearned, certificate, Basis.UNLEARNED)
        for excluded, anew in ((answer.held_out, False), (answer.left_out, True)):
            if excluded:
                certificate = _exclusion(
                    session,
                    signer,
                    [asked.row for asked in excluded],
                    model=model,
                    head=head,
                    now=now,
                    trained_anew=anew,
                )
                _settle(session, signer, excluded, certificate, Basis.EXCLUDED_FROM_TRAINING)


def exclude_before(
    session: Session, signer: StatementSigner, run: RunRow, *, model: ModelRow, head: VersionRow
) -> None:
    """Certify every request to which the training of a new head is the answer.

    Those are the unmet ones that name no record that it learned from. Others stay open: their
    records were forgotten while it was going.
    """

    def issue(request: ForgetRequestRow) -> str:
        records = repository.records_of(session, request.id)
        certificate = _exclusion(
            session,
            signer,
            [request],
            model=model,
            head=head,
            now=now,
            trained_anew=membership is None or not membership.holds_out(records),
        )
        session.flush()
        return certificate.id

    now, membership = database_time(session), membership_of(model)
    owed = training.unconcerned(session, model.id, membership)
    obligations.exclude(session, owed, run, issue)


def _settle(
    session: Session,
    signer: StatementSigner,
    answered: Sequence[Asked],
    certificate: CertificateRow,
    basis: Basis,
) -> None:
    """End what requests are owed with a certificate, if the verifier's code accepts its place."""
    log.examine_at_commit(
        session, lambda at_end: bundles.require_place(at_end, certificate, signer=signer)
    )
    session.flush()
    owed = [
        ObligationRow(
            id=new_id("ob"),
            request_id=asked.row.id,
            model_id=certificate.model_id,
            state=ObligationState.CERTIFIED,
            basis=basis,
            certificate_id=certificate.id,
        )
        for asked in answered
    ]
    session.add_all(owed)
    for asked, obligation in zip(answered, owed, strict=True):
        with actor.acting_as(asked.actor):
            obligations.record(session, obligation)


def _exclusion(
    session: Session,
    signer: StatementSigner,
    requests: Sequence[ForgetRequestRow],
    *,
    model: ModelRow,
    head: VersionRow,
    now: datetime,
    trained_anew: bool,
) -> CertificateRow:
    previous = issuing.last_certificate(session, model.id)
    stated = issuing.stated_of(session, head)
    statement = exclusion_statement(
        subject=Subject(
            model=model.name,
            version=head.number,
            weights_sha256=head.sha256,
            # A request may seem to come later: the clock was set back.
            times=Times(min(now, *(request.received_at for request in requests)), now),
            previous_certificate=issuing.digest_of(previous),
            backbone=backbone_of(stated),
            base=base_of(stated),
        ),
        exclusion=issuing.exclude(session, model, head, [request.id for request in requests]),
        trained_anew=trained_anew,
    )
    return issuing.issue(
        session,
        signer,
        model=model,
        version_id=head.id,
        statement=statement,
        previous=previous,
    )
