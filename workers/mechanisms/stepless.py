"""A noisy phase that is over when it has begun."""

from dataclasses import dataclass
from typing import ClassVar, NoReturn

import torch

from app.accounting.guarantees import Guarantee
from app.domain.errors import SealedStateError


@dataclass(frozen=True)
class Stepless:
    """A run without steps, which met its target at its beginning."""

    steps: ClassVar[int] = 0
    met: ClassVar[bool] = True

    met_by: Guarantee

    def guarantee(self) -> Guarantee:
        """Return what the beginning guarantees."""
        return self.met_by

    def step(self, position: torch.Tensor, gradient: torch.Tensor) -> NoReturn:  # noqa: ARG002
        """Refuse: there are no steps."""
        raise SealedStateError("this mechanism takes no steps")
