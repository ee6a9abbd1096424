"""Taking a version, or all weights of a model, out of service for good."""

from typing import Final

from sqlalchemy import func
from sqlalchemy.orm import Session

from app.delivery import derivatives
from app.delivery.publishing import repository as publishing
from app.domain.states import VersionState
from app.evidence import log
from app.ledger import training
from app.registry import counts
from app.registry import repository as registry
from app.registry.tables import ModelRow, VersionRow
from app.storage.blobs import doom

EMPTIED: Final = "every record that it could be trained on was forgotten, so it was withdrawn"


def retire(session: Session, model: ModelRow, version: VersionRow, *, reason: str) -> None:
    """Stop serving a version of a model, which is locked, and give up what it holds.

    Those who made something of it are told.
    """
    version.state = VersionState.RETIRED
    version.retired_at = func.clock_timestamp()
    version.reason = reason
    doom(session, version.blob_id)
    doom(session, version.statistics_blob_id)
    log.append(session, "version.retired", version=version.id)
    derivatives.tell(session, model, version)


def withdraw(session: Session, model: ModelRow, *, reason: str) -> None:
    """Leave a model, which is locked, without weights: it serves nothing and owes nothing.

    It does so until it is trained again, or its weights are uploaded again. No run of it may be
    going. The reason is shown with its last version, and with what it owed.
    """
    head = registry.head_version(session, model)
    if head is not None:
        retire(session, model, head, reason=reason)
    doom(session, model.imported_blob_id)
    model.head_version_id = model.imported_blob_id = model.tracking = None
    model.trained_through = model.trained_after_epoch = None
    counts.end(session, model)
    publishing.wake(session, model.id)
    log.append(session, "model.withdrawn", model=model.id)
    session.flush()
    training.drop_attempt(session, model, reason)
    session.flush()
