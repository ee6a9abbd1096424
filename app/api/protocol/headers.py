"""Response headers as described in OpenAPI."""

from typing import Any

_TEXT = {"type": "string"}
DESCRIPTIONS: dict[str, str] = {
    "Accept-Ranges": "`bytes`: parts may be requested with Range",
    "Allow": "The methods that the path takes",
    "Content-Disposition": "The name under which to store the file",
    "Content-Range": "Which part this is, or how long the whole is",
    "ETag": "Identifies this state; send it back as If-None-Match",
    "Idempotent-Replayed": "`true` if this is the stored answer to an earlier call with this key",
    "Location": "The resource's URL",
    "Preference-Applied": "How long the service was willing to wait",
    "RateLimit": 'What is left of each limit, if calls are limited: `"minute";r=599;t=42`',
    "RateLimit-Policy": 'The limits, if calls are limited: `"minute";q=600;w=60`',
    "Repr-Digest": "SHA-256 of the whole content, RFC 9530",
    "Retry-After": "When to retry, in seconds",
    "X-OpenDSR-Processor-Domain": "The signing processor",
    "X-OpenDSR-Signature": "The processor's signature over the body, in Base64",
    "X-Request-ID": "Identifies this call in the service's log; a valid one of the caller is kept",
    "WWW-Authenticate": "How to authenticate, and the scope that is missing",
}


def described(*names: str) -> dict[str, Any]:
    """Return the OpenAPI entries of some headers."""
    return {name: {"description": DESCRIPTIONS[name], "schema": _TEXT} for name in names}


def answer_headers(status: int, *names: str) -> dict[int | str, dict[str, Any]]:
    """Return the ``responses`` entry that announces a route's headers."""
    return {status: {"headers": described(*names)}}
