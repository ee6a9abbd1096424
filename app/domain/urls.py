"""Which URLs may be trusted to lead where they say."""

from urllib.parse import urlsplit

_THIS_MACHINE = {"localhost", "127.0.0.1", "::1"}


def is_safe_url(url: str) -> bool:
    """Say whether nobody on the way can answer instead: by TLS, or within this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    if not host or parts.username is not None or parts.fragment:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and host in _THIS_MACHINE)
