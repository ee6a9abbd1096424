"""Adapts a ledger restored from a backup to what was shredded since the backup.

Keys and objects are not restored, so what was shredded after the backup stays unreadable while the
restored ledger still refers to it. The ledger is changed as follows:

 1. An unreadable shard was rewritten because records of it were forgotten. The rewritten shard is
    found among the objects that the ledger does not know, and adopted. Records missing from it
    count as forgotten again; for which request is unknown.
 2. A version that is unreadable, or that learned from records of step 1, is retired. Its model is
    trained again without them, or waits for its weights to be uploaded again.
 3. Any other object unknown to the ledger was written after the backup. Nothing can refer to it any
    more, so the caller shreds it.

The signing key, too, may have been rotated since. The file of trusted keys then says which keys
followed the one in use, and when; without it, the present key follows at once.

Requests received after the backup are not in the ledger; their senders must send them again.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.domain.errors import CalibrationError, ConfigurationError, ParameterError, PlanError
from app.domain.states import BlobState, RunKind, WeightsSource
from app.evidence import log
from app.evidence.certificates.signing import StatementSigner
from app.evidence.certificates.trusted_keys import TrustedKeys
from app.evidence.log import signing_keys
from app.ledger import runs
from app.ledger.withdrawal import withdraw
from app.registry import counts
from app.registry import repository as registry
from app.registry.datasets import digests, features
from app.registry.datasets import repository as datasets
from app.registry.datasets.shards import seqs_of_shard
from app.registry.datasets.tables import FeatureShardRow, RecordRow, ShardRow
from app.registry.forecasts import Occasion
from app.registry.membership import membership_of
from app.registry.tables import BackboneRow, ModelRow, VersionRow
from app.storage.blobs import Blobs, doom
from app.storage.tables import BlobRow

REASON = (
    "its weights, or records that they learned from, were shredded after the backup that this "
    "ledger was restored from"
)
_SHARD = "shard"


@dataclass
class Findings:
    """What was changed.

    Attributes:
        versions: retired versions, as ``model version``.
        shards_succeeded, shards_lost: unreadable shards with and without a rewritten successor.
        records_forgotten: records that are in no shard any more and count as forgotten again.
        other_objects: unreadable features, imported weights and backbones.
        attention: what the operator must do.
        signing_key_replaced: the key in use had been rotated after the backup.
        orphans: blobs unknown to the ledger, to be shredded after the commit.
    """

    versions: list[str] = field(default_factory=list)
    shards_succeeded: int = 0
    shards_lost: int = 0
    records_forgotten: int = 0
    other_objects: int = 0
    attention: list[str] = field(default_factory=list)
    signing_key_replaced: bool = False
    orphans: set[str] = field(default_factory=set)

    @property
    def is_empty(self) -> bool:
        """Whether ledger and stores agree."""
        return self == Findings()


def reconcile(
    session: Session, blobs: Blobs, signer: StatementSigner, known: TrustedKeys | None = None
) -> Findings:
    """Change the ledger to match the stores; no other part of the service may be running.

    ``signer`` holds the present key; verifiers trust the ``known`` ones, which may be older.

    Raises:
        ObjectStoreError, KeyStoreError, KeyServiceError: a store does not answer, so a comparison
            is impossible.
        ConfigurationError: the stores are not those of this ledger.
    """
    blobs.require_keys()
    found = Findings(orphans=blobs.orphans(session))
    lost = _unreadable(session, blobs, orphans=found.orphans)
    found.signing_key_replaced = signing_keys.succeed_lost(session, signer, known)
    tainted = _take_in_rewritten_shards(session, blobs, lost, found)
    for model in registry.models(session):
        head = registry.head_version(session, model)
        if head is not None and (head.blob_id in lost or model.id in tainted):
            _begin_anew(session, model, head, found)
    _drop_others(session, lost, found)
    for blob_id in lost:
        doom(session, blob_id)
    if not found.is_empty:
        log.append(
            session,
            "ledger.reconciled",
            versions=len(found.versions),
            shards=found.shards_succeeded + found.shards_lost,
            records=found.records_forgotten,
            unknown_objects=len(found.orphans),
        )
    return found


def _unreadable(session: Session, blobs: Blobs, *, orphans: Collection[str]) -> set[str]:
    live = session.scalars(select(BlobRow.id).where(BlobRow.state == BlobState.LIVE)).all()
    lost = {blob_id for blob_id in live if not blobs.is_readable(blob_id)}
    if lost and len(lost) == len(live) and not orphans:
        raise ConfigurationError(
            f"none of {len(live)} stored objects can be read: key store or object store are not "
            "those of this ledger"
        )
    return lost


def _take_in_rewritten_shards(
    session: Session, blobs: Blobs, lost: Collection[str], found: Findings
) -> set[str]:
    """Replace unreadable shards; return the models that learned from lost records."""
    shards = [row for row in session.scalars(select(ShardRow)) if row.blob_id in lost and row.rows]
    if not shards:
        return set()
    rewritten = {i: c for i in found.orphans if (c := blobs.read_orphan(i, _SHARD)) is not None}
    seqs_of = {i: set(seqs_of_shard(content).tolist()) for i, content in rewritten.items()}
    tainted: set[str] = set()
    for shard in shards:
        held = set(session.scalars(select(RecordRow.seq).where(RecordRow.shard_id == shard.id)))
        successors = [i for i, seqs in seqs_of.items() if seqs and seqs <= held]
        successor = min(successors, key=lambda i: len(seqs_of[i]), default=None)
        left = set() if successor is None else seqs_of[successor]
        tainted |= _forget(session, shard.dataset_id, held - left, found)
        shard.rows = len(left)
        if successor is None:
            found.shards_lost += 1
            found.attention.append(
                f"{len(held)} records of a shard are lost, or were all forgotten: they count as "
                "forgotten"
            )
        else:
            blobs.take_in(
                session, successor, _SHARD, rewritten[successor], dataset_id=shard.dataset_id
            )
            shard.blob_id = successor
            found.orphans.discard(successor)
            found.shards_succeeded += 1
        features.give_up(session, shard_id=shard.id)  # workers compute them again
    return tainted


def _forget(session: Session, dataset_id: str, seqs: Collection[int], found: Findings) -> set[str]:
    """Count records as forgotten and erased; return the models that learned from them."""
    rows = datasets.lock_records(session, seqs)
    remembered = [row for row in rows if row.forgotten_epoch is None]
    lineages = {
        model.id: membership
        for model in registry.models_of_dataset(session, dataset_id)
        if (membership := membership_of(model)) is not None
    }
    models = {
        model_id
        for model_id, membership in lineages.items()
        if any(map(membership.touched_by, remembered))
    }
    if remembered:
        dataset = datasets.lock_dataset(session, dataset_id)
        dataset.forget_epoch += 1
        dataset.remembered -= len(remembered)
        session.flush()
        counts.forget(session, lineages.items(), remembered)
        epoch = dataset.forget_epoch
        datasets.mark_forgotten(session, dict.fromkeys((r.seq for r in remembered), epoch))
        log.append(
            session,
            "records.lost",
            dataset=dataset_id,
            records=len(remembered),
            rows=digests.marked(dataset_id, epoch, [r.seq for r in remembered]),
        )
    erased = sum(row.erased_at is None for row in rows)
    datasets.mark_erased(session, seqs)
    log.append(session, "records.erased", dataset=dataset_id, records=erased)
    found.records_forgotten += len(remembered)
    return models


def _begin_anew(session: Session, model: ModelRow, head: VersionRow, found: Findings) -> None:
    """Retire a version and arrange for another one, without the records that it lacks."""
    found.versions.append(f"{model.name} {head.number}")
    _withdraw(session, model)
    if model.weights_source == WeightsSource.UPLOAD:
        found.attention.append(f"model {model.name!r}: upload its weights again")
        return
    try:
        forecast = Occasion.of(session, model).forecast()
        runs.create_run(session, model, RunKind.TRAIN, forecast)
    except (PlanError, ParameterError, CalibrationError):
        found.attention.append(f"model {model.name!r}: define it again under another name")


def _withdraw(session: Session, model: ModelRow) -> None:
    runs.end_for_good(session, model.id, reason=REASON)
    withdraw(session, model, reason=REASON)


def _drop_others(session: Session, lost: Collection[str], found: Findings) -> None:
    """Give up features, statistics, imported weights and backbones that cannot be read."""
    for kept in session.scalars(select(FeatureShardRow)).all():
        if kept.blob_id in lost:
            session.delete(kept)
            found.other_objects += 1
    for version in session.scalars(
        select(VersionRow).where(VersionRow.statistics_blob_id.in_(lost))
    ).all():  # the next run makes them anew
        version.statistics_blob_id = None
        log.append(session, "statistics.lost", version=version.id)
        found.other_objects += 1
    for model in session.scalars(select(ModelRow)).all():
        if model.imported_blob_id in lost:
            _withdraw(session, model)
            found.other_objects += 1
            found.attention.append(f"model {model.name!r}: upload its weights again")
    for backbone in session.scalars(select(BackboneRow)).all():
        if backbone.blob_id in lost:
            backbone.blob_id = backbone.sha256 = backbone.size_bytes = None
            # Other weights may take their place: features of both must not meet in one model.
            features.give_up(session, backbone_id=backbone.id)
            log.append(session, "backbone.lost", backbone=backbone.id)
            found.other_objects += 1
            found.attention.append(f"backbone {backbone.name!r}: upload its weights again")
