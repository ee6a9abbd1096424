"""A symmetric key of AWS KMS, which wraps the keys of periods.

The key's id is given when decrypting too: KMS then refuses what another key made. The service needs
``kms:Encrypt`` and ``kms:Decrypt``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from app.domain.errors import KeyServiceError, KeyStoreError
from app.storage.wrapping import Context

_CONNECT_TIMEOUT_S = 3
_READ_TIMEOUT_S = 5
_ATTEMPTS = 3
_NOT_OURS = ("InvalidCiphertextException", "IncorrectKeyException")


class KmsKey:
    """One key, named by its id, ARN or alias."""

    name = "kms"

    def __init__(
        self,
        key: str,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
    ) -> None:
        self._key = key
        self._connection: dict[str, Any] = {
            "endpoint_url": endpoint,
            "region_name": region,
            "aws_access_key_id": access_key,
            "aws_secret_access_key": secret_key,
        }

    @cached_property
    def _client(self) -> Any:  # noqa: ANN401 - boto3 makes its class when it is asked for it
        import boto3  # noqa: PLC0415 - slow to import, and rarely needed
        from botocore.config import Config  # noqa: PLC0415

        config = Config(
            connect_timeout=_CONNECT_TIMEOUT_S,
            read_timeout=_READ_TIMEOUT_S,
            # It waits and retries when KMS throttles.
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        )
        return boto3.session.Session().client("kms", config=config, **self._connection)

    def encrypt(self, content: bytes, context: Context) -> bytes:
        """Return the ciphertext; ``KeyServiceError`` if KMS fails or refuses."""
        with _errors_in_words():
            answer = self._client.encrypt(
                KeyId=self._key, Plaintext=content, EncryptionContext=dict(context)
            )
            return bytes(answer["CiphertextBlob"])

    def decrypt(self, ciphertext: bytes, context: Context) -> bytes:
        """Return the content.

        Raises:
            KeyStoreError: KMS did not make it with this key and context.
            KeyServiceError: KMS does not answer, or refuses.
        """
        with _errors_in_words():
            answer = self._client.decrypt(
                KeyId=self._key, CiphertextBlob=ciphertext, EncryptionContext=dict(context)
            )
            return bytes(answer["Plaintext"])


@contextmanager
def _errors_in_words() -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "unknown")
        if code in _NOT_OURS:
            raise KeyStoreError(f"KMS cannot unwrap its period's key: {code}") from error
        raise KeyServiceError(f"KMS refused to serve the key store: {code}") from error
    except (BotoCoreError, OSError) as error:
        raise KeyServiceError(f"KMS does not answer: {type(error).__name__}") from error
