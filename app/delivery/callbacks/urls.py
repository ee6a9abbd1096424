"""Validation of callback URLs. No message here quotes one."""

from collections.abc import Sequence
from ipaddress import ip_address

import httpx

from app.delivery.callbacks.addresses import why_refused
from app.domain.errors import InvalidInputError

MAX_URLS = 5
MAX_URL_LENGTH = 2048


def check_urls(urls: Sequence[str], *, allow_private: bool) -> list[str]:
    """Return the distinct URLs; with ``allow_private`` they may lack TLS.

    Names are resolved, and their addresses checked, at each delivery.

    Raises:
        InvalidInputError: too many, or one that is not allowed.
    """
    distinct = list(dict.fromkeys(urls))
    if len(distinct) > MAX_URLS:
        raise InvalidInputError(f"status_callback_urls: at most {MAX_URLS}")
    for index, url in enumerate(distinct):
        reason = _why_refused(url, allow_private=allow_private)
        if reason is not None:
            raise InvalidInputError(f"status_callback_urls[{index}]: {reason}")
    return distinct


def parse(url: str) -> httpx.URL:
    """Parse a URL; check and delivery use this same parser."""
    return httpx.URL(url)


def _why_refused(text: str, *, allow_private: bool) -> str | None:
    if len(text) > MAX_URL_LENGTH:
        return f"longer than {MAX_URL_LENGTH} characters"
    try:
        url = parse(text)
        host = url.host
    except (httpx.InvalidURL, ValueError):
        return "not a URL"
    schemes = ("https", "http") if allow_private else ("https",)
    faults = {
        f"not a URL with {' or '.join(schemes)}": url.scheme not in schemes,
        "a URL without a host, or with a malformed one": not host or "%" in host,
        "user names and passwords are not sent; use a token in the path": bool(url.userinfo),
        "a URL with a fragment": bool(url.fragment),
        "a port that does not exist": url.port is not None and not 1 <= url.port <= 65535,
    }
    for fault, is_found in faults.items():
        if is_found:
            return fault
    return why_refused(host, allow_private=allow_private) if _is_address(host) else None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
