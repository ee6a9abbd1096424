"""Tries a network on random records before any record is read.

What its code raises can still be shown to the operator in full, and what no guarantee would cover
is refused: a network that changes its own parameters, draws its public tensors at random, keeps
a tensor from one batch to the next outside its ``state_dict``, or remembers anything else that
changes what it computes.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch
from torch import nn

from app.domain.errors import PlanError, RunFailedError
from app.runtime.settings import Settings
from workers.data.backbone import starting
from workers.data.loading import ModelSpec
from workers.mechanisms.rehearsal.conformance import require_conforming
from workers.training.device import choose_device
from workers.training.dp_sgd.gradients import per_record_gradients
from workers.training.evaluate import evaluating
from workers.training.examples import Examples
from workers.training.forms import InputForm, fainter
from workers.training.networks.base import digests_of, require_same
from workers.training.networks.buffers import require_supported_buffers, without_buffers
from workers.training.networks.held import require_same_start, start_of
from workers.training.networks.network import Network
from workers.training.networks.operator_code import called, text_of
from workers.training.tasks.custom import CustomTask
from workers.training.tasks.task import INPUTS, Batch, Task
from workers.training.team import ALONE, Team
from workers.training.vectors import pieces

_SEED: Final = 5
# Kernels of a GPU may add in another order each time.
_TOLERANCES: Final = {"cpu": 1e-5}
_TOLERANCE: Final = 1e-3


# Lists, numbers, globals and closures cannot be searched for records, but what a network computes
# shows whether they matter: the same records, after others, must give the same.
def remembers(compute: Callable[[Batch], torch.Tensor], batch: Batch) -> bool:
    """Return whether a network computes something else of fainter records after it saw a batch.

    Args:
        compute: what the network makes of a batch; it may overwrite its last answer.
        batch: random records.
    """
    faint = batch | {INPUTS: fainter(batch[INPUTS])}
    with _seeded():
        before = compute(faint).clone()
    with _seeded():
        compute(batch)
    with _seeded():
        return not _alike(compute(faint), before)


def evaluated(module: nn.Module, task: Task) -> Callable[[Batch], torch.Tensor]:
    """Return what computes a batch's losses in evaluation mode."""

    def compute(batch: Batch) -> torch.Tensor:
        with evaluating(module):
            return task.loss(module, batch)

    return compute


@contextmanager
def _seeded() -> Iterator[None]:
    """Draw the same numbers from the process's generators each time; torch's are the caller's."""
    torch.manual_seed(_SEED)
    kept = random.getstate(), np.random.get_state()  # noqa: NPY002 - for networks that use it
    random.seed(_SEED)
    np.random.seed(_SEED)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])  # noqa: NPY002


def _alike(now: torch.Tensor, before: torch.Tensor) -> bool:
    if now.shape != before.shape:
        return False
    parts = list(pieces(now.detach().reshape(-1), before.detach().reshape(-1)))
    sizes = [float(then.abs().nan_to_num(posinf=0.0).max()) for _, then in parts if len(then)]
    tolerance = max(sizes, default=0.0) * _TOLERANCES.get(before.device.type, _TOLERANCE)
    return all(
        torch.allclose(here, then, rtol=0.0, atol=tolerance, equal_nan=True) for here, then in parts
    )


_OTHER_SEED: Final = 17
_TRIED: Final = 5
_PRIVATELY_TRIED: Final = 32
_DIVIDED: Final = (
    "the network is divided between its layers, so only a layer's own forward may read its "
    "weights; what does otherwise runs on one device, with EXPUNGE_DEVICES=1"
)
_REMEMBERS: Final = (
    "the network computes something else of the same records after it saw others: what it "
    "remembers outside its parameters could carry forgotten records past the noise; random numbers "
    "must come from the process's generators, not from one that the network keeps"
)


def rehearse_model(
    model: ModelSpec, settings: Settings, *, private: bool = False, team: Team = ALONE
) -> Network:
    """Rehearse a model's network, as its runs build it; its code's exceptions are shown in full."""
    return rehearse(
        starting(model.backbone, model.factory(settings, in_full=True)),
        model.task,
        model.form,
        device=choose_device(),
        private=private,
        team=team,
    )


