"""One file of an https server that serves ranges; redirects are not followed.

The host is the operator's, and only its own certificate is accepted, so its name cannot lead
elsewhere. Proxies and passwords of the environment are not used.
"""

import re
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

import httpx

from app.domain.errors import ConfigurationError, ImportFailedError, SourceUnavailableError
from app.domain.places import Place

_TIMEOUT_S: Final = 60.0
_ATTEMPTS: Final = 4
_RANGE: Final = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_MAY_PASS: Final = frozenset({408, 425, 429})


class HttpsSource:
    """See ``Source``."""

    def __init__(self, place: Place, *, ca_file: Path | None) -> None:
        self._name = place.segments[-1]
        path = "/".join(quote(segment, safe="") for segment in place.segments)
        self._url = f"https://{place.host}/{path}"
        self._client = httpx.Client(
            follow_redirects=False,
            trust_env=False,
            timeout=_TIMEOUT_S,
            verify=_tls(ca_file),
            headers={"Accept-Encoding": "identity", "User-Agent": "Expunge"},
        )

    def list(self) -> Sequence[str]:
        """Return the one file."""
        return [self._name]

    def open(self, name: str) -> "_HttpsFile":
        """Look at the file."""
        if name != self._name:
            raise ImportFailedError(f"{name}: it does not exist")
        return _HttpsFile(name, self._url, self._client)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


class _HttpsFile:
    """See ``SourceFileReader``."""

    def __init__(self, name: str, url: str, client: httpx.Client) -> None:
        self._name = name
        self._url = url
        self._client = client
        self._condition: dict[str, str] = {}
        headers, _ = self._fetch(0, 1)
        match = _RANGE.fullmatch(headers.get("Content-Range", ""))
        if match is None:
            raise ImportFailedError(f"{name}: the server does not say how long it is")
        self.size = int(match[3])
        tag, moment = headers.get("ETag", ""), headers.get("Last-Modified", "")
        if tag and not tag.startswith("W/"):
            self._condition = {"If-Match": tag}
        elif moment:
            self._condition = {"If-Unmodified-Since": moment}
        else:
            raise ImportFailedError(
                f"{name}: the server gives it neither an ETag nor a Last-Modified, so it cannot be "
                "known whether it changes while it is read"
            )
        self.version = f"{self.size}-{tag or moment}"

    def read_at(self, offset: int, size: int) -> bytes:
        for _ in range(_ATTEMPTS - 1):  # a connection that breaks is opened again
            try:
                return self._fetch(offset, size)[1]
            except SourceUnavailableError:
                continue
        return self._fetch(offset, size)[1]

    def require_same(self) -> None:
        self._fetch(0, 1)

    def close(self) -> None:
        """Nothing is held."""

    def _fetch(self, offset: int, size: int) -> tuple[httpx.Headers, bytes]:
        sent = {"Range": f"bytes={offset}-{offset + size - 1}", **self._condition}
        content = bytearray()
        try:
            with self._client.stream("GET", self._url, headers=sent) as answer:
                self._require_range(answer, offset, size)
                for part in answer.iter_raw():
                    content += part
                    if len(content) > size:
                        break
        except httpx.TransportError as error:
            raise SourceUnavailableError(f"{self._name}: {type(error).__name__}") from error
        if len(content) != size:
            raise SourceUnavailableError(f"{self._name}: the answer is not as long as announced")
        return answer.headers, bytes(content)

    def _require_range(self, answer: httpx.Response, offset: int, size: int) -> None:
        status = answer.status_code
        if 300 <= status < 400:
            raise ImportFailedError(f"{self._name}: the server redirects, which is not followed")
        if status == 412:
            raise SourceUnavailableError(f"{self._name}: it was changed while it was read")
        if status >= 500 or status in _MAY_PASS:
            raise SourceUnavailableError(f"{self._name}: the server answered {status}")
        if status == 200:
            raise ImportFailedError(f"{self._name}: the server does not serve ranges")
        match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        is_it = match is not None and (int(match[1]), int(match[2])) == (offset, offset + size - 1)
        if status != 206 or not is_it:
            raise ImportFailedError(f"{self._name}: the server answered {status}")
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise ImportFailedError(f"{self._name}: the server sends it in another encoding")


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    context = httpx.create_ssl_context(trust_env=False)
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError("EXPUNGE_CA_FILE holds no certificates") from error
    return context
