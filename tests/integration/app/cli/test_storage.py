"""``expunge storage``: its check, and keys that move to a service and on to another one."""

import subprocess
import sys

import pytest
from sqlalchemy import select
from typer.testing import CliRunner

from app.cli.main import app
from app.domain.errors import KeyStoreError
from app.evidence.log.tables import LogEntryRow
from app.runtime.settings import Settings
from app.services import Services
from app.storage.stores import key_store, object_store
from tests.support.key_keepers import Kms, Vault
from tests.support.stored import live
from tests.support.workshop import Workshop

runner = CliRunner()


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
