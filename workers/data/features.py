"""A frozen backbone's features of a dataset: stored ones, and new ones for the rest.

They are stored as float16. What is computed for the first time is rounded alike before it is used,
so that a model does not depend on which features were stored.
"""

from collections.abc import Callable

import numpy as np

from app.datasets import features
from app.datasets.features import FeatureSource
from app.datasets.service import feature_schema_of
from app.datasets.shards import decode_shard, encode_shard
from app.datasets.tables import DatasetRow
from app.domain.errors import GoneError
from app.services import Services
from workers.data.backbone import FrozenBackbone
from workers.training.data import Examples
from workers.training.device import choose_device

_ATTEMPTS = 5
Part = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Seqs, labels and features [n, size]; those of a frozen backbone are float16."""


class FeatureReader:
    """Reads the features of shards, and stores those that are computed here."""

    def __init__(
        self,
        services: Services,
        dataset_id: str,
        backbone: FrozenBackbone,
        *,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Read the dataset's schema.

        ``check`` is called between batches; its exceptions stop the work.
        """
        with services.database.transaction() as session:
            self._records = feature_schema_of(session.get_one(DatasetRow, dataset_id))
        self._services = services
        self._backbone = backbone
        self._check = check

    def read(self, shard_id: str) -> Part:
        """Return a shard's current features.

        If an erasure rewrites the shard meanwhile, the rewritten shard is read instead.

        Raises:
            GoneError: the shard kept changing while it was read.
        """
        for _ in range(_ATTEMPTS):
            with self._services.database.transaction() as session:
                source = features.source_of(
                    session,
                    shard_id,
                    backbone_id=self._backbone.id,
                    weights_sha256=self._backbone.sha256,
                )
            try:
                if source.features_blob_id is not None:
                    return decode_shard(self._services.blobs.read(source.features_blob_id))
                part = self._computed(source)
            except GoneError:
                continue
            if part is not None:
                return part
        raise GoneError("a shard of the dataset kept changing while it was read")

    def _computed(self, source: FeatureSource) -> Part | None:
        """Compute and store features; None if the shard has changed meanwhile."""
        seqs, labels, raw = decode_shard(self._services.blobs.read(source.shard_blob_id))
        computed = self._compute(labels, raw)
        content = encode_shard(seqs=seqs, labels=labels, features=computed)
        with self._services.database.transaction() as session:
            current = features.add(session, self._services.blobs, source, content)
        return (seqs, labels, computed) if current else None

    def _compute(self, labels: np.ndarray, raw: np.ndarray) -> np.ndarray:
        # Copies: torch needs writable memory.
        examples = Examples.of_schema(np.array(raw), np.array(labels), self._records)
        computed = np.empty((len(labels), self._backbone.size), dtype=np.float16)
        if not len(labels):
            return computed
        done = 0
        for batch in self._backbone.stored(examples, device=choose_device()):
            computed[done : done + len(batch)] = batch
            done += len(batch)
            self._check()
        return computed
