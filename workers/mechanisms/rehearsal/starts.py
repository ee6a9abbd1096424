"""Where training starts: numbers that a factory draws, not weights that it brought.

A frame's centre and a training anew both begin at what the factory makes. What a start may be, for
every mechanism (docs/guarantees.md, section 10): numbers drawn from torch's generator, which follow
from the run's seed; or, the same in every network, what a few numbers describe: one value, a few
runs of two values, a unit matrix. Weights that the factory loads may have learned from records,
also as signs, and no certificate would name them: those are for a backbone or the base.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import nn

from app.domain.errors import PlanError
from workers.training.frame import built_under
from workers.training.networks.base import digest_of

_SEEDS: Final = (3, 17)
_AT_ONCE: Final = 1 << 12
_MOST_VALUES: Final = 2
_MOST_RUNS: Final = 8  # such as a forget gate's bias


def require_drawn_start(factory: Callable[[], nn.Module]) -> None:
    """Check that trained tensors start at random numbers, or at what a few numbers describe.

    Args:
        factory: builds the network from torch's global generator, without a backbone's weights.

    Raises:
        PlanError: a tensor starts at the same weights in every network; the message names it.
    """
    one, other = (
        {
            name: (digest_of(each), _is_plain(each))
            for name, each in built_under(seed, factory).items()
        }
        for seed in _SEEDS
    )
    for name in one.keys() & other.keys():
        if one[name] == other[name] and not one[name][1]:
            raise PlanError(
                f"the factory starts the parameter {name!r} at the same weights in every network, "
                "which may have learned from records: draw them from torch's own generator, freeze "
                'them, or upload them as a backbone with "frozen": false, which certificates name'
            )


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a few numbers describe a tensor: runs of two values, or a unit matrix."""
    numbers = tensor.reshape(-1)
    if len(numbers[:_AT_ONCE].unique()) > _MOST_VALUES:  # type: ignore[no-untyped-call]
        return False
    if int((numbers[1:] != numbers[:-1]).sum()) < _MOST_RUNS:
        return len(numbers.unique()) <= _MOST_VALUES  # type: ignore[no-untyped-call]
    if tensor.dim() < 2:
        return False
    unit = nn.init.dirac_ if tensor.dim() in (3, 4, 5) else nn.init.eye_
    try:
        return torch.equal(tensor, unit(torch.empty_like(tensor)))
    except ValueError:
        return False
