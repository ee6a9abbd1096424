"""Training a model anew on the records that are there now: when asked, or when its policy says so.

The version before is served until the new one is published, and what is owed meanwhile stays owed:
the new training is the answer to what was asked before it began, and a later run to the rest.

Or only those members of an ensemble that are out, *refilled* all together.
"""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from app.domain import errors
from app.domain.architectures import out_of
from app.domain.policy import Policy
from app.domain.states import (
    RETRYABLE_RUN_STATES,
    UNMET_OBLIGATION_STATES,
    RunKind,
    WeightsSource,
)
from app.ledger import repository
from app.ledger.runs import create_run
from app.ledger.tables import RunRow
from app.planning.planner import make_plan
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import DatasetRow
from app.registry.forecasts import Occasion, PlanMaker
from app.registry.tables import ModelRow
from app.runtime.database import Database
from app.runtime.database.endings import require_live
from app.runtime.database.engine import is_away
from app.runtime.database.queries import database_time
from app.runtime.logs import describe

_log = logging.getLogger("expunge.models")
_REFUSALS = (errors.PlanError, errors.ParameterError, errors.CalibrationError)
_AFTER_A_FAILURE = timedelta(days=1)
_AFTER_A_REFUSAL = timedelta(hours=1)


def retrain(database: Database, name: str, *, make: PlanMaker = make_plan) -> RunRow:
    """Start a new training of a model, the beginning of a new history.

    Nothing is locked while ``make`` plans the run.
    """
    with database.transaction() as session:
        model = registry.model_named(session, name)
        _require_trainable(session, model)
        remembered, _, _ = datasets.counts(session, model.dataset_id)
        dataset = session.get_one(DatasetRow, model.dataset_id).name
        occasion = Occasion.of(session, model, anew=True)
    if remembered == 0:
        raise errors.ConflictError(f"dataset {dataset!r} has no records: push some first")
    forecast = occasion.forecast(make)
    forecast.require_tracked_start()
    with database.transaction() as session:
        model = registry.model_named(session, name, lock=True)
        _require_trainable(session, model)
        return create_run(session, model, RunKind.TRAIN, forecast)


def refill(database: Database, name: str, *, make: PlanMaker = make_plan) -> RunRow:
    """Start the training of the members of an ensemble that are out; the history goes on."""
    with database.transaction() as session:
        model = registry.model_named(session, name)
        _require_refillable(session, model)
        occasion = Occasion.of(session, model, refills=True)
    forecast = occasion.forecast(make)
    with database.transaction() as session:
        model = registry.model_named(session, name, lock=True)
        _require_refillable(session, model)
        return create_run(session, model, RunKind.REFILL, forecast)


def _require_refillable(session: Session, model: ModelRow) -> None:
    require_live("model", model)
    if not out_of(registry.members_of(registry.head_version(session, model))):
        raise errors.ConflictError(f"no member of model {model.name!r} is out")
    _require_idle(session, model)


def _require_trainable(session: Session, model: ModelRow) -> None:
    require_live("model", model)
    if model.weights_source != WeightsSource.TRAIN:
        raise errors.ConflictError(
            f"the weights of model {model.name!r} are brought, not trained here: define another "
            "model and bring the new ones to it"
        )
    _require_idle(session, model)


def _require_idle(session: Session, model: ModelRow) -> None:
    active = repository.active_run(session, model.id)
    if active is not None:
        raise errors.ConflictError(
            f"run {active.id} of model {model.name!r} is {active.state}: wait for its end, or "
            "cancel it"
        )


