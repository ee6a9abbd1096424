"""Rotating the signing key: old certificates verify, the old private key is gone."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from app.access import audit_trail
from app.cli.application import create_app
from app.cli.main import app
from app.domain.errors import ConfigurationError, VerificationError
from app.evidence import log
from app.evidence.certificates.trusted_keys import read_trusted_keys
from app.evidence.certificates.verification import verify
from app.evidence.log import actor, signing_keys
from app.ledger.certificates import bundles, issuing
from app.runtime.embedded.home import claimed
from app.runtime.locations import signing_key_file
from app.services import Services, open_services
from tests.support.logbook import write
from tests.support.weights import weights_of_version
from tests.support.workshop import Workshop

runner = CliRunner()


def bundle_and_keys(services: Services, certificate_id: str) -> tuple[bytes, bytes]:
    with TestClient(create_app(services)) as api:
        keys = api.get("/.well-known/expunge-keys.json").content
    with services.database.transaction() as session:
        certificate = issuing.certificate(session, certificate_id)
        bundle = bundles.bundle_of(session, certificate, signer=services.signer)
    return json.dumps(bundle).encode(), keys


def test_certificates_of_every_key_verify_and_the_retired_one_signs_no_more(
    services: Services, tmp_path: Path
) -> None:
    workshop = Workshop(services)
    first = workshop.train()
    old_private = signing_key_file(services.settings).read_bytes()

    answer = runner.invoke(app, ["signing-key", "rotate"])

    assert answer.exit_code == 0, answer.output
    assert signing_key_file(services.settings).read_bytes() != old_private
    trained, held_out = workshop.split()
    with pytest.raises(ConfigurationError, match="not the one in use"):
        workshop.forget(held_out[0])
    renewed = open_services(services.settings)
    later = Workshop(renewed)
    later.forget(trained[0])
    second = later.unlearn()
    for version in (first, second):
        bundle, keys = bundle_and_keys(renewed, version.certificate_id)
        weights = weights_of_version(version.number)
        assert verify(bundle=bundle, weights=weights, trusted=keys)
        only_old = json.loads(keys)
        del only_old["keys"][0]
        with pytest.raises(VerificationError):
            verify(bundle=bundle, weights=weights, trusted=json.dumps(only_old).encode())
    written = renewed.settings.trusted_keys_file.read_bytes()
    assert read_trusted_keys(written) == read_trusted_keys(keys)
    renewed.database.dispose()

    with services.database.transaction() as session:
        causes = {entry.kind: entry.by for entry in audit_trail.newest_entries(session, limit=100)}
    assert causes["key.retired"] == actor.OPERATOR

    listed = runner.invoke(app, ["signing-key", "list"]).output.splitlines()
    assert len(listed) == 2
    assert "in use" in listed[0]
    assert datetime.now(UTC).date().isoformat() in listed[1]


def test_an_interrupted_rotation_goes_on(services: Services) -> None:
    path = signing_key_file(services.settings)
    with services.database.transaction() as session:
        signing_keys.require_in_use(session, services.signer)
    assert runner.invoke(app, ["signing-key", "rotate"]).exit_code == 0
    new = path.read_bytes()
    path.with_suffix(".next").write_bytes(new)  # as if it had stopped while it overwrote
    path.with_suffix(".next").chmod(0o600)
    path.write_bytes(b"half overwritten")

    assert runner.invoke(app, ["signing-key", "rotate"]).exit_code == 0
    assert path.read_bytes() == new
    assert len(runner.invoke(app, ["signing-key", "list"]).output.splitlines()) == 2


@pytest.mark.parametrize(
    ("time", "words"),
    [
        ("soon", "must be a time such as"),
        ("2026-01-01T00:00:00", "must name its time zone"),
        ("2999-01-01T00:00:00Z", "must not lie in the future"),
    ],
)
def test_when_a_key_was_compromised_must_be_a_time_that_was(
    services: Services, time: str, words: str
) -> None:
    before = signing_key_file(services.settings).read_bytes()
    answer = runner.invoke(app, ["signing-key", "rotate", "--compromised-since", time])
    assert answer.exit_code == 1
    assert words in answer.stderr
    assert signing_key_file(services.settings).read_bytes() == before


def test_a_key_that_was_rotated_meanwhile_signs_nothing(services: Services) -> None:
    """A transaction that began before the rotation must not sign the log after it."""
    write(services, 1)
    services.checkpoint_log()

    def publish_late() -> None:
        with services.database.transaction() as session:
            signing_keys.require_in_use(session, services.signer)
            log.checkpoint_at_commit(session, services.signer)
            log.append(session, "test.entry", number=1)
            assert runner.invoke(app, ["signing-key", "rotate"]).exit_code == 0

    with pytest.raises(ConfigurationError, match="the signing key was changed"):
        publish_late()


@pytest.mark.parametrize("command", [["signing-key", "rotate"], ["reconcile", "--apply"]])
def test_under_a_service_that_runs_no_key_is_changed(
    command: list[str], services: Services
) -> None:
    private = signing_key_file(services.settings).read_bytes()
    with claimed(services.settings.data_dir):
        answer = runner.invoke(app, command)
    assert (answer.exit_code, "stop it" in answer.stderr) == (1, True)
    separate = open_services(services.settings, process="dispatcher")
    with separate.database.transaction() as session:
        signing_keys.is_in_use(session, separate.signer)  # the connection stays open
    answer = runner.invoke(app, command)
    separate.database.dispose()
    assert (answer.exit_code, "the service runs: dispatcher" in answer.stderr) == (1, True)
    assert signing_key_file(services.settings).read_bytes() == private
    assert runner.invoke(app, command).exit_code == 0
