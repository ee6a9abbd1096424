"""What must hold of a service after any fault."""

import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.client import ExpungeClient
from app.domain.states import BlobState, VersionState
from app.evidence.certificates.note import NoteKey, open_checkpoint, origin_of
from app.evidence.certificates.tables import CertificateRow
from app.evidence.certificates.trusted_keys import read_trusted_keys
from app.evidence.log.tables import LogEntryRow
from app.ledger.tables import ForgetRequestRow, ObligationRow, RunRow
from app.operations import fsck
from app.registry.datasets.tables import DatasetRow, ShardRow
from app.registry.tables import BackboneRow, ModelRow, VersionRow
from app.storage.objects import LocalObjectStore
from app.storage.tables import BlobRow
from tests.support.patience import until
from tests.support.service import Service


def await_completed(client: ExpungeClient, request_id: str) -> dict[str, Any]:
    """Wait for the request's end, through any outage; return its run."""
    request = await_ended(client, request_id)
    assert request["state"] == "completed", request
    (obligation,) = request["obligations"]
    return until(lambda: client.run(obligation["run"]))


def await_ended(client: ExpungeClient, request_id: str) -> dict[str, Any]:
    """Wait until the request is completed or failed, through any outage; return it."""
    return until(
        lambda: (
            (request := client.request(request_id))["state"] in ("completed", "failed") and request
        )
    )


def assert_only_the_head_is_served(client: ExpungeClient, model: str) -> int:
    """Check that the current version can be downloaded and no other; return its number."""
    now = int(client.certified(model)["number"])
    for number in range(1, now):
        assert weights(client, model, number).status_code == 410
    assert weights(client, model, now).status_code == 200
    return now


def weights(client: ExpungeClient, model: str, number: int) -> httpx.Response:
    """Ask for a version's weights."""
    return client.http.get(f"/v1/models/{model}/versions/{number}/weights")


def assert_ledger_in_order(session: Session, *, failed_runs: Collection[str] = ()) -> None:
    """Every request completed once, every run published once, and the log tells exactly that.

    Args:
        session: of the service's database.
        failed_runs: the ids of those that must have failed instead.
    """
    entries = session.scalars(select(LogEntryRow).order_by(LogEntryRow.index)).all()
    assert [entry.index for entry in entries] == list(range(len(entries)))
    bodies = [json.loads(entry.body) for entry in entries]
    told = Counter((body["kind"], body.get("run") or body.get("request")) for body in bodies)
    runs = session.scalars(select(RunRow)).all()
    versions = session.scalars(select(VersionRow)).all()
    assert {run.id for run in runs if run.state == "failed"} == set(failed_runs)
    assert all(told["run.failed", run] == 1 for run in failed_runs)
    published = [run.id for run in runs if run.id not in failed_runs]
    assert {run.state for run in runs if run.id in published} == {"published"}
    assert Counter(version.run_id for version in versions) == Counter(published)
    numbers = {(version.model_id, version.number) for version in versions}
    assert len(numbers) == len(versions)
    assert all(told["version.published", run] == 1 for run in published)
    certificates = session.scalars(select(CertificateRow.id)).all()
    at_once = [body["certificate"] for body in bodies if body["kind"] == "version.covers"]
    assert len(certificates) == len(versions) + len(at_once)
    assert set(certificates) >= {*at_once, *(version.certificate_id for version in versions)}
    assert sum(body["kind"] == "certificate.issued" for body in bodies) == len(certificates)
    requests = session.scalars(select(ForgetRequestRow)).all()
    assert {request.state for request in requests} <= {"completed"}
    assert all(told["request.completed", request.id] == 1 for request in requests)
    published_by = {version.run_id: version.certificate_id for version in versions}
    for obligation in session.scalars(select(ObligationRow)):
        if obligation.certificate_id not in at_once:
            assert obligation.certificate_id == published_by[obligation.run_id]


def only_what_is_current_is_stored(service: Service) -> bool:
    """Say whether just heads, shards and public weights are stored, in database and files."""
    with service.database() as database, database.transaction() as session:
        of_heads = select(VersionRow.blob_id, VersionRow.statistics_blob_id).join(
            ModelRow, ModelRow.head_version_id == VersionRow.id
        )
        heads = session.execute(of_heads).all()
        of_versions = {blob_id for row in heads for blob_id in row if blob_id is not None}
        backbones = select(BackboneRow.blob_id).where(BackboneRow.archived_at.is_(None))
        public = session.scalars(backbones.where(BackboneRow.blob_id.is_not(None)))
        shards = select(ShardRow.blob_id).join(DatasetRow, DatasetRow.id == ShardRow.dataset_id)
        living = session.scalars(shards.where(DatasetRow.archived_at.is_(None)))
        current = of_versions | {*living, *public}
        query = select(BlobRow.id).where(BlobRow.state != BlobState.SHREDDED)
        stored = set(session.scalars(query))
        states = Counter(session.scalars(select(VersionRow.state)))
    on_disk = set(LocalObjectStore(service.data_dir / "blobs").names())
    return (
        stored == current == on_disk
        and states[VersionState.CERTIFIED] == len(heads)
        and states[VersionState.RETIRED] == 0
    )


def assert_head_verifies(client: ExpungeClient, model: str, directory: Path) -> Path:
    """Check the current version's weights and certificate offline; return the weights' file."""
    return client.download(model, directory, trusted=client.trusted_keys()).weights


def assert_log_without_fault(service: Service, client: ExpungeClient, *, kept: bytes) -> bytes:
    """Check the whole log, every certificate, and that it grew out of a checkpoint.

    Args:
        service, client: whose log it is.
        kept: an older checkpoint; empty if there is none.

    Returns:
        The newest checkpoint.
    """
    keys = [key.public_key for key in read_trusted_keys(client.trusted_keys()).keys]
    note = client.log_checkpoint().encode()
    faults: list[fsck.Fault] = []
    with service.database() as database:
        fsck.check(
            database,
            keys=keys,
            report=faults.append,
            kept=[
                open_checkpoint(n, [NoteKey(origin_of(n), key) for key in keys])
                for n in (kept, note)
                if n
            ],
        )
    assert faults == []
    return note
