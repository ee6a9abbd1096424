"""The service's paths, its answers, and the problems among them."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx

from app.domain.ids import id_of
from app.runtime.outgoing import retry_after_s

Json = dict[str, Any]
"""An answer, as the OpenAPI document describes it."""


def at(*parts: object) -> str:
    """Return the path of a resource; names are quoted, so that none leads to another resource."""
    return "/v1/" + "/".join(
        # Dots alone would be taken for steps up the path.
        part.replace(".", "%2E") if part in (".", "..") else quote(part, safe="")
        for part in map(str, parts)
    )


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


class Held:
    """A resource, and the newest answer about it; the first one is not waited for."""

    def __init__(self, http: httpx.Client, path: str) -> None:
        self.path = path
        self.seen: Json = {}
        self._http = http
        self._known: dict[str, str] = {}

    def news(self, wait_s: float) -> Json:
        """Return the resource as soon as it differs from the last answer, or the time is over."""
        headers = {**self._known, "Prefer": f"wait={int(wait_s)}"} if self._known else None
        answer = self._http.request("GET", self.path, headers=headers)
        if answer.status_code != httpx.codes.NOT_MODIFIED:
            self.seen = checked(answer).json()
            self._known = {"If-None-Match": answer.headers.get("ETag", "")}
        return self.seen


def named(dataset: str | None, record_ids: Sequence[object], subject_ids: Sequence[object]) -> Json:
    """Return the part of a body that says whose records are meant."""
    return {
        "dataset": dataset,
        "record_ids": [id_of(each) for each in record_ids],
        "subject_ids": [id_of(each) for each in subject_ids],
    }
