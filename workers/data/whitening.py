"""Computes a whitened backbone from the features of a public dataset, in one pass.

With the mean m and the covariance U diag(l) U^T of these features, and l0 the mean of l,

    whitened(x) = s (x - m) U diag(l + 0.001 l0)^(-exponent)

where s makes the whitened features' mean variance 1, so that public ranges fit all backbones. The
sums are float64, around the mean of the first batch, and computed in one thread: models go on only
if weights that were lost come again to the last bit.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray

from app.domain.architectures.backbone import Whitening
from app.domain.errors import RunFailedError
from app.ledger.models import whitening
from app.registry.backbones.tables import BackboneRow
from app.registry.datasets import repository as datasets
from app.registry.datasets.content import ContentDigest
from app.registry.datasets.service import feature_schema_of
from app.registry.datasets.shards import decode_shard
from app.services import Services
from workers.data.backbone import FrozenBackbone
from workers.data.backbone_loading import load_frozen
from workers.training.device import choose_device
from workers.training.exact.arithmetic import repeatable
from workers.training.examples import Examples
from workers.training.forms import FeatureForm
from workers.training.networks.whitening import BASE, MEAN, TRANSFORM
from workers.training.tasks.task import INPUTS, TARGET

MOST_FEATURES: Final = 8192
_FLOOR: Final = 1e-3
Floats = NDArray[np.float64]


def whiten(services: Services, backbone_id: str, *, check: Callable[[], None]) -> None:
    """Compute a whitened backbone's weights and store them.

    ``check`` is called between batches; its exceptions stop the work.

    Raises:
        RunFailedError: the base's network fails or has too many features, or the public dataset
            has fewer than two records, or none that differ.
        GoneError: the base's weights or the public records are gone.
    """
    with services.database.transaction() as session:
        row = session.get_one(BackboneRow, backbone_id)
        base = session.get_one(BackboneRow, row.base_id)
        dataset = datasets.dataset_named(session, row.public_dataset or "")
        shards = [shard.blob_id for shard in datasets.shards(session, dataset.id) if shard.rows]
        exponent = row.exponent or 0.0
    if not dataset.public:  # definition has checked it; certificates will say it
        raise RunFailedError(f"dataset {dataset.name!r} is not public")
    schema = feature_schema_of(dataset)
    backbone = load_frozen(services, base, schema)
    if backbone.size > MOST_FEATURES:
        raise RunFailedError(
            f"backbone {base.name!r} makes {backbone.size} features of a record, and whitening is "
            f"limited to {MOST_FEATURES}"
        )
    form, digest = FeatureForm.of(schema), ContentDigest(schema)
    moments = Moments(backbone.size)
    for blob_id in shards:
        _, labels, raw = decode_shard(services.blobs.read(blob_id))
        digest.add(labels, raw)
        examples = Examples.of(form, {INPUTS: np.array(raw), TARGET: np.array(labels)})
        for features in backbone.features(examples, device=choose_device()):
            moments.add(features.numpy())
            check()
    mean, transform = moments.whitening(exponent)
    used = Whitening(
        base=backbone.name,
        base_sha256=backbone.sha256,
        dataset=dataset.name,
        dataset_sha256=digest.hexdigest(),
        records=len(digest),
        exponent=exponent,
    )
    content = _file(backbone, mean, transform)
    with services.database.transaction() as session:
        whitening.finish(session, services.blobs, backbone_id, content, used)


def _file(backbone: FrozenBackbone, mean: Floats, transform: Floats) -> bytes:
    tensors = {BASE + name: tensor for name, tensor in backbone.weights.items()}
    tensors[MEAN] = torch.from_numpy(mean.astype(np.float32))
    tensors[TRANSFORM] = torch.from_numpy(transform.astype(np.float32))
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise RunFailedError(f"the features of backbone {backbone.name!r} are too large to whiten")
    return safetensors.torch.save(tensors)


class Moments:
    """Mean and covariance of features that come in parts."""

    def __init__(self, size: int) -> None:
        self.records = 0
        self._origin: Floats | None = None
        self._sum = np.zeros(size)
        self._products = np.zeros((size, size))

    def add(self, features: NDArray[np.float32]) -> None:
        """Add features [n, size]."""
        if not len(features):
            return
        exact = features.astype(np.float64)
        if self._origin is None:
            self._origin = exact.mean(axis=0)
        exact -= self._origin
        self.records += len(exact)
        with repeatable():
            self._sum += exact.sum(axis=0)
            self._products += exact.T @ exact

    def whitening(self, exponent: float) -> tuple[Floats, Floats]:
        """Return m [size] and s U diag(l + 0.001 l0)^(-exponent) [size, size].

        Raises:
            RunFailedError: there are fewer than two records, or none that differ.
        """
        if self.records < 2 or self._origin is None:
            raise RunFailedError("the public dataset has fewer than two records: push more")
        centre = self._sum / self.records
        covariance = self._products / self.records - np.outer(centre, centre)
        with repeatable():
            eigenvalues, vectors = np.linalg.eigh(covariance)
            eigenvalues = np.maximum(eigenvalues, 0.0)
            typical = float(eigenvalues.mean())
            if not typical > 0:
                raise RunFailedError("all public records have the same features: push others")
            scales = (eigenvalues + _FLOOR * typical) ** -exponent
            scales /= np.sqrt((eigenvalues * scales**2).mean())
        return self._origin + centre, vectors * scales
