"""A year of forgetting by leaving members out: ``python -m benchmarks.leaving_out [--quick]``.

20 people a day ask, one by one, for a year or until half of them are gone. Ensembles of 8, 16,
32 and 64 members either train all of themselves for each, one member for each, the members of a
day's requests at night, or leave members out and refill them: every night, or once a quarter, half
or seven eighths of them are out. Gradients are counted; the score of what is served is that of the
members that are active, after each day's requests. Members are trained anew on what is left four
times a year; between, those of the quarter's beginning stand for the ones that a night would train.
Scores without a quarter and a half of the members are the first day's.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from app.domain.architectures import Member, fewest_to_train
from benchmarks import harness
from benchmarks.data import outputs_of
from benchmarks.ensembles_cases import OPTIONS, TITLES, Case, measured
from workers.training.networks.ensemble import average_of

SIZES: Final = (8, 16, 32, 64)
A_DAY: Final = 20
_DAYS: Final = 365
_QUARTER: Final = 91
_OUT: Final = {"none_out": 0, "quarter_out": 1 / 4, "half_out": 1 / 2}
_SEED: Final = 38
_SINGLY: Final = "one member each"
_CASES: Final = {  # by their names in the results
    "customers": "churn",
    "scratch": "scratch",
    "public": "public",
    "head": "head",
    "texts": "texts",
    "backbone": "pictures",
}
Document = dict[str, Any]


@dataclass
class Year:
    """What one way of forgetting did, day by day.

    Attributes:
        gradients: of records, all in all.
        waited: requests that were answered after a training, of ``answered``.
        scores: of what was served after each day's requests.
    """

    gradients: float = 0.0
    answered: int = 0
    waited: int = 0
    scores: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Way:
    """How an ensemble forgets.

    Attributes:
        batched: a day's requests are answered at night, by training their members together.
        refill_at: the part of the members whose absence starts a refill; None: every night.
    """

    leaves_out: bool = True
    whole: bool = False
    batched: bool = False
    refill_at: float | None = None

    def fewest(self, members: int) -> int:
        """Return how many members are served at least: half, or what is left before a refill."""
        if self.batched:
            return 0
        return min((members + 1) // 2, members - int((self.refill_at or 0.5) * members))


WAYS: Final[Mapping[str, Way]] = {
    "all members each": Way(leaves_out=False, whole=True),
    _SINGLY: Way(leaves_out=False),
    "members of a day at night": Way(leaves_out=False, batched=True),
    "left out, refilled at night": Way(),
    "left out, refilled at 1/4": Way(refill_at=1 / 4),
    "left out, refilled at 1/2": Way(refill_at=1 / 2),
    "left out, refilled at 7/8": Way(refill_at=7 / 8),
}


class Ensemble:
    """Members whose outputs for the test records are known, so that any of them can be averaged."""

    def __init__(self, case: Case, members: int) -> None:
        draws = np.random.default_rng((_SEED, members))
        self.people = np.unique(case.person, return_inverse=True)[1]
        self.of_person = draws.integers(members, size=self.people.max() + 1)
        self._case, self.owner = case, self.of_person[self.people]
        self._outputs = [torch.empty(0)] * members
        self._average = average_of(case.task)
        self.known: dict[frozenset[int], float] = {}

    def train(self, left: NDArray[np.bool_]) -> None:
        """Train all members on the people who are left, [people]."""
        for member in range(len(self._outputs)):
            chosen = np.flatnonzero(left[self.people] & (self.owner == member))
            module = self._case.trained(chosen).module
            self._outputs[member] = outputs_of(module.eval(), self._case.test)
        self.known.clear()

    def score(self, active: frozenset[int]) -> float:
        """Return the accuracy of these members' average."""
        if active not in self.known:
            said = self._average(torch.stack([self._outputs[each] for each in sorted(active)]))
            target = self._case.test.target
            self.known[active] = float((said.argmax(1) == target).double().mean())
        return self.known[active]

    def without(self, part: float) -> float:
        """Return the accuracy with a part of the members out, in the mean of 1 / part choices."""
        members, size = len(self._outputs), int(part * len(self._outputs))
        everyone = frozenset(range(members))
        chosen = (range(first, first + size) for first in range(0, members, size or members))
        return float(np.mean([self.score(everyone - set(out)) for out in chosen]))


