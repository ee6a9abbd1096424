"""A network that takes its time, so that a run can be interrupted in the middle on any machine."""

import math
import time

import torch
from torch import nn

FACTORY = "tests.support.slow:network"


class Slow(nn.Module):
    """A linear classifier that sleeps in each step of training."""

    def __init__(self, inputs: int, classes: int, seconds_per_step: float) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, classes)
        self.seconds_per_step = seconds_per_step

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(self.seconds_per_step)
        return self.linear(features.flatten(1))


def network(
    *, input_shape: tuple[int, ...], classes: int, seconds_per_step: float = 0.01
) -> nn.Module:
    """Return the network."""
    return Slow(math.prod(input_shape), classes, seconds_per_step)
