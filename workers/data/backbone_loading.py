"""Loads a stored backbone and checks that it treats each record separately."""

import hashlib
from collections.abc import Mapping
from typing import Final

import safetensors.torch
import torch
from torch import nn

from app.backbones import use
from app.backbones.tables import BackboneRow
from app.domain.architecture import ArchitectureSpec
from app.domain.errors import RunFailedError
from app.services import Services
from workers.data.backbone import Backbone, FrozenBackbone
from workers.training.architectures import build_features

_PROBE_SEED: Final = 0
_COMPANIONS: Final = 3
# A batch of another size may use another kernel, which rounds differently. Batch statistics differ
# by far more than this.
_RELATIVE_ROUNDING: Final = 1e-3


def load_backbone(services: Services, architecture: ArchitectureSpec) -> Backbone | None:
    """Return a model's backbone, or None.

    Raises:
        RunFailedError: its weights do not fit its architecture, or differ from the uploaded ones.
    """
    if architecture.backbone is None:
        return None
    with services.database.transaction() as session:
        row = use.backbone_of(session, architecture)
    if row is None or row.blob_id is None or row.sha256 is None:
        raise RunFailedError("the model's backbone has no weights: upload them")
    content = services.blobs.read(row.blob_id)
    if hashlib.sha256(content).hexdigest() != row.sha256:
        raise RunFailedError(f"the stored weights of backbone {row.name!r} are damaged")
    weights = safetensors.torch.load(content)
    _require_finite(row.name, weights)
    if not architecture.backbone.frozen:
        return Backbone(row.id, row.name, row.sha256, frozen=False, weights=weights)
    return _frozen(services, row, row.sha256, weights)


def _frozen(
    services: Services, row: BackboneRow, sha256: str, weights: Mapping[str, torch.Tensor]
) -> FrozenBackbone:
    shape = tuple(row.input_shape)
    whole, featuriser = build_features(
        ArchitectureSpec.from_json(row.architecture),
        input_shape=shape,
        classes=row.classes,
        allowed_factories=services.settings.allowed_factories,
    )
    whole.eval()
    featuriser.eval()
    # Before the weights are loaded, because this gives lazy layers their shapes.
    size = _size(row.name, featuriser, shape)
    try:
        whole.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise RunFailedError(
            f"the weights of backbone {row.name!r} do not fit its architecture"
        ) from error
    public = {name: tensor.detach().clone() for name, tensor in whole.state_dict().items()}
    _require_independence(row.name, featuriser, shape)
    return FrozenBackbone(
        row.id,
        row.name,
        sha256,
        frozen=True,
        weights=public,
        network=featuriser,
        whole=whole,
        size=size,
    )


def _size(name: str, featuriser: nn.Module, input_shape: tuple[int, ...]) -> int:
    features = _forward(name, featuriser, torch.zeros((2, *input_shape)))
    return int(features.shape[1])


def _require_independence(name: str, featuriser: nn.Module, input_shape: tuple[int, ...]) -> None:
    """Check that a record's features do not depend on the other records in its batch.

    Otherwise the features of retained records would contain traces of forgotten ones, for example
    through normalisation by batch statistics.
    """
    generator = torch.Generator().manual_seed(_PROBE_SEED)
    shape = (1 + _COMPANIONS, *input_shape)
    first = torch.randint(0, 2, shape, generator=generator).float()
    second = torch.cat([first[:1], 1 - first[1:]])
    rows = [_forward(name, featuriser, batch)[0] for batch in (first, second)]
    difference = (rows[0] - rows[1]).abs().max()
    if not bool(difference <= _RELATIVE_ROUNDING * rows[0].abs().max()):
        raise RunFailedError(
            f"backbone {name!r} mixes the records of a batch: use one without batch statistics and "
            "without randomness"
        )


def _forward(name: str, featuriser: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    try:
        with torch.no_grad():
            features = featuriser(inputs)
    except Exception as error:
        raise RunFailedError(
            f"backbone {name!r} cannot read features of shape {list(inputs.shape[1:])} "
            f"({type(error).__name__})"
        ) from error
    if (
        not isinstance(features, torch.Tensor)
        or features.dim() != 2
        or len(features) != len(inputs)
    ):
        raise RunFailedError(f"backbone {name!r} must return a tensor with one row per record")
    return features


def _require_finite(name: str, weights: Mapping[str, torch.Tensor]) -> None:
    for tensor_name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise RunFailedError(f"the tensor {tensor_name!r} of backbone {name!r} is not finite")
