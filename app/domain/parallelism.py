"""How the work of one run was divided among devices."""

from enum import StrEnum
from typing import Final

MOST_DEVICES: Final = 64


class Parallelism(StrEnum):
    """What each of several processes held.

    ``none``: there was one process. ``full_shard``: weights, gradients, the optimiser's state, the
    noisy position and its noise were divided (PyTorch's name for the third stage of ZeRO).
    """

    NONE = "none"
    FULL_SHARD = "full_shard"
