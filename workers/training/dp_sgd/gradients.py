"""Clipped gradients of single records, on which DP-SGD's sensitivity depends, and their sum.

Each pass computes the same number of rows, whatever the sample: what is left over is filled with
made-up records, which count zero. So arithmetic that depends on how many records are computed
together does not depend on who is among them. That is tried on random records:

1. A forward and a backward pass on tensors without values: whatever needs a value to decide what is
   computed is refused, since the value may be another record's.
2. Contributions are compared with autograd's gradients of single losses.
3. Contributions of the same records, with others beside them and in other places, have equal
   bits. Where they are only close, because kernels treat rows differently, passes get fewer rows;
   a pass of one row has no others beside it.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.dropout import _DropoutNd

from app.domain.errors import PlanError
from workers.training.dp_sgd.capture import Capture, capturing
from workers.training.dp_sgd.contributions import Contribution, norms_of
from workers.training.networks.buffers import statistics_of
from workers.training.networks.flat import FlatParameters
from workers.training.tasks.task import INPUTS, Batch, Task
from workers.training.vectors import CLIP_MARGIN

Probes = Callable[[int], Batch]
"""Returns so many random records, on the module's device; no record is looked at."""

MOST_RECORDS: Final = 256
"""Rows of a pass; section 8 of docs/guarantees.md counts on it."""
# Bounds the memory of one pass: about 256 MB of single precision.
_MOST_NUMBERS: Final = 1 << 26
# Rows of a pass where layers are wide enough to keep a core busy with few records.
_FEW: Final = 32
_SMALL_NETWORK: Final = 1 << 17
_PROBED: Final = 2
# The same section: places times what they add up to, in clips.
_MOST_SPREAD: Final = 2.0**18


class PerRecordGradients:
    """Sums the clipped gradients of single records. Created by ``per_record_gradients``.

    Attributes:
        rows: how many rows every call of ``add_clipped`` gets; public.
    """

    def __init__(self, capture: Capture, task: Task, flat: FlatParameters, *, rows: int) -> None:
        self._capture = capture
        self._task = task
        self._sizes = {name: shape.numel() for name, shape in flat.shapes.items()}
        self.rows = rows

    def add_clipped(
        self, batch: Batch, *, counted: int, clip_norm: float, out: torch.Tensor
    ) -> None:
        """Add the clipped gradient of the task's loss of the first ``counted`` rows to ``out``.

        Each has a norm of at most ``clip_norm`` over all parameters, and depends on its own record
        and the weights alone. The sum is taken in float64.

        A gradient that is not finite, or whose norm is not, counts as zero: it is still a function
        of its record bounded by the clip, and does not affect other records.

        Args:
            batch: ``rows`` records, on the module's device.
            counted: how many of them are real.
            clip_norm: bound on one record's gradient.
            out: float64 [size], in the order of the flat parameters.
        """
        found = self._capture.contributions(self._task, batch)
        if not found:
            return
        scale = scales(found, clip_norm=clip_norm)
        unusable = torch.isnan(scale)  # among rows that do not count, too
        scale[counted:] = 0.0
        if bool(unusable.any()):
            scale.masked_fill_(unusable, 0.0)
            for part in found.values():
                for rows in part.rows:
                    rows[unusable] = 0  # zero times infinity is not zero
        for name, total in zip(
            self._sizes, torch.split(out, list(self._sizes.values())), strict=True
        ):
            if name in found:
                found[name].add_scaled(scale, total)
        for part in found.values():
            for rows in part.rows:
                if rows.is_floating_point():
                    rows.zero_()


