"""The service asks its witnesses; what it serves then has their cosignatures."""

import json
import socket
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.domain.errors import VerificationError
from app.evidence.certificates.note import check_witnesses, size_of
from app.evidence.certificates.verification import verify
from app.evidence.log import checkpoints, cosignatures
from app.evidence.witnesses import CosignatureCollector, WitnessError
from app.ledger.certificates import bundles, issuing
from app.services import Services, open_services
from tests.support.logbook import altered, bodies, forging, rewrite, sign, write
from tests.support.trust import trust_in
from tests.support.weights import WEIGHTS
from tests.support.witnessing import WitnessSigner, serving, witness_signer
from tests.support.workshop import Workshop


@pytest.fixture
def trusted(services: Services, tmp_path: Path) -> Path:
    write(services, 2)
    services.checkpoint_log()
    path = tmp_path / "trusted-keys.json"
    path.write_bytes(trust_in(services))
    return path


def _collector(
    services: Services, url: str, signer: WitnessSigner, timeout_s: float = 10.0
) -> CosignatureCollector:
    return CosignatureCollector(
        services.database, url, signer.key, poll_interval_s=0.05, timeout_s=timeout_s
    )


def _note(services: Services, signer: WitnessSigner) -> bytes:
    with services.database.transaction() as session:
        newest = checkpoints.latest(session)
        return cosignatures.note_of(session, newest, [signer.key]).encode()


def test_each_newer_checkpoint_is_cosigned(services: Services, trusted: Path) -> None:
    signer = witness_signer()
    with serving(signer, trusted) as url:
        collector = _collector(services, url, signer)
        for _ in range(3):
            write(services, 3, sign=True)
            assert collector.tick()
            assert not collector.tick()
            check_witnesses(_note(services, signer), [signer.key], required=1)


def test_what_was_asked_elsewhere_is_taken_up(
    services: Services, trusted: Path, app_database: Engine
) -> None:
    """The ledger lost the cosignature, or another process asked: the witness names the size."""
    signer = witness_signer()
    with serving(signer, trusted) as url:
        _collector(services, url, signer).tick()
        with forging(app_database) as connection:
            connection.exec_driver_sql("DELETE FROM log_cosignatures")
        write(services, 3, sign=True)
        assert _collector(services, url, signer).tick()
    check_witnesses(_note(services, signer), [signer.key], required=1)


def test_a_rewritten_log_gets_no_cosignature(
    services: Services, trusted: Path, app_database: Engine
) -> None:
    """With the database and the key in use, anything can be signed, but not cosigned."""
    signer = witness_signer()
    with serving(signer, trusted) as url:
        write(services, 3, sign=True)
        _collector(services, url, signer).tick()
        first, second, *others = bodies(services)
        rewrite(app_database, services, [first, altered(second), *others])
        with pytest.raises(WitnessError):
            _collector(services, url, signer).tick()
        write(services, 3, sign=True)
        with pytest.raises(WitnessError, match="answered 422"):
            _collector(services, url, signer).tick()
        rewrite(app_database, services, [first, second])
        with pytest.raises(WitnessError, match="a longer log"):
            _collector(services, url, signer).tick()
    with pytest.raises(VerificationError):
        check_witnesses(_note(services, signer), [signer.key], required=1)


def test_a_witness_that_is_away_or_silent_stops_nothing(
    workshop: Workshop, services: Services
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        collectors = [
            _collector(services, url, witness_signer(), timeout_s=0.2),
            _collector(services, "http://127.0.0.1:1", witness_signer()),
        ]
        for collector in collectors:
            collector.start()
        version = workshop.train()
        for collector in collectors:
            collector.stop()
    with workshop.transaction() as session:
        certificate = issuing.certificate(session, version.certificate_id)
        bundle = bundles.bundle_of(session, certificate, signer=services.signer)
    assert verify(bundle=json.dumps(bundle).encode(), weights=WEIGHTS, trusted=trust_in(services))


def test_bundles_show_the_newest_checkpoint_that_most_witnesses_know(
    workshop: Workshop, services: Services, tmp_path: Path
) -> None:
    version = workshop.train()
    trusted = tmp_path / "trusted-keys.json"
    trusted.write_bytes(trust_in(services))
    first, second = witness_signer("w1"), witness_signer("w2")

    def bundle(since: int | None = None) -> bytes:
        with workshop.transaction() as session:
            certificate = issuing.certificate(session, version.certificate_id)
            made = bundles.bundle_of(
                session,
                certificate,
                signer=services.signer,
                witnesses=[first.key, second.key],
                since=since,
            )
        return json.dumps(made).encode()

    def cosigned(content: bytes, required: int) -> int:
        verify(
            bundle=content,
            weights=WEIGHTS,
            trusted=trust_in(services),
            witnesses=[first.key, second.key],
            witnesses_required=required,
        )
        return size_of(json.loads(content)["log"]["checkpoint"].encode())

    with pytest.raises(VerificationError, match="download it again later"):
        cosigned(bundle(), 1)
    with (
        serving(first, trusted) as url,
        serving(second, trusted) as other,
    ):
        _collector(services, url, first).tick()
        _collector(services, other, second).tick()
        both = cosigned(bundle(), 2)
        sign_more = size_of(_grow(services))
        assert cosigned(bundle(), 2) == both < sign_more
        _collector(services, url, first).tick()
        assert cosigned(bundle(), 2) == both
        assert cosigned(bundle(since=sign_more), 1) == sign_more
        _collector(services, other, second).tick()
        assert cosigned(bundle(), 2) == sign_more


def _grow(services: Services) -> bytes:
    write(services, 3)
    return sign(services)


def test_the_settings_name_the_witnesses(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = str(witness_signer().key)
    monkeypatch.setenv("EXPUNGE_WITNESSES", json.dumps({"https://witness.example/": key}))
    settings = type(services.settings)()
    (collector,) = open_services(settings).cosignature_collectors()
    assert collector._url == "https://witness.example/add-checkpoint"
