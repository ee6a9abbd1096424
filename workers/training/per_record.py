"""Clipped gradients of single records, on which DP-SGD's sensitivity depends.

The clipped gradients are rounded to a fixed grid and their sum is exact: neither order nor grouping
of the records changes it, and one record changes it by its own clipped gradient.

Opacus computes them. It assumes that a record's gradient depends on no other record of its batch;
this is checked here on random records of the same form.
"""

import importlib
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn

from app.domain.errors import PlanError
from workers.mechanisms.vectors import CLIP_MARGIN
from workers.tasks.task import Batch, Task
from workers.training.buffers import statistics_of
from workers.training.flat import FlatParameters

# Bounds the memory of one pass: about 256 MB of gradients, and at most this many records.
_MOST_RECORDS: Final = 256
_MOST_NUMBERS: Final = 1 << 26

# A clip is between 2^32 and 2^33 units: sums of 2^20 records stay below 2^53 units, hence exact.
_UNITS_PER_CLIP: Final = 2.0**32
# How many numbers are rounded at a time: they fit a core's cache.
_NUMBERS_AT_ONCE: Final = 1 << 16
_PROBE_TOLERANCE: Final = 1e-3
PROBED: Final = 5
"""How many random records a network is tried on."""
# Left by Opacus on layers after its hooks are removed.
_TRACES: Final = ("activations", "max_batch_len")


