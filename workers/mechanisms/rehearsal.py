"""Tries a network on random records before any record is read.

What its code raises can still be shown to the operator in full, and what no guarantee would cover
is refused: a network that changes its own parameters, draws its public tensors at random, keeps
a tensor from one batch to the next outside its ``state_dict``, or remembers anything else that
changes what it computes.

Training starts at numbers that a factory draws, not at weights that it brought: a frame's centre
and a training anew both begin at what the factory makes. What a start may be, for every mechanism
(docs/guarantees.md, section 10): numbers drawn from torch's generator, which follow from the run's
seed; or, the same in every network, what a few numbers describe: one value, a few runs of two
values, a unit matrix. Weights that the factory loads may have learned from records, also as signs,
and no certificate would name them: those are for a backbone or the base.

A task of the operator's own is tried on its own made-up records. A mechanism counts on it that a
record has a part in its own encoding and its own loss alone: what the task kept of one record for
another could carry forgotten records past the noise.

Descent on fixed batches counts on a sum of functions of one record each. In training, normalisation
over the batch mixes records, and dropout or random variants give one another loss at every visit.
"""

import math
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from app.domain.errors import PlanError, RunFailedError
from app.runtime.settings import Settings
from workers.data.backbone import starting
from workers.data.loading import ModelSpec
from workers.seal.write_guard import encoding
from workers.training.dp_sgd.gradients import per_record_gradients
from workers.training.evaluate import evaluating
from workers.training.examples import Examples
from workers.training.forms import InputForm, fainter
from workers.training.frame import built_under
from workers.training.networks.base import digest_of, digests_of, require_same
from workers.training.networks.buffers import require_supported_buffers, without_buffers
from workers.training.networks.held import require_same_start, start_of
from workers.training.networks.network import Network
from workers.training.networks.operator_code import called, text_of
from workers.training.tasks.custom import SAMPLES, CustomTask, Encoded
from workers.training.tasks.task import INPUTS, Batch, Task
from workers.training.team import ALONE, Team, choose_device
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
            then = before.get(name)
            if then is None or tensor.dtype != then.dtype or not torch.equal(tensor, then):
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


_SEEDS: Final = (3, 17)
_AT_ONCE: Final = 1 << 12
_MOST_VALUES: Final = 2
_MOST_RUNS: Final = 8  # such as a forget gate's bias


def require_drawn_start(factory: Callable[[], nn.Module]) -> None:
    """Check that trained tensors start at random numbers, or at what a few numbers describe.

    Args:
        factory: builds the network from torch's global generator, without a backbone's weights.

    Raises:
        PlanError: a tensor starts at the same weights in every network; the message names it.
    """
    one, other = (
        {
            name: (digest_of(each), _is_plain(each))
            for name, each in built_under(seed, factory).items()
        }
        for seed in _SEEDS
    )
    for name in one.keys() & other.keys():
        if one[name] == other[name] and not one[name][1]:
            raise PlanError(
                f"the factory starts the parameter {name!r} at the same weights in every network, "
                "which may have learned from records: draw them from torch's own generator, freeze "
                'them, or upload them as a backbone with "frozen": false, which certificates name'
            )


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a few numbers describe a tensor: runs of two values, or a unit matrix."""
    numbers = tensor.reshape(-1)
    if len(numbers[:_AT_ONCE].unique()) > _MOST_VALUES:  # type: ignore[no-untyped-call]
        return False
    if int((numbers[1:] != numbers[:-1]).sum()) < _MOST_RUNS:
        return len(numbers.unique()) <= _MOST_VALUES  # type: ignore[no-untyped-call]
    if tensor.dim() < 2:
        return False
    unit = nn.init.dirac_ if tensor.dim() in (3, 4, 5) else nn.init.eye_
    try:
        return torch.equal(tensor, unit(torch.empty_like(tensor)))
    except ValueError:
        return False


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


_TRIED_TOGETHER: Final = 8


def require_one_loss(factory: Callable[[], nn.Module], task: Task, form: InputForm) -> None:
    """Compare losses of random records in training: again, and with others beside them.

    Raises:
        PlanError: a record's loss depends on chance, or on other records.
    """
    network = Network(factory, device=choose_device(), task=task, dtype=torch.float64)
    module = network.module.train()
    batch = Examples.random(form, _TRIED_TOGETHER).rows(
        0, _TRIED_TOGETHER, device=network.flat.device
    )

    def losses(some: Batch) -> torch.Tensor:
        return task.loss(module, task.augment(some))

    with torch.no_grad(), without_buffers(module):
        once, again, apart = losses(batch), losses(batch), in_halves(losses, batch)
        if not all(torch.allclose(once, each, equal_nan=True) for each in (again, apart)):
            raise PlanError(
                "this mechanism counts on one loss of each record, and in training the network or "
                "the task gives a record another one at every visit, or beside others: leave out "
                "dropout, augment and normalisation over the batch, or choose another mechanism"
            )
    network.destroy()


def in_halves(losses: Callable[[Batch], torch.Tensor], batch: Batch) -> torch.Tensor:
    """Return each record's loss, [n], with half of the other records beside it."""
    half = len(batch[INPUTS]) // 2
    return torch.cat(
        [
            losses({name: each[part] for name, each in batch.items()})
            for part in (slice(0, half), slice(half, None))
        ]
    )
