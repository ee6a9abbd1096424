"""Observes every request: its id, a line in the access log, metrics, and what is left of limits.

Logs and metrics show a request's route template, never its path: paths contain ids and names.

Limits of calls are in the headers of the IETF's draft-ietf-httpapi-ratelimit-headers: one item per
limit, ``q`` calls in ``w`` seconds, of which ``r`` remain for another ``t`` seconds.
"""

import re
import time
from uuid import uuid4

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.runtime import logs
from app.runtime.logs import ACCESS_LOG

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class ApiMetrics:
    """The metrics of one API process, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._durations = Histogram(
            "expunge_http_request_duration_seconds",
            "Time from a request's first line to the end of its answer, by route template.",
            ("method", "route", "status"),
            buckets=_BUCKETS_S,
            registry=self.registry,
        )

    def observe(self, *, method: str, route: str, status: int, duration_s: float) -> None:
        """Count one request; ``route`` is a template."""
        self._durations.labels(method, route, str(status)).observe(duration_s)


REQUEST_ID = "X-Request-ID"
UNMATCHED = "unmatched"
_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{7,63}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Observation:
    """Middleware that logs and measures, and adds ``X-Request-ID`` and limits to the answer.

    A request may bring its own id of 8 to 64 letters, digits, dots, hyphens and underscores;
    otherwise it gets one.
    """

    def __init__(self, app: ASGIApp, metrics: ApiMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and record its outcome."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        offered = Headers(scope=scope).get(REQUEST_ID)
        request_id = offered if offered is not None and _SANE_ID.fullmatch(offered) else uuid4().hex
        logs.begin_request(request_id=request_id)
        state = scope["state"] = dict(scope.get("state", {}))
        status = 500  # the server's answer if no handler gave one

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = request_id
                quotas = state.get("quotas", ())
                if quotas:
                    headers["RateLimit-Policy"] = ", ".join(
                        f'"{quota.name}";q={quota.limit};w={quota.window_s}' for quota in quotas
                    )
                    headers["RateLimit"] = ", ".join(
                        f'"{quota.name}";r={quota.remaining};t={quota.reset_s}' for quota in quotas
                    )
            await send(message)

        started = time.perf_counter()
        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            self._note(scope, status, time.perf_counter() - started)

    def _note(self, scope: Scope, status: int, duration_s: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = _template(scope)
        self._metrics.observe(method=method, route=route, status=status, duration_s=duration_s)
        fields = {
            "method": method,
            "route": route,
            "status": status,
            "duration_ms": round(duration_s * 1000, 3),
        }
        ACCESS_LOG.info("%s %s %d", method, route, status, extra={"fields": fields})


def _template(scope: Scope) -> str:
    return getattr(scope.get("route"), "path", UNMATCHED)
