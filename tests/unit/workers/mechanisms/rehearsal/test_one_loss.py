"""Networks whose loss of a record, in training, is of that record and the weights alone, or not."""

import pytest
import torch
from torch import nn

from app.domain.errors import PlanError
from app.domain.tasks import catalogue
from tests.support.arrays import array_task
from workers.mechanisms.rehearsal import require_one_loss
from workers.training.forms import InputForm
from workers.training.tasks.built_in import CLASSIFICATION
from workers.training.tasks.catalogue import task_of

FORM = InputForm(shape=(6,))
VARIED = task_of(catalogue.from_json(array_task(6) | {"augment": [{"name": "noise", "std": 0.1}]}))


def network(*between):
    return lambda: nn.Sequential(nn.Linear(6, 8), *between, nn.Linear(8, 2))


class Louder(nn.Linear):
    """Looks across the batch where a kernel of its own would, without a layer that says so."""

    def forward(self, features):
        return super().forward(features) * (1 + features.abs().amax())


@pytest.mark.parametrize(
    ("factory", "task"),
    [
        (network(nn.BatchNorm1d(8)), CLASSIFICATION),
        (network(nn.BatchNorm1d(8, track_running_stats=False)), CLASSIFICATION),
        (network(nn.Dropout(0.1)), CLASSIFICATION),
        (lambda: Louder(6, 2), CLASSIFICATION),
        (network(nn.ReLU()), VARIED),
    ],
    ids=["statistics", "statistics of the batch alone", "dropout", "of its own", "augment"],
)
def test_a_loss_that_depends_on_chance_or_on_others_is_refused(factory, task):
    with pytest.raises(PlanError, match="one loss of each record"):
        require_one_loss(factory, task, FORM)


@pytest.mark.parametrize(
    "factory",
    [
        network(nn.ReLU()),
        network(nn.LayerNorm(8), nn.Tanh()),
        network(
            nn.Unflatten(1, (4, 2)), nn.InstanceNorm1d(4, track_running_stats=True), nn.Flatten()
        ),
    ],
)
def test_other_networks_are_fine_and_built_apart_from_what_is_drawn_elsewhere(factory):
    require_one_loss(factory, CLASSIFICATION, FORM)


def test_a_network_that_is_not_finite_on_random_records_is_not_refused_for_that():
    class Root(nn.Linear):
        def forward(self, features):
            return super().forward(features.sqrt())

    require_one_loss(lambda: Root(6, 2), CLASSIFICATION, FORM)
    assert torch.isnan(torch.tensor(-1.0).sqrt())
