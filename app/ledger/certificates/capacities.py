"""How many more records the present versions of models cover without a run."""

from collections.abc import Iterator

from sqlalchemy.orm import Session

from app.domain.policy import Policy
from app.domain.states import VersionState
from app.ledger.certificates import certifying
from app.planning.capacity import Capacity, capacity
from app.planning.tracking import CurrentRelease, Tracking
from app.registry import repository as registry
from app.registry.tables import ModelRow


def capacities(session: Session) -> Iterator[tuple[str, Capacity]]:
    """Yield the names and capacities of the models whose releases cover later requests."""
    for model in registry.models(session):
        found = capacity_of(session, model)
        if found is not None:
            yield model.name, found


def capacity_of(session: Session, model: ModelRow) -> Capacity | None:
    """Return the capacity of a model's certified head; None where it covers no later request.

    The first answer for a head takes milliseconds, seconds where DP-SGD sampled its records.
    """
    present = present_of(session, model)
    return None if present is None else capacity(present, Policy.from_json(model.policy))


def present_of(session: Session, model: ModelRow) -> CurrentRelease | None:
    """Return a model's certified head, if its training is tracked, as its certificate counts it."""
    head = registry.head_version(session, model)
    if model.tracking is None or head is None or head.state != VersionState.CERTIFIED:
        return None
    tracking = Tracking.from_json(model.tracking)
    return certifying.present_of(tracking, head, certifying.stated_of(session, head))