class PerRecordGradients:
    """Sums the clipped gradients of single records. Created by ``per_record_gradients``.

    Attributes:
        records_at_once: how many records a call of ``add_clipped`` should get at most; public.
    """

    def __init__(self, module: nn.Module, task: Task, flat: FlatParameters) -> None:
        self._module = module
        self._task = task
        self._flat = flat
        self.records_at_once = max(1, min(_MOST_RECORDS, _MOST_NUMBERS // flat.size))

    def add_clipped(self, batch: Batch, *, clip_norm: float, out: torch.Tensor) -> None:
        """Add each record's gradient of the task's loss, clipped to ``clip_norm``, to ``out``.

        Each is rounded to multiples of a power of two near 2^-32 clip_norm, and clipped so that its
        rounded norm is at most ``clip_norm``. So the sum of up to 2^20 records is exact.

        A gradient that is not finite, or whose norm is not, counts as zero: it is still a function
        of its record bounded by the clip, and does not affect other records.

        Args:
            batch: at least one record, on the module's device.
            clip_norm: bound on one record's gradient, over all parameters.
            out: float64 [size], in the order of the flat parameters.
        """
        gradients = self._of(batch)
        norms = torch.stack(
            [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in gradients]
        )
        norm = torch.linalg.vector_norm(norms, dim=0)
        unusable = ~torch.isfinite(norm)
        unit = _unit_of(clip_norm)
        room = clip_norm * CLIP_MARGIN - unit / 2 * math.sqrt(out.numel())
        factor = (room / norm).clamp(max=1.0).masked_fill(unusable, 0.0)
        units = (factor / unit).unsqueeze(1)
        for part, total in zip(gradients, self._split(out), strict=True):
            part.masked_fill_(unusable.unsqueeze(1), 0.0)  # zero times infinity is not zero
            _add_rounded(part, units, unit, total)
            part.zero_()

    def require_independent_records(self, probe: Batch) -> None:
        """Check on ``PROBED`` random records that Opacus's gradients are those of single records.

        Raises:
            PlanError: the network mixes the records of a batch, or uses a parameter in a way that
                has no gradient per record.
        """
        with torch.random.fork_rng(devices=self._cuda_devices()):
            torch.manual_seed(0)
            alone = self._probed(probe, [0, 1])
            first = self._probed(probe, [0, 1, 2])
            second = self._probed(probe, [0, *range(3, PROBED)])
        for name, *parts in zip(self._flat.shapes, alone, first, second, strict=True):
            counts = [len(part) for part in parts]
            if counts != [2, 3, 3] or not _close(parts[1][0], parts[2][0]):
                raise PlanError(
                    f"DP-SGD needs the gradient of each record by itself, but the network mixes "
                    f"records where {name!r} takes part: use no layer that looks across the batch"
                )

    def _probed(self, probe: Batch, chosen: list[int]) -> list[torch.Tensor]:
        """Return gradients of random records, after comparing their sum with autograd's."""
        torch.manual_seed(0)  # the same dropout each time
        batch = {name: tensor[chosen] for name, tensor in probe.items()}
        self._flat.gradients.zero_()
        try:
            gradients = [part.clone() for part in self._of(batch)]
        except (RuntimeError, ValueError, AttributeError) as error:
            raise PlanError(
                f"Opacus cannot compute this network's gradients per record "
                f"({type(error).__name__}): avoid in-place and custom operations"
            ) from error
        totals = self._split(self._flat.gradients)
        for name, part, total in zip(self._flat.shapes, gradients, totals, strict=True):
            if not _close(part.sum(dim=0), total):
                raise PlanError(
                    f"Opacus misses part of the gradient of {name!r}: use the parameter only in "
                    "the forward of the layer that owns it"
                )
        return gradients

    def _of(self, batch: Batch) -> list[torch.Tensor]:
        """Return [records, size of the parameter] for every parameter, of its dtype."""
        losses = self._task.loss(self._module, batch)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        gradients = []
        for parameter in self._flat:
            of_records: torch.Tensor | None = parameter.grad_sample  # type: ignore[attr-defined]
            parameter.grad_sample = None  # type: ignore[attr-defined]
            if of_records is None:  # the network does not use this parameter
                of_records = parameter.new_zeros((len(losses), *parameter.shape))
            gradients.append(of_records.flatten(1) if parameter.dim() else of_records.unsqueeze(1))
        return gradients

    def _split(self, flat: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.split(flat, [shape.numel() for shape in self._flat.shapes.values()]))

    def _cuda_devices(self) -> list[torch.device]:
        device = self._flat.device
        return [device] if device.type == "cuda" else []


@contextmanager
def per_record_gradients(
    module: nn.Module, task: Task, flat: FlatParameters, *, probe: Batch
) -> Iterator[PerRecordGradients]:
    """Attach Opacus to a module; it is always removed afterwards.

    Args:
        module: in training mode, with ``flat.gradients`` attached, which serve as scratch.
        task: whose loss.
        flat: its parameters.
        probe: ``PROBED`` random records, on its device.

    Raises:
        PlanError: the architecture has no gradient per record; the message names the layer.
    """
    _require_per_record_layers(module)
    opacus = importlib.import_module("opacus.grad_sample")  # takes a second
    try:
        hooked = opacus.GradSampleModule(module, loss_reduction="sum")
    except NotImplementedError as error:
        raise PlanError("Opacus does not support a layer of this architecture") from error
    try:
        with warnings.catch_warnings():
            # Features need no gradient, and Opacus's hooks work without one.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            gradients = PerRecordGradients(hooked, task, flat)
            gradients.require_independent_records(probe)
            yield gradients
    finally:
        hooked.to_standard_module()
        for layer in module.modules():
            for trace in _TRACES:
                layer.__dict__.pop(trace, None)


def _require_per_record_layers(module: nn.Module) -> None:
    """Reject layers known to mix records, and buffers, which no noise covers."""
    validators: dict[type, Any] = importlib.import_module(
        "opacus.validators"
    ).ModuleValidator.VALIDATORS
    for name, layer in module.named_modules():
        for kind, faults_of in validators.items():
            if isinstance(layer, kind) and faults_of(layer):
                raise PlanError(
                    f"layer {name!r} ({type(layer).__name__}) has no gradient per record, so "
                    "DP-SGD cannot train it: use GroupNorm or LayerNorm for normalisation, and no "
                    "recurrent or attention layer of torch's own"
                )
    for name in statistics_of(module):
        raise PlanError(f"buffer {name!r} would hold data that DP-SGD adds no noise to: remove it")


def _unit_of(clip_norm: float) -> float:
    """Return the power of two such that the clip is 2^32 to 2^33 multiples of it."""
    return math.ldexp(1.0, math.frexp(clip_norm)[1] - 1) / _UNITS_PER_CLIP


def _add_rounded(part: torch.Tensor, units: torch.Tensor, unit: float, total: torch.Tensor) -> None:
    """Add each row, scaled to whole ``units`` and rounded, to ``total``, exactly."""
    columns = max(1, min(part.shape[1], _NUMBERS_AT_ONCE // len(part)))
    buffer = torch.empty((len(part), columns), dtype=torch.float64, device=part.device)
    for some, sums in zip(
        torch.split(part, columns, dim=1), torch.split(total, columns), strict=True
    ):
        whole = buffer[:, : some.shape[1]].copy_(some).mul_(units).round_()
        sums.add_(whole.sum(dim=0), alpha=unit)
    buffer.zero_()


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).norm() <= _PROBE_TOLERANCE * other.norm())
