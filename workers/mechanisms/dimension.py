"""Does a plan fit the network that it is carried out on?"""

import torch

from app.domain.errors import PlanError


def require_dimension(dimension: int | None, position: torch.Tensor) -> None:
    """Raise ``PlanError`` if a plan was made for another number of weights; None fits any."""
    if dimension not in (None, position.numel()):
        raise PlanError(f"dimension must be {position.numel()}, not {dimension}")
