"""A symmetric key of AWS KMS, which wraps the keys of periods.

The key's id is given when decrypting too: KMS then refuses what another key made. The service needs
``kms:Encrypt`` and ``kms:Decrypt``.
"""

from functools import cached_property
from typing import Any

from app.domain.errors import KeyServiceError, KeyStoreError
from app.storage.aws import Access, client_of, errors_in_words
from app.storage.wrapping import Context

_TIMEOUTS_S = (3, 5)
_ATTEMPTS = 3
_NOT_OURS = ("InvalidCiphertextException", "IncorrectKeyException")


class KmsKey:
    """One key, named by its id, ARN or alias."""

    name = "kms"

    def __init__(self, key: str) -> None:
        self._key = key

    @cached_property
    def _client(self) -> Any:  # noqa: ANN401 - as boto3 makes it
        named = self._key.split(":")
        access = Access(region=named[3]) if named[0] == "arn" and len(named) > 3 else Access()
        return client_of("kms", access, timeouts_s=_TIMEOUTS_S, attempts=_ATTEMPTS)

    def encrypt(self, content: bytes, context: Context) -> bytes:
        """Return the ciphertext; ``KeyServiceError`` if KMS fails or refuses."""
        with errors_in_words(_refused, _away):
            answer = self._client.encrypt(
                KeyId=self._key, Plaintext=content, EncryptionContext=dict(context)
            )
            return bytes(answer["CiphertextBlob"])

    def decrypt(self, ciphertext: bytes, context: Context) -> bytes:
        """Return the content."""
        with errors_in_words(_refused, _away):
            answer = self._client.decrypt(
                KeyId=self._key, CiphertextBlob=ciphertext, EncryptionContext=dict(context)
            )
            return bytes(answer["Plaintext"])


def _refused(code: str) -> Exception:
    if code in _NOT_OURS:
        return KeyStoreError(f"KMS cannot unwrap its period's key: {code}")
    return KeyServiceError(f"KMS refused to serve the key store: {code}")


def _away(failure: str) -> Exception:
    return KeyServiceError(f"KMS does not answer: {failure}")
