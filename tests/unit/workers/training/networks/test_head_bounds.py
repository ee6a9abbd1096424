"""Slope and curvature of every task's loss in a linear head stay within what is claimed of them.

On the loss that workers compute, for random and for extreme records, weights and factors. No bound
is idle: some record comes close to it.
"""

import dataclasses

import pytest
import torch

from app.domain.tasks.built_in import ClassificationSpec, MultiLabelSpec, RegressionSpec
from app.domain.tasks.spec import WeightColumn
from tests.support.specs import classification, multi_label, regression
from workers.training.networks.heads import LinearHead
from workers.training.tasks.catalogue import task_of
from workers.training.tasks.task import INPUTS, TARGET, WEIGHT

SIZE = 4
HEAVY = WeightColumn(column="w", most=3.0)
LABELS = ("a", "b", "c")
SPECS = {
    "two classes": classification(2),
    "four classes": classification(4),
    "smoothed": classification(3, label_smoothing=0.1),
    "two weighted classes": classification(2, class_weights=(5.0, 0.5)),
    "weighted classes": classification(
        3, class_weights=(0.0, 2.0, 7.0), label_smoothing=0.2, weight=HEAVY
    ),
    "labels": multi_label(LABELS),
    "one label": multi_label(("a",), weight=HEAVY),
    "weighted labels": multi_label(
        LABELS, class_weights=(0.5, 4.0, 0.0), label_smoothing=0.1, weight=HEAVY
    ),
    "huber": regression(("y",), loss="huber"),
    "huber of three": regression(
        LABELS, loss="huber", threshold=0.3, offset=2.0, scale=0.5, weight=HEAVY
    ),
    "largest threshold": regression(("y",), loss="huber", threshold=1e6),
}
SQUARED = regression(("y", "z"), weight=HEAVY)
SCALES = (0.0, 0.3, 3.0, 100.0)


def records(spec):
    """Yield batches of one record: random ones, and those at the ends of what is allowed."""
    heaviest = 1.0 if spec.weight is None else spec.weight.most
    weights = [heaviest] if spec.weight is None else [0.0, heaviest / 2, heaviest]
    if isinstance(spec, ClassificationSpec):
        targets = [torch.tensor([label]) for label in range(spec.classes)]
    elif isinstance(spec, MultiLabelSpec):
        ends = [torch.zeros(1, spec.outputs), torch.ones(1, spec.outputs)]
        targets = [*ends, torch.rand(1, spec.outputs)]
    else:
        targets = [size * torch.randn(1, spec.outputs) for size in (0.0, 1.0, 1e7, 1e37)]
    for target in targets:
        for weight in weights:
            batch = {INPUTS: 100 * torch.randn(1, SIZE), TARGET: target}
            yield batch | ({} if spec.weight is None else {WEIGHT: torch.tensor([weight])})


def head_of(spec):
    return LinearHead(SIZE, spec.outputs, rows=spec.rows, feature_norm=None, bias=0.1)


def gradient(spec, head, batch, position):
    weight = position.clone().requires_grad_()
    loss = task_of(spec).loss(
        lambda inputs: torch.func.functional_call(head, {"weight": weight}, (inputs,)), batch
    )
    (found,) = torch.autograd.grad(loss.sum(), weight)
    return found


def positions(spec, head):
    for scale in SCALES:
        for _ in range(6):
            yield scale * torch.randn_like(head.weight)
    if isinstance(spec, RegressionSpec):
        yield 4e6 * torch.randn_like(head.weight)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_slope_of_a_record_is_within_its_bound_which_is_not_idle(spec):
    torch.manual_seed(0)
    head, largest = head_of(spec), 0.0
    for position in positions(spec, head):
        for batch in records(spec):
            largest = max(largest, float(gradient(spec, head, batch, position).norm()))
    assert 0.7 * spec.bounds.lipschitz < largest <= spec.bounds.lipschitz


@pytest.mark.parametrize("spec", [*SPECS.values(), SQUARED], ids=[*SPECS, "squared"])
def test_the_slope_changes_no_faster_than_the_curvature_and_never_backwards(spec):
    """Between any two heads: what a step needs to contract, also where there is no Hessian."""
    torch.manual_seed(0)
    head, fastest = head_of(spec), 0.0
    for position in positions(spec, head):
        for batch in records(spec):
            if float(batch[TARGET].abs().max()) > 1e6:
                continue  # the differences would be all rounding
            for apart in (1e-3, 30.0):
                move = apart * torch.randn_like(position)
                if apart < 1:  # along the record's features, in which all curvature is
                    move = apart * torch.randn(spec.rows, 1) * head.scaled(batch[INPUTS])
                change = gradient(spec, head, batch, position + move)
                change -= gradient(spec, head, batch, position)
                rounding = 1e-9 * spec.bounds.smoothness * (1 + float(position.norm()))
                assert float((change * move).sum()) >= -rounding * float(move.norm())
                ratio = float(change.norm()) / float(move.norm())
                assert ratio <= spec.bounds.smoothness + rounding / apart
                fastest = max(fastest, ratio)
    assert fastest > 0.5 * spec.bounds.smoothness


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_loss_is_never_negative(spec):
    torch.manual_seed(0)
    head = head_of(spec)
    for position in positions(spec, head):
        with torch.no_grad():
            head.weight.copy_(position)
        for batch in records(spec):
            assert float(task_of(spec).loss(head, batch)) >= -1e-12


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_loss_under_a_bound_curves_no_more_than_claimed(spec):
    """bound * tanh(loss / bound), which noisy_gd_nonconvex minimises."""
    torch.manual_seed(0)
    head, most = head_of(spec), 1.28 * spec.bounds.smoothness
    task = task_of(spec)
    for bound in (0.1, 1.0, 20.0):
        for scale in (0.3, 3.0):
            for batch in records(spec):
                if float(batch[TARGET].abs().max()) > 1e6:
                    continue

                def loss(weight, batch=batch, bound=bound):
                    found = task.loss(
                        lambda x: torch.func.functional_call(head, {"weight": weight}, (x,)), batch
                    )
                    return (bound * torch.tanh(found / bound)).sum()

                weight = scale * torch.randn_like(head.weight)
                hessian = torch.autograd.functional.hessian(loss, weight)
                values = torch.linalg.eigvalsh(hessian.reshape(weight.numel(), -1))
                assert float(values.abs().max()) <= most * (1 + 1e-9)


def test_what_has_no_bound_claims_none():
    assert SQUARED.bounds.lipschitz is None
    assert dataclasses.replace(SQUARED, loss="quantile").bounds is None