def lived(case: Case, members: int, *, days: int) -> tuple[dict[str, Year], Document]:
    """Return every way's year, and the first day's scores with members out."""
    ensemble = Ensemble(case, members)
    count = len(ensemble.of_person)
    asking = np.random.default_rng(_SEED).permutation(count)[: days * A_DAY]
    of_each = np.bincount(ensemble.people, minlength=count)
    left = np.ones(count, dtype=bool)
    years = {name: Year() for name in WAYS}
    out: dict[str, set[int]] = {name: set() for name in WAYS}
    sizes = np.bincount(ensemble.of_person, weights=of_each, minlength=members)
    epochs = case.recipe.epochs
    first: Document = {}
    for day in range(days):
        if day % _QUARTER == 0:
            ensemble.train(left)
            first = first or {name: ensemble.without(part) for name, part in _OUT.items()}
        today = asking[day * A_DAY : (day + 1) * A_DAY]
        for person in today:
            left[person] = False
            member = int(ensemble.of_person[person])
            sizes[member] -= of_each[person]
            for name, way in WAYS.items():
                trained = asked(way, member, out[name], members)
                years[name].answered += 1
                years[name].waited += not way.leaves_out or bool(trained)
                if way.refill_at and len(out[name]) >= way.refill_at * members:
                    trained |= out[name]
                    out[name].clear()
                years[name].gradients += epochs * sum(sizes[each] for each in trained)
        for name, way in WAYS.items():
            active = frozenset(range(members)) - (out[name] if way.leaves_out else set())
            years[name].scores.append(ensemble.score(active))
            if way.batched or (way.leaves_out and way.refill_at is None):
                years[name].gradients += epochs * sum(sizes[each] for each in out[name])
                out[name].clear()
    return years, first


def asked(way: Way, member: int, out: set[int], members: int) -> set[int]:
    """Return which members are trained before a request is answered; note in ``out`` who waits."""
    if way.whole:
        return set(range(members))
    if not way.leaves_out and not way.batched:
        return {member}
    now = [Member(out_since=1) if each in out else Member() for each in range(members)]
    trained = set(fewest_to_train(now, {member}, fewest=way.fewest(members)))
    out.add(member)
    out -= trained
    return trained


def measure(case: Case, known: Document, *, sizes: tuple[int, ...]) -> Iterator[Document]:
    """Yield a case's figures, again with every number of members; those that are known are kept."""
    days = min(_DAYS, len(np.unique(case.person)) // 2 // A_DAY)
    document: Document = {"note": case.note, "days": days, "recipe": case.recipe.to_json()}
    document["single"] = known.get("single") or case.trained().evaluate(case.test).score
    document["rows"] = list(known.get("rows", ()))
    for members in sizes:
        if members in {row["members"] for row in document["rows"]}:
            continue
        years, first = lived(case, members, days=days)
        for name, year in years.items():
            document["rows"].append(
                {
                    "members": members,
                    "way": name,
                    "gradients": year.gradients,
                    "of_singly": year.gradients / years[_SINGLY].gradients,
                    "waited": year.waited / year.answered,
                    "score": float(np.mean(year.scores)),
                    "worst": min(year.scores),
                    **first,
                    "scores": [round(each, 4) for each in year.scores[:: max(1, days // 60)]],
                }
            )
        yield document


def run(given: Namespace) -> Iterator[Document]:
    """Yield all cases, again with each figure; what is in the results already is kept."""
    sizes = SIZES[:2] if given.quick else SIZES
    yield from measured(given, _CASES, partial(measure, sizes=sizes))


def table(document: Document) -> str:
    """Return a table of all cases, in Markdown: scores with none, a quarter and half out."""
    rows = []
    for case, found in document.items():
        of = {row["members"]: row for row in found["rows"]}
        cells = (
            " / ".join(f"{100 * of[members][part]:.1f}" for part in _OUT) if members in of else ""
            for members in SIZES
        )
        rows.append((TITLES[_CASES[case]], f"{100 * found['single']:.1f}", *cells))
    sizes = " | ".join(f"{members} members" for members in SIZES)
    return harness.table(f"none / a quarter / half out | single | {sizes}", rows)


def figure(document: Document, path: Path) -> None:
    """Draw gradients against the score in the mean of the year, one line a case and way."""
    with harness.picture(path, (12, 8), rows=2, columns=3) as (_, grid):
        for axis, (case, found) in zip(grid.flat, document.items(), strict=False):
            for way, style in zip(WAYS, "xso^vD*", strict=True):
                rows = [row for row in found["rows"] if row["way"] == way]
                harness.plot(axis, rows, "gradients", "score", f"{style}-", scale=100, label=way)
            axis.axhline(100 * found["single"], color="grey", linestyle=":")
            axis.set(xscale="log", xlabel="gradients a year", title=TITLES[_CASES[case]])
        for axis in grid.flat[len(document) :]:
            axis.remove()
        grid[0][0].set_ylabel("accuracy, %")
        grid[0][0].legend(fontsize=7)


if __name__ == "__main__":
    harness.main("leaving_out", __doc__, run, options=OPTIONS, table=table, figure=figure)
