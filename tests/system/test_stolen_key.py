"""What a thief of a signing key can do after it was rotated, and what holders of bundles notice."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from app.domain.errors import CorruptLogError, VerificationError
from app.evidence import log
from app.evidence.certificates.bundle import bundle_json
from app.evidence.certificates.signing import StatementSigner, payload_of, public_pem, statement_of
from app.evidence.certificates.tables import CertificateRow
from app.evidence.certificates.trusted_keys import read_trusted_keys
from app.evidence.certificates.verification import verify
from app.ledger.certificates import bundles, issuing
from app.registry.tables import VersionRow
from app.runtime.locations import signing_key_file
from app.services import Services, open_services
from tests.support.bundles import SmallLog
from tests.support.logbook import faults
from tests.support.weights import WEIGHTS
from tests.support.workshop import Workshop

runner = CliRunner()


@dataclass(frozen=True)
class Theft:
    """A service whose key was copied, and then rotated.

    Attributes:
        services: with the new key.
        stolen: the old key.
        version: released before the theft was noticed.
        old_bundle: of that version, as it was downloaded before the rotation.
        trusted: the list that the rotation wrote.
    """

    services: Services
    stolen: StatementSigner
    version: VersionRow
    old_bundle: dict[str, Any]
    trusted: bytes

    def bundle(self) -> dict[str, Any]:
        """Download the version's bundle anew."""
        return _bundle(self.services, self.version)

    def forgery(self, *, at: datetime) -> dict[str, Any]:
        """Sign what never happened, in a log of one's own, as if it had been at some time."""
        statement = statement_of(json.dumps(self.old_bundle["envelope"]))
        statement["predicate"]["software"]["expunge"] = "the thief's"
        moments = ("started_at", "certified_at")
        statement["predicate"]["times"] = dict.fromkeys(moments, at.isoformat())
        envelope = self.stolen.sign(statement).envelope
        log = SmallLog(self.stolen, others=0)
        log.origin = read_trusted_keys(self.trusted).origin
        index = log.append(payload_of(envelope), recorded_at=at.isoformat())
        return bundle_json(envelope=envelope, log=log.proof(index))


@pytest.fixture
def steal(services: Services) -> Callable[..., Theft]:
    opened: list[Services] = []

    def happen(*options: str) -> Theft:
        workshop = Workshop(services)
        version = workshop.train()
        stolen = services.signer
        old_bundle = _bundle(services, version)
        answer = runner.invoke(app, ["signing-key", "rotate", *options])
        assert answer.exit_code == 0, answer.output
        renewed = open_services(services.settings)
        opened.append(renewed)
        trusted = services.settings.trusted_keys_file.read_bytes()
        return Theft(renewed, stolen, version, old_bundle, trusted)

    yield happen
    for each in opened:
        each.database.dispose()


def _bundle(services: Services, version: VersionRow) -> dict[str, Any]:
    with services.database.transaction() as session:
        certificate = issuing.certificate(session, version.certificate_id)
        return bundles.bundle_of(session, certificate, signer=services.signer)


def _holds(bundle: dict[str, Any], trusted: bytes) -> None:
    assert verify(bundle=json.dumps(bundle).encode(), weights=WEIGHTS, trusted=trusted)


def _refused(bundle: dict[str, Any], trusted: bytes, *, why: str) -> None:
    with pytest.raises(VerificationError, match=why):
        verify(bundle=json.dumps(bundle).encode(), weights=WEIGHTS, trusted=trusted)


def test_a_forgery_after_the_rotation_is_refused(steal: Callable[..., Theft]) -> None:
    theft = steal()
    _refused(theft.forgery(at=datetime.now(UTC)), theft.trusted, why="signed by a retired key")


def test_a_forgery_that_is_backdated_into_the_keys_time_is_refused(
    steal: Callable[..., Theft],
) -> None:
    theft = steal()
    before = datetime.now(UTC) - timedelta(days=1)
    _refused(theft.forgery(at=before), theft.trusted, why="signed by a retired key")


def test_the_command_refuses_both_and_takes_no_undated_key(
    steal: Callable[..., Theft], tmp_path: Path
) -> None:
    theft = steal()
    files = {name: tmp_path / name for name in ("bundle", "weights", "trusted", "pem")}
    files["weights"].write_bytes(WEIGHTS)
    files["trusted"].write_bytes(theft.trusted)
    files["pem"].write_text(
        public_pem(theft.stolen.public_key) + public_pem(theft.services.signer.public_key)
    )
    for days in (0, 1):
        at = datetime.now(UTC) - timedelta(days=days)
        files["bundle"].write_text(json.dumps(theft.forgery(at=at)))
        for keys, step in (("trusted", "log"), ("pem", "keys")):
            options = ["--weights", str(files["weights"]), "--trusted", str(files[keys])]
            answer = runner.invoke(app, ["verify", str(files["bundle"]), *options])
            assert (answer.exit_code, answer.stdout.split("FAIL")[-1].split()[0]) == (1, f"{step}:")
    assert not signing_key_file(theft.services.settings).with_suffix(".pub").exists()


