"""A certificate authority for a test, and servers with its certificates."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates for names.

    Attributes:
        file: its own certificate.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = generate_private_key(SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        basic = x509.BasicConstraints(ca=True, path_length=0)
        certificate = self._builder(self._name, self._key).add_extension(basic, critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        signed = certificate.add_extension(identifier, critical=False).sign(self._key, SHA256())
        self.file = directory / "authority.pem"
        self.file.write_bytes(signed.public_bytes(Encoding.PEM))

    def issue(self, name: str) -> tuple[Path, Path]:
        """Return files with a key and its certificate for a DNS name."""
        key = generate_private_key(SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        signed = (
            self._builder(subject, key)
            .add_extension(names, critical=False)
            .add_extension(identifier, critical=False)
            .sign(self._key, SHA256())
        )
        key_file = self._directory / f"{name}.key"
        key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        key_file.chmod(0o600)
        certificate_file = self._directory / f"{name}.pem"
        certificate_file.write_bytes(signed.public_bytes(Encoding.PEM))
        return key_file, certificate_file

    def server_context(self, name: str, seen: list[str | None]) -> ssl.SSLContext:
        """Return TLS for a server of this name; ``seen`` gets the names that clients ask for."""
        key_file, certificate_file = self.issue(name)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate_file, key_file)
        context.sni_callback = lambda _socket, asked, _context: seen.append(asked)
        return context

    def _builder(self, subject: x509.Name, key: EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
        )
