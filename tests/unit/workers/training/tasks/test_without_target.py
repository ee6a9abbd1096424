"""A record without a target teaches nothing, is not measured on, and counts as a record."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from app.domain.columns import InputColumns, LabelColumn, NumberColumn
from app.domain.tasks.built_in import ClassificationSpec, MultiLabelSpec, RegressionSpec
from app.registry.datasets.columns.encoding import without_target
from app.registry.datasets.columns.problems import Problems
from workers.training.evaluate import NothingToMeasureError, evaluate
from workers.training.exact.minimum import loss_of, minimise
from workers.training.exact.statistics import Targets
from workers.training.exact.summing import Quantiser, sums_less, sums_over
from workers.training.examples import Examples
from workers.training.part import Part
from workers.training.tasks.catalogue import encode, form_of, task_of
from workers.training.tasks.task import INPUTS, TARGET, WEIGHT

READ = InputColumns(columns=(NumberColumn(name="x"), NumberColumn(name="z")))
CLASSES = LabelColumn(name="c", classes=("a", "b", "d"))
CLASS = ClassificationSpec(inputs=READ, target=CLASSES)
SPECS = {
    "classes": CLASS,
    "weighted": ClassificationSpec(
        inputs=READ, target=CLASSES, class_weights=(1, 2, 0.5), label_smoothing=0.1
    ),
    "labels": MultiLabelSpec(inputs=READ, labels=("p", "q")),
    "squared": RegressionSpec(inputs=READ, targets=("y",)),
    "huber": RegressionSpec(inputs=READ, targets=("y", "w"), loss="huber"),
    "quantile": RegressionSpec(inputs=READ, targets=("y",), loss="quantile"),
}
RANDOM = np.random.default_rng(5)
COUNT, LACKING = 60, np.arange(60) % 5 == 2


def _rows() -> pa.Table:
    x, z = RANDOM.normal(size=(2, COUNT))
    y = [None if gone else value for gone, value in zip(LACKING, 2 * x - z - 100, strict=True)]
    return pa.table(
        {
            "x": x,
            "z": z,
            "y": y,
            "w": z + x,
            "c": [None if gone else "abd"[int(v > 0)] for gone, v in zip(LACKING, x, strict=True)],
            "p": [None if gone else bool(v > 0) for gone, v in zip(LACKING, x, strict=True)],
            "q": z > 0,
        }
    )


ROWS = _rows()
KNOWN = ROWS.filter(pa.array(~LACKING))


@pytest.fixture(params=SPECS)
def spec(request):
    return SPECS[request.param]


def examples(spec, rows):
    tensors = {name: np.array(each) for name, each in encode(rows, spec).items()}
    return Examples.of(form_of(spec, task_of(spec), spec.schema()), tensors)


def test_its_loss_and_its_gradient_are_nought_and_the_others_are_as_without_it(spec):
    torch.manual_seed(0)
    network, task = torch.nn.Linear(2, spec.outputs), task_of(spec)
    losses = task.loss(network, examples(spec, ROWS).tensors)
    assert torch.equal(losses == 0, torch.from_numpy(LACKING))
    assert torch.equal(losses[~LACKING], task.loss(network, examples(spec, KNOWN).tensors))
    losses[LACKING].sum().backward()
    assert all(bool((each.grad == 0).all()) for each in network.parameters())


def test_what_is_measured_is_measured_on_the_others(spec):
    network, task = torch.nn.Linear(2, spec.outputs), task_of(spec)
    found = evaluate(network, task, examples(spec, ROWS))
    assert found == evaluate(network, task, examples(spec, KNOWN))
    assert found.examples == np.count_nonzero(~LACKING)
    with pytest.raises(NothingToMeasureError, match="held-out"):
        evaluate(network, task, examples(spec, ROWS.filter(pa.array(LACKING))))


def test_sums_are_of_the_others_and_name_all():
    task = SPECS["squared"]
    quantiser = Quantiser(task.schema(), 8.0, Targets(task, target_range=200.0))
    parts = [
        Part(np.flatnonzero(some), encode(ROWS.filter(pa.array(some)), task))
        for some in (LACKING, ~LACKING)
    ]
    everyone = sums_over(parts, np.arange(COUNT), quantiser)
    others = sums_over(parts[1:], np.flatnonzero(~LACKING), quantiser)
    for name, each in everyone.statistics.named().items():
        assert np.array_equal(each, others.statistics.named()[name])
    gone = np.flatnonzero(LACKING)[:2]
    left = np.setdiff1d(np.arange(COUNT), gone)
    less = sums_less([parts[0].only(gone)], left, quantiser, everyone.to_file())
    assert less is not None
    assert less.to_file().to_bytes() == sums_over(parts, left, quantiser).to_file().to_bytes()


@pytest.mark.parametrize("name", ["classes", "weighted", "labels", "huber"])
def test_an_exact_minimum_is_of_the_others_losses(name):
    spec = SPECS[name]

    def minimum(rows, weight_decay):
        encoded = encode(rows, spec)
        features = encoded[INPUTS].astype(np.float64) / 10
        found = minimise(
            features,
            loss_of(spec, encoded),
            weight_decay=weight_decay,
            smoothness=1.0,
            tolerance=1e-9,
            most_evaluations=5000,
        )
        return found.weight

    share = 1 - LACKING.mean()
    np.testing.assert_allclose(minimum(ROWS, 0.01 * share), minimum(KNOWN, 0.01), atol=1e-6)


def test_rows_without_any_of_a_tasks_targets_are_counted(spec):
    assert without_target(ROWS, spec, Problems()) == np.count_nonzero(LACKING)
    assert WEIGHT not in encode(ROWS, spec)
    assert len(encode(ROWS, spec)[TARGET]) == COUNT
