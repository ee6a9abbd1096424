"""Waiting until a service has done what it owes, also while it is away.

``Prefer: wait`` has the service hold each answer until there is news.
"""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import httpx

from app.client.connection import ApiError, Connection, Json, at, checked

_POLL_S = 0.2
_ENDED = {"completed", "failed", "cancelled"}
_GOING = {"queued", "leased", "running"}
_Seen = TypeVar("_Seen")


class Waiting(Connection):
    """Waits for requests, models, backbones and imports."""

    def wait_for_request(
        self,
        request_id: str,
        *,
        timeout_s: float,
        on_change: Callable[[Json, Json | None], None] | None = None,
    ) -> Json:
        """Wait until a request has ended; if the service is unreachable for a while, wait for it.

        ``on_change`` is called with the request and its run at every progress of either.

        Raises:
            TimeoutError: it has not ended in time.
        """

        def run_of(request: Json) -> str | None:
            run_ids = [o["run"] for o in request["obligations"] if o["run"] is not None]
            return run_ids[-1] if run_ids and on_change is not None else None

        look = self._with_its_run(at("forget-requests", request_id), run_of)
        for request, run in _seen_until(timeout_s, look):
            if on_change is not None:
                on_change(request, run)
            if request["state"] in _ENDED:
                return request
        raise TimeoutError(f"request {request_id} has not ended within {timeout_s:g} s")

    def wait_for_model(
        self,
        name: str,
        *,
        timeout_s: float,
        on_change: Callable[[Json], None] | None = None,
    ) -> Json:
        """Wait until a model's newest run has ended; wait while the service is away.

        A model that waits for its weights has no run, and is returned as it is.

        Raises:
            TimeoutError: it has not ended in time.
        """

        def run_of(model: Json) -> str | None:
            run = model["latest_run"]
            return None if run is None or on_change is None else run["id"]

        for model, _ in _seen_until(timeout_s, self._with_its_run(at("models", name), run_of)):
            run = model["latest_run"]
            if run is None and model["weights"] == "upload":
                return model
            if run is not None:
                if on_change is not None:
                    on_change(run)
                if run["state"] not in _GOING:
                    return model
        raise TimeoutError(f"model {name} has no version within {timeout_s:g} s")

    def wait_for_import(
        self,
        name: str,
        import_id: str,
        *,
        timeout_s: float,
        on_change: Callable[[Json], None] = lambda _import: None,
    ) -> Json:
        """Wait until an import has ended; wait while the service is away.

        Raises:
            TimeoutError: it has not ended in time.
        """
        held = _Held(self, at("datasets", name, "imports", import_id))
        for seen in _seen_until(timeout_s, held.news):
            on_change(seen)
            if seen["state"] in _ENDED:
                return seen
        raise TimeoutError(f"import {import_id} has not ended within {timeout_s:g} s")

    def _with_its_run(
        self, path: str, run_of: Callable[[Json], str | None]
    ) -> Callable[[float], tuple[Json, Json | None]]:
        """Return what waits for news of a resource, or of the run that it waits for."""
        whole, run = _Held(self, path), None

        def look(left_s: float) -> tuple[Json, Json | None]:
            nonlocal run
            is_going = run is not None and run.seen.get("state") in _GOING
            if run is not None and is_going:
                run.news(left_s)
            found = whole.news(0 if is_going else left_s)
            run_id = run_of(found)
            if run_id is not None:
                if run is None or run.path != at("runs", run_id):
                    run = _Held(self, at("runs", run_id))
                if not run.seen:
                    run.news(0)
            return found, None if run is None else run.seen

        return look


class _Held:
    """A resource, and the newest answer about it; the first one is not waited for."""

    def __init__(self, connection: Connection, path: str) -> None:
        self.path = path
        self.seen: Json = {}
        self._connection = connection
        self._headers: dict[str, str] = {}

    def news(self, left_s: float) -> Json:
        """Return the resource as soon as it differs from the last answer, or the time is over."""
        answer = self._connection.held(self.path, left_s, self._headers)
        if answer.status_code != httpx.codes.NOT_MODIFIED:
            self.seen = checked(answer).json()
            self._headers = {"If-None-Match": answer.headers.get("ETag", "")}
        return self.seen


def _seen_until(timeout_s: float, look: Callable[[float], _Seen]) -> Iterator[_Seen]:
    """Yield what there is to see, repeatedly, until the time is over."""
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        asked = time.monotonic()
        seen = _unless_away(lambda left_s=left_s: look(left_s))  # type: ignore[misc]
        if seen is not None:
            yield seen
        if time.monotonic() - asked < _POLL_S:
            time.sleep(_POLL_S)


def _unless_away(look: Callable[[], _Seen]) -> _Seen | None:
    """Return what there is to see, or None while the service is unreachable or asks to wait."""
    try:
        return look()
    except httpx.TransportError:
        return None
    except ApiError as error:
        if error.status not in (429, 502, 503, 504):
            raise
        return None
