"""Clipped gradients of single records, on which DP-SGD's sensitivity depends, and their sum.

Each pass computes the same number of rows, whatever the sample: what is left over is filled with
made-up records, which count zero. So arithmetic that depends on how many records are computed
together does not depend on who is among them; ``workers.training.dp_sgd.trial`` tries that.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import nn

from app.domain.errors import PlanError
from workers.training.dp_sgd.capture import Capture, capturing
from workers.training.dp_sgd.contributions import Contribution, norms_of
from workers.training.dp_sgd.trial import require_independent_records
from workers.training.networks.buffers import statistics_of
from workers.training.networks.flat import FlatParameters
from workers.training.tasks.task import Batch, Task
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