def test_the_thief_cannot_put_a_forgery_under_the_honest_checkpoint(
    steal: Callable[..., Theft],
) -> None:
    """Nor take an honest certificate's place in the log for a forged one."""
    theft = steal()
    forged, honest = theft.forgery(at=datetime.now(UTC) - timedelta(days=1)), theft.bundle()
    _refused({**honest, "envelope": forged["envelope"]}, theft.trusted, why="something else")
    mixed = {**forged, "log": {**forged["log"], "checkpoint": honest["log"]["checkpoint"]}}
    _refused(mixed, theft.trusted, why="log: ")


def test_bundles_that_are_out_are_downloaded_again(steal: Callable[..., Theft]) -> None:
    theft = steal()
    _refused(theft.old_bundle, theft.trusted, why="retired key: download the bundle again")
    _holds(theft.bundle(), theft.trusted)
    assert theft.bundle()["envelope"] == theft.old_bundle["envelope"]


def test_what_a_compromised_key_signed_is_served_under_the_new_one(
    steal: Callable[..., Theft],
) -> None:
    since = datetime.now(UTC) - timedelta(hours=1)
    theft = steal("--compromised-since", since.isoformat())
    served = theft.bundle()
    _holds(served, theft.trusted)
    signed_by = served["envelope"]["signatures"][0]["keyid"]
    assert signed_by == theft.services.signer.key_id != theft.stolen.key_id
    assert served["envelope"]["payload"] == theft.old_bundle["envelope"]["payload"]

    by_the_thief = {**served, "envelope": theft.old_bundle["envelope"]}
    _refused(by_the_thief, theft.trusted, why="its key was not valid when it was recorded")
    listed = runner.invoke(app, ["signing-key", "list"]).output.splitlines()
    assert f"compromised since {since.isoformat()}" in listed[1]


def test_a_list_from_before_the_rotation_knows_nothing_of_it(steal: Callable[..., Theft]) -> None:
    """What is left: whoever verifies needs the present list, or has kept a checkpoint."""
    theft = steal()
    trusted = read_trusted_keys(theft.trusted)
    (stolen,) = [key for key in trusted.keys if key.id == theft.stolen.key_id]
    old_list = replace(trusted, keys=(replace(stolen, valid_until=None),)).to_bytes()
    forged = theft.forgery(at=datetime.now(UTC) - timedelta(days=1))
    kept = theft.old_bundle["log"]["checkpoint"].encode()

    _holds(forged, old_list)
    with pytest.raises(VerificationError, match="history"):
        verify(
            bundle=json.dumps(forged).encode(),
            weights=WEIGHTS,
            trusted=old_list,
            consistent_with=kept,
        )


def _forged(theft: Theft, signer_line: dict[str, Any], **changes: Any) -> CertificateRow:
    """Add a certificate that never was, with its entry, as the service's role may."""
    statement = statement_of(json.dumps(theft.old_bundle["envelope"]))
    statement["predicate"]["software"]["expunge"] = "the intruder's"
    envelope = theft.stolen.sign(statement)
    document = {**json.loads(envelope.envelope), **signer_line}
    with theft.services.database.transaction() as session:
        row = CertificateRow(
            id="cert_forged",
            model_id=theft.version.model_id,
            version_id=theft.version.id,
            basis=statement["predicate"]["basis"],
            envelope=json.dumps(document),
            sha256=envelope.sha256,
            number=2,
        )
        session.add(row)
        facts = {"certificate": row.id, "sha256": row.sha256, "basis": row.basis, "number": 2}
        facts |= {"model": row.model_id, "version": row.version_id}
        log.append(session, "certificate.issued", **facts)
        log.checkpoint_at_commit(session, theft.services.signer)
    return row


@pytest.mark.parametrize("has_key", [True, False])
def test_the_service_signs_nothing_anew_that_was_not_there_before_the_rotation(
    steal: Callable[..., Theft], has_key: bool
) -> None:
    """Or whoever can add rows would have its present signature for whatever they like."""
    theft = steal("--compromised-since", (datetime.now(UTC) - timedelta(hours=1)).isoformat())
    unsigned = {"signatures": [{"keyid": theft.stolen.key_id, "sig": "AAAA"}]}
    row = _forged(theft, {} if has_key else unsigned)
    with theft.services.database.transaction() as session, pytest.raises(CorruptLogError):
        bundles.bundle_of(session, row, signer=theft.services.signer)


def test_a_certificate_that_was_recorded_after_its_keys_end_is_named(
    steal: Callable[..., Theft],
) -> None:
    """However it is dated: a verifier of a bundle sees its entry alone."""
    theft = steal()
    assert not faults(theft.services)
    row = _forged(theft, {})
    assert f"certificate {row.id}" in {fault.where for fault in faults(theft.services)}
