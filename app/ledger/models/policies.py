"""Changing a model's policy after its definition, with effect from the next run."""

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy.orm import Session

from app.domain.errors import ConflictError, InvalidInputError
from app.domain.policy import Policy
from app.domain.recipes import TrainingRecipe
from app.domain.states import ObligationState, RunState, WeightsSource
from app.evidence import log
from app.ledger import outbox, repository
from app.ledger.models.recipes import require_measured, require_suited
from app.planning.planner import make_plan
from app.registry import repository as registry
from app.registry.forecasts import Occasion, PlanMaker
from app.registry.tables import ModelRow
from app.runtime.database import Database
from app.runtime.database.endings import require_live

# Earlier releases depend on these.
_FIXED = ("adaptive", "first_release")


def change_policy(
    database: Database,
    name: str,
    changes: Mapping[str, Any],
    *,
    require: Callable[[Session, ModelRow], None] = lambda _session, _model: None,
    make: PlanMaker = make_plan,
) -> ModelRow:
    """Change some fields of a model's policy; issued certificates stay as they are.

    ``changes`` are fields of ``Policy`` as plain JSON values; the others stay. ``require`` gets the
    locked model, and raises to reject the change. Nothing is locked while ``make`` plans.
    """
    with database.transaction() as session:
        model = registry.model_named(session, name)
        present = model.policy
        policy = _changed(session, model, changes)
        occasion = Occasion.of(session, model, policy=policy)
    if policy.to_json() != present:
        # Only feasibility matters here, not the plan itself.
        occasion.forecast(make).require_tracked_start()
    with database.transaction() as session:
        model = registry.model_named(session, name, lock=True)
        require(session, model)
        if _changed(session, model, changes) != policy:
            raise ConflictError(f"model {name!r} has changed meanwhile: try again")
        if policy.to_json() == model.policy:
            return model
        model.policy = policy.to_json()
        log.append(session, "policy.changed", model=model.id, policy=model.policy)
        if repository.obligations_of_model(session, model.id, (ObligationState.OPEN,)):
            outbox.post(session, outbox.Topic.SCHEDULE_MODEL, model.id)
        return model


def _changed(session: Session, model: ModelRow, changes: Mapping[str, Any]) -> Policy:
    """Return a model's policy with the changes, if they are allowed."""
    fixed = [
        field for field in _FIXED if changes.get(field, model.policy[field]) != model.policy[field]
    ]
    if fixed:
        raise InvalidInputError(f"{fixed[0]} is fixed with the model's definition")
    require_live("model", model)
    run = repository.active_run(session, model.id)
    if run is not None and run.state != RunState.QUEUED:
        raise ConflictError("a run is active under the current policy: change it when it has ended")
    policy = Policy.from_json({**model.policy, **changes})
    require_trained_here(policy, WeightsSource(model.weights_source))
    require_members(policy, model.architecture.get("members"))
    recipe = TrainingRecipe.from_json(model.recipe)
    require_suited(recipe, policy)
    require_measured(recipe, policy)
    return policy


def require_members(policy: Policy, members: int | None) -> None:
    """Raise ``InvalidInputError`` if a policy wants what an ensemble, or another model, has not."""
    if members is not None and policy.minimum_score is not None:
        raise InvalidInputError(
            "minimum_score is not for ensembles: it would choose the members that stay by how well "
            "they did beside those that are left out later"
        )
    if policy.minimum_members is not None and policy.minimum_members > (members or 0):
        raise InvalidInputError(
            f"minimum_members is for ensembles of at least {policy.minimum_members} members"
        )


def require_trained_here(policy: Policy, source: WeightsSource) -> None:
    """Raise ``InvalidInputError`` if a policy wants trainings of weights that are brought."""
    if policy.retrains and source is not WeightsSource.TRAIN:
        raise InvalidInputError(
            "retrain_every_s and retrain_after_records are for models that are trained here"
        )
