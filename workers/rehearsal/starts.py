"""Where training starts: numbers that a factory draws, not weights that it brought.

A frame's centre and a retraining both begin at what the factory makes. Weights that it loads may
have learned from records, and no certificate would name them: those are for a backbone or the base.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import nn

from app.domain.errors import PlanError
from workers.mechanisms.frame import built_under
from workers.networks.base import digest_of

_SEEDS: Final = (3, 17)
_AT_ONCE: Final = 1 << 12
_MOST_VALUES: Final = 2  # zeros, ones, a unit matrix, a forget gate's bias


def require_drawn_start(factory: Callable[[], nn.Module]) -> None:
    """Check that trained tensors start at random numbers, or at one or two values throughout.

    Args:
        factory: builds the network from torch's global generator, without a backbone's weights.

    Raises:
        PlanError: a tensor starts at the same weights in every network; the message names it.
    """
    one, other = (
        {
            name: (digest_of(each), _values(each))
            for name, each in built_under(seed, factory).items()
        }
        for seed in _SEEDS
    )
    for name in one.keys() & other.keys():
        if one[name] == other[name] and one[name][1] > _MOST_VALUES:
            raise PlanError(
                f"the factory starts the parameter {name!r} at the same weights in every network, "
                "which may have learned from records: draw them from torch's own generator, freeze "
                'them, or upload them as a backbone with "frozen": false, which certificates name'
            )


def _values(tensor: torch.Tensor) -> int:
    """Return how many different numbers a tensor has, or only that they are too many."""
    numbers, found = tensor.reshape(-1), set[float]()
    for piece in torch.split(numbers, _AT_ONCE):
        found |= set(piece.unique().tolist())  # type: ignore[no-untyped-call]
        if len(found) > _MOST_VALUES:
            break
    return len(found)
