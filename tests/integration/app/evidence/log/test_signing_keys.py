"""The operator's file of trusted keys keeps what it says, whatever is written into the ledger."""

from datetime import UTC, datetime, timedelta

import pytest
from click.testing import Result
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import Engine, text
from typer.testing import CliRunner

from app.cli.main import app as command_line
from app.evidence.certificates.signing import StatementSigner, public_pem
from app.evidence.certificates.trusted_keys import TrustedKeys, read_trusted_keys
from app.evidence.log import signing_keys
from app.evidence.log.signing_keys import ensure_trusted_keys
from app.runtime.locations import signing_key_file
from app.services import Services
from tests.support.logbook import faults, write

INIT, ROTATE, RECONCILE = ["init"], ["signing-key", "rotate"], ["reconcile", "--apply"]
NEXT = StatementSigner(Ed25519PrivateKey.generate())
ADDED = f"key {NEXT.key_id}: only the second has it"
# What the service's role may write.
ANOTHER_IN_USE = (
    "UPDATE signing_keys SET valid_until = now(), compromised_since = '2020-01-01'"
    " WHERE valid_until IS NULL; INSERT INTO signing_keys (id, pem, valid_from)"
    f" VALUES ('{NEXT.key_id}', '{public_pem(NEXT.public_key)}', now())"
)
ANOTHER_THAT_ENDED = (
    "INSERT INTO signing_keys (id, pem, valid_from, valid_until)"
    f" VALUES ('{NEXT.key_id}', '{public_pem(NEXT.public_key)}', '2020-01-01', '2021-01-01')"
)
COMPROMISED = (
    "UPDATE signing_keys SET compromised_since = '2020-01-01T00:00Z' WHERE valid_until IS NULL"
)


@pytest.fixture
def known(services: Services, app_database: Engine, monkeypatch: pytest.MonkeyPatch) -> TrustedKeys:
    """What the first ``init`` wrote."""
    owner = app_database.url.render_as_string(hide_password=False)
    monkeypatch.setenv("EXPUNGE_MIGRATION_URL", owner)
    assert _run(INIT).exit_code == 0
    return _file(services)


def _run(arguments: list[str]) -> Result:
    return CliRunner().invoke(command_line, arguments)


def _file(services: Services) -> TrustedKeys:
    return read_trusted_keys(services.settings.trusted_keys_file.read_bytes())


def _in_use(services: Services) -> str:
    with services.database.transaction() as session:
        return next(key.id for key in signing_keys.all_keys(session) if key.valid_until is None)


def test_what_is_there_is_kept(services: Services, known: TrustedKeys) -> None:
    assert [key.id for key in known.keys] == [services.signer.key_id]
    before = services.settings.trusted_keys_file.read_bytes()
    for arguments in (INIT, RECONCILE):
        answer = _run(arguments)
        assert answer.exit_code == 0, answer.output
        assert services.settings.trusted_keys_file.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "arguments", "named"),
    [
        (ANOTHER_IN_USE, INIT, ADDED),
        (ANOTHER_IN_USE, ROTATE, "is not the one in use"),
        (ANOTHER_IN_USE, RECONCILE, ADDED),
        (ANOTHER_THAT_ENDED, INIT, ADDED),
        (ANOTHER_THAT_ENDED, ROTATE, ADDED),
        (ANOTHER_THAT_ENDED, RECONCILE, ADDED),
        (COMPROMISED, INIT, "{own}, compromised_since: None, 2020-01-01"),
        (COMPROMISED, RECONCILE, "{own}, compromised_since: None, 2020-01-01"),
    ],
    ids=[
        *("another in use, init", "another in use, rotate", "another in use, reconcile"),
        *("another that ended, init", "another that ended, rotate"),
        *("another that ended, reconcile", "compromised, init", "compromised, reconcile"),
    ],
)
def test_nothing_that_only_the_ledger_says_gets_into_it(
    services: Services, known: TrustedKeys, change: str, arguments: list[str], named: str
) -> None:
    with services.database.transaction() as session:
        for statement in change.split(";"):
            session.execute(text(statement))
    private = signing_key_file(services.settings).read_bytes()
    before = services.settings.trusted_keys_file.read_bytes()
    in_use = _in_use(services)

    answer = _run(arguments)

    assert answer.exit_code == 1
    assert named.format(own=f"key {services.signer.key_id}") in answer.stderr
    assert services.settings.trusted_keys_file.read_bytes() == before
    assert signing_key_file(services.settings).read_bytes() == private
    assert _in_use(services) == in_use


