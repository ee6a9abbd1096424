"""A model's policy, changed after its definition: what is promised from the next run on."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from app.domain.errors import ConflictError, InvalidInputError
from app.domain.policy import Policy
from app.domain.states import ObligationState, RunState
from app.ledger import log, outbox, repository
from app.ledger.runs import plan_for
from app.registry import repository as registry
from app.registry.tables import ModelRow

# What earlier releases rest on.
_FIXED = ("adaptive", "first_release")


def change_policy(session: Session, name: str, changes: Mapping[str, Any]) -> ModelRow:
    """Change some fields of a model's policy; certificates that were issued stay as they are.

    Args:
        session: its transaction changes the policy and logs that.
        name: the model.
        changes: fields of ``Policy`` as plain JSON values; the others stay.

    Raises:
        NotFoundError: there is no such model.
        ConflictError: a run is going, which follows the policy that it began with.
        InvalidInputError: a field that is fixed with the model's definition.
        PlanError, ParameterError: the model could not be unlearned under such a policy.
    """
    model = registry.model_named(session, name, lock=True)
    fixed = [
        field for field in _FIXED if changes.get(field, model.policy[field]) != model.policy[field]
    ]
    if fixed:
        raise InvalidInputError(f"{fixed[0]} is fixed with the model's definition")
    run = repository.active_run(session, model.id)
    if run is not None and run.state != RunState.QUEUED:
        raise ConflictError("a run is going under the present policy: change it when it has ended")
    policy = Policy.from_json({**model.policy, **changes}).to_json()
    if policy == model.policy:
        return model
    model.policy = policy
    session.flush()
    plan_for(session, model)
    log.append(session, "policy.changed", model=model.id, policy=policy)
    if repository.obligations_of_model(session, model.id, (ObligationState.OPEN,)):
        outbox.post(session, outbox.Topic.SCHEDULE_MODEL, model.id)
    return model