def rehearse(
    factory: Callable[[], nn.Module],
    task: Task,
    form: InputForm,
    *,
    device: torch.device,
    private: bool = False,
    team: Team = ALONE,
) -> Network:
    """Compute what training and evaluation do of random records; return the network, untrained.

    Args:
        factory: builds the network; its exceptions are shown as it shows them.
        task: what the network is to learn.
        form: of the records that it reads.
        device: where runs compute.
        private: whether the network is to be trained with DP-SGD.
        team: the processes that divide the network; each rehearses, on the same records.

    Raises:
        RunFailedError: the network's or the task's code raised; its traceback is in the message.
        PlanError: the network has state or a layer that no mechanism covers, or the task mixes
            records.
    """
    start = start_of(factory)
    network = Network(factory, device=device, task=task, team=team)
    module, flat = network.module, network.flat
    if network.base is not None:
        _require_public(module, factory)
    batch = Examples.random(form, _TRIED).rows(0, _TRIED, device=device)
    weights, kept = [each.clone() for each in flat.held], dict(_tensors_kept(module))
    before = {name: tensor.clone() for name, tensor in kept.items()}
    module.train()
    flat.attach_gradients()

    def gradient(batch: Batch) -> torch.Tensor:
        flat.gradients.zero_()
        task.loss(module, batch).mean().backward()  # type: ignore[no-untyped-call]
        return flat.gradients

    def remembering(what: str, compute: Callable[[Batch], torch.Tensor]) -> bool:
        return called(
            f"{what} the network on random records",
            lambda: remembers(compute, batch),
            in_full=True,
            advice="; ".join(filter(None, [form.advice, _DIVIDED if team.devices > 1 else ""])),
        )

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        with without_buffers(module):
            remembered = remembering("training", gradient)
        flat.require_attached()
        remembered = remembering("evaluating", evaluated(module, task)) or remembered
        network.require_base()
        _require_unchanged(network, weights)
        for name, tensor in _tensors_kept(module):
            if name not in before or not _same(tensor, before[name]):
                raise PlanError(
                    f"the network keeps the tensor {name!r} from one batch to the next, which "
                    "could carry forgotten records past the noise: compute it in forward"
                )
        if remembered:
            raise PlanError(_REMEMBERS)
        require_supported_buffers(module)
        if isinstance(task, CustomTask):
            require_conforming(task, form, network)
        if private:
            _rehearse_privately(network, form)
        require_same_start(factory, start)
    flat.release_gradients()
    return network


def _require_public(module: nn.Module, factory: Callable[[], nn.Module]) -> None:
    """Check that another seed makes the same base: else it is nothing that anybody could have."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_OTHER_SEED)
        other = factory()
    require_same(
        digests_of(other),
        digests_of(module),
        "is another one in each network that the factory builds: load it from a file, draw it from "
        "a generator with a seed of its own, or make it trainable",
    )


def _require_unchanged(network: Network, before: Sequence[torch.Tensor]) -> None:
    for name, now, then in zip(network.flat.shapes, network.flat.held, before, strict=True):
        if not torch.equal(now, then):
            raise PlanError(
                f"the network changes its parameter {name!r} in forward or backward, past the "
                "noise: compute what it needs from the parameter without changing it"
            )


def _rehearse_privately(network: Network, form: InputForm) -> None:
    """Compute gradients per record, as DP-SGD does."""
    flat = network.flat

    def probes(count: int) -> Batch:
        return Examples.random(form, count).rows(0, count, device=flat.device)

    try:
        with per_record_gradients(
            network.module, network.task, flat, probes=probes, expected=_PRIVATELY_TRIED
        ):
            pass
    except PlanError as error:
        if error.__cause__ is None:
            raise
        failure = f"{error}\n\n{text_of(error.__cause__)}"
    else:
        return
    raise RunFailedError(failure)


def _tensors_kept(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that layers hold as plain attributes, by name."""
    for path, layer in module.named_modules():
        for name, value in vars(layer).items():
            if isinstance(value, torch.Tensor):
                yield f"{path}.{name}".lstrip("."), value


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
