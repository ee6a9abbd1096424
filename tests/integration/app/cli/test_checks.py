"""``expunge erase-check``, ``log`` and ``storage``: faults, and keys that move to a service."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine, select, text
from typer.testing import CliRunner

from app.cli.main import app
from app.domain.errors import KeyStoreError
from app.evidence.certificates.signing import StatementSigner
from app.evidence.log import signing_keys
from app.evidence.log.tables import LogEntryRow
from app.runtime.settings import Settings
from app.services import Services
from app.storage.stores import key_store, object_store
from tests.support.key_keepers import Kms, Vault
from tests.support.logbook import altered, bodies, forging, opened, rewrite, sign, write
from tests.support.stored import live
from tests.support.trust import trust_in
from tests.support.workshop import DATASET, Workshop

runner = CliRunner()


def test_a_completed_request_passes_and_a_left_id_does_not(
    workshop: Workshop, services: Services
) -> None:
    workshop.forget("record-12")
    services.clean_up()
    answer = runner.invoke(app, ["erase-check", "record-12", "--dataset", DATASET])
    assert answer.exit_code == 0, answer.output
    assert "by design: record " in answer.stdout
    assert answer.stdout.endswith("2 by design, 0 pending, 0 unsearched, 0 fault\nno fault\n")

    logs = services.settings.data_dir / "log"
    logs.mkdir(exist_ok=True)
    (logs / "redis.log").write_text("record-12")
    answer = runner.invoke(app, ["erase-check", "-", "--dataset", DATASET], input="record-12\n")
    assert answer.exit_code == 1
    assert answer.stderr == "1 fault(s)\n"
    assert "redis.log: holds the id, or a longer one that contains it\n" in answer.stdout
    assert "record-12" not in answer.output


def test_an_id_that_was_never_pushed_is_not_taken_for_erased(workshop: Workshop) -> None:
    answer = runner.invoke(app, ["erase-check", "Record-12", "--dataset", DATASET])
    assert answer.exit_code == 0, answer.output
    assert "nothing is known of this id: is it spelled as in the records?" in answer.stdout


def test_an_unknown_dataset_is_told_in_words(services: Services) -> None:
    answer = runner.invoke(app, ["erase-check", "somebody", "--dataset", "nothing"])
    assert answer.exit_code == 1
    assert answer.stderr == "error: no dataset named 'nothing'\n"


@pytest.fixture
def public_key(services: Services) -> Path:
    """The trusted keys where ``expunge init`` leaves them."""
    with services.database.transaction() as session:
        signing_keys.require_in_use(session, services.signer)
    path = services.settings.trusted_keys_file
    path.write_bytes(trust_in(services))
    return path


def test_a_checkpoint_is_printed_as_it_was_signed(served: None, services: Services) -> None:
    write(services, 3)
    note = sign(services)
    answer = runner.invoke(app, ["log", "checkpoint"])
    assert answer.exit_code == 0
    assert answer.stdout.encode() == note


def test_a_log_in_order_passes(services: Services, public_key: Path, tmp_path: Path) -> None:
    write(services, 6)
    kept = tmp_path / "kept"
    kept.write_bytes(sign(services))
    write(services, 2)
    answer = runner.invoke(app, ["log", "fsck", "--consistent-with", str(kept)])
    assert answer.exit_code == 0, answer.output
    assert "10 entries, 1 checkpoints, 0 certificates, 1 rows, root " in answer.stdout
    assert answer.stdout.endswith("no fault\n")


def test_each_fault_is_printed(services: Services, app_database: Engine, public_key: Path) -> None:
    write(services, 8, sign=True)
    with forging(app_database) as connection:
        connection.execute(text("UPDATE tree_nodes SET hash = sha256(hash) WHERE level > 1"))
    answer = runner.invoke(app, ["log", "fsck"])
    assert answer.exit_code == 1
    for place in ("2/0", "2/1", "3/0"):
        assert f"node {place}: differs from its entries\n" in answer.stdout
    assert answer.stderr == "3 fault(s)\n"
    found = json.loads(runner.invoke(app, ["log", "fsck", "--json"]).stdout)
    assert [fault["where"] for fault in found["faults"]] == ["node 2/0", "node 2/1", "node 3/0"]
    assert found["entries"] == 9


def test_a_rewritten_log_fails_against_a_kept_checkpoint(
    services: Services, app_database: Engine, public_key: Path, tmp_path: Path
) -> None:
    write(services, 6)
    kept = tmp_path / "kept"
    kept.write_bytes(sign(services))
    first, *others = bodies(services)
    rewrite(app_database, services, [altered(first), *others])
    assert runner.invoke(app, ["log", "fsck"]).exit_code == 0
    answer = runner.invoke(app, ["log", "fsck", "--consistent-with", str(kept)])
    assert answer.exit_code == 1
    assert "kept checkpoint 8: its root is not that of the entries\n" in answer.stdout
    assert "kept checkpoint 8: it belongs to a log with another first entry\n" in answer.stdout


def test_keys_and_checkpoints_that_cannot_be_used_are_told_in_words(
    services: Services, public_key: Path, tmp_path: Path
) -> None:
    write(services, 1)
    note = sign(services)
    stranger = StatementSigner.from_file(tmp_path / "stranger.pem", create=True)
    forged = tmp_path / "forged"
    origin = opened(services, note).origin
    forged.write_text(stranger.sign_note(note.decode().rpartition("\n\n")[0] + "\n", name=origin))
    for arguments, words in (
        (["--consistent-with", str(forged)], "not signed by a trusted key"),
        (["--consistent-with", str(public_key)], f"{public_key} is not a checkpoint of this log"),
        (["--consistent-with", str(tmp_path / "nowhere")], "No such file"),
        (["--trusted", str(forged)], "not a list of trusted keys"),
    ):
        answer = runner.invoke(app, ["log", "fsck", *arguments])
        assert answer.exit_code == 1
        assert words in answer.stderr


def test_a_store_in_order_passes_and_a_stranger_does_not(
    workshop: Workshop, services: Services
) -> None:
    with services.database.transaction() as session:
        services.blobs.reserve(session, "weights")
    alone = [sys.executable, "-m", "app.cli", "storage", "check"]  # nothing else is imported there
    answer = subprocess.run(alone, check=False, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.endswith("1 objects, 1 keys, 2 rows: 1 pending, 0 fault\nno fault\n")

    object_store(services.settings).write("stranger", [b"content"])
    answer = runner.invoke(app, ["storage", "check"])
    assert answer.exit_code == 1
    assert "fault: object stranger: no row" in answer.stdout
    assert answer.stderr == "1 fault(s)\n"


def test_keys_move_to_a_service_and_on_to_another_one_and_back(
    services: Services, kms: Kms, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = live(services.blobs, "weights", b"content")
    key = key_store(Settings()).get(blob.id)

    def rewrapped_from(before: str) -> None:
        with pytest.raises(KeyStoreError):
            key_store(Settings()).get(blob.id)
        answer = runner.invoke(app, ["storage", "rewrap-keys", "--from", before])
        assert (answer.exit_code, answer.stdout) == (0, "1 keys are wrapped anew\n"), answer.stderr
        assert key_store(Settings()).get(blob.id) == key

    for name, value in kms.variables.items():
        monkeypatch.setenv(f"EXPUNGE_{name}", value)
    rewrapped_from("directory")
    for name, value in vault.variables.items():
        monkeypatch.setenv(f"EXPUNGE_{name}", value)
    monkeypatch.delenv("EXPUNGE_KMS_KEY")
    rewrapped_from(f"kms:{kms.variables['KMS_KEY']}")
    monkeypatch.delenv("EXPUNGE_VAULT_KEY")
    rewrapped_from("vault:expunge")
    with services.database.transaction() as session:
        kinds = session.scalars(select(LogEntryRow.kind)).all()
    assert kinds.count("storage_keys.rotated") == 3


@pytest.mark.parametrize("before", ["elsewhere", "kms:", "vault:expunge", "directory:"])
def test_what_is_no_place_of_keys_is_refused(services: Services, before: str) -> None:
    answer = runner.invoke(app, ["storage", "rewrap-keys", "--from", before])
    assert answer.exit_code == 1
    assert "is not directory, kms:KEY or vault:KEY" in answer.stderr
