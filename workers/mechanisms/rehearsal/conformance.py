"""Tries an operator's task on its own made-up records, before any record is read.

A mechanism counts on it that a record has a part in its own encoding and its own loss alone: what
the task kept of one record for another could carry forgotten records past the noise.
"""

import math
from collections.abc import Collection

import numpy as np
import pyarrow as pa
import torch

from app.domain.errors import PlanError, RunFailedError
from workers.mechanisms.rehearsal.one_loss import in_halves
from workers.seal.write_guard import encoding
from workers.training.evaluate import evaluating
from workers.training.examples import Examples
from workers.training.forms import InputForm
from workers.training.networks.network import Network
from workers.training.networks.operator_code import called
from workers.training.tasks.custom import SAMPLES, CustomTask, Encoded
from workers.training.tasks.task import INPUTS, Batch

_RELATIVE, _ABSOLUTE = 1e-4, 1e-6


def require_conforming(task: CustomTask, form: InputForm, network: Network) -> None:
    """Check what a task encodes, loses, predicts and measures.

    Args:
        task: the operator's.
        form: of its encoded records.
        network: that is to learn it; unchanged.

    Raises:
        PlanError: a record's encoding or loss depends on others; the message says how to see it.
        RunFailedError: the task fails, or returns something else than it must.
        WriteRefusedError: its encoding writes a file, starts a program or connects.
    """
    with task.in_full():
        with encoding():
            _require_rows_alone(task)
            known = task.encode_inputs(task.rows()).keys()
        _require_conforming(task, form, network, known)


def _require_conforming(
    task: CustomTask, form: InputForm, network: Network, known: Collection[str]
) -> None:
    """Check the rest; ``known`` are the tensors that rows to predict have, too."""
    device = network.flat.device
    batch = Examples.random(form, SAMPLES).rows(0, SAMPLES, device=device)
    with evaluating(network.module):
        _require_losses_alone(task, network, batch)
        to_predict = {name: values for name, values in batch.items() if name in known}
        predictions = called(
            "predict of the task",
            lambda: task.predict(network.module, to_predict),
            in_full=True,
            advice="rows to predict have no target",
            on=KeyError,
        )
    for name, values in predictions.items():
        if not isinstance(values, torch.Tensor) or len(values) != SAMPLES:
            raise RunFailedError(f"predict of the task must give each record a {name}, as a tensor")
    _require_gradients(task, network, batch)
    _require_variants_alone(task, batch)
    figures = task.metrics(
        {name: values.cpu().numpy() for name, values in predictions.items()},
        {name: values.cpu().numpy() for name, values in batch.items() if name != INPUTS},
    )
    if task.headline not in figures:
        raise RunFailedError(f"the task's headline {task.headline!r} is none of its metrics")


def _require_rows_alone(task: CustomTask) -> None:
    """Check that a row is encoded alike alone, among others, in another order, and again."""
    rows = task.rows()
    together = task.encode(rows)
    backwards = task.encode(rows.take(pa.array(range(len(rows) - 1, -1, -1))))
    _require_same(together, {name: values[::-1] for name, values in backwards.items()})
    for row in range(len(rows)):
        alone = task.encode(rows.slice(row, 1))
        _require_same({name: values[row : row + 1] for name, values in together.items()}, alone)
    _require_same(together, task.encode(rows))


def _require_same(one: Encoded, other: Encoded) -> None:
    same = one.keys() == other.keys() and all(
        values.dtype == other[name].dtype and np.array_equal(values, other[name])
        for name, values in one.items()
    )
    if not same:
        raise PlanError(
            "the task encodes a row otherwise when other rows are beside it or came before it: "
            "constants such as a mean or a vocabulary belong into its options"
        )


def _require_losses_alone(task: CustomTask, network: Network, batch: Batch) -> None:
    """Check that a record's loss does not depend on the records beside it."""

    def losses(some: Batch) -> torch.Tensor:
        return called("loss of the task", lambda: task.loss(network.module, some), in_full=True)

    together, apart = losses(batch), in_halves(losses, batch)
    if not together.is_floating_point() or not bool(torch.isfinite(together).all()):
        raise RunFailedError("loss of the task must return finite numbers")
    if not torch.allclose(together, apart, rtol=_RELATIVE, atol=_ABSOLUTE):
        raise PlanError(
            "the task's loss of a record depends on the records beside it: return one loss for "
            "each record, [n], of that record alone"
        )


def _require_variants_alone(task: CustomTask, batch: Batch) -> None:
    """Check that a record's random variant has no part of other records, as a mixture would."""
    half = SAMPLES // 2
    others = {
        name: torch.cat([each[:half], each[:half].flip(0) if name != INPUTS else each[half:] * 0])
        for name, each in batch.items()
    }

    def variant(some: Batch) -> Batch:
        generator = torch.Generator().manual_seed(half)
        return called("augment of the task", lambda: task.augmented(some, generator), in_full=True)

    one, other = variant(batch), variant(others)
    if not all(torch.equal(one[name][:half], other[name][:half]) for name in batch):
        raise PlanError(
            "the task's augment gives a record a part of others, or does not take its random "
            "numbers from its generator: each variant must be of one record alone"
        )


def _require_gradients(task: CustomTask, network: Network, batch: Batch) -> None:
    module, flat = network.module, network.flat
    mean = called("loss of the task", lambda: task.loss(module, batch).mean(), in_full=True)
    flat.release_gradients()
    if mean.requires_grad:
        mean.backward()  # type: ignore[no-untyped-call]
    found = [flat.local(tensor.grad) for tensor in flat if tensor.grad is not None]
    flat.attach_gradients()
    if not found:
        raise RunFailedError("the task's loss does not depend on the network")
    if not all(math.isfinite(float(each.abs().sum())) for each in found):
        raise RunFailedError("the task's loss has gradients that are not finite")
