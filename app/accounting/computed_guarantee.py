"""Guarantees about releases that are computed in floats, from those about real numbers.

Source: docs/guarantees.md, section 11.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, overload

from app.accounting import gaussian
from app.accounting.guarantees import ExactGuarantee, GaussianGuarantee, Guarantee, PointGuarantee
from app.accounting.precision import Residue, weighed
from app.accounting.terms import Direction
from app.domain.checks import require_delta, require_non_negative
from app.domain.errors import CalibrationError, ParameterError

_ROUNDS: Final = 20
# Of delta. Where a profile falls slowly, less for rounding means a much smaller epsilon, at which
# rounding leaves less. The last four are for a target that barely is in reach.
_SHARES_OF_ROUNDING: Final = (0.5, 0.1, 1e-2, 1e-3, 1e-4, 0.6, 0.4, 0.7, 0.8)
_LARGEST_RESIDUE: Final = 0.9


@dataclass(frozen=True)
class ComputedGuarantee(Guarantee):
    """A Renyi bound or a profile, for releases within ``residue`` = (mu, tv) of those it is about.

    With eps1 = 8 mu + mu^2 and delta1 = delta(eps1) of mu-GDP (docs/guarantees.md, section 11.2),

        delta(eps) = e^eps1 inner(eps - 2 eps1) + (1 + e^(eps - eps1)) delta1 + (1 + e^eps) tv

    A guarantee in one direction has a reference that is not computed: the terms with e^eps, which
    are the reference's, fall away.
    """

    inner: Guarantee
    residue: Residue

    @property
    def kind(self) -> str:
        """The form of what was computed."""
        return self.inner.kind

    def epsilon(self, *, delta: float) -> float:
        """Return an epsilon at which delta is met, rounded up, if rounding leaves less."""
        delta = require_delta(delta)
        for rounding in _SHARES_OF_ROUNDING:
            try:
                found = self._epsilon_for(delta * (1 - rounding))
            except CalibrationError:
                continue
            if self._left_by_rounding(found) <= delta * rounding:
                return self._refined(found, delta)
        raise CalibrationError(f"rounding leaves too much beside a delta of {delta:g}")

    def _refined(self, found: float, delta: float) -> float:
        """Return a smaller epsilon at which delta is met, or ``found``, at which it is."""
        for _ in range(_ROUNDS):
            left = delta - self._left_by_rounding(found)
            # A larger share: its epsilon, and what rounding leaves there, are smaller.
            last, found = found, min(found, self._epsilon_for(left))
            if found >= last * (1 - 1e-12):
                break
        return found

    def delta(self, *, epsilon: float) -> float:
        """Return a delta that is met at ``epsilon`` or at a smaller epsilon, rounded up."""
        best = self._at(require_non_negative("epsilon", epsilon))
        while epsilon > 0.1 and self._left_by_rounding(epsilon) > best / 2:
            epsilon *= 0.8
            best = min(best, self._at(epsilon))
        return min(1.0, best)

    def advantage(self) -> float:
        """Return the inner advantage and what the residue of both worlds adds to it."""
        return min(1.0, self.inner.advantage() + self._added_distance())

    def _epsilon_for(self, share: float) -> float:
        """Return where e^eps1 inner(eps - 2 eps1) is at most a share of delta, rounded up."""
        inner = self.inner.epsilon(delta=share * math.exp(-self._loss()) * (1 - 1e-14))
        return (inner + 2 * self._loss()) * (1 + 1e-14)

    def _at(self, epsilon: float) -> float:
        if epsilon < 2 * self._loss():
            return min(1.0, self.inner.delta(epsilon=0.0) + self._added_distance())
        inner = self.inner.delta(epsilon=epsilon - 2 * self._loss()) * math.exp(self._loss())
        return min(1.0, inner * (1 + 1e-14)) + self._left_by_rounding(epsilon)

    def _loss(self) -> float:
        """Return eps1."""
        return 8 * self.residue.mu + self.residue.mu**2

    def _left_by_rounding(self, epsilon: float) -> float:
        beyond = 0.0
        if self.residue.mu > 0:
            beyond = gaussian.delta_of(mu=self.residue.mu, epsilon=self._loss())
        if self.terms.direction is Direction.ONE_WAY:
            return (beyond + self.residue.delta) * (1 + 1e-14)
        return weighed(beyond, max(0.0, epsilon - self._loss())) + weighed(
            self.residue.delta, epsilon
        )

    def _added_distance(self) -> float:
        alone = gaussian.advantage_of(mu=self.residue.mu) if self.residue.mu > 0 else 0.0
        return 2 * (alone + self.residue.delta) * (1 + 1e-14)


@overload
def computed(guarantee: GaussianGuarantee, residue: Residue) -> GaussianGuarantee: ...
@overload
def computed(guarantee: Guarantee, residue: Residue) -> Guarantee: ...
def computed(guarantee: Guarantee, residue: Residue) -> Guarantee:
    """Return what is left of a guarantee about real numbers when releases are computed in floats.

    ``residue`` is how far, in each world, a computed release is from that of real numbers. A point
    carries no residue.
    """
    if residue.mu == residue.delta == 0 or isinstance(guarantee, ExactGuarantee):
        return guarantee
    if residue.mu > _LARGEST_RESIDUE:
        raise ParameterError("noise_std", "enough for rounding to stay small beside it")
    if isinstance(guarantee, GaussianGuarantee):
        return replace(
            guarantee,
            mu=(guarantee.mu + 2 * residue.mu) * (1 + 1e-15),
            slack=guarantee.slack + residue.delta,
        )
    if isinstance(guarantee, PointGuarantee):
        raise ParameterError("guarantee", "of a form that holds at every epsilon")
    return ComputedGuarantee(terms=guarantee.terms, inner=guarantee, residue=residue)
