"""The average of an ensemble's weights, as tensors of one network."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from app.domain.architectures.ensemble import by_member

Tensors = Mapping[str, NDArray[Any] | torch.Tensor]


def of_members(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the average of an ensemble's members, whose tensors have their names in it."""
    members = sorted((by_member(tensors) or {}).items())
    return averaged([{own: tensors[name] for own, name in sorted(m.items())} for _, m in members])


def averaged(members: Sequence[Tensors]) -> dict[str, torch.Tensor]:
    """Return each tensor's mean over the members, the same wherever it is computed.

    Sums are taken in float64 in the members' order, and the mean is rounded once to the tensor's
    type. Whole numbers, such as a normalisation layer's count of batches, are the first member's.

    Args:
        members: at least one; tensors of the same names, shapes and types in each.
    """
    return {name: _mean([torch.as_tensor(each[name]) for each in members]) for name in members[0]}


def _mean(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    first = tensors[0]
    if not first.is_floating_point():
        return first.clone()
    total = first.to(torch.float64, copy=True)
    for tensor in tensors[1:]:
        total += tensor
    return (total / len(tensors)).to(first.dtype)
