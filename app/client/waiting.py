"""Waiting until a service has done what it owes, also while it is away."""

import time
from collections.abc import Callable, Iterator

import httpx

from app.client.connection import ApiError, Connection, Json, at

_POLL_S = 0.2
_ENDED = {"completed", "failed", "cancelled"}


class Waiting(Connection):
    """Waits for requests and models."""

    def wait_for_request(
        self,
        request_id: str,
        *,
        timeout_s: float,
        on_change: Callable[[Json, Json | None], None] | None = None,
    ) -> Json:
        """Wait until a request has ended.

        The service holds its answers until something changes. With ``on_change`` it is polled
        instead, and ``on_change`` is called with the request and its run each time. If the service
        is unreachable for a while, this waits for it.

        Raises:
            TimeoutError: it has not ended in time.
        """
        path = at("forget-requests", request_id)

        def look(left_s: float) -> Json:
            if on_change is None:
                held = {"Prefer": f"wait={int(min(self._hold_s, left_s))}"}
                return self._once(path, headers=held)
            request = self._once(path)
            run_ids = [o["run"] for o in request["obligations"] if o["run"] is not None]
            run = self._once(at("runs", run_ids[-1])) if run_ids else None
            on_change(request, run)
            return request

        for request in _seen_until(timeout_s, look):
            if request["state"] in _ENDED:
                return request
        raise TimeoutError(f"request {request_id} has not ended within {timeout_s:g} s")

    def wait_for_model(
        self,
        name: str,
        *,
        timeout_s: float,
        on_change: Callable[[Json], None] = lambda _run: None,
    ) -> Json:
        """Poll a model until its newest run has ended; wait while the service is away.

        A model that waits for its weights has no run, and is returned as it is.

        Raises:
            TimeoutError: it has not ended in time.
        """

        def look(_: float) -> Json:
            return self._once(at("models", name))

        for model in _seen_until(timeout_s, look):
            run = model["latest_run"]
            if run is None and model["weights"] == "upload":
                return model
            if run is not None:
                on_change(run)
                if run["state"] in ("published", "failed", "cancelled"):
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
        """Poll an import until it has ended; wait while the service is away.

        Raises:
            TimeoutError: it has not ended in time.
        """
        path = at("datasets", name, "imports", import_id)
        for seen in _seen_until(timeout_s, lambda _: self._once(path)):
            on_change(seen)
            if seen["state"] in _ENDED:
                return seen
        raise TimeoutError(f"import {import_id} has not ended within {timeout_s:g} s")


def _seen_until(timeout_s: float, look: Callable[[float], Json]) -> Iterator[Json]:
    """Yield what there is to see, repeatedly, until the time is over."""
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        asked = time.monotonic()
        seen = _unless_away(lambda left_s=left_s: look(left_s))  # type: ignore[misc]
        if seen is not None:
            yield seen
        if time.monotonic() - asked < _POLL_S:
            time.sleep(_POLL_S)


def _unless_away(look: Callable[[], Json]) -> Json | None:
    """Return what there is to see, or None while the service is unreachable or asks to wait."""
    try:
        return look()
    except httpx.TransportError:
        return None
    except ApiError as error:
        if error.status not in (429, 502, 503, 504):
            raise
        return None
