"""Training and evaluation on real digits."""

import random
from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn

from app.domain.errors import RunFailedError
from app.domain.recipes import ParameterGroup, TrainingRecipe
from app.domain.tasks import catalogue
from app.registry.datasets.columns.encoding import NO_CLASS
from tests.support.arrays import array_task
from workers.training import loop, optimizers
from workers.training.evaluate import evaluate, mean_loss
from workers.training.examples import Examples
from workers.training.networks.network import Network
from workers.training.tasks.built_in import CLASSIFICATION
from workers.training.tasks.catalogue import task_of
from workers.training.tasks.task import TARGET


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def train(module, examples, recipe, **more):
    network = Network(lambda: module, device=torch.device("cpu"))
    return network.train(examples, recipe, **more)


@pytest.mark.parametrize(
    "recipe",
    [
        TrainingRecipe(),
        TrainingRecipe(schedule="constant", learning_rate=0.05),
        TrainingRecipe(optimizer="adamw", learning_rate=0.01, weight_decay=0.01),
        TrainingRecipe(schedule="cosine", warmup_fraction=0.1, clip_norm=1.0),
        TrainingRecipe(precision="bfloat16", micro_batches=3),
        TrainingRecipe(groups=(ParameterGroup("0.*", 0.05), ParameterGroup("*bias", 0.2, 0.0))),
    ],
)
def test_training_learns_digits(recipe, digits, held_out):
    module = mlp()
    train(module, digits, recipe, epochs=10)
    result = evaluate(module, CLASSIFICATION, held_out)
    assert result.metrics["accuracy"] > 0.88
    assert result.mean_loss < 0.5
    assert result.examples == len(held_out)


def test_progress_reports_each_step_and_epochs_may_be_fractions(digits):
    recipe, seen = TrainingRecipe(batch_size=100), []
    steps = train(
        mlp(),
        digits,
        recipe,
        epochs=1.25,
        on_progress=lambda step, total, loss: seen.append((step, total, float(loss))),
    )
    assert steps == 12
    assert [(step, total) for step, total, _ in seen] == [(step, 12) for step in range(1, 13)]
    assert seen[-1][2] < seen[0][2]


def test_no_epochs_change_nothing(digits):
    module = mlp()
    before = [tensor.clone() for tensor in module.parameters()]
    assert train(module, digits, TrainingRecipe(), epochs=0) == 0
    assert all(map(torch.equal, before, module.parameters()))


@pytest.mark.parametrize("epochs", [0.1, 0.2, 0.3, 1])
def test_one_cycle_rises_to_the_peak_and_falls(digits, epochs, monkeypatch):
    rates = []
    step = optimizers._SGD.step
    monkeypatch.setattr(
        optimizers._SGD,
        "step",
        lambda self: (rates.append(self.param_groups[0]["lr"]), step(self))[1],
    )
    steps = train(mlp(), digits, TrainingRecipe(batch_size=100), epochs=epochs)
    assert len(rates) == steps
    assert min(rates) > 0.001
    assert max(rates) <= 0.1
    if steps == 10:
        # 0.04 times the peak at first, the peak after 30 % of the steps, then down towards 0.
        line = np.interp(np.arange(10), [0, 0.3 * 11 - 1, 10], [0.004, 0.1, 0.0])
        np.testing.assert_allclose(rates, line, atol=1e-6)


def test_divergence_is_an_error_that_says_what_to_do(digits):
    recipe = TrainingRecipe(learning_rate=1e30, schedule="constant", momentum=0.0)
    with pytest.raises(RunFailedError, match="lower learning_rate"):
        train(mlp(), digits, recipe, epochs=2)


def test_divergence_ends_the_training_early(digits):
    recipe = TrainingRecipe(learning_rate=1e30, schedule="constant", batch_size=10)
    seen = []
    with pytest.raises(RunFailedError):
        train(
            mlp(),
            digits,
            recipe,
            epochs=2,
            on_progress=lambda step, *_: seen.append(step),
        )
    assert len(seen) < 40


def test_a_last_step_that_breaks_the_weights_is_noticed(digits):
    recipe = TrainingRecipe(learning_rate=1e39, schedule="constant", batch_size=1000)
    with pytest.raises(RunFailedError, match="lower learning_rate"):
        train(mlp(), digits, recipe, epochs=1)


def test_batch_norm_survives_one_example_more_than_the_batch(digits):
    train(
        mlp(),
        digits.select(np.arange(129)),
        TrainingRecipe(batch_size=128),
        epochs=2,
    )


