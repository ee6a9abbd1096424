"""The key and X.509 certificate that sign OpenDSR answers and callbacks.

OpenDSR 2.0, section 4: signatures by FIPS 186-4 over SHA-256 of the body, in Base64, verified with
a certificate for the processor's domain.
"""

import base64
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from app.domain.errors import ConfigurationError
from app.evidence.certificates.signing import load_private_key

PrivateKey = RSAPrivateKey | EllipticCurvePrivateKey

DOMAIN_HEADER = "X-OpenDSR-Processor-Domain"
SIGNATURE_HEADER = "X-OpenDSR-Signature"
_RSA_BITS = 3072
_VALIDITY = timedelta(days=3650)
_CLOCK_SKEW = timedelta(hours=1)
_SIGNATURES_ONLY = x509.KeyUsage(
    digital_signature=True,
    content_commitment=True,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


class ProcessorSigner:
    """Signs this service's messages as an OpenDSR processor."""

    def __init__(self, private_key: PrivateKey, certificate_pem: str, *, domain: str) -> None:
        self._private_key = private_key
        self.certificate_pem = certificate_pem
        self.domain = domain

    @classmethod
    def from_files(
        cls, key_file: Path, certificate_file: Path, *, domain: str
    ) -> "ProcessorSigner":
        """Read the key, and its certificate for the domain with its chain, in PEM."""
        key = load_processor_key(key_file)
        try:
            pem = certificate_file.read_text(encoding="utf-8")
            chain = x509.load_pem_x509_certificates(pem.encode())
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"{certificate_file} is not a certificate in PEM: run 'expunge init' first"
            ) from error
        if _public_bytes(chain[0]) != _public_bytes(key):
            raise ConfigurationError(f"{certificate_file} does not belong to the key {key_file}")
        if domain not in domains_of(chain[0]):
            raise ConfigurationError(
                f"{certificate_file} is not for the domain {domain}, the host of "
                "EXPUNGE_PUBLIC_URL: run 'expunge init', or put one there that is"
            )
        return cls(key, pem, domain=domain)

    def headers(self, body: bytes) -> dict[str, str]:
        """Return the signature headers of a body."""
        return {DOMAIN_HEADER: self.domain, SIGNATURE_HEADER: self.sign(body)}

    def sign(self, body: bytes) -> str:
        """Return the Base64 text of the signature over a body's SHA-256."""
        if isinstance(self._private_key, RSAPrivateKey):
            signature = self._private_key.sign(body, PKCS1v15(), SHA256())
        else:
            signature = self._private_key.sign(body, ECDSA(SHA256()))
        return base64.b64encode(signature).decode()


def load_processor_key(path: Path, *, create: bool = False) -> PrivateKey:
    """Read or make an RSA or EC key, as ``load_private_key`` does; a new one is an RSA key."""
    key = load_private_key(
        path, lambda: generate_private_key(public_exponent=65537, key_size=_RSA_BITS), create=create
    )
    if not isinstance(key, RSAPrivateKey | EllipticCurvePrivateKey):
        raise ConfigurationError(f"{path} is neither an RSA nor an EC key")
    return key


def ensure_self_signed(certificate_file: Path, key: PrivateKey, *, domain: str) -> None:
    """Write a self-signed certificate for a domain, unless a suitable one exists.

    A certificate that an authority has issued stays, whatever it says.
    """
    try:
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    except (OSError, ValueError):
        certificate = None
    fits = certificate is not None and (
        certificate.issuer != certificate.subject
        or (domain in domains_of(certificate) and _public_bytes(certificate) == _public_bytes(key))
    )
    if not fits:
        certificate_file.write_text(self_signed_certificate(key, domain=domain), encoding="utf-8")


def self_signed_certificate(key: PrivateKey, *, domain: str) -> str:
    """Return a self-signed certificate for a domain, in PEM; valid for ten years."""
    now = datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, domain[:64])])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _VALIDITY)
        .add_extension(x509.SubjectAlternativeName([_general_name(domain)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_SIGNATURES_ONLY, critical=True)
        .sign(key, SHA256())
        .public_bytes(Encoding.PEM)
        .decode()
    )


def domains_of(certificate: x509.Certificate) -> list[str]:
    """Return the domains and addresses in a certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]


def _general_name(domain: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(domain))
    except ValueError:
        return x509.DNSName(domain)


def _public_bytes(holder: x509.Certificate | PrivateKey) -> bytes:
    return holder.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
