"""A frozen backbone's features of a dataset: stored ones, and new ones for the rest.

They are stored as float16. What is computed for the first time is rounded alike before it is used,
so that a model does not depend on which features were stored.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import ConflictError
from app.registry.datasets import features
from app.registry.datasets.features import FeatureSource
from app.registry.datasets.shards import seqs_of_shard
from app.services import Services
from workers.data.backbone import FrozenBackbone
from workers.data.shards import as_it_is_now
from workers.seal.write_guard import store_reachable
from workers.training.examples import Examples
from workers.training.forms import InputForm
from workers.training.part import Decode, Part, Wanted, places_of
from workers.training.tasks.task import INPUTS
from workers.training.team import choose_device

_ALONE: Final = 32


@dataclass(frozen=True)
class FeatureReader:
    """Reads the features of shards, and stores those that are computed here.

    Attributes:
        services: database and blobs.
        backbone: what computes them.
        form: of what it reads.
        decode: makes a shard's tensors of its content.
        reading_sha256: of how ``decode`` reads records.
        check: called between batches; its exceptions stop the work.
    """

    services: Services
    backbone: FrozenBackbone
    form: InputForm
    decode: Decode
    reading_sha256: str
    check: Callable[[], None] = lambda: None

    def read(self, shard_id: str, wanted: Wanted) -> Part:
        """Return a shard's current features.

        Raises:
            GoneError: the shard kept changing while it was read.
        """
        return as_it_is_now(lambda: self._current(shard_id, self._computed)).only(wanted)

    def read_stored(self, shard_id: str, wanted: Wanted) -> Part:
        """Return a shard's current features, which were stored before; nothing is written.

        Without features, it must hold no wanted record: it was erased whole or pushed since.

        Raises:
            GoneError: there are none any more, or the shard kept changing while it was read.
        """

        def nothing(source: FeatureSource) -> Part | None:
            with store_reachable():
                seqs = seqs_of_shard(self.services.blobs.read(source.shard_blob_id))
            found = seqs if wanted is None else seqs[places_of(seqs, wanted)[0]]
            return None if len(found) else Part(found, {})

        return as_it_is_now(lambda: self._current(shard_id, nothing)).only(wanted)

    def anew(self, shard_id: str, wanted: Wanted) -> Part:
        """Return a shard's features computed again of its records; nothing is written.

        The records come in another order, so that each has others beside and before it, and some
        are computed by themselves.

        Raises:
            ConflictError: the features that are stored, or those of one record alone, are others.
        """
        return as_it_is_now(lambda: self._again(self._source(shard_id))).only(wanted)

    def _again(self, source: FeatureSource) -> Part:
        raw = self.decode(self.services.blobs.read(source.shard_blob_id), None)
        count = len(raw.seqs)
        if not count:
            return raw
        found = self._compute(raw.rows(np.arange(count)[::-1]))[::-1]
        expected = found
        if source.features_blob_id is not None:
            stored = Part.of_bytes(self.services.blobs.read(source.features_blob_id))
            expected = stored.tensors[INPUTS]
        alone = np.unique(np.linspace(0, count - 1, min(count, _ALONE), dtype=np.int64))
        same = np.array_equal(found, expected) and all(
            np.array_equal(found[[row]], self._compute(raw.rows(np.array([row])))) for row in alone
        )
        if not same:
            raise ConflictError(
                f"features of backbone {self.backbone.name!r} are others if they are computed "
                "again in another order: they are not of one record alone"
            )
        return Part(raw.seqs, {**raw.tensors, INPUTS: found})

    def _current(
        self, shard_id: str, compute: Callable[[FeatureSource], Part | None]
    ) -> Part | None:
        source = self._source(shard_id)
        if source.features_blob_id is None:
            return compute(source)
        with store_reachable():
            return Part.of_bytes(self.services.blobs.read(source.features_blob_id))

    def _source(self, shard_id: str) -> FeatureSource:
        with self.services.database.transaction() as session:
            return features.source_of(
                session,
                shard_id,
                backbone_id=self.backbone.id,
                weights_sha256=self.backbone.sha256,
                reading_sha256=self.reading_sha256,
            )

    def _computed(self, source: FeatureSource) -> Part | None:
        """Compute and store features; None if the shard has changed meanwhile.

        Of a shard that was erased whole there are none to store.
        """
        raw = self.decode(self.services.blobs.read(source.shard_blob_id), None)
        if not len(raw.seqs):
            return raw
        computed = Part(raw.seqs, {**raw.tensors, INPUTS: self._compute(raw)})
        with self.services.database.transaction() as session:
            blobs = self.services.blobs
            current = features.add(session, blobs, source, computed.to_bytes())
        return computed if current else None

    def _compute(self, raw: Part) -> NDArray[np.float16]:
        # Copies: torch needs writable memory.
        copied = {name: np.array(values) for name, values in raw.tensors.items()}
        examples = Examples.of(self.form, copied)
        computed = np.empty((len(raw.seqs), self.backbone.size), dtype=np.float16)
        done = 0
        for batch in self.backbone.stored(examples, device=choose_device()):
            computed[done : done + len(batch)] = batch
            done += len(batch)
            self.check()
        return computed
