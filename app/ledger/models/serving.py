"""Which version may be served now, given the open forget requests."""

from sqlalchemy.orm import Session

from app.domain.errors import GoneError, NotReadyError
from app.domain.policy import Policy
from app.domain.states import UNMET_OBLIGATION_STATES, Serving, VersionState
from app.ledger import repository
from app.registry import repository as registry
from app.registry.tables import ModelRow, VersionRow
from app.runtime.database.endings import archived_on


def current_version(session: Session, model: ModelRow) -> VersionRow:
    """Return the version that the model serves now.

    Raises:
        NotReadyError: no version was released yet, or another one is being made from nothing.
        GoneError: the model was archived, or withdrawn: by its policy until open requests are met.
    """
    if model.archived_at is not None:
        raise GoneError(f"model {model.name!r} {archived_on(model.archived_at)}")
    head = registry.head_version(session, model)
    if head is None and repository.active_run(session, model.id) is None:
        last = registry.newest_version(session, model.id)
        if last is not None:
            raise _gone(model, last)
    if head is None or head.state != VersionState.CERTIFIED:
        raise NotReadyError(f"model {model.name!r} has no released version yet")
    withdraws = Policy.from_json(model.policy).serving is Serving.WITHDRAW_ON_REQUEST
    if withdraws and repository.obligations_of_model(session, model.id, UNMET_OBLIGATION_STATES):
        raise GoneError(f"model {model.name!r} is withdrawn until open forget requests are met")
    return head


def find_current_version(session: Session, model: ModelRow) -> VersionRow | None:
    """Return the version that the model serves now, or None."""
    try:
        return current_version(session, model)
    except (NotReadyError, GoneError):
        return None


def served_version(session: Session, model: ModelRow, number: int) -> VersionRow:
    """Return a version by number, if it may still be served.

    Raises:
        NotFoundError: the version does not exist.
        GoneError: it was retired, or the model is withdrawn.
    """
    version = registry.version_numbered(session, model, number)
    if version.state != VersionState.CERTIFIED:
        raise _gone(model, version)
    return current_version(session, model)


def _gone(model: ModelRow, version: VersionRow) -> GoneError:
    return GoneError(
        f"version {version.number} of {model.name!r} is {version.state}: {version.reason}"
    )
