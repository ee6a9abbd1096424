"""How far a record moves a head, by the steps that workers take: never more than is counted."""

from itertools import islice

import numpy as np
import pytest
import torch

from app.accounting.histories.history import History, Recipe
from app.accounting.histories.history_account import drift
from app.domain.schema import InputSchema
from app.domain.tasks.spec import WeightColumn
from tests.support.specs import classification, multi_label, regression
from workers.mechanisms.descent import Descent
from workers.training.examples import Examples
from workers.training.networks.heads import LinearHead
from workers.training.noisy_phase import FixedBatches
from workers.training.tasks.catalogue import form_of, task_of
from workers.training.tasks.task import INPUTS, TARGET, WEIGHT

CPU = torch.device("cpu")
SIZE, RECORDS, BATCH, STEPS = 3, 12, 4, 30
HEAVY = WeightColumn(column="w", most=3.0)
SPECS = {
    "weighted classes": classification(
        3, class_weights=(1.0, 2.0, 7.0), label_smoothing=0.1, weight=HEAVY
    ),
    "weighted labels": multi_label(("a", "b"), class_weights=(0.5, 4.0), weight=HEAVY),
    "huber": regression(("a", "b"), loss="huber", threshold=0.5, weight=HEAVY),
}


def tensors(spec, kept):
    """The last record is as heavy and as far from what is learned as it may be."""
    draws = np.random.default_rng(9)
    target = {
        "classification": draws.integers(0, 2, RECORDS),
        "multi_label": np.zeros((RECORDS, spec.outputs), dtype=np.float32),
        "regression": np.zeros((RECORDS, spec.outputs), dtype=np.float32),
    }[spec.name]
    target[-1] = {"classification": 2, "multi_label": 1, "regression": 1e30}[spec.name]
    weight = np.full(RECORDS, 0.1, dtype=np.float32)
    weight[-1] = HEAVY.most
    inputs = draws.normal(size=(RECORDS, SIZE)).astype(np.float32)
    everything = {INPUTS: inputs, TARGET: target, WEIGHT: weight}
    return {name: values[:kept] for name, values in everything.items()}


def trained(spec, recipe, kept):
    head = LinearHead(SIZE, spec.outputs, rows=spec.rows, feature_norm=None, bias=0.1)
    schema = InputSchema(
        shape=(SIZE,), dtype="float32", offset=0.0, scale=1.0, classes=spec.outputs
    )
    task = task_of(spec)
    feed = FixedBatches(
        Examples.of(form_of(spec, task, schema), tensors(spec, kept)),
        np.arange(kept) // BATCH,
        batches=RECORDS // BATCH,
        batch_size=BATCH,
    )
    descent = Descent(learning_rate=recipe.learning_rate, weight_decay=recipe.weight_decay)
    position = head.weight.detach().reshape(-1)
    for batch in islice(feed.forever(CPU), STEPS):
        head.zero_grad()
        feed.objective(task.loss(head, batch)).backward()
        with torch.no_grad():
            descent.step_(position, head.weight.grad.reshape(-1), None)
    return position


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_record_moves_a_head_by_no_more_than_its_drift_and_may_come_close(spec):
    bounds = spec.bounds
    recipe = Recipe(
        learning_rate=1 / (5 * bounds.smoothness),
        weight_decay=4 * bounds.smoothness,
        smoothness=bounds.smoothness,
        lipschitz=bounds.lipschitz,
        batch_size=BATCH,
        batches=RECORDS // BATCH,
    )
    apart = float((trained(spec, recipe, RECORDS) - trained(spec, recipe, RECORDS - 1)).norm())
    counted = drift(History(recipe).after_steps(STEPS).after_request({RECORDS // BATCH - 1: 1}))
    assert 0.3 * counted < apart <= counted
