"""Whatever is stored as cosignatures, bundles verify, and ``fsck`` names what does not belong."""

import json

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from app.cli.main import app as command_line
from app.domain.errors import ConfigurationError
from app.evidence.certificates.note import MAX_SIGNATURES, check_witnesses
from app.evidence.certificates.verification import verify
from app.evidence.log import checkpoints, cosignatures
from app.evidence.log.tables import LogCheckpointRow, LogCosignatureRow
from app.registry.tables import VersionRow
from app.runtime.settings import Settings
from app.services import Services, open_services
from tests.support.logbook import faults, write
from tests.support.trust import trust_in
from tests.support.weights import WEIGHTS
from tests.support.witnessing import WitnessSigner, witness_signer
from tests.support.workshop import Workshop

HONEST, OTHER, STRANGER = (witness_signer(name) for name in ("honest", "other", "stranger"))


@pytest.fixture
def settings(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Two witnesses are named."""
    keys = {f"https://{signer.key.name}.example/": str(signer.key) for signer in (HONEST, OTHER)}
    monkeypatch.setenv("EXPUNGE_WITNESSES", json.dumps(keys))
    return Settings()


@pytest.fixture
def version(workshop: Workshop) -> VersionRow:
    """A version, under a checkpoint that one witness has cosigned."""
    version = workshop.train()
    _store(workshop.services, HONEST, _line(workshop.services, HONEST))
    return version


def _newest(services: Services) -> LogCheckpointRow:
    with services.database.transaction() as session:
        return checkpoints.latest(session)


def _line(services: Services, signer: WitnessSigner) -> str:
    """Return a witness's cosignature of the newest checkpoint."""
    text, _, _ = _newest(services).note.rpartition("\n\n")
    return signer.cosign(text + "\n", time_s=1)


def _store(services: Services, named: WitnessSigner | str, line: str, *, ahead: int = 0) -> None:
    """Store a line, which the service's role may do."""
    witness = named if isinstance(named, str) else str(named.key)
    size = _newest(services).size + ahead
    with services.database.transaction() as session:
        session.add(LogCosignatureRow(size=size, witness=witness, line=line))


def _shown(api: TestClient, services: Services, version: VersionRow) -> list[str]:
    """Verify a bundle and the newest checkpoint; return the lines beside the service's own."""
    witnesses = [HONEST.key, OTHER.key]
    bundle = api.get(f"/v1/certificates/{version.certificate_id}").content
    assert verify(
        bundle=bundle,
        weights=WEIGHTS,
        trusted=trust_in(services),
        witnesses=witnesses,
        witnesses_required=1,
    )
    newest = api.get("/v1/log/checkpoint").text
    check_witnesses(newest.encode(), witnesses, required=1)
    assert json.loads(bundle)["log"]["checkpoint"] == newest
    return newest.rpartition("\n\n")[2].splitlines(keepends=True)[1:]


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "nonsense\n",
        "\n\n",
        "\N{EM DASH} other AAAA\n",
        "{own} {own}",
        "{own}{own}",
        "{own}nonsense\n",
        "nonsense\n{own}",
        "{strangers}",
        "{old}",
    ],
)
def test_a_line_that_is_no_cosignature_is_skipped_and_named(
    api: TestClient, workshop: Workshop, version: VersionRow, broken: str
) -> None:
    services = workshop.services
    old = _line(services, OTHER)
    write(services, 1, sign=True)
    _store(services, HONEST, _line(services, HONEST))
    assert faults(services) == []
    workshop.forged = True
    own, strangers = _line(services, OTHER), _line(services, STRANGER)
    _store(services, OTHER, broken.format(own=own, strangers=strangers, old=old))

    assert _shown(api, services, version) == [_line(services, HONEST)]
    (fault,) = faults(services)
    assert fault.where == f"cosignature of checkpoint {_newest(services).size} by '{OTHER.key}'"
    assert fault.reason == "this witness did not sign it"


def test_lines_by_witnesses_that_the_settings_do_not_name_are_skipped_and_told(
    api: TestClient, workshop: Workshop, version: VersionRow
) -> None:
    services = workshop.services
    services.settings.trusted_keys_file.write_bytes(trust_in(services))
    strangers = [witness_signer(f"a{number}") for number in range(MAX_SIGNATURES)]
    for stranger in strangers:
        _store(services, stranger, _line(services, stranger))
    assert _shown(api, services, version) == [_line(services, HONEST)]
    assert faults(services) == []

    answer = CliRunner().invoke(command_line, ["log", "fsck"])
    assert answer.exit_code == 0, answer.output
    for stranger in strangers:
        assert (
            f"witness '{stranger.key}': EXPUNGE_WITNESSES does not name it: its cosignatures are "
            "not shown\n"
        ) in answer.stdout
    assert str(HONEST.key) not in answer.stdout


def test_no_note_has_more_lines_than_verifiers_take(
    workshop: Workshop, version: VersionRow
) -> None:
    services = workshop.services
    many = [witness_signer(f"a{number}") for number in range(MAX_SIGNATURES)]
    for signer in many:
        _store(services, signer, _line(services, signer))
    keys = [signer.key for signer in many]
    with services.database.transaction() as session:
        note = cosignatures.note_of(session, checkpoints.latest(session), keys)
    told = check_witnesses(note.encode(), keys, required=MAX_SIGNATURES - 1)
    assert told.startswith(f"{MAX_SIGNATURES - 1} of ")


@pytest.mark.parametrize(("named", "ahead"), [("no key", 0), (OTHER, 1)])
def test_what_is_stored_for_no_witness_or_checkpoint_is_named(
    api: TestClient, workshop: Workshop, version: VersionRow, named: WitnessSigner | str, ahead: int
) -> None:
    services = workshop.services
    workshop.forged = True
    _store(services, named, _line(services, OTHER), ahead=ahead)
    assert _shown(api, services, version) == [_line(services, HONEST)]
    (fault,) = faults(services)
    assert fault.where.startswith(f"cosignature of checkpoint {_newest(services).size + ahead} by ")


def test_a_false_line_does_not_make_an_old_checkpoint_the_best_one(
    api: TestClient, workshop: Workshop, version: VersionRow
) -> None:
    workshop.forged = True
    _store(workshop.services, OTHER, "nonsense\n")
    write(workshop.services, 1, sign=True)
    newest = _line(workshop.services, HONEST)
    _store(workshop.services, HONEST, newest)
    assert _shown(api, workshop.services, version) == [newest]


def test_a_line_for_a_size_that_the_log_never_had_keeps_no_witness_from_being_asked(
    workshop: Workshop, version: VersionRow
) -> None:
    workshop.forged = True
    services = workshop.services
    before = _newest(services).size
    _store(services, HONEST, "nonsense\n", ahead=10**6)
    write(services, 1, sign=True)
    with services.database.transaction() as session:
        asked = cosignatures.uncosigned(session, HONEST.key)
    assert asked is not None
    assert (asked.size, asked.old_size) == (_newest(services).size, before)


def test_a_witness_without_a_valid_key_is_refused_when_the_service_starts(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPUNGE_WITNESSES", json.dumps({"https://w.example/": "w+00+AA"}))
    with pytest.raises(ConfigurationError, match="EXPUNGE_WITNESSES: not a verifier key"):
        open_services(Settings())
