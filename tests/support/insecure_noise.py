"""Repeatable noise; the service has none."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import torch

from app.accounting.precision import grid_of
from app.domain.errors import ConfigurationError
from workers.noise.box_muller import round_to_
from workers.noise.generators import require_vector


class InsecureNoise:
    """Repeatable normal numbers, for tests only; ``seed`` decides all. They protect no data.

    Raises:
        ConfigurationError: ``environment`` is ``production``.
    """

    name: Final = "INSECURE repeatable test generator"

    def __init__(self, seed: int, *, environment: str) -> None:
        if environment.strip().lower() == "production":
            raise ConfigurationError("InsecureNoise refuses to run in production")
        self._generator = torch.Generator().manual_seed(seed)
        self._drawn: Counter[float] = Counter()

    @property
    def drawn(self) -> Mapping[float, int]:
        """How many numbers were drawn and added, by standard deviation."""
        return dict(self._drawn)

    def add_(self, position: torch.Tensor, noise_std: float) -> None:
        """Add the next numbers of the stream, in the same way as ``SecureNoise``.

        Raises:
            ParameterError: ``noise_std`` is out of its range.
            ValueError: ``position`` is not a 1-D float64 tensor.
        """
        require_vector(position)
        grid = grid_of(noise_std)
        numbers = torch.randn(position.numel(), generator=self._generator, dtype=torch.float64)
        position.add_(numbers.to(position.device), alpha=noise_std)
        round_to_(position, grid)
        self._drawn[float(noise_std)] += position.numel()
