"""What an update rule begins under."""

from dataclasses import dataclass

from workers.noise.generators import NoiseSource
from workers.training.team import ALONE, Team


@dataclass(frozen=True, kw_only=True, eq=False)
class Conditions:
    """The noise of a run, and the target that it has to meet.

    Attributes:
        team: the processes, of which each has a stretch of the position.
    """

    noise: NoiseSource
    epsilon: float
    delta: float
    team: Team = ALONE
