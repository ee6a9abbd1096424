"""A descending lineage goes on in its cycle of batches; an ordinary one does not know cycles."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pyarrow as pa
import pytest
import torch

from app.domain.architectures import ArchitectureSpec
from app.domain.description import ModelDescription
from app.domain.errors import PlanError
from app.domain.plan import Plan, TrainingKind
from app.domain.policy import Policy
from app.domain.recipes import TrainingRecipe
from app.domain.schema import InputSchema
from app.planning.lineage import new_lineage
from app.planning.mechanisms.catalogue import mechanism_named
from app.planning.shape import ConvexShape, ModelShape
from tests.support.insecure_noise import InsecureNoise
from tests.support.specs import classification
from workers.data.loading import ModelSpec, RunData
from workers.mechanisms.descent import Descent
from workers.mechanisms.lineage import lineage_of
from workers.training.examples import classified
from workers.training.networks.heads import LinearHead

CPU = torch.device("cpu")
RECORDS, BATCH_SIZE, BATCHES = 10, 2, 5
SHAPE = ModelShape(
    retained=RECORDS,
    batch_size=BATCH_SIZE,
    recipe_epochs=2.6,
    convex=ConvexShape(lipschitz=1.0, smoothness=0.25, weight_decay=0.01, learning_rate=1.0),
)
BEGUN = new_lineage(SHAPE)
TRAINED = BEGUN.trained().after_release(noise_std=0.1)
HEAD = ArchitectureSpec("linear_head")
SCHEMA = InputSchema(shape=(1,), dtype="float32", offset=0.0, scale=1.0, classes=2)
MODEL = ModelSpec(
    description=ModelDescription(
        model="m",
        version=1,
        architecture=HEAD,
        task=classification(2),
    ),
    recipe=TrainingRecipe(epochs=3, batch_size=BATCH_SIZE, held_out_fraction=0.0),
    policy=Policy(mechanism="tracked_release"),
    schema=SCHEMA,
    dataset_id="d",
    columns=pa.schema([]),
)


def plan(history=BEGUN.history, **settings):
    return Plan(
        mechanism="tracked_release",
        parameters={},
        epsilon=1.0,
        delta=1e-5,
        budget_epochs=1.0,
        predicted={},
        settings=BEGUN.settings | settings,
        training=TrainingKind.DESCENT,
        history=None if history is None else history.to_json(),
    )


def data(planned):
    """Record n is in batch n // 2, and its feature is n."""
    features = np.arange(RECORDS, dtype=np.float32)[:, None]
    return RunData(
        retain=classified(features, np.arange(RECORDS) % 2),
        held_out=classified(features[:0], np.arange(0)),
        plan=planned,
        batch_of=np.arange(RECORDS) // BATCH_SIZE,
    )


def head():
    return LinearHead(1, 2, rows=1, feature_norm=None, bias=0.0)


def lineage(planned, factory=head):
    return lineage_of(planned, MODEL, data(planned), factory)


def next_batches(feed, count=1):
    """Return the numbers of the batches that come next."""
    return [int(b["inputs"][0, 0]) // BATCH_SIZE for b in islice(feed.forever(CPU), count)]


class Recording:
    """A sealed network that notes what it was trained with, and takes the steps' batches."""

    def train_by(self, how, on_progress):
        how(self, on_progress)


@pytest.fixture(autouse=True)
def noted(monkeypatch):
    def descend(network, move_, feed, *, steps, noise, on_progress, start_std):
        network.told = (move_.__self__, steps, start_std)
        network.batches = next_batches(feed, steps)

    monkeypatch.setattr("workers.mechanisms.lineage.descend", descend)


def test_a_head_goes_on_in_the_cycle_where_its_history_stopped():
    assert BEGUN.training_steps == 13
    history = TRAINED.after_request({0: 1})
    assert next_batches(lineage(plan(history, training_steps=0)).feed, 3) == [3, 4, 0]
    later = history.after_steps(4).after_release().after_request({1: 1})
    assert next_batches(lineage(plan(later, training_steps=0)).feed) == [(13 + 4) % BATCHES]


def test_training_begins_with_the_first_batch_and_its_noisy_phase_follows_it():
    begins = lineage(plan())
    sealed = Recording()
    begins.train(sealed, InsecureNoise(0, environment="test"), lambda *_: None)
    assert sealed.batches == [step % BATCHES for step in range(13)]
    assert next_batches(begins.feed) == [13 % BATCHES]


def test_training_without_a_history_begins_with_the_first_batch():
    assert next_batches(lineage(plan(None)).feed) == [0]


@pytest.mark.parametrize("extra", [{}, {"noise_std": 0.3, "radius": 2.0, "start_std": 0.7}])
def test_training_takes_the_plans_steps_as_they_are_set(extra):
    begins = lineage(plan(**extra))
    sealed = Recording()
    begins.train(sealed, InsecureNoise(0, environment="test"), lambda *_: None)
    expected = Descent(
        learning_rate=1.0,
        weight_decay=0.01,
        noise_std=extra.get("noise_std", 0.0),
        radius=extra.get("radius"),
    )
    assert sealed.told == (expected, 13, extra.get("start_std", 0.0))


def test_the_loss_is_divided_by_the_batch_size_of_the_plan_and_bounded_as_it_says():
    planned = plan(loss_bound=1.5)
    losses = torch.tensor([50.0])
    assert float(lineage(planned).feed.objective(losses)) == pytest.approx(1.5 / BATCH_SIZE)
    assert float(lineage(plan()).feed.objective(losses)) == pytest.approx(50 / BATCH_SIZE)


def test_descent_refuses_a_network_that_gives_a_record_another_loss_at_every_visit():
    with pytest.raises(PlanError, match="one loss of each record"):
        lineage(plan(), lambda: torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.Dropout()))


def test_a_descending_lineage_is_not_fine_tuned_and_works_on_the_weights_themselves():
    found = lineage(plan())
    assert not mechanism_named("tracked_release").fine_tunes
    assert found.frame is None
    assert found.dtype == torch.float64


def test_a_plan_without_training_steps_is_ordinary_and_fine_tuned():
    ordinary = replace(
        plan(None), mechanism="gradient_clipping", settings={}, training=TrainingKind.RECIPE
    )
    found = lineage_of(ordinary, MODEL, data(ordinary), lambda: torch.nn.Linear(1, 2))
    assert mechanism_named("gradient_clipping").fine_tunes
    assert found.frame is not None
    assert found.dtype is None
