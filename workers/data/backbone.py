"""A model's public backbone in memory: frozen features, or weights to start from.

Frozen: the network that trains and unlearns is a head on the backbone's features. The published
model contains both, with the backbone's tensors under ``backbone.``.
Otherwise the network starts from those backbone tensors whose name and shape match its own.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import nn

from app.domain.architectures import ArchitectureSpec, FeatureLayer
from app.domain.errors import RunFailedError
from app.domain.schema import InputSchema
from app.evidence.certificates.weights_file import BACKBONE
from app.registry.backbones import backbone_of
from app.registry.tables import BackboneRow
from app.services import Services
from workers.data.backbone_rehearsal import Rehearsal, require_finite
from workers.training.exact.arithmetic import repeatable
from workers.training.examples import Examples
from workers.training.frame import ReferenceFrame
from workers.training.networks.architectures import build_features
from workers.training.networks.base import first_difference
from workers.training.networks.held import digests_held
from workers.training.tasks.task import INPUTS
from workers.training.vectors import as_float16

_RECORDS_AT_ONCE: Final = 32


# BLAS and cuDNN choose kernels by the size of a batch, by the number of threads and by what is
# fastest, and each rounds in its own way. So every batch has one size, one thread computes, and no
# kernel is chosen by measuring.
@contextmanager
def _deterministic() -> Iterator[None]:
    """Compute in one thread, in full float32, with kernels that always round alike."""
    # Read by PyTorch when it is asked for deterministic algorithms on CUDA.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    reduced = torch.backends.cuda.matmul.allow_tf32
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with (
            torch.no_grad(),
            repeatable(),
            torch.backends.cudnn.flags(benchmark=False, deterministic=True, allow_tf32=False),
        ):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = reduced
        torch.use_deterministic_algorithms(mode=before)


class Extraction:
    """A network's features, in batches of one size: the last one is filled up with zeros.

    Args:
        network: maps [n, *input_shape] to features [n, size], in evaluation mode.
        device: where it is.
        alone: whether each record must be computed by itself.
    """

    def __init__(self, network: nn.Module, *, device: torch.device, alone: bool = False) -> None:
        self._network = network
        self._device = device
        self._at_once = 1 if alone else None

    def batches(self, examples: Examples) -> Iterator[torch.Tensor]:
        """Yield the features in order, float32 [n, size] on the CPU."""
        start = 0
        while start < len(examples):
            with _deterministic():  # not while the caller has the batch
                if self._at_once is None:
                    self._at_once = self._size(examples)
                inputs = self._inputs(examples, start, start + self._at_once)
                features = self._computed(inputs)[: len(examples) - start]
            yield features
            start += self._at_once

    def _size(self, examples: Examples) -> int:
        """Return how many records to compute at once: one by one, if places in a batch matter.

        Random records tell: each is computed in two places, beside others.
        """
        probe = self._inputs(examples.like(_RECORDS_AT_ONCE), 0, _RECORDS_AT_ONCE)
        features = self._computed(probe)
        moved = self._computed(probe.roll(1, dims=0)).roll(-1, dims=0)
        probe[1:] = 0
        alone = self._computed(probe)
        same = torch.equal(features, moved) and torch.equal(features[0], alone[0])
        return _RECORDS_AT_ONCE if same else 1

    def _inputs(self, examples: Examples, start: int, end: int) -> torch.Tensor:
        inputs = examples.rows(start, min(end, len(examples)), device=self._device)[INPUTS]
        padding = inputs.new_zeros((end - start - len(inputs), *inputs.shape[1:]))
        return torch.cat([inputs, padding])

    def _computed(self, inputs: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self._network(inputs)
        return features.to("cpu", torch.float32)


@dataclass(frozen=True, eq=False)
class Backbone:
    """Public weights and their use.

    Attributes:
        frozen: whether the model is a head on its features; otherwise it starts from its weights.
    """

    id: str
    name: str
    sha256: str
    frozen: bool
    weights: Mapping[str, torch.Tensor] = field(repr=False)


@dataclass(frozen=True, eq=False)
class FrozenBackbone(Backbone):
    """Public weights that compute features.

    Attributes:
        network: maps [n, *input_shape] to features [n, size]; always in evaluation mode.
        whole: the network that contains ``network``; it owns all tensors.
        size: features of one record.
        alone: whether each record is computed by itself, as its values decide shapes.
        probe: random records, in a batch of which it makes the features ``probed``.
        held: digests of all that the network holds.
    """

    network: nn.Module = field(repr=False)
    whole: nn.Module = field(repr=False)
    size: int
    alone: bool
    probe: torch.Tensor = field(repr=False)
    held: Mapping[str, str] = field(repr=False)
    probed: dict[torch.device, torch.Tensor] = field(default_factory=dict, repr=False)
    extractions: dict[torch.device, Extraction] = field(default_factory=dict, repr=False)

    def features(self, examples: Examples, *, device: torch.device) -> Iterator[torch.Tensor]:
        """Yield the features in batches, float32 [n, size] on the CPU.

        On one machine, a record's features are the same bytes whichever other records there are,
        and in whatever order.

        Raises:
            RunFailedError: they are not finite, or the network keeps something of records.
        """
        if device not in self.extractions:
            network = self.network.to(device)
            self.extractions[device] = Extraction(network, device=device, alone=self.alone)
            self.probed[device] = self._of_probe(device)
        for features in self.extractions[device].batches(examples):
            if not bool(torch.isfinite(features).all()):
                raise RunFailedError(f"backbone {self.name!r} has features beyond float32")
            yield features
        self._require_unchanged(device)

    def stored(self, examples: Examples, *, device: torch.device) -> Iterator[NDArray[np.float16]]:
        """Yield the features as they are stored and learned from: float16 [n, size].

        What float16 cannot reach becomes its largest number. Raises what ``features`` does.
        """
        for features in self.features(examples, device=device):
            yield as_float16(features).numpy()

    def _of_probe(self, device: torch.device) -> torch.Tensor:
        with torch.no_grad():
            features: torch.Tensor = self.network(self.probe.to(device))
        return features.to("cpu", torch.float64)

    def _require_unchanged(self, device: torch.device) -> None:
        """Check that the network kept nothing, which would carry one record into others' features.

        What it holds is compared, and what it makes of records that everybody may know.
        """
        name = first_difference(digests_held(self.whole), self.held)
        if name is not None:
            raise RunFailedError(f"backbone {self.name!r} changes its own {name!r}")
        before = self.probed[device]
        if not torch.allclose(self._of_probe(device), before, rtol=1e-3, atol=1e-6, equal_nan=True):
            raise RunFailedError(
                f"backbone {self.name!r} makes other features of the same records after it saw "
                "others: compute everything in forward"
            )

    def schema(self, records: InputSchema) -> InputSchema:
        """Return the schema of the features of ``records``; they need no scaling."""
        return InputSchema(shape=(self.size,), classes=records.classes)


def starting(
    backbone: Backbone | None, factory: Callable[[], nn.Module]
) -> Callable[[], nn.Module]:
    """Return a factory of fresh networks, which starts from a non-frozen backbone's weights.

    A tensor without a counterpart of its name and shape keeps its initial value, for example the
    last layer of a network for other classes.

    Raises:
        RunFailedError: raised by the factory if no tensor matches.
    """
    if backbone is None or backbone.frozen:
        return factory

    def build_from_public() -> nn.Module:
        module = factory()
        own = module.state_dict()
        fitting = [
            name
            for name, tensor in backbone.weights.items()
            if name in own and own[name].shape == tensor.shape
        ]
        if not fitting:
            raise RunFailedError(f"no tensor of backbone {backbone.name!r} fits the network")
        with torch.no_grad():
            for name in fitting:
                own[name].copy_(backbone.weights[name])
        return module

    return build_from_public


def frame_of(backbone: Backbone | None, factory: Callable[[], nn.Module]) -> ReferenceFrame:
    """Return the reference frame of the network that unlearns, centred at public weights if any."""
    if backbone is None or backbone.frozen:
        return ReferenceFrame.of(factory)
    return ReferenceFrame.of(
        factory,
        public_weights=backbone.weights,
        public_source={"name": backbone.name, "sha256": backbone.sha256},
    )


def publishable(
    backbone: Backbone | None, tensors: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Return the complete model's tensors, including a frozen backbone's.

    Raises:
        RunFailedError: a tensor of the head has the name of one of the backbone.
    """
    complete = dict(tensors)
    if not isinstance(backbone, FrozenBackbone):
        return complete
    for name in complete:
        if name.startswith(BACKBONE):
            raise RunFailedError(
                f"the network's tensor {name!r} has a name of the frozen backbone: rename it"
            )
    for name, tensor in backbone.weights.items():
        complete[BACKBONE + name] = tensor.numpy()
    return complete