class AutomaticRetraining:
    """Retrains models, and refills ensembles, whose policies ask for it."""

    def __init__(
        self, database: Database, clock: Callable[[Session], datetime] = database_time
    ) -> None:
        self._database = database
        self._clock = clock
        self._refused: dict[str, datetime] = {}

    def retrain_due(self) -> list[str]:
        """Start the trainings that are due; return the names of their models.

        A model is due while no run of it is going: so long after its newest training began, or
        when so many records are there that its version, or a training since, has not read. After a
        training that failed or was cancelled, it waits for a day.
        """
        return self._start_due(registry.models_to_retrain, _is_due, retrain)

    def refill_due(self) -> list[str]:
        """Start the refills that are due; return the names of their ensembles.

        One is due while no run of it is going and it owes nothing: so long after the first of the
        members that are out was left out, or when so many are. Requests and the clock decide, and
        nothing else. What was out when a refill began that failed or was cancelled waits for a day.
        """
        return self._start_due(registry.ensembles, _is_thin, refill)

    def _start_due(
        self,
        models: Callable[[Session], Iterable[ModelRow]],
        is_due: Callable[[Session, ModelRow, datetime], bool],
        begin: Callable[[Database, str], RunRow],
    ) -> list[str]:
        with self._database.transaction() as session:
            now = self._clock(session)
            due = [
                model.name
                for model in models(session)
                if now >= self._refused.get(model.id, now) and is_due(session, model, now)
            ]
        return [name for name in due if self._start(begin, name, now)]

    def _start(self, begin: Callable[[Database, str], RunRow], name: str, now: datetime) -> bool:
        try:
            begin(self._database, name)
        except Exception as error:  # noqa: BLE001 - whatever it is, other models have their turn
            known = isinstance(error, errors.ExpungeError) and not isinstance(error, _REFUSALS)
            if known or is_away(error):
                return False  # it has changed meanwhile
            _log.warning("model %s cannot be trained: %s", name, describe(error))
        else:
            return True
        with self._database.transaction() as session:
            self._refused[registry.model_named(session, name).id] = now + _AFTER_A_REFUSAL
        return False


def _is_thin(session: Session, model: ModelRow, now: datetime) -> bool:
    members = registry.members_of(registry.head_version(session, model))
    out, policy = out_of(members), Policy.from_json(model.policy)
    since = _out_since(session, model)
    if since is None or repository.active_run(session, model.id) is not None:
        return False
    if repository.obligations_of_model(session, model.id, UNMET_OBLIGATION_STATES):
        return False
    newest = repository.latest_run(session, model.id, RunKind.REFILL)
    if newest is not None and newest.finished_at is not None:
        tried = newest.state in RETRYABLE_RUN_STATES and since <= newest.created_at
        if tried and now < newest.finished_at + _AFTER_A_FAILURE:
            return False
    if policy.refill_at is not None and len(out) >= policy.refill_at * len(members):
        return True
    due = refill_due_at(session, model)
    return due is not None and now >= due


def refill_due_at(session: Session, model: ModelRow) -> datetime | None:
    """Return when members of an ensemble that are out are trained anew at the latest, if ever."""
    since, after_s = _out_since(session, model), Policy.from_json(model.policy).refill_after_s
    return None if since is None or after_s is None else since + timedelta(seconds=after_s)


def _out_since(session: Session, model: ModelRow) -> datetime | None:
    """Return when the first of the members of an ensemble that are out was left out."""
    out = out_of(registry.members_of(registry.head_version(session, model)))
    if not out:
        return None
    return registry.version_numbered(session, model, min(out.values())).created_at


def _is_due(session: Session, model: ModelRow, now: datetime) -> bool:
    newest = repository.latest_run(session, model.id, RunKind.TRAIN)
    if newest is None or repository.active_run(session, model.id) is not None:
        return False
    ended = newest.finished_at
    failed = newest.state in RETRYABLE_RUN_STATES
    if failed and ended is not None and now < ended + _AFTER_A_FAILURE:
        return False
    policy = Policy.from_json(model.policy)
    every_s, after = policy.retrain_every_s, policy.retrain_after_records
    if every_s is not None and now >= newest.created_at + timedelta(seconds=every_s):
        return True
    if after is None:
        return False
    read = max(model.trained_through or 0, newest.trained_through or 0)
    return datasets.count_later(session, model.dataset_id, read) >= after
