"""The losses that exact training minimises are those of the tasks, slopes included."""

import numpy as np
import pytest
import torch

from app.domain.errors import RunFailedError
from app.domain.tasks.built_in import LanguageModelSpec
from tests.unit.workers.training.networks.test_head_bounds import SPECS, SQUARED
from workers.training.exact.losses import loss_of
from workers.training.tasks.catalogue import task_of
from workers.training.tasks.task import INPUTS, TARGET, WEIGHT

COUNT = 30
ALL = SPECS | {"squared": SQUARED}


def targets_of(spec, random):
    if spec.name == "classification":
        return random.integers(0, spec.classes, COUNT)
    if spec.name == "multi_label":
        return random.integers(0, 2, (COUNT, spec.outputs)).astype(np.float32)
    return random.normal(size=(COUNT, spec.outputs)).astype(np.float32)


def tensors_of(spec, seed=3):
    random = np.random.default_rng(seed)
    tensors = {TARGET: targets_of(spec, random)}
    if spec.weight is not None:
        tensors[WEIGHT] = random.uniform(0, spec.weight.most, COUNT).astype(np.float32)
    return tensors


@pytest.mark.parametrize("spec", ALL.values(), ids=ALL)
@pytest.mark.parametrize("scale", [0.0, 1.0, 300.0])
def test_they_are_those_of_the_task(spec, scale):
    tensors = tensors_of(spec)
    loss = loss_of(spec, tensors)
    assert loss.rows == spec.rows
    scores = scale * np.random.default_rng(4).normal(size=(COUNT, spec.rows))
    held = torch.from_numpy(scores.copy()).requires_grad_()
    outputs = held
    if spec.rows < spec.outputs:
        outputs = torch.cat([torch.zeros_like(held), held], dim=1)
    batch = {name: torch.from_numpy(values) for name, values in tensors.items()}
    expected = task_of(spec).loss(lambda _: outputs, batch | {INPUTS: held}).sum()
    (slopes,) = torch.autograd.grad(expected, held)
    for records in (slice(0, COUNT), slice(0, 7), slice(7, COUNT)):
        _, found = loss.at(scores[records], records)
        assert found == pytest.approx(slopes[records].numpy(), rel=1e-9, abs=1e-9)
    assert loss.at(scores, slice(0, COUNT))[0] == pytest.approx(expected.item(), rel=1e-9)


def test_a_task_without_a_convex_head_has_none():
    with pytest.raises(RunFailedError, match="language_model"):
        loss_of(LanguageModelSpec(vocabulary=9), {TARGET: np.zeros(3)})