def test_evaluation_counts_and_keeps_modes_and_statistics(digits):
    module = mlp()
    module[2].eval()
    before = module[1].running_mean.clone()
    result = evaluate(module, CLASSIFICATION, digits)
    assert module.training
    assert not module[2].training
    assert torch.equal(before, module[1].running_mean)
    module.eval()
    features, labels = next(digits.in_order(1000, device=torch.device("cpu"))).values()
    logits = module(features).detach().double()
    assert result.metrics["accuracy"] == float((logits.argmax(1) == labels).double().mean())
    expected = float(nn.functional.cross_entropy(logits, labels))
    assert result.mean_loss == pytest.approx(expected, rel=1e-5)


def test_nothing_to_evaluate_is_an_error(digits):
    nothing = digits.select(np.array([], dtype=np.int64))
    assert isinstance(nothing, Examples)
    with pytest.raises(RunFailedError, match="held-out"):
        evaluate(mlp(), CLASSIFICATION, nothing)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_gradients_and_the_optimisers_state_are_overwritten(digits, monkeypatch, optimizer, fails):
    module, kept = mlp(), []

    def report(step, steps, loss):
        if step == 3:
            (used,) = kept
            kept.extend(parameter.grad for parameter in module.parameters())
            kept.extend(value for state in used.state.values() for value in state.values())
            assert all(bool(tensor.any()) for tensor in kept[-3:])
            if fails:
                raise KeyboardInterrupt

    make = loop.optimizer_of
    monkeypatch.setattr(loop, "optimizer_of", lambda *a: kept.append(make(*a)) or kept[0])
    recipe = TrainingRecipe(optimizer=optimizer, momentum=0.9, batch_size=300)
    if fails:
        with pytest.raises(KeyboardInterrupt):
            train(module, digits, recipe, epochs=1, on_progress=report)
    else:
        train(module, digits, recipe, epochs=1, on_progress=report)
    tensors = [tensor for tensor in kept[1:] if tensor is not None]
    assert len(tensors) >= 2 * len(list(module.parameters()))
    left = [t for t in tensors if t.any()]
    if fails:
        assert not left
    else:  # the last step's gradients are others than those of the third
        assert not any(p.grad.any() for p in module.parameters())
        assert not any(v.any() for state in kept[0].state.values() for v in state.values())


def test_patience_is_endless_where_no_held_out_record_has_a_target(digits, held_out):
    recipe = TrainingRecipe(patience=1, batch_size=50)
    target = torch.full_like(held_out.tensors[TARGET], NO_CLASS)
    lacking = Examples(held_out.tensors | {TARGET: target}, held_out.form)
    steps = train(mlp(), digits, recipe, epochs=3, held_out=lacking)
    assert steps == 3 * digits.steps_per_epoch(50)


def test_patience_ends_training_and_keeps_the_best_weights(digits, held_out):
    recipe = TrainingRecipe(schedule="constant", learning_rate=0.3, patience=2, batch_size=50)
    module, losses = mlp(), []
    epoch = digits.steps_per_epoch(50)

    def looking(step, *_):
        if step % epoch == 0:
            losses.append(mean_loss(module, CLASSIFICATION, held_out))

    steps = train(
        module,
        digits,
        recipe,
        epochs=200,
        held_out=held_out,
        on_progress=looking,
    )
    assert steps == len(losses) * epoch < 200 * epoch
    best = int(np.argmin(losses))
    assert len(losses) == best + 3
    assert mean_loss(module, CLASSIFICATION, held_out) == pytest.approx(losses[best], rel=1e-6)


def test_without_held_out_records_patience_looks_at_nothing(digits, held_out):
    recipe = TrainingRecipe(patience=1, batch_size=100)
    for nothing in (None, held_out.select(np.arange(0))):
        steps = train(mlp(), digits, recipe, epochs=3, held_out=nothing)
        assert steps == 3 * digits.steps_per_epoch(100)


def test_what_a_network_draws_does_not_follow_from_what_was_drawn_before(digits):
    """One worker trains an ensemble's members in turn: each has a seed of its own."""

    class Drawing(nn.Linear):
        def forward(self, records):
            drawn.append((float(torch.rand(1)), random.random(), np.random.rand()))  # noqa: NPY002
            return super().forward(records)

    augment = [{"name": "noise", "std": 0.1}]
    task = task_of(catalogue.from_json(array_task(64, classes=10) | {"augment": augment}))
    drawn, variants = [], []
    for _ in range(2):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        network = Network(lambda: Drawing(64, 10), device=torch.device("cpu"), task=task)
        network.train(digits, TrainingRecipe(batch_size=500), epochs=1)
        torch.manual_seed(0)
        variants.append(task.augment({"inputs": torch.zeros(2, 64)})["inputs"])
    first, second = drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]
    assert not {*chain(*first)} & {*chain(*second)}
    assert torch.equal(*variants)  # no generator of its own, which no training would start afresh
