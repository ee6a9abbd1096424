"""Headers of answers, as OpenAPI describes them."""

from typing import Any

_TEXT = {"type": "string"}
_DESCRIPTIONS: dict[str, str] = {
    "Accept-Ranges": "`bytes`: parts may be requested with Range",
    "Allow": "The methods that the path takes",
    "Content-Disposition": "The name under which to store the file",
    "Content-Range": "Which part this is, or how long the whole is",
    "ETag": "Names this state; send it back as If-None-Match",
    "Idempotent-Replayed": "`true` where this answer was given before, under the same key",
    "Location": "Where the resource is found",
    "Preference-Applied": "How long the service was willing to wait",
    "RateLimit": 'What is left of each limit, where calls are counted: `"minute";r=599;t=42`',
    "RateLimit-Policy": 'The limits, where calls are counted: `"minute";q=600;w=60`',
    "Repr-Digest": "SHA-256 of the whole content, RFC 9530",
    "Retry-After": "When to ask again, in seconds",
    "X-OpenDSR-Processor-Domain": "Whose signature it is",
    "X-OpenDSR-Signature": "The processor's signature over the body, in Base64",
    "X-Request-ID": "Names this call in the service's log; the caller's own, if it sent a good one",
    "WWW-Authenticate": "How to authenticate, and the scope that is missing",
}


def described(*names: str) -> dict[str, Any]:
    """Return the OpenAPI entries of some headers."""
    return {name: {"description": _DESCRIPTIONS[name], "schema": _TEXT} for name in names}


def answer_headers(status: int, *names: str) -> dict[int | str, dict[str, Any]]:
    """Return what a route adds to its ``responses`` to announce headers."""
    return {status: {"headers": described(*names)}}
