"""Published models as modules of PyTorch: raw features in, logits out."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import nn

from app.domain.architecture import is_allowed
from app.domain.base import BaseDigest
from app.domain.description import ModelDescription
from app.domain.encoding import ClassName
from app.domain.errors import InvalidInputError
from app.published import PublishedFile, read_published
from app.tables.encoding import features_of
from workers.training.architectures import build, build_features, zeros
from workers.training.base import digests_of, public_tensors
from workers.training.half import half
from workers.training.whitening import whitened

BACKBONE_PREFIX = "backbone."
_ROWS_AT_ONCE = 1024


class PublishedModel(nn.Module):
    """Maps raw features [n, *shape], as the dataset's schema declares them, to logits [n, classes].

    Offset and scale are applied, and the frozen backbone, if there is one. Logits are computed as
    the service evaluates them: float64 for a head, otherwise what the file holds.

    Args:
        description: what the file says of itself.
        network: the trained network, with its weights.
        features: a frozen backbone's network, with its weights.

    Attributes:
        description: what the file says of itself.
        class_names: the names of the classes; their numbers if they have none.
    """

    def __init__(
        self,
        description: ModelDescription,
        network: nn.Module,
        features: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.description = description
        self.class_names: tuple[ClassName, ...] = description.class_names
        self._network = network
        self._features = features
        self._dtype = _dtype_of(network)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits [n, classes]."""
        seen = self._seen(features)
        if self._features is not None:
            seen = half(self._features(seen)).to(torch.float32)
        logits: torch.Tensor = self._network(
            seen if seen.dtype == torch.int64 else seen.to(self._dtype)
        )
        return logits

    def _seen(self, features: torch.Tensor) -> torch.Tensor:
        schema = self.description.schema
        if schema.tokens:
            return features.to(torch.int64)
        seen = features.to(torch.float32)
        if schema.offset != 0.0:
            seen = seen - schema.offset
        if schema.scale != 1.0:
            seen = seen * schema.scale
        return seen

    @torch.inference_mode()
    def logits_of(self, rows: "pa.Table | NDArray[Any] | torch.Tensor") -> torch.Tensor:
        """Return the logits of a table's rows, or of raw features [n, …], on the CPU.

        Raises:
            InvalidRecordsError: with each fault's row and column.
            InvalidInputError: the features have another shape.
        """
        if isinstance(rows, pa.Table):
            rows = features_of(rows, self.description.columns)
        raw = torch.as_tensor(np.array(rows) if isinstance(rows, np.ndarray) else rows)
        shape = self.description.schema.shape
        try:
            raw = raw.reshape(-1 if raw.numel() else 0, *shape)
        except RuntimeError as error:
            raise InvalidInputError(
                f"features of shape {list(raw.shape[1:])}, where the model reads {list(shape)}"
            ) from error
        parts = [self(part).cpu() for part in torch.split(raw, _ROWS_AT_ONCE)]
        return torch.cat(parts)

    def predict(self, rows: "pa.Table | NDArray[Any] | torch.Tensor") -> list[ClassName]:
        """Return the likeliest class of each row, by its name; see ``logits_of``."""
        return [self.class_names[index] for index in self.logits_of(rows).argmax(dim=1).tolist()]


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
        factories: import paths that a file may name as its network's factory, such as
            ``package.module:factory``: loading the file calls it.
        base: a safetensors file with frozen parameters that the factory does not bring itself, such
            as those of an uploaded backbone. Whatever brings them, their digest must be the one
            that the file and its certificate name.

    Raises:
        VerificationError: the certificate does not hold.
        ConfigurationError: there is no certificate, or no trusted key.
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
    tensors = safetensors.torch.load(published.content)
    _require_allowed(description, factories)
    own = {name: t for name, t in tensors.items() if not name.startswith(BACKBONE_PREFIX)}
    features, shape, schema = None, description.schema.shape, description.schema
    with torch.random.fork_rng(devices=[]):
        if description.architecture.on_features:
            public = {
                name.removeprefix(BACKBONE_PREFIX): tensor
                for name, tensor in tensors.items()
                if name.startswith(BACKBONE_PREFIX)
            }
            features, shape = _backbone(description, public, factories)
        network = build(
            description.architecture,
            input_shape=shape,
            classes=schema.classes,
            allowed_factories=factories,
            tokens=schema.tokens and features is None,
        )
    if base is not None:
        _bring(network, base)
    digests = digests_of(network)
    if BaseDigest.of(digests) != description.base:
        raise InvalidInputError(
            "the network's frozen parameters and buffers are not the base that the file names: "
            "they come from the factory's own files, or from the file that you name with --base, "
            "or base=… in Python"
        )
    _fill(network, own, base=digests.keys())
    return PublishedModel(description, network, features).eval()


def _require_allowed(description: ModelDescription, factories: Sequence[str]) -> None:
    """Refuse to call what the user has not named: the file's author chose it."""
    backbone = description.backbone
    networks = [description.architecture, *([] if backbone is None else [backbone.architecture])]
    for path in (network.factory for network in networks if network.factory is not None):
        if not is_allowed(path, factories):
            raise InvalidInputError(
                f"to build this network the function {path!r} must be called: if you trust it, "
                f"allow it with --factory {path}, or factories=[{path!r}] in Python"
            )


def _backbone(
    description: ModelDescription,
    tensors: Mapping[str, torch.Tensor],
    factories: Sequence[str],
) -> tuple[nn.Module, tuple[int, ...]]:
    """Return what computes a frozen backbone's features, and their shape."""
    backbone, schema = description.backbone, description.schema
    if backbone is None:
        raise InvalidInputError("the file does not describe the backbone that it names")
    whole, features = build_features(
        backbone.architecture,
        input_shape=schema.shape,
        classes=backbone.classes,
        allowed_factories=factories,
        layers=backbone.layers,
    )
    with torch.no_grad():  # lazy layers get their shapes
        size = features.eval()(zeros(schema.shape, tokens=schema.tokens)).shape[1]
    if backbone.whitened:
        whole, features = whitened(whole, features, int(size))
    _fill(whole, tensors)
    return features, (size,)


def _bring(network: nn.Module, base: str | Path) -> None:
    """Give a network those of its public tensors that a file has, by name."""
    own = public_tensors(network)
    with torch.no_grad():
        for name, tensor in safetensors.torch.load_file(base).items():
            if name in own and own[name].shape == tensor.shape:
                own[name].copy_(tensor)


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


def _dtype_of(module: nn.Module) -> torch.dtype:
    """Return what the network computes in: the type of its parameters."""
    dtypes = {tensor.dtype for tensor in module.parameters() if tensor.is_floating_point()}
    return torch.float64 if dtypes == {torch.float64} else torch.float32
