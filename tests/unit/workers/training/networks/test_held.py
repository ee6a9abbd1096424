"""Starts are compared by all that a network holds."""

import pytest
from torch import nn

from app.domain.errors import PlanError
from workers.training.networks.held import require_same_start, start_of


class Scaling:
    def __init__(self, by):
        self.by = by

    def __call__(self, _, inputs):
        return (inputs[0] * self.by,)


def scaled_by(number):
    layer = nn.Linear(2, 2)
    layer.register_forward_pre_hook(Scaling(number))
    return nn.Sequential(nn.Linear(2, 2), layer)


def test_hooks_are_compared_by_what_they_hold_and_not_by_how_many_others_there_were():
    before = start_of(lambda: scaled_by(2.0))
    require_same_start(lambda: scaled_by(2.0), before)
    with pytest.raises(PlanError, match=r"1\._forward_pre_hooks\.0\.by"):
        require_same_start(lambda: scaled_by(3.0), before)
