"""Keys in PEM: private ones in files that only their owner may read."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from app.domain.errors import ConfigurationError
from app.runtime.keyfiles import key_file

Key = TypeVar("Key", bound=PrivateKeyTypes)


def load_private_key(path: Path, generate: Callable[[], Key], *, create: bool) -> PrivateKeyTypes:
    """Read a key from a PEM file that only its owner may read; ``create`` makes a missing one."""
    content = key_file(path, lambda: _pem(generate()), create=create)
    try:
        return load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(
            f"{path} is not a private key in PEM format without a password"
        ) from error


def public_pem(key: PublicKeyTypes) -> str:
    """Return a public key's PEM text."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def _pem(key: PrivateKeyTypes) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
