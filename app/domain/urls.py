"""Which URLs are safe against impersonation."""

from urllib.parse import urlsplit

_THIS_MACHINE = {"localhost", "127.0.0.1", "::1"}


def is_safe_url(url: str) -> bool:
    """Return whether no host on the way can answer instead: by TLS, or on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    if not host or parts.username is not None or parts.fragment:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and host in _THIS_MACHINE)