def test_a_rotation_says_of_the_old_key_what_the_operator_says(
    services: Services, known: TrustedKeys
) -> None:
    with services.database.transaction() as session:
        session.execute(text(COMPROMISED))
    assert _run(ROTATE).exit_code == 0
    assert [key.compromised_since for key in _file(services).keys] == [None, None]


def test_another_log_is_refused(services: Services, known: TrustedKeys) -> None:
    other = TrustedKeys("expunge/other", known.keys)
    other.write(services.settings.trusted_keys_file)
    answer = _run(INIT)
    assert answer.exit_code == 1
    assert f"origin: expunge/other, {known.origin}" in answer.stderr


def test_a_file_that_cannot_be_read_is_not_replaced(services: Services, known: TrustedKeys) -> None:
    path = services.settings.trusted_keys_file
    path.write_text("{}")
    for arguments in (INIT, ROTATE, RECONCILE):
        answer = _run(arguments)
        assert answer.exit_code == 1
        assert "not a list of trusted keys" in answer.stderr
        assert path.read_text() == "{}"


def test_a_rotation_changes_what_it_did_and_nothing_else(
    services: Services, known: TrustedKeys
) -> None:
    since = datetime.now(UTC) - timedelta(hours=1)
    answer = _run([*ROTATE, "--compromised-since", since.isoformat()])
    assert answer.exit_code == 0, answer.output
    new, old = _file(services).keys
    assert (old.id, old.valid_from) == (known.keys[0].id, known.keys[0].valid_from)
    assert (old.valid_until, old.compromised_since) == (new.valid_from, since)
    assert (new.valid_until, new.compromised_since) == (None, None)
    assert _run(INIT).exit_code == 0


def test_a_rotation_that_was_interrupted_is_finished_by_the_same_command_alone(
    services: Services, known: TrustedKeys
) -> None:
    next_path = signing_key_file(services.settings).with_suffix(".next")
    new = StatementSigner.from_file(next_path, create=True)
    since = datetime.now(UTC) - timedelta(hours=1)
    with services.database.transaction() as session:  # here it stopped
        signing_keys.rotate(session, old=services.signer, new=new, compromised_since=since)

    initialised = _run(INIT)
    assert initialised.exit_code == 1
    assert "repeat 'expunge signing-key rotate'" in initialised.stderr
    otherwise = _run(ROTATE)
    assert otherwise.exit_code == 1
    assert f"{services.signer.key_id}, compromised_since: None, {since}" in otherwise.stderr
    assert _file(services).difference(known) is None

    again = _run([*ROTATE, "--compromised-since", since.isoformat()])
    assert again.exit_code == 0, again.output
    assert [key.id for key in _file(services).keys] == [new.key_id, services.signer.key_id]
    assert _run(INIT).exit_code == 0
    assert not next_path.exists()


def test_a_ledger_from_before_rotations_takes_over_what_the_file_says(
    services: Services, known: TrustedKeys
) -> None:
    write(services, 1, sign=True)
    now = datetime.now(UTC)
    second = StatementSigner(Ed25519PrivateKey.generate())
    path = signing_key_file(services.settings)
    path.unlink()
    third = StatementSigner.from_file(path, create=True)
    after = known.rotated(
        second.public_key,
        at=now - timedelta(minutes=20),
        compromised_since=now - timedelta(minutes=30),
    ).rotated(third.public_key, at=now - timedelta(minutes=10))
    after.write(services.settings.trusted_keys_file)

    refused = _run(INIT)
    assert refused.exit_code == 1
    assert "after a restore, run 'expunge reconcile'" in refused.stderr
    applied = _run(RECONCILE)
    assert applied.exit_code == 0, applied.output
    assert "the current signing key is now the one in use" in applied.output

    assert _file(services).difference(after) is None
    with services.database.transaction() as session:
        assert signing_keys.trusted(session).difference(after) is None
    assert faults(services) == []
    assert _run(INIT).exit_code == 0


def test_a_key_that_neither_knows_follows_the_one_in_use(
    services: Services, known: TrustedKeys
) -> None:
    """Ledger and file are from before the rotation; the private key is not."""
    path = signing_key_file(services.settings)
    path.unlink()
    new = StatementSigner.from_file(path, create=True)
    answer = _run(RECONCILE)
    assert answer.exit_code == 0, answer.output
    assert [key.id for key in _file(services).keys] == [new.key_id, services.signer.key_id]


def test_without_a_file_it_is_written_from_the_ledger(
    services: Services, known: TrustedKeys
) -> None:
    services.settings.trusted_keys_file.unlink()
    written = ensure_trusted_keys(services.settings, services.database)
    assert written.difference(known) is None
    assert _file(services).difference(known) is None
