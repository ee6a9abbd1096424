"""Buffers are state that no accountant covers.

Statistics of normalisation layers are reset before the noisy phase, detached during it, and
recomputed from retained records with the certified parameters. Any other buffer is part of the
network's public base (``workers.training.networks.base``) and never changes.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from app.domain.errors import PlanError
from workers.training.tasks.task import Batch, Task

# Initial value by name.
_STATISTICS = {"running_mean": 0, "running_var": 1, "num_batches_tracked": 0}


def require_supported_buffers(module: nn.Module) -> None:
    """Check that the network's state is parameters and buffers.

    Raises:
        PlanError: there is extra state, or a statistic of another type; the message names it.
    """
    known = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    known |= {name for name, _ in module.named_buffers(remove_duplicate=False)}
    for name, buffer in statistics_of(module).items():
        if buffer.is_floating_point() and buffer.dtype not in (torch.float32, torch.float64):
            raise PlanError(f"buffer {name!r} is {buffer.dtype}: use float32 or float64")
    for name in module.state_dict():
        if name not in known:
            raise PlanError(f"extra state {name!r} could carry forgotten records past the noise")


def statistics_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the statistics of normalisation layers by name."""
    return {
        f"{path}.{name}".lstrip("."): buffer
        for path, layer in module.named_modules(remove_duplicate=False)
        if isinstance(layer, _NormBase)
        for name, buffer in layer.named_buffers(recurse=False)
        if name in _STATISTICS
    }


def reset_buffers(module: nn.Module) -> None:
    """Set all running statistics to their initial values: mean 0, variance 1, no batches."""
    for layer in _tracking_layers(module):
        for name, initial in _STATISTICS.items():
            buffer = layer._buffers.get(name)  # noqa: SLF001
            if buffer is not None:
                buffer.fill_(initial)


@contextmanager
def without_buffers(module: nn.Module) -> Iterator[None]:
    """Detach the statistics: in training mode a layer then has nothing to read or update.

    Switching off ``track_running_stats`` is not enough: InstanceNorm still updates them.
    """
    layers = list(_tracking_layers(module))
    kept = [dict(layer._buffers) for layer in layers]  # noqa: SLF001
    for layer in layers:
        layer._buffers.update(dict.fromkeys(_STATISTICS.keys() & layer._buffers.keys()))  # noqa: SLF001
    try:
        yield
    finally:
        for layer, statistics in zip(layers, kept, strict=True):
            layer._buffers.update(statistics)  # noqa: SLF001


def recompute_buffers(
    module: nn.Module, task: Task, batches: Callable[[], Iterable[Batch]]
) -> None:
    """Compute the running statistics as plain averages over one pass of retained batches.

    Args:
        module: a network with its final parameters; its mode is kept.
        task: how the network reads a batch.
        batches: yields the pass; not called if the network has no statistics.
    """
    layers = list(_tracking_layers(module))
    if not layers:
        return
    reset_buffers(module)
    modes = [(part, part.training) for part in module.modules()]
    momenta = [layer.momentum for layer in layers]
    module.eval()  # no dropout: the statistics at inference time
    try:
        for layer in layers:
            layer.train()
        with torch.no_grad():
            for done, batch in enumerate(batches()):
                for layer in layers:
                    layer.momentum = 1 / (done + 1)  # a plain average of all batches
                task.predict(module, batch)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for part, training in modes:
            part.training = training


def _tracking_layers(module: nn.Module) -> Iterator[_NormBase]:
    for layer in module.modules():
        if isinstance(layer, _NormBase) and layer.running_mean is not None:
            yield layer
