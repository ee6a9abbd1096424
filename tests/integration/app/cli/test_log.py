"""``expunge log``: keeping a checkpoint, and checking the whole log."""

import json
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from typer.testing import CliRunner

from app.cli.main import app
from app.evidence.certificates.signing import StatementSigner
from app.evidence.log import signing_keys
from app.services import Services
from tests.support.logbook import altered, bodies, forging, opened, rewrite, sign, write
from tests.support.trust import trust_in

runner = CliRunner()


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
