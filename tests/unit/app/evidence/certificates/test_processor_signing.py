"""The key and certificate that sign for OpenDSR."""

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from app.domain.errors import ConfigurationError
from app.evidence.certificates.processor_signing import (
    ProcessorSigner,
    domains_of,
    ensure_self_signed,
    load_processor_key,
)
from tests.support.authority import Authority

BODY = b'{"request_status":"completed"}'


@pytest.fixture
def processor_key(key_files: Path) -> Path:
    return key_files / "opendsr.pem"


@pytest.fixture
def certificate_file(processor_key: Path, tmp_path: Path) -> Path:
    path = tmp_path / "opendsr.crt"
    ensure_self_signed(path, load_processor_key(processor_key), domain="expunge.example")
    return path


def test_what_it_signs_is_verified_with_its_certificate(
    processor_key: Path, certificate_file: Path
) -> None:
    signer = ProcessorSigner.from_files(processor_key, certificate_file, domain="expunge.example")

    headers = signer.headers(BODY)

    assert headers["X-OpenDSR-Processor-Domain"] == "expunge.example"
    certificate = x509.load_pem_x509_certificate(signer.certificate_pem.encode())
    signature = base64.b64decode(headers["X-OpenDSR-Signature"])
    certificate.public_key().verify(signature, BODY, PKCS1v15(), SHA256())


def test_the_self_signed_certificate_is_for_signatures_alone(certificate_file: Path) -> None:
    certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.digital_signature
    assert not usage.key_cert_sign
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    now = datetime.now(UTC)
    assert certificate.not_valid_before_utc < now
    assert certificate.not_valid_after_utc > now + timedelta(days=3000)


def test_it_is_made_anew_only_for_another_domain_or_key(
    processor_key: Path, certificate_file: Path
) -> None:
    key = load_processor_key(processor_key)
    first = certificate_file.read_text()
    ensure_self_signed(certificate_file, key, domain="expunge.example")
    assert certificate_file.read_text() == first
    ensure_self_signed(certificate_file, key, domain="192.0.2.1")
    moved = certificate_file.read_bytes()
    assert domains_of(x509.load_pem_x509_certificate(moved)) == ["192.0.2.1"]


def test_one_of_an_authority_over_an_ec_key_serves_too(tmp_path: Path) -> None:
    key_file, certificate_file = Authority(tmp_path).issue("expunge.example")
    signer = ProcessorSigner.from_files(key_file, certificate_file, domain="expunge.example")
    certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    signature = base64.b64decode(signer.sign(BODY))
    certificate.public_key().verify(signature, BODY, ECDSA(SHA256()))


def test_what_does_not_fit_together_is_refused_in_words(
    processor_key: Path, certificate_file: Path, tmp_path: Path
) -> None:
    other_key, _ = Authority(tmp_path).issue("expunge.example")
    broken = tmp_path / "broken.crt"
    broken.write_text("no certificate")
    for key, certificate, domain, told in (
        (processor_key, certificate_file, "other.example", "not for the domain"),
        (other_key, certificate_file, "expunge.example", "does not belong"),
        (processor_key, broken, "expunge.example", "not a certificate"),
        (processor_key, tmp_path / "nowhere", "expunge.example", "expunge init"),
        (tmp_path / "nowhere.pem", certificate_file, "expunge.example", "expunge init"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            ProcessorSigner.from_files(key, certificate, domain=domain)


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ed25519.pem"
    key = Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="neither an RSA nor an EC key"):
        load_processor_key(path)
