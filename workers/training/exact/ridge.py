"""The ridge solution of sums over records: nothing else enters.

Features are centred and divided by their standard deviations, which follow from the sums, and the
targets centred. With the correlations R and c = X^T Y / n of these, the solution is

    (R + regularisation I)^-1 c

by Cholesky factorisation. A regularisation that is not fixed is the one of a public list with the
smallest generalised cross-validation (Golub, Heath & Wahba 1979), where freedom counts 1.4 times
(Kim & Gu 2004): with about as many features as records it would choose to fit the noise,

    GCV = sum over targets of RSS / n / (1 - 1.4 freedom / n)^2
    freedom = 1 + tr(R (R + regularisation I)^-1)

Everything is computed anew from the sums each time: a scale or a regularisation that was kept would
remember records that left.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dtrtri

from app.domain.errors import RunFailedError
from workers.training.exact.arithmetic import repeatable
from workers.training.exact.statistics import Statistics

CANDIDATES: Final = tuple(10.0**exponent for exponent in (-5, -4, -3, -2, -1, 0, 1))
_FREEDOM_COUNTS: Final = 1.4
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Solution:
    """Linear functions of integer features.

    Attributes:
        weight: float64 [outputs, size].
        bias: float64 [outputs].
        regularisation: that was fixed or chosen.
    """

    weight: Floats
    bias: Floats
    regularisation: float


def solve(statistics: Statistics, *, regularisation: float | None) -> Solution:
    """Return the solution; the same sums give the same bits.

    Args:
        statistics: of the retained records.
        regularisation: above 0; None chooses it.

    Raises:
        RunFailedError: there are no records, or the solution is not finite.
    """
    if statistics.records < 1:
        raise RunFailedError("no record is left to learn from")
    with repeatable():
        problem = Problem.of(statistics)
        if regularisation is None:
            regularisation = problem.chosen()
        coefficients, _ = problem.solved(regularisation)
        weight = coefficients * problem.inverse_scale[:, None]
        bias = problem.mean_target - problem.mean @ weight
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise RunFailedError("the solution is not finite: use a larger regularisation")
    return Solution(np.ascontiguousarray(weight.T), bias, regularisation)


@dataclass(frozen=True, eq=False)
class Problem:
    """Means, scales and correlations.

    Attributes:
        records: n.
        mean, inverse_scale: of the features, [size]; a constant feature's inverse scale is 0.
        mean_target, variance: of the targets, [outputs].
        correlations: R, [size, size].
        crossed: c, [size, outputs].
    """

    records: int
    mean: Floats
    inverse_scale: Floats
    mean_target: Floats
    variance: Floats
    correlations: Floats
    crossed: Floats

    @classmethod
    def of(cls, statistics: Statistics) -> "Problem":
        """Return the problem of some sums, over one record at least."""
        n = int(statistics.records)
        mean, mean_target = statistics.features / n, statistics.targets / n
        # Return 1 / standard deviation, from exact variances; 0 for constant features.
        squares = np.diag(statistics.products)
        exact = [
            n * square - total * total
            for total, square in zip(statistics.features.tolist(), squares.tolist(), strict=True)
        ]
        scales = np.array([float(each) for each in exact]) ** 0.5 / n
        inverse_scale = np.divide(1.0, scales, out=np.zeros_like(scales), where=scales > 0)
        correlations = statistics.products / n
        correlations -= np.outer(mean, mean)
        correlations *= inverse_scale
        correlations *= inverse_scale[:, None]
        np.fill_diagonal(correlations, inverse_scale > 0)
        crossed = statistics.crossed / n - np.outer(mean, mean_target)
        return cls(
            records=n,
            mean=mean,
            inverse_scale=inverse_scale,
            mean_target=mean_target,
            variance=statistics.squares / n - mean_target**2,
            correlations=correlations,
            crossed=crossed * inverse_scale[:, None],
        )

    def chosen(self) -> float:
        """Return the candidate that cross-validation prefers, of equal ones the largest."""
        scored = ((self.validated(each), -each) for each in CANDIDATES)
        return -min(scored)[1]

    def solved(self, regularisation: float) -> tuple[Floats, Floats]:
        """Return the coefficients of the scaled features, and the Cholesky factor."""
        matrix = self.correlations + 0.0
        matrix[np.diag_indices_from(matrix)] += regularisation
        try:
            factor, lower = cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError as error:
            raise RunFailedError(
                "the ridge problem is singular in float64: use a larger regularisation"
            ) from error
        return cho_solve((factor, lower), self.crossed, check_finite=False), factor

    def validated(self, regularisation: float) -> float:
        """Return the generalised cross-validation of a solution; infinite without freedom left."""
        try:
            coefficients, factor = self.solved(regularisation)
        except RunFailedError:
            return np.inf
        inverse, _ = dtrtri(factor, lower=1)
        varying = self.inverse_scale > 0
        trace = (
            float(np.square(np.tril(inverse)).sum()) - np.count_nonzero(~varying) / regularisation
        )
        freedom = 1 + np.count_nonzero(varying) - regularisation * trace
        left = 1 - _FREEDOM_COUNTS * freedom / self.records
        residual = self.variance - (self.crossed * coefficients).sum(axis=0)
        residual -= regularisation * (coefficients**2).sum(axis=0)
        return float(residual.sum()) / left**2 if left > 0 else np.inf
