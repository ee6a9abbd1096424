"""How long a run takes on the workers that are there, as earlier runs tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.domain.states import Phase, RunKind, RunState
from app.ledger.tables import RunRow
from app.registry.tables import ModelRow

_NEWEST: Final = 50
ARITHMETIC: Final = (Phase.TRAINING, Phase.UNLEARNING, Phase.FINE_TUNING)


@dataclass(frozen=True)
class Seconds:
    """From a run's lease to its publication: the median, and the ends of the spread."""

    expected: float
    least: float
    most: float


class Measured(NamedTuple):
    """An earlier run; ``rest_s`` is what it took beside its ``gradients``."""

    mechanism: str
    unlearned: bool
    gradients: float
    arithmetic_s: float
    rest_s: float


def measured(session: Session, model: ModelRow) -> list[Measured]:
    """Return the newest runs of a model, and of others of its architecture on its dataset."""
    took = func.extract("epoch", RunRow.finished_at - RunRow.started_at)
    query = select(RunRow.kind, RunRow.plan, RunRow.phase_seconds, took).join(ModelRow)
    of_data = ModelRow.dataset_id == model.dataset_id
    query = query.where(of_data, ModelRow.architecture == model.architecture)
    query = query.where(RunRow.state == RunState.PUBLISHED).order_by(RunRow.created_at.desc())
    found = list[Measured]()
    for kind, plan, phases, seconds in session.execute(query.limit(_NEWEST)):
        arithmetic = sum((phases or {}).get(phase, 0.0) for phase in ARITHMETIC)
        gradients, rest = plan["predicted"]["gradient_computations"], float(seconds) - arithmetic
        unlearned = kind == RunKind.UNLEARN
        found.append(Measured(plan["mechanism"], unlearned, gradients, arithmetic, rest))
    return found


def seconds_of(earlier: Sequence[Measured], mechanism: str, gradients: float) -> Seconds | None:
    """Return how long a run of so many gradients takes; None where none like it was measured.

    Runs that unlearned tell it, if there are any, and else trainings.
    """
    own = [each for each in earlier if each.mechanism == mechanism]
    alike = [each for each in own if (each.gradients > 0) == (gradients > 0)]
    found = [
        each.rest_s + each.arithmetic_s * (gradients / each.gradients if gradients else 1.0)
        for each in [each for each in alike if each.unlearned] or alike
    ]
    return Seconds(median(found), min(found), max(found)) if found else None
