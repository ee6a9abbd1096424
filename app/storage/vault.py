"""A key of HashiCorp Vault's transit engine, which wraps the keys of periods.

The token comes from a file, which Vault's agent keeps valid, or from a login as an AppRole. When
Vault refuses it, it is fetched again, but not over and over. Its policy needs ``update`` on
``transit/encrypt/KEY`` and ``transit/decrypt/KEY``; without ``create``, a misspelt key is not made.
"""

import base64
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from app.domain.errors import KeyServiceError, KeyStoreError
from app.domain.extras import loaded
from app.runtime.outgoing import BUNDLES, proxy_of, require_certificates
from app.storage.file_keys import Context, serialized

EXTRA = "vault"
TOKEN_INTERVAL_S = 30.0
"""A token that Vault refuses is replaced if it is older."""
_TIMEOUTS_S = (3, 5)
_RETRIES = 2
_PASSING = (412, 429, 500, 502, 503, 504)
_NOT_OURS = ("message authentication failed", "invalid ciphertext")
_REASONS = (
    "version is too new",  # a server that lags behind, or was restored
    "encryption key not found",
    "disallowed by policy (too old)",
    "no handler for route",
    "unsupported path",
    "associated_data",
)

Answer = TypeVar("Answer")


class Login:
    """How a token is had: ``token_file``, or ``role_id`` and ``secret_id``."""

    def __init__(
        self,
        *,
        token_file: Path | None = None,
        role_id: str | None = None,
        secret_id: str | None = None,
    ) -> None:
        self._token_file = token_file
        self._role = {"role_id": role_id, "secret_id": secret_id}

    def token(self, client: Any) -> str:  # noqa: ANN401 - hvac has no types
        """Return a fresh token; ``KeyServiceError`` if the token's file cannot be read."""
        if self._token_file is None:
            answer = client.auth.approle.login(**self._role, use_token=False)
            return str(answer["auth"]["client_token"])
        try:
            return self._token_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise KeyServiceError(f"Vault's token cannot be read: {error.strerror}") from error


class VaultKey:
    """One key of a transit engine."""

    name = "vault"

    def __init__(
        self,
        url: str,
        key: str,
        login: Login,
        *,
        mount: str = "transit",
        namespace: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect when first used.

        Raises:
            MissingExtraError: hvac is not installed.
        """
        self._hvac = loaded("hvac", extra=EXTRA)
        self._key = {"name": key, "mount_point": mount}
        self._login = login
        self._clock = clock
        self._lock = threading.Lock()
        self._client = self._hvac.Client(
            url,
            token="",  # else hvac looks for one in the environment and in the home directory
            session=_session(url),
            timeout=_TIMEOUTS_S,
            namespace=namespace,
        )
        self._token_since: float | None = None

    def encrypt(self, content: bytes, context: Context) -> bytes:
        """Return the ciphertext; ``KeyServiceError`` if Vault fails or refuses."""
        answer = self._call(
            lambda: self._client.secrets.transit.encrypt_data(
                plaintext=_base64(content),
                associated_data=_base64(serialized(context)),
                **self._key,
            )["data"]["ciphertext"]
        )
        return str(answer).encode()

    def decrypt(self, ciphertext: bytes, context: Context) -> bytes:
        """Return the content."""
        answer = self._call(
            lambda: self._client.secrets.transit.decrypt_data(
                ciphertext=ciphertext.decode("ascii", "replace"),
                associated_data=_base64(serialized(context)),
                **self._key,
            )["data"]["plaintext"]
        )
        return base64.b64decode(str(answer))

    def _call(self, action: Callable[[], Answer]) -> Answer:
        with self._errors_in_words():
            self._ensure_token(older_than_s=float("inf"))
            try:
                return action()
            except self._hvac.exceptions.Forbidden:
                if not self._ensure_token(older_than_s=TOKEN_INTERVAL_S):
                    raise
                return action()

    def _ensure_token(self, *, older_than_s: float) -> bool:
        """Fetch a token if there is none, or it is older; return whether it was fetched."""
        with self._lock:
            now = self._clock()
            if self._token_since is not None and now - self._token_since <= older_than_s:
                return False
            self._client.token = self._login.token(self._client)
            self._token_since = now
            return True

    @contextmanager
    def _errors_in_words(self) -> Iterator[None]:
        import requests  # noqa: PLC0415 - hvac brings it

        try:
            yield
        except self._hvac.exceptions.VaultError as error:
            said = " ".join(error.errors or ())
            reason = next((words for words in _REASONS if words in said), None)
            if reason is None and any(words in said for words in _NOT_OURS):
                raise KeyStoreError("Vault cannot unwrap its period's key") from error
            reason = reason or type(error).__name__
            raise KeyServiceError(f"Vault refused to serve the key store: {reason}") from error
        except (requests.RequestException, OSError) as error:
            raise KeyServiceError(f"Vault does not answer: {type(error).__name__}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise KeyServiceError("what answers is not Vault") from error


def _session(url: str) -> Any:  # noqa: ANN401 - a session of requests
    import requests  # noqa: PLC0415 - hvac brings it
    from requests.adapters import HTTPAdapter  # noqa: PLC0415
    from urllib3.util.retry import Retry  # noqa: PLC0415

    require_certificates(*BUNDLES)
    proxy_of(url)
    retry = Retry(
        total=_RETRIES,
        backoff_factor=0.2,
        status_forcelist=_PASSING,
        allowed_methods=None,
        raise_on_status=False,
        respect_retry_after_header=False,  # it may ask for hours
    )
    session = requests.Session()
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    return session


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
