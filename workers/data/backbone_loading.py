"""Loads a stored backbone and checks that it treats each record separately."""

import hashlib
from collections.abc import Mapping

import safetensors.torch
import torch

from app.domain.architectures import ArchitectureSpec, FeatureLayer
from app.domain.errors import RunFailedError
from app.domain.schema import InputSchema
from app.registry.backbones import use
from app.registry.backbones.tables import BackboneRow
from app.services import Services
from workers.data.backbone import Backbone, FrozenBackbone
from workers.data.backbone_rehearsal import Rehearsal, require_finite
from workers.training.networks.architectures import build_features
from workers.training.networks.held import digests_held


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
        row = use.backbone_of(session, architecture)
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
