"""What an update rule begins under."""

from dataclasses import dataclass

from workers.distributed.team import ALONE, Team
from workers.noise.generators import NoiseSource


@dataclass(frozen=True, kw_only=True, eq=False)
class Conditions:
    """A run's noise and target, and its processes, each with a stretch of the position."""

    noise: NoiseSource
    epsilon: float
    delta: float
    team: Team = ALONE
