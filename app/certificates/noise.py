"""A run's noise according to its certificate: how many numbers, on which grid.

It follows from the accountant's parameters alone. The worker states what its noise source counted,
the verifier recomputes it from the parameters, and the two must agree.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.accounting import precision
from app.certificates.parameters import read_parameters
from app.domain.schedules import to_json
from app.domain.states import Basis
from app.planning.mechanisms.catalogue import mechanism_named
from app.planning.mechanisms.mechanism import Draws


@dataclass(frozen=True)
class Noise:
    """The random numbers that a run drew for its release.

    Attributes:
        grid: what the last noisy position was rounded to, a power of two, in the coordinates of the
            noise; None if these depend on more than the parameters.
    """

    generator: str
    grid: float | None
    drawn: int


def draws_of(mechanism: str, parameters: Mapping[str, Any], *, basis: Basis) -> list[Draws]:
    """Return what a run drew, in order; ``VerificationError`` if its parameters are malformed."""
    read = read_parameters(mechanism, to_json(parameters))
    return read.draws(first=basis is Basis.CERTIFIED_RELEASE)


def grid_of(mechanism: str, draws: list[Draws]) -> float | None:
    """Return the grid of the last of some draws; None where it depends on more than these."""
    on_grid = mechanism_named(mechanism).on_grid
    return precision.grid_of(draws[-1].noise_std) if on_grid else None
