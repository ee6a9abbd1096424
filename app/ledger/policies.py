"""A model's policy, changed after its definition: what is promised from the next run on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from app.domain.errors import ConflictError, InvalidInputError
from app.domain.policy import Policy
from app.domain.states import ObligationState, RunState
from app.ledger import log, outbox, repository
from app.ledger.shapes import shape_of
from app.planning.shape import ModelShape
from app.registry import repository as registry
from app.registry.tables import ModelRow

# What earlier releases rest on.
_FIXED = ("adaptive", "first_release")


@dataclass(frozen=True)
class PolicyChange:
    """A change of a model's policy, to be planned for before it is made.

    Attributes:
        before: the policy that it changes, as plain JSON values.
        policy: the whole policy afterwards.
        shape: of the model's next run.
    """

    before: Mapping[str, Any]
    policy: Policy
    shape: ModelShape

    @property
    def is_none(self) -> bool:
        """Whether the policy stays as it is."""
        return self.policy.to_json() == self.before


def proposed_change(session: Session, name: str, changes: Mapping[str, Any]) -> PolicyChange:
    """Return what a change of some fields of a model's policy would be; nothing is locked.

    Args:
        session: to read the model.
        name: the model.
        changes: fields of ``Policy`` as plain JSON values; the others stay.

    Raises:
        NotFoundError: there is no such model.
        InvalidInputError: a field that is fixed with the model's definition.
        ParameterError: a field is out of its range.
    """
    model = registry.model_named(session, name)
    fixed = [
        field for field in _FIXED if changes.get(field, model.policy[field]) != model.policy[field]
    ]
    if fixed:
        raise InvalidInputError(f"{fixed[0]} is fixed with the model's definition")
    _require_no_run(session, model)
    policy = Policy.from_json({**model.policy, **changes})
    return PolicyChange(before=model.policy, policy=policy, shape=shape_of(session, model))


def change_policy(session: Session, name: str, change: PolicyChange) -> ModelRow:
    """Change a model's policy; certificates that were issued stay as they are.

    Args:
        session: its transaction changes the policy and logs that.
        name: the model.
        change: for which a plan could be made: the model can be unlearned under such a policy.

    Raises:
        NotFoundError: there is no such model.
        ConflictError: a run is going, which follows the policy that it began with, or the policy
            was changed since ``change`` was proposed.
    """
    model = registry.model_named(session, name, lock=True)
    _require_no_run(session, model)
    if model.policy != change.before:
        raise ConflictError("another call changed the policy meanwhile; look again and repeat")
    if change.is_none:
        return model
    model.policy = change.policy.to_json()
    session.flush()
    log.append(session, "policy.changed", model=model.id, policy=model.policy)
    if repository.obligations_of_model(session, model.id, (ObligationState.OPEN,)):
        outbox.post(session, outbox.Topic.SCHEDULE_MODEL, model.id)
    return model


def _require_no_run(session: Session, model: ModelRow) -> None:
    run = repository.active_run(session, model.id)
    if run is not None and run.state != RunState.QUEUED:
        raise ConflictError("a run is going under the present policy: change it when it has ended")