def scales(found: dict[str, Contribution], *, clip_norm: float) -> torch.Tensor:
    """Return each record's factor, float64 [R]; NaN for one whose gradient is not finite."""
    norm = norms_of(found.values())
    scale = (clip_norm * CLIP_MARGIN / norm).clamp(max=1.0)
    spreads = [spread for each in found.values() if (spread := each.spread()) is not None]
    if spreads:
        spread = torch.linalg.vector_norm(torch.stack(spreads, dim=1), dim=1)
        scale = torch.minimum(scale, clip_norm * _MOST_SPREAD / spread)
    return scale.masked_fill_(~torch.isfinite(norm), torch.nan)


@contextmanager
def per_record_gradients(
    module: nn.Module, task: Task, flat: FlatParameters, *, probes: Probes, expected: int
) -> Iterator[PerRecordGradients]:
    """Watch a module's layers, after a trial on random records; the hooks are always removed.

    Args:
        module: in training mode.
        task: whose loss.
        flat: its parameters.
        probes: makes random records up.
        expected: about how many records a sample has. It decides with the network's size how many
            rows a pass has, so it must not follow from how many records there are.

    Raises:
        PlanError: the architecture has no gradient per record, or a record's would depend on
            others; the message names the layer.
    """
    _require_no_statistics(module)
    with capturing(module) as capture, _steady_kernels(flat.device):
        rows = require_independent_records(
            capture, task, probes, rows=_rows_wanted(capture, task, flat, probes, expected)
        )
        yield PerRecordGradients(capture, task, flat, rows=rows)


def _rows_wanted(
    capture: Capture, task: Task, flat: FlatParameters, probes: Probes, expected: int
) -> int:
    """Return how many rows a pass should have: few are left over, and memory suffices."""
    devices = [flat.device] if flat.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        found = _tried(lambda: capture.contributions(task, probes(_PROBED)))
    numbers = sum(rows.numel() for part in found.values() for rows in part.rows) // _PROBED
    usual = expected + 2 * math.isqrt(expected) + 1
    rows = usual if flat.size < _SMALL_NETWORK else min(usual, _FEW)
    rows = -(-rows // 8) * 8 if rows > 8 else rows
    return max(1, min(rows, MOST_RECORDS, _MOST_NUMBERS // max(1, numbers)))


def _tried(compute: Callable[[], dict[str, Contribution]]) -> dict[str, Contribution]:
    """Compute contributions for the first time.

    Raises:
        PlanError: it fails.
    """
    try:
        return compute()
    except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        raise PlanError(
            f"this network has no gradient of each record ({type(error).__name__}): a layer of its "
            "own kind is computed again of one record at a time with torch.func, without random "
            "numbers and without changes in place"
        ) from error


@contextmanager
def _steady_kernels(device: torch.device) -> Iterator[None]:
    """Let a GPU choose its kernels by shape alone, and none that adds in a random order."""
    if device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    ):
        yield


def _require_no_statistics(module: nn.Module) -> None:
    """Refuse layers that normalise over the batch, and buffers, which no noise covers."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):  # noqa: SLF001
            raise PlanError(
                f"layer {name!r} ({type(layer).__name__}) has no gradient per record, so "
                "DP-SGD cannot train it: use GroupNorm or LayerNorm for normalisation"
            )
    for name in statistics_of(module):
        raise PlanError(f"buffer {name!r} would hold data that DP-SGD adds no noise to: remove it")


_TOLERANCE: Final = 1e-3
_ROUNDED_AWAY: Final = torch.finfo(torch.float32).tiny
"""Below it float32 keeps ever fewer digits, so that equal gradients may differ."""
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
        places = torch.arange(records)
        shuffled = torch.randperm(records, generator=torch.Generator().manual_seed(_SEED))
        for order in (places.roll(1), places.flip(0), shuffled):
            moved = {name: each[order.to(each.device)] for name, each in batch.items()}
            another = _parts(capture, task, moved, drawing=False)
            for _, one, other in _pairs(one_place, another):
                if not torch.equal(one[order.to(one.device)], other):
                    return False
    return True


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
    return bool((one - other).norm() <= _TOLERANCE * other.norm() + _ROUNDED_AWAY)
