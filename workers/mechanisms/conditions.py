"""What an update rule begins under."""

from dataclasses import dataclass

from workers.mechanisms.vectors import WHOLE, Across
from workers.noise.generators import NoiseSource


@dataclass(frozen=True, kw_only=True, eq=False)
class Conditions:
    """The noise of a run, and the target that it has to meet.

    Attributes:
        across: joins the stretches of a position, of which each of several processes has one.
    """

    noise: NoiseSource
    epsilon: float
    delta: float
    across: Across = WHOLE
