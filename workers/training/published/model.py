"""A published model as a module of PyTorch: raw features in, outputs or predictions out."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import safetensors
import safetensors.torch
import torch
from torch import nn

from app.client.published import PublishedFile, read_published
from app.domain.architectures import ArchitectureSpec, BaseDigest, is_allowed
from app.domain.columns import ClassName
from app.domain.description import ModelDescription
from app.domain.errors import ExpungeError, InvalidInputError
from app.domain.tasks.built_in import RegressionSpec
from app.domain.tasks.custom import CustomSpec
from app.evidence.certificates.weights_file import BACKBONE
from app.registry.datasets.columns.cells import column_named
from app.registry.datasets.columns.outputs import inputs_of, predictions_of, table_of
from app.registry.datasets.columns.problems import Problems
from app.registry.datasets.columns.sources import as_table
from workers.training.forms import InputForm
from workers.training.networks.architectures import build, build_features, zeros
from workers.training.networks.base import digests_of, public_tensors
from workers.training.networks.ensemble import Ensemble
from workers.training.networks.operator_code import called
from workers.training.networks.trees import BoostedTrees
from workers.training.tasks.custom import CustomTask
from workers.training.tasks.task import INPUTS, Batch
from workers.training.vectors import as_float16

_ROWS_AT_ONCE = 1024
_OUTPUTS_AT_ONCE = 2**22
Rows: TypeAlias = Any
"""A table of pandas, polars or Arrow with the columns of a model's inputs, or raw features [n, …],
which are a ``numpy.ndarray`` or a ``torch.Tensor``."""


class PublishedModel(nn.Module):
    """Maps raw features [n, *shape] to outputs [n, …]: logits, a ridge head's scores, or numbers.

    Offset and scale are applied, and the frozen backbone, if there is one. Outputs are computed as
    the service evaluates them: float64 for a head, otherwise what the file holds. Those of
    regression are in the targets' units, float64.

    Args:
        description: what the file says of itself.
        network: the trained network, with its weights.
        features: a frozen backbone's network, with its weights.
        factories: import paths that the operator's own task may have.

    Attributes:
        description: what the file says of itself.
        output_names: of classes, labels or targets; their numbers if they have none.
    """

    def __init__(
        self,
        description: ModelDescription,
        network: nn.Module,
        features: nn.Module | None = None,
        *,
        factories: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.description = description
        self._form = InputForm.of(description.schema)
        self.output_names: tuple[ClassName, ...] = description.output_names
        self._network = network
        self._features = features
        # Return what the network computes in: the type of its parameters.
        dtypes = {tensor.dtype for tensor in network.parameters() if tensor.is_floating_point()}
        self._dtype = torch.float64 if dtypes == {torch.float64} else torch.float32
        self._factories = tuple(factories)

    def members(self) -> "list[PublishedModel]":
        """Return an ensemble's members, each as a model of its own; none of another network."""
        networks = self._network.members.values() if isinstance(self._network, Ensemble) else ()
        return [
            PublishedModel(self.description, each, self._features, factories=self._factories)
            for each in networks
        ]

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return outputs [n, …]."""
        seen = self._form.seen(INPUTS, features)
        if self._features is not None:
            seen = as_float16(self._features(seen)).to(torch.float32)
        outputs: torch.Tensor = self._network(
            seen if seen.dtype == torch.int64 else seen.to(self._dtype)
        )
        task = self.description.task
        if isinstance(task, RegressionSpec):
            outputs = task.in_units(outputs.to(torch.float64))
        return outputs

    def outputs_of(self, rows: Rows) -> torch.Tensor:
        """Return the outputs for a table's rows, or for raw features [n, …], on the CPU.

        Raises:
            InvalidRecordsError: with each fault's row and column.
            InvalidInputError: the features have another shape.
            RunFailedError: the operator's own task cannot encode the rows.
        """
        parts = self._parts(self._encoded(rows))
        with torch.inference_mode():
            return torch.cat([self._computed(part) for part in parts])

    def predict(self, rows: Rows) -> pa.Table:
        """Return what the task predicts of each row; docs/tasks.md has the columns.

        Args:
            rows: a table with the columns of the task's inputs, or raw features [n, …].

        Raises:
            InvalidRecordsError: with each fault's row and column.
            InvalidInputError: the features have another shape, or the task is the operator's and
                not among the allowed factories.
            RunFailedError: the operator's own task fails.
        """
        task = self._own_task
        predicted = self._predicted if task is None else partial(self._predicted_by, task)
        with torch.inference_mode():
            return pa.concat_tables(map(predicted, self._parts(self._encoded(rows))))

    def _predicted(self, part: Batch) -> pa.Table:
        outputs = self._computed(part).numpy()
        return predictions_of(self.description, outputs, part[INPUTS].numpy())

    def _computed(self, part: Batch) -> torch.Tensor:
        outputs: torch.Tensor = self(part[INPUTS].to(self._device))
        return outputs.cpu()

    @property
    def _device(self) -> torch.device:
        return next(self._network.parameters()).device

    def _predicted_by(self, task: CustomTask, part: Batch) -> pa.Table:
        batch = {name: values.to(self._device) for name, values in part.items()}
        found = called("predict of the task", lambda: task.predict(self, batch))
        tensors = {name: torch.as_tensor(values) for name, values in found.items()}
        return table_of({name: values.cpu().numpy() for name, values in tensors.items()})

    def _encoded(self, rows: Rows) -> Batch:
        """Return the inputs of all rows, and what the operator's own task makes beside them."""
        given = rows.cpu().numpy() if isinstance(rows, torch.Tensor) else rows
        table = None if isinstance(given, np.ndarray) else as_table(given)
        if table is not None and self._own_task is not None:
            problems = Problems()
            own = self._own_task
            read = {name: column_named(table, name, problems) for name in own.reads}
            problems.raise_any()
            encoded = own.encode_inputs(pa.table(read))
            return {name: torch.from_numpy(np.array(values)) for name, values in encoded.items()}
        inputs = inputs_of(given if table is None else table, self.description)
        return {INPUTS: torch.from_numpy(np.array(inputs))}

    @cached_property
    def _own_task(self) -> CustomTask | None:
        spec = self.description.task
        if not isinstance(spec, CustomSpec):
            return None
        require_named(spec.path, self._factories, "predict with this task the class")
        return CustomTask(spec, allowed=self._factories, in_full=True)

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        """Yield records in parts whose outputs fit into memory."""
        each = math.prod(self.description.task.output_shape(self.description.schema.shape))
        size = max(1, min(_ROWS_AT_ONCE, _OUTPUTS_AT_ONCE // each))
        for start in range(0, max(len(batch[INPUTS]), 1), size):
            yield {name: values[start : start + size] for name, values in batch.items()}


def require_named(path: str, factories: Sequence[str], purpose: str) -> None:
    """Refuse to call what the user has not named: the file's author chose it."""
    if not is_allowed(path, factories):
        raise InvalidInputError(
            f"to {purpose} {path!r} must be called: if you trust it, "
            f"allow it with --factory {path}, or factories=[{path!r}] in Python"
        )


def load(
    weights: str | Path,
    *,
    certificate: str | Path | None = None,
    trusted: str | Path | bytes | None = None,
    check: bool = True,
    factories: Sequence[str] = (),
    base: str | Path | None = None,
) -> PublishedModel:
    """Return a published model, in evaluation mode, after its certificate was checked.

    Args:
        weights: the safetensors file.
        certificate: its bundle; by default the one beside it, as ``expunge download`` names it.
        trusted: the operator's ``trusted-keys.json``, or its content; by default the one of
            ``expunge init`` here.
        check: whether to check the certificate. Without, nothing says whose weights these are.
        factories: import paths that a file may name as its network's factory or its task, such as
            ``package.module:factory``: loading the file calls the one, predicting the other.
        base: a safetensors file with frozen parameters that the factory does not bring itself, such
            as those of an uploaded backbone. Whatever brings them, their digest must be the one
            that the file and its certificate name.

    Raises:
        VerificationError: the certificate does not hold.
        ConfigurationError: the certificate or a trusted key is missing.
        InvalidInputError: the file does not say how it is used, its weights do not fit, or its
            factory is not among ``factories``, or the base is another.
        RunFailedError: the factory fails.
    """
    published = read_published(weights, certificate=certificate, trusted=trusted, check=check)
    return assembled(published, factories=factories, base=base)


def assembled(
    published: PublishedFile,
    *,
    factories: Sequence[str] = (),
    base: str | Path | None = None,
) -> PublishedModel:
    """Build the networks of a file and give them its weights; see ``load``."""
    description = published.description
    try:
        own: Mapping[str, torch.Tensor] = safetensors.torch.load(published.content)
    except safetensors.SafetensorError as error:
        raise InvalidInputError("the file is not safetensors") from error
    public = {name: tensor for name, tensor in own.items() if name.startswith(BACKBONE)}
    own = {name: tensor for name, tensor in own.items() if name not in public}
    networks = [description.architecture.member]
    networks += [] if description.backbone is None else [description.backbone.architecture]
    for path in (each.factory for each in networks if each.factory is not None):
        require_named(path, factories, "build this network the function")
    features, shape, schema = None, description.schema.shape, description.schema
    with torch.random.fork_rng(devices=[]):
        if description.architecture.on_features:
            features, shape = _backbone(description, public, factories)
        with _sized_by_its_file(description.architecture.member):
            network = build(
                description.architecture,
                input_shape=shape,
                classes=schema.classes,
                allowed_factories=factories,
                tokens=schema.tokens and features is None,
                task=description.task,
                out=description.out,
            )
    member = network.first if isinstance(network, Ensemble) else network
    if base is not None:
        held = public_tensors(member)
        with torch.no_grad():
            for name, tensor in safetensors.torch.load_file(base).items():
                if name in held and held[name].shape == tensor.shape:
                    held[name].copy_(tensor)
    if BaseDigest.of(digests_of(member)) != description.base:
        raise InvalidInputError(
            "the network's frozen parameters and buffers are not the base that the file names: "
            "they come from the factory's own files, or from the file that you name with --base, "
            "or base=… in Python"
        )
    _fill(network, own, base=public_tensors(network).keys())
    if isinstance(network, BoostedTrees):
        network.require_nodes(math.prod(shape))
    return PublishedModel(description, network, features, factories=factories).eval()


def _backbone(
    description: ModelDescription,
    tensors: Mapping[str, torch.Tensor],
    factories: Sequence[str],
) -> tuple[nn.Module, tuple[int, ...]]:
    """Return what computes a frozen backbone's features, and their shape."""
    backbone, schema = description.backbone, description.schema
    if backbone is None:
        raise InvalidInputError("the file does not describe the backbone that it names")
    with torch.no_grad(), _sized_by_its_file(backbone.architecture):
        whole, features = build_features(
            backbone.architecture,
            input_shape=schema.shape,
            classes=backbone.classes,
            allowed_factories=factories,
            layers=backbone.layers,
        )
        # Lazy layers get their shapes.
        size = features.eval()(zeros(schema.shape, tokens=schema.tokens)).shape[1]
    _fill(whole, {name.removeprefix(BACKBONE): tensor for name, tensor in tensors.items()})
    return features, (size,)


@contextmanager
def _sized_by_its_file(architecture: ArchitectureSpec) -> Iterator[None]:
    """Let a network of ours have no numbers until it gets the file's, whatever size that claims."""
    try:
        with nullcontext() if architecture.name == "custom" else torch.device("meta"):
            yield
    except ExpungeError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError("the file describes a network that cannot be built") from error


def _fill(
    module: nn.Module,
    tensors: Mapping[str, torch.Tensor],
    *,
    base: Collection[str] = (),
) -> None:
    """Give a module its tensors but the base's, in the types that they have in the file."""
    if set(tensors) != set(module.state_dict()) - set(base):
        raise InvalidInputError("the file's tensors are not those of the network that it describes")
    try:
        module.load_state_dict(tensors, assign=True, strict=False)
    except RuntimeError as error:
        raise InvalidInputError("the file's tensors have other shapes than its network") from error
    module.requires_grad_(requires_grad=False)
