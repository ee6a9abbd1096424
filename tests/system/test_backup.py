"""A real backup, somebody forgotten after it, and a restore: docs/operations/backup.md.

The database is dumped and restored with PostgreSQL's own tools, and the objects of the backup are
put beside the present ones. The key store is the present one, as the page asks for.
"""

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from typer.testing import CliRunner

from app.cli.application import app_from_environment
from app.cli.main import app as command_line
from app.registry.tables import VersionRow
from app.runtime.locations import object_dir
from app.storage.tables import BlobRow
from tests.support.backups import dump, restore
from tests.support.digits import DATASET, digits_parquet, model
from tests.support.trust import trust_in

FORGOTTEN = {"dataset": "digits", "subject_ids": ["subject-0"]}  # ten records: not all held out


@dataclass
class Restored:
    """A service over a ledger from before somebody was forgotten."""

    api: TestClient
    kept_checkpoint: Path
    first_weights: bytes
    released_after: str

    def weights(self, number):
        return self.api.get(f"/v1/models/digits-mlp/versions/{number}/weights")


@pytest.fixture
def restored(api, services, servers, work, tmp_path):
    assert api.post("/v1/datasets", json=DATASET).status_code == 201
    assert api.put("/v1/datasets/digits/records", content=digits_parquet()).status_code == 200
    assert api.post("/v1/models", json=model()).status_code == 201
    work()
    first = api.get("/v1/models/digits-mlp/versions/1/weights").content
    dump(servers, services.settings.database_url, tmp_path / "ledger.dump")
    objects = object_dir(services.settings)
    shutil.copytree(objects, tmp_path / "objects")
    request = api.post("/v1/forget-requests", json=FORGOTTEN).json()["id"]
    work()
    assert api.get(f"/v1/forget-requests/{request}").json()["state"] == "completed"
    with services.database.transaction() as session:
        query = select(VersionRow.blob_id).where(VersionRow.number == 2)
        released_after = session.scalars(query).one()
    services.checkpoint_log()
    kept = tmp_path / "kept-checkpoint"
    kept.write_text(api.get("/v1/log/checkpoint").text)
    services.database.dispose()
    restore(servers, services.settings.database_url, tmp_path / "ledger.dump")
    shutil.copytree(tmp_path / "objects", objects, dirs_exist_ok=True)
    return Restored(api, kept, first, released_after)


def run(*arguments):
    return CliRunner().invoke(command_line, arguments)


def fsck(services, *arguments):
    trusted = services.settings.trusted_keys_file
    trusted.write_bytes(trust_in(services))
    return run("log", "fsck", "--trusted", str(trusted), *arguments)


def test_what_was_shredded_after_the_backup_stays_unreadable(restored, caplog):
    assert restored.api.get("/v1/models/digits-mlp/certified").json()["number"] == 1
    assert restored.first_weights
    answer = restored.weights(1)
    assert answer.status_code == 410
    assert "destroyed" in answer.json()["detail"]
    with caplog.at_level(logging.CRITICAL):
        app = app_from_environment()
    assert "restored from a backup: run 'expunge reconcile'" in caplog.text
    ready = TestClient(app).get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (503, "unavailable")
    assert "run 'expunge reconcile'" in ready.json()["ledger"]


def test_a_checkpoint_that_was_kept_shows_what_the_ledger_lost(restored, services):
    assert fsck(services).exit_code == 0
    against = fsck(services, "--consistent-with", str(restored.kept_checkpoint))
    assert against.exit_code == 1
    assert "covers entries that do not exist" in against.output


def test_reconciling_forgets_again_and_trains_anew(restored, services, work):
    looked = run("reconcile")
    assert looked.exit_code == 1
    assert restored.api.get("/v1/models/digits-mlp/certified").status_code == 200

    applied = run("reconcile", "--apply")
    assert applied.exit_code == 0, applied.output
    for line in (
        "retired: digits-mlp 1",
        "rewritten shards adopted: 1; lost: 0",
        "records that count as forgotten again: 10",
        "objects newer than the backup, to be shredded: 1",
    ):
        assert line in applied.output
    app = app_from_environment()
    ready = TestClient(app).get("/readyz")
    app.state.services.database.dispose()  # else the ledger is not reconciled again
    assert (ready.status_code, ready.json()["ledger"]) == (200, "ok")
    assert restored.weights(1).status_code == 410
    assert "after the backup" in restored.weights(1).json()["detail"]
    assert restored.api.get("/v1/models/digits-mlp/certified").status_code == 404
    assert not services.blobs._keys.holds(restored.released_after)

    work()
    assert restored.api.get("/v1/models/digits-mlp/certified").json()["number"] == 2
    assert restored.weights(2).status_code == 200
    with services.database.transaction() as session:
        states = dict(session.execute(select(VersionRow.number, VersionRow.state)).all())
        live = set(session.scalars(select(BlobRow.id).where(BlobRow.state == "live")))
        doomed = session.scalars(select(BlobRow.id).where(BlobRow.state == "doomed")).all()
    assert states == {1: "shredded", 2: "certified"}
    assert doomed == []
    assert {path.name for path in object_dir(services.settings).iterdir()} == live
    assert run("reconcile").exit_code == 0
    assert fsck(services).exit_code == 0

    again = restored.api.post("/v1/forget-requests", json=FORGOTTEN)
    assert again.status_code == 201  # version 2 was trained without them
    work()
    answer = restored.api.get(f"/v1/forget-requests/{again.json()['id']}").json()
    assert answer["state"] == "completed"


def test_a_record_that_was_forgotten_after_the_backup_is_a_new_one(restored, services):
    assert run("reconcile", "--apply").exit_code == 0
    back = restored.api.put("/v1/datasets/digits/records", content=digits_parquet(8))
    assert back.status_code == 200
    assert back.json()["added"] + back.json()["already_present"] == 8
    assert back.json()["added"] > 0


def test_without_a_restore_there_is_nothing_to_reconcile(api, services, work, caplog):
    assert api.post("/v1/datasets", json=DATASET).status_code == 201
    assert api.put("/v1/datasets/digits/records", content=digits_parquet()).status_code == 200
    assert api.post("/v1/models", json=model()).status_code == 201
    api.post("/v1/forget-requests", json=FORGOTTEN)
    work()
    told = run("reconcile")
    assert (told.exit_code, told.output) == (0, "the ledger agrees with keys and objects\n")
    app_from_environment()
    assert "reconcile" not in caplog.text
