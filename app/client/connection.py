"""One service as its client sees it: calls, their answers, problems."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Self
from urllib.parse import quote
from uuid import uuid4

import httpx

from app.domain import strict_json
from app.domain.errors import ConfigurationError
from app.runtime.outgoing import client_options
from app.runtime.retries import Retry, retry_after_s

_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 10.0
_HOLD_S = 20
_KEY: Final = re.compile("[!-~]+")

Json = dict[str, Any]
"""An answer, as the OpenAPI document describes it."""


def at(*parts: object) -> str:
    """Return the path of a resource; names are quoted, so that none leads to another resource."""
    return "/v1/" + "/".join(_quoted(str(part)) for part in parts)


def _quoted(part: str) -> str:
    # Dots alone would be taken for steps up the path.
    return part.replace(".", "%2E") if part in (".", "..") else quote(part, safe="")


class ApiError(Exception):
    """The service answered with a problem.

    Attributes:
        status: HTTP status.
        problem: the problem document (RFC 9457); empty if the answer had none.
        type: the problem's type, by which programs distinguish problems; empty if it has none.
        title, detail: the problem in general, and in this case; may be empty.
        retry_after_s: after how many seconds to call again, if the service says so.
    """

    def __init__(
        self, status: int, problem: Mapping[str, Any], *, retry_after_s: float | None = None
    ) -> None:
        super().__init__(problem.get("detail") or f"the service answered {status}")
        self.status = status
        self.problem = dict(problem)
        self.type = str(problem.get("type", ""))
        self.title = str(problem.get("title", ""))
        self.detail = str(problem.get("detail", ""))
        self.retry_after_s = retry_after_s


class Connection:
    """Sends calls to one service, again where that is safe; see ``ExpungeClient``."""

    def __init__(
        self,
        url: str,
        api_key: str,
        *,
        retry: Retry | None = None,
        timeout_s: float = _TIMEOUT_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError(
                "the URL of the service (EXPUNGE_API_URL) must begin with http:// or https://"
            )
        if _KEY.fullmatch(api_key) is None:
            raise ConfigurationError("the API key is empty, or has characters that no key has")
        self._retry = retry or Retry()
        self._hold_s = min(_HOLD_S, timeout_s / 2)
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S)),
            transport=transport,
            **({} if transport else client_options(url)),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def _answer(self, method: str, path: str, **options: Any) -> httpx.Response:  # noqa: ANN401
        if method == "POST":
            options["headers"] = {"Idempotency-Key": str(uuid4()), **options.get("headers", {})}
        return checked(self._retry.call(lambda: self._http.request(method, path, **options)))

    def held(self, path: str, left_s: float, known: Mapping[str, str]) -> httpx.Response:
        """Ask for news of a resource, which the service waits for if an answer is ``known``."""
        wait_s = int(min(self._hold_s, left_s))
        headers = {**known, "Prefer": f"wait={wait_s}"} if known else None
        return self._http.request("GET", path, headers=headers)

    def _news(self, path: str, wait_s: int) -> Json:
        if wait_s == 0:
            return self._object("GET", path)
        headers = {"Prefer": f"wait={wait_s}"}
        return self._object("GET", path, headers=headers, timeout=_TIMEOUT_S + wait_s)

    def _object(self, method: str, path: str, **options: Any) -> Json:  # noqa: ANN401
        answer: Json = strict_json.loads(self._answer(method, path, **options).content)
        return answer

    def _list(self, path: str, **filters: str | int | None) -> list[Json]:
        return list(self._items(path, **filters))

    def _items(self, path: str, **filters: str | int | None) -> Iterator[Json]:
        """Yield the items of a list, page by page; some lists are a plain array."""
        query = {name: value for name, value in filters.items() if value is not None}
        while True:
            page = strict_json.loads(self._answer("GET", path, params=query).content)
            if isinstance(page, list):
                page = {"items": page}
            yield from page["items"]
            if page.get("next_cursor") is None:
                return
            query["cursor"] = page["next_cursor"]


def checked(answer: httpx.Response) -> httpx.Response:
    """Return an answer that is not a problem; raise ``ApiError`` for one that is."""
    if answer.is_error:
        raise error_of(answer)
    return answer


def error_of(answer: httpx.Response) -> ApiError:
    """Return the problem that an answer holds."""
    try:
        problem = answer.json()
    except ValueError:
        problem = {}
    return ApiError(
        answer.status_code,
        problem if isinstance(problem, dict) else {},
        retry_after_s=retry_after_s(answer),
    )
