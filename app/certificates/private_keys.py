"""Private keys in PEM files that only their owner may read."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from app.domain.errors import ConfigurationError
from app.storage.keyfiles import create_key_file, read_key_file

Key = TypeVar("Key", bound=PrivateKeyTypes)


def load_private_key(path: Path, generate: Callable[[], Key], *, create: bool) -> PrivateKeyTypes:
    """Read a key from a PEM file of mode 0600; with ``create``, make it if it is missing.

    ``ConfigurationError`` if the file is missing, readable by others, or holds no private key.
    """
    content = create_key_file(path, lambda: _pem(generate())) if create else read_key_file(path)
    try:
        return load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(
            f"{path} is not a private key in PEM format without a password"
        ) from error


def _pem(key: PrivateKeyTypes) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
