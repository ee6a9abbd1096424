"""What ensembles of several sizes cost: a request by itself, and requests of a week together.

Beside the costs stands what models of a service have measured: of one size each.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.accounting.exact import expected_members
from app.planning.shape import EnsembleShape, ModelShape

_DAYS = 7


@dataclass(frozen=True)
class EnsembleCost:
    """The cost of an ensemble, in gradients of records.

    Attributes:
        members: how many networks it averages.
        one: the training of one member.
        anew: the requests of a week, each by a training of all.
        singly: the same, each by a training of its member.
        nightly: the same left out, and refilled once a day; ``weekly`` once a week, in the mean.
        out_by_night: how many members are out before a refill of a day; ``out_by_week`` of a week.
        model: a model of this size that was measured; None if there is none.
        metric, score: what it has measured on its held-out records.
        fewer: its scores with fewer of its members, as a training or refill measured them.
        size_bytes: of its file, or what follows for this size from another model's; None without.
        seconds: how long its runs take for a request, trained anew or left out; None if none was.
        outweighs: from how many records on training takes longer than the rest of its run.
    """

    members: int
    one: float
    anew: float
    singly: float
    nightly: float
    weekly: float
    out_by_night: float
    out_by_week: float
    model: str | None = None
    metric: str | None = None
    score: float | None = None
    size_bytes: int | None = None
    fewer: Sequence[Mapping[str, Any]] = ()
    seconds: float | None = None
    outweighs: int | None = None


def costs_of(
    shape: ModelShape, members: Iterable[int], *, persons_a_week: float
) -> list[EnsembleCost]:
    """Return what each number of members costs, for requests of so many persons a week."""
    return [_cost(shape, EnsembleShape(each).members, persons_a_week) for each in members]


def _cost(shape: ModelShape, count: int, persons: float) -> EnsembleCost:
    training = shape.gradients_of_member(count)
    by_night, by_week = (expected_members(count, each) for each in (persons / _DAYS, persons))
    return EnsembleCost(
        members=count,
        one=training,
        anew=persons * count * training,
        singly=persons * training,
        nightly=_DAYS * by_night * training,
        weekly=by_week * training,
        out_by_night=by_night,
        out_by_week=by_week,
    )


def with_measured(
    costs: Iterable[EnsembleCost], model: Mapping[str, Any], models: Sequence[Mapping[str, Any]]
) -> list[EnsembleCost]:
    """Return the costs, each with what a model of its size has measured.

    ``model`` is as the API shows it, and counts before other ``models`` of the service. Those count
    that have its dataset, task, recipe and member's network, and a certified version; a single
    network is an ensemble of one.
    """
    alike = [each for each in (model, *models) if each["certified"] and _kind(each) == _kind(model)]
    by_size = {_members(each): each for each in reversed(alike)}
    per_member = None
    if alike:
        version = alike[0]["certified"]
        out = sum(each["sha256"] is None for each in version.get("members") or ())
        per_member = version["size_bytes"] / (_members(alike[0]) - out)
    return [_measured(cost, by_size.get(cost.members), per_member) for cost in costs]


def _measured(
    cost: EnsembleCost, model: Mapping[str, Any] | None, per_member: float | None
) -> EnsembleCost:
    if model is None:
        size = None if per_member is None else round(per_member * cost.members)
        return replace(cost, size_bytes=size)
    version = model["certified"]
    evaluation = version["evaluation"]
    metric = evaluation.get("headline")
    score = None if metric is None else evaluation["metrics"][metric]
    return replace(
        cost,
        model=model["name"],
        metric=metric,
        score=score,
        size_bytes=version["size_bytes"],
        fewer=evaluation.get("fewer_members") or (),
    )


def _members(model: Mapping[str, Any]) -> int:
    return int(model["architecture"].get("members") or 1)


def _kind(model: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what two models must share for their figures to be compared."""
    architecture = dict(model["architecture"])
    backbone = architecture.pop("backbone", None)
    network = architecture.get("of") or architecture
    return model["dataset"], model["task"], model["recipe"], backbone, network
