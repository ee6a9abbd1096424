"""Rate limits in the headers ``RateLimit`` and ``RateLimit-Policy``.

The headers are those of the IETF's draft-ietf-httpapi-ratelimit-headers: one item per limit, ``q``
calls in ``w`` seconds, of which ``r`` remain for another ``t`` seconds.
"""

from collections.abc import Sequence

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.api_keys import Caller
from app.access.gate import Gate
from app.access.rate_limits import Quota
from app.domain.errors import TooManyRequestsError


async def limit_calls(request: Request, gate: Gate, caller: Caller) -> None:
    """Count a call for its answer's headers; ``TooManyRequestsError`` if there are too many."""
    allowed, quotas = await gate.count(caller)
    request.state.quotas = quotas
    if not allowed:
        raise TooManyRequestsError(
            f"this caller has made all {quotas[-1].limit} calls of {quotas[-1].window_s} s",
            retry_after_s=quotas[-1].reset_s,
        )


class QuotaHeaders:
    """Adds the remaining quota to every answer to a counted caller, including refusals."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request and its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope["state"] = dict(scope.get("state", {}))

        async def send_with_quotas(message: Message) -> None:
            quotas: Sequence[Quota] = state.get("quotas", ())
            if message["type"] == "http.response.start" and quotas:
                headers = MutableHeaders(scope=message)
                headers["RateLimit-Policy"] = ", ".join(
                    f'"{quota.name}";q={quota.limit};w={quota.window_s}' for quota in quotas
                )
                headers["RateLimit"] = ", ".join(
                    f'"{quota.name}";r={quota.remaining};t={quota.reset_s}' for quota in quotas
                )
            await send(message)

        await self._app(scope, receive, send_with_quotas)