def trainable(
    architecture: ArchitectureSpec, tensors: Mapping[str, torch.Tensor]
) -> Mapping[str, torch.Tensor]:
    """Return a complete model's tensors without those of its frozen backbone."""
    if not architecture.on_features:
        return tensors
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(BACKBONE)}


def load_backbone(
    services: Services, architecture: ArchitectureSpec, records: InputSchema
) -> Backbone | None:
    """Return a model's backbone, or None. No record was read yet.

    Args:
        services: database and blobs.
        architecture: of the model.
        records: the schema of its dataset.

    Raises:
        RunFailedError: its weights do not fit its architecture, or differ from the uploaded ones.
    """
    if architecture.backbone is None:
        return None
    with services.database.transaction() as session:
        row = backbone_of(session, architecture)
    if row is None:
        raise RunFailedError("the model's backbone is gone")
    if architecture.backbone.frozen:
        return _load_frozen(services, row, records)
    sha256, weights = _weights(services, row)
    return Backbone(row.id, row.name, sha256, frozen=False, weights=weights)


def _weights(services: Services, row: BackboneRow) -> tuple[str, Mapping[str, torch.Tensor]]:
    """Return the digest of a backbone's weights file and its tensors."""
    if row.blob_id is None or row.sha256 is None:
        raise RunFailedError(f"backbone {row.name!r} has no weights")
    content = services.blobs.read(row.blob_id)
    if hashlib.sha256(content).hexdigest() != row.sha256:
        raise RunFailedError(f"the stored weights of backbone {row.name!r} are damaged")
    weights = safetensors.torch.load(content)
    require_finite(row.name, weights)
    return row.sha256, weights


def _load_frozen(services: Services, row: BackboneRow, records: InputSchema) -> FrozenBackbone:
    sha256, weights = _weights(services, row)
    whole, featuriser = build_features(
        ArchitectureSpec.from_json(row.architecture),
        input_shape=records.shape,
        classes=row.classes,
        allowed_factories=services.settings.allowed_factories,
        layers=FeatureLayer.all_from_json(row.layers),
        in_full=True,
    )
    rehearsal = Rehearsal(row.name, whole, featuriser, records)
    if row.features not in (None, rehearsal.size):
        raise RunFailedError(
            f"backbone {row.name!r} makes {rehearsal.size} features, and its definition says "
            f"{row.features}"
        )
    rehearsal.load(weights)
    public = {name: tensor.detach().clone() for name, tensor in whole.state_dict().items()}
    rehearsal.require_independence()
    probe = rehearsal.probe()
    return FrozenBackbone(
        row.id,
        row.name,
        sha256,
        frozen=True,
        weights=public,
        network=featuriser,
        whole=whole,
        size=rehearsal.size,
        alone=rehearsal.alone,
        probe=probe,
        held=digests_held(whole),
    )
