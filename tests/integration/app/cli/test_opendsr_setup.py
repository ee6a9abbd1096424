"""What ``expunge init`` makes for OpenDSR, and what it leaves to the operator."""

from pathlib import Path

from cryptography import x509

from app.cli.commands.service import _set_up_opendsr
from app.evidence.certificates.processor_signing import domains_of
from app.runtime.locations import (
    opendsr_certificate_file,
    opendsr_domain,
    opendsr_key_file,
    public_url,
)
from app.runtime.settings import Settings
from app.services import open_services
from tests.support.authority import Authority


def test_the_certificate_follows_the_public_url(settings: Settings) -> None:
    moved = settings.model_copy(
        update={"public_url": Settings(public_url="https://expunge.example/base/").public_url}
    )
    key = opendsr_key_file(moved).read_bytes()
    assert public_url(moved) == "https://expunge.example/base"

    _set_up_opendsr(moved)

    assert opendsr_key_file(moved).read_bytes() == key
    certificate = x509.load_pem_x509_certificate(opendsr_certificate_file(moved).read_bytes())
    assert domains_of(certificate) == ["expunge.example"]


def test_an_operators_own_key_and_certificate_are_used_as_they_are(
    settings: Settings, tmp_path: Path
) -> None:
    key_file, certificate_file = Authority(tmp_path).issue("privacy.example")
    public_url = Settings(public_url="https://privacy.example/").public_url
    own = settings.model_copy(update={"public_url": public_url})
    key_file.replace(opendsr_key_file(own))
    certificate_file.replace(opendsr_certificate_file(own))
    before = opendsr_certificate_file(own).read_text()

    for public in (own, settings):  # also while the host is another one
        _set_up_opendsr(public)
        assert opendsr_certificate_file(public).read_text() == before
    assert opendsr_domain(own) == "privacy.example"
    services = open_services(own)
    assert services.processor_signer.certificate_pem == before
    services.database.dispose()
