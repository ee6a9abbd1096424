"""Tries on random records that what a record contributes depends on it and the weights alone.

1. A forward and a backward pass on tensors without values: whatever needs a value to decide what is
   computed is refused, since the value may be another record's.
2. Contributions are compared with autograd's gradients of single losses.
3. Contributions of the same records, with others beside them and in other places, have equal
   bits. Where they are only close, because kernels treat rows differently, passes get fewer rows;
   a pass of one row has no others beside it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.dropout import _DropoutNd

from app.domain.errors import PlanError
from workers.training.dp_sgd.capture import Capture
from workers.training.dp_sgd.contributions import norms_of
from workers.training.tasks.task import INPUTS, Batch, Task

_TOLERANCE: Final = 1e-3
_COMPARED: Final = 3
_LEAST_COMPARED: Final = 4
_SEED: Final = 0
_NORM: Final = "the norm"
# What others are multiplied by; NaN and infinity last.
_OTHERS: Final = (0.0, 1e-3, -1.0, 1e4, 1e30, float("inf"), float("nan"))


def require_independent_records(
    capture: Capture, task: Task, probes: Callable[[int], Batch], *, rows: int
) -> int:
    """Return how many rows a pass may have: as many as wanted, or fewer.

    Args:
        capture: of the network, in training mode.
        task: whose loss.
        probes: makes so many random records up.
        rows: wanted.

    Raises:
        PlanError: records are mixed, or decide what is computed, or a gradient per record is not
            autograd's; the message names the parameter.
    """
    device = next(iter(capture.parameters.values())).device
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        _require_no_decisions(capture.module, task, probes(_LEAST_COMPARED))
        _require_gradients(capture, task, probes(max(rows, _LEAST_COMPARED)))
        _require_close(capture, task, probes(max(rows, _LEAST_COMPARED)))
        while rows > 1 and not _equal_bits(capture, task, probes(rows)):
            rows //= 2
    return rows


def _require_no_decisions(module: nn.Module, task: Task, batch: Batch) -> None:
    """Check that no value decides what is computed."""
    trained = [each for each in module.parameters() if each.requires_grad]
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            without_values: Batch = {name: fake.from_tensor(each) for name, each in batch.items()}
            losses = task.loss(module, without_values)
            torch.autograd.grad(losses.sum(), trained, allow_unused=True)
    except PlanError:
        raise
    except Exception as error:
        raise PlanError(
            "the network or its loss looks at values to decide what to compute "
            f"({type(error).__name__}): under DP-SGD another record's value could decide, so "
            "compute with tensors alone, without item(), numpy() or a branch on a tensor"
        ) from error


def _require_gradients(capture: Capture, task: Task, batch: Batch) -> None:
    """Check some records' contributions against autograd's gradients of their own losses."""
    torch.manual_seed(_SEED)
    losses, noted = capture.losses(task, batch)
    records = len(batch[INPUTS])
    if losses.shape != (records,):
        raise PlanError("the task's loss must be one number for each record, [n]")
    found = capture.of(losses, noted, records, again=True)
    trained = list(capture.parameters.values())
    for record in range(_COMPARED):
        true = torch.autograd.grad(losses[record], trained, allow_unused=True, retain_graph=True)
        for name, parameter, gradient in zip(capture.parameters, trained, true, strict=True):
            expected = torch.zeros_like(parameter) if gradient is None else gradient
            part = found.get(name)
            total = torch.zeros(parameter.numel(), dtype=torch.float64, device=parameter.device)
            if part is not None:
                scale = torch.zeros(len(part.rows[0]), dtype=torch.float64, device=parameter.device)
                scale[record] = 1.0
                part.add_scaled(scale, total)
            actual = total
            if not _close(actual, expected.flatten()):
                raise PlanError(
                    f"DP-SGD needs the gradient of each record by itself, but it misses part of "
                    f"that of {name!r}: the network mixes records there, or uses the parameter "
                    "elsewhere than in the forward of the layer that owns it"
                )


def _require_close(capture: Capture, task: Task, batch: Batch) -> None:
    """Check that other records beside them do not change what some contribute."""
    kept = _kept(len(batch[INPUTS]))
    before = _parts(capture, task, batch)
    for others in _with_others(batch, kept):
        for name, one, other in _pairs(before, _parts(capture, task, others)):
            if not _close(other[kept], one[kept]):
                raise PlanError(
                    f"DP-SGD needs the gradient of each record by itself, but the network mixes "
                    f"records where {name!r} takes part: use no layer that looks across the batch"
                )


def _equal_bits(capture: Capture, task: Task, batch: Batch) -> bool:
    """Say whether contributions have the same bits again, with others, and in other places."""
    records = len(batch[INPUTS])
    kept = _kept(records)
    before = _parts(capture, task, batch)
    everyone = torch.arange(records)
    trials = [(batch, everyone), *((others, kept) for others in _with_others(batch, kept))]
    for some, same in trials:
        for _, one, other in _pairs(before, _parts(capture, task, some)):
            if not torch.equal(one[same], other[same]):
                return False
    with _without_dropout(capture.module):
        one_place = _parts(capture, task, batch, drawing=False)
        for order in _orders(records):
            moved = {name: each[order.to(each.device)] for name, each in batch.items()}
            another = _parts(capture, task, moved, drawing=False)
            for _, one, other in _pairs(one_place, another):
                if not torch.equal(one[order.to(one.device)], other):
                    return False
    return True


def _orders(records: int) -> Iterator[torch.Tensor]:
    """Yield three orders of the records: moved by one place, reversed and shuffled."""
    places = torch.arange(records)
    yield places.roll(1)
    yield places.flip(0)
    yield torch.randperm(records, generator=torch.Generator().manual_seed(_SEED))


def _kept(records: int) -> torch.Tensor:
    """Return the places of the records that stay: every other one."""
    return torch.arange(0, records, 2)


def _with_others(batch: Batch, kept: torch.Tensor) -> Iterator[Batch]:
    """Yield the batch with other records in the places that are not kept."""
    records = len(batch[INPUTS])
    replaced = torch.ones(records, dtype=torch.bool)
    replaced[kept] = False
    for factor in _OTHERS:
        others = {}
        for name, each in batch.items():
            places = replaced.to(each.device)
            other = each.clone()
            if name == INPUTS and each.is_floating_point():
                other[places] = each[places] * factor
            else:
                other[places] = each[places].roll(1, dims=0)
            others[name] = other
        yield others
        if not batch[INPUTS].is_floating_point():
            return


Parts = dict[str, tuple[torch.Tensor, ...]]


def _parts(capture: Capture, task: Task, batch: Batch, *, drawing: bool = True) -> Parts:
    """Return all that contributions are made of, and their norms, by parameter."""
    torch.manual_seed(_SEED)
    states = _generator_states(batch)
    found = capture.contributions(task, batch)
    if not drawing and _generator_states(batch) != states:
        raise PlanError(
            "the network draws random numbers otherwise than by torch's own dropout layers, so it "
            "cannot be tried whether a record's gradient depends on its place in the batch"
        )
    parts: Parts = {name: each.rows for name, each in found.items()}
    return parts | ({_NORM: (norms_of(found.values()),)} if found else {})


def _pairs(one: Parts, other: Parts) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    for name in one.keys() | other.keys():
        if name not in one or name not in other:
            raise PlanError(f"the network uses {name!r} for some records and not for others")
        for left, right in zip(one[name], other[name], strict=True):
            if left.shape != right.shape or left.dtype != right.dtype:
                raise PlanError(f"records change the form of what is computed for {name!r}")
            yield name, left, right


def _generator_states(batch: Batch) -> list[bytes]:
    states = [torch.get_rng_state()]
    if batch[INPUTS].is_cuda:
        states.append(torch.cuda.get_rng_state(batch[INPUTS].device))
    return [bytes(state.numpy()) for state in states]


@contextmanager
def _without_dropout(module: nn.Module) -> Iterator[None]:
    """Let dropout keep everything: which numbers it draws depends on a record's place."""
    layers = [layer for layer in module.modules() if isinstance(layer, _DropoutNd)]
    modes = [layer.training for layer in layers]
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            layer.training = mode


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    one, other = one.double(), other.double()
    return bool((one - other).norm() <= _TOLERANCE * other.norm())
