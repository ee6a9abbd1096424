"""Where training may start: random numbers, a constant, and nobody's trained weights."""

import pytest
import torch
from torch import nn

from app.domain.errors import PlanError
from workers.mechanisms.rehearsal import require_drawn_start

LEARNED = torch.linspace(-1, 1, 12).reshape(2, 6)


def bringing():
    """Build a network whose layer somebody trained before, on whatever it was."""
    module = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    with torch.no_grad():
        module[2].weight.copy_(LEARNED)
    return module


def seeded():
    torch.manual_seed(0)
    return nn.Linear(6, 2)


def frozen():
    module = bringing()
    module[2].requires_grad_(requires_grad=False)
    return module


def constant():
    module = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.LSTM(6, 6))
    nn.init.eye_(module[0].weight)
    nn.init.zeros_(module[0].bias)
    return module


@pytest.mark.parametrize("factory", [constant, frozen, lambda: nn.Linear(6, 2)])
def test_random_numbers_constants_and_a_public_base_are_fine(factory):
    before = torch.get_rng_state()
    require_drawn_start(factory)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(("factory", "name"), [(bringing, r"2\.weight"), (seeded, "weight")])
def test_weights_that_every_network_starts_at_are_refused_by_name(factory, name):
    """A retraining would begin at them, and a frame be centred there."""
    with pytest.raises(PlanError, match=f"'{name}' at the same weights"):
        require_drawn_start(factory)
