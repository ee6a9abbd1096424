"""Which URLs are protected against impersonation."""

from urllib.parse import urlsplit

_THIS_MACHINE = {"localhost", "127.0.0.1", "::1"}


def is_safe_url(url: str) -> bool:
    """Return whether no other host can answer: the URL uses TLS or points to this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    if not host or parts.username is not None or parts.fragment:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and host in _THIS_MACHINE)
