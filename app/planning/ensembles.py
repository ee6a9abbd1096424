"""What ensembles of several sizes cost: a request by itself, and requests of a week together."""

from collections.abc import Iterable
from dataclasses import dataclass

from app.accounting.sharded_retraining import expected_members
from app.planning.shape import EnsembleShape, ModelShape

_DAYS = 7


@dataclass(frozen=True)
class EnsembleCost:
    """The cost of an ensemble, in gradients of records.

    Attributes:
        members: how many networks it averages.
        one: a request of one person.
        share: the same, as a part of one training of all.
        singly: the requests of a week, each by a run of its own.
        by_day: the same with one run a day; ``by_week`` with one a week, in the mean.
    """

    members: int
    one: float
    share: float
    singly: float
    by_day: float
    by_week: float


def costs_of(
    shape: ModelShape, members: Iterable[int], *, persons_a_week: float
) -> list[EnsembleCost]:
    """Return what each number of members costs, for requests of so many persons a week.

    Raises:
        ParameterError: a number that no ensemble has.
    """
    return [_cost(shape, EnsembleShape(each), persons_a_week) for each in members]


def _cost(shape: ModelShape, ensemble: EnsembleShape, persons: float) -> EnsembleCost:
    training = shape.recipe_epochs * ensemble.records_of_a_member(shape)
    count = ensemble.members
    return EnsembleCost(
        members=count,
        one=training,
        share=1 / count,
        singly=persons * training,
        by_day=_DAYS * expected_members(count, persons / _DAYS) * training,
        by_week=expected_members(count, persons) * training,
    )
