"""What the environment says of connections to other servers: proxies, and whom to trust.

Libraries fall over it, or take a variable that names nothing for one that is not set. So each way
out asks here first, and a mistake is told by the name of its variable.
"""

import os
import ssl
from contextlib import suppress
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx

from app.domain.errors import ConfigurationError

TRUSTED: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""What Python and httpx read."""
BUNDLES: Final = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""What requests and boto3 read; each may be a folder, too."""


def client_options(url: str) -> dict[str, Any]:
    """Return the options with which httpx calls a server as the environment says.

    Raises:
        ConfigurationError: a variable cannot be followed; it says which.
    """
    require_certificates(*TRUSTED)
    return {"trust_env": False, "verify": httpx.create_ssl_context(), "proxy": proxy_of(url)}


def require_certificates(*variables: str) -> None:
    """Raise ``ConfigurationError`` of a variable that names no certificates."""
    for name in variables:
        place = os.environ.get(name, "")
        folders = place.split(os.pathsep) if name == "SSL_CERT_DIR" else [place]
        if not place or (name != "SSL_CERT_FILE" and any(Path(each).is_dir() for each in folders)):
            continue
        try:
            ssl.create_default_context(cafile=place)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{name} names no certificates that can be read") from error


def trust(context: ssl.SSLContext, ca_file: Path) -> None:
    """Trust the authorities of ``EXPUNGE_CA_FILE``, too; ``ConfigurationError`` if it has none."""
    try:
        context.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        message = f"EXPUNGE_CA_FILE: {ca_file.name} holds no certificates that can be read"
        raise ConfigurationError(message) from error


def proxy_of(url: str) -> httpx.Proxy | None:
    """Return the proxy for a server, or None; ``ConfigurationError`` if it is no HTTP proxy."""
    parts, proxies = urlsplit(url), getproxies()
    scheme = parts.scheme if proxies.get(parts.scheme) else "all"
    address = proxies.get(scheme)
    if not address or _is_exempt(parts.netloc, parts.hostname or "", proxies.get("no", "")):
        return None
    with suppress(httpx.InvalidURL, ValueError):
        proxy = httpx.Proxy(address if "://" in address else f"http://{address}")
        if proxy.url.scheme in ("http", "https") and proxy.url.host:
            return proxy
    raise ConfigurationError(f"{scheme.upper()}_PROXY must be the URL of an HTTP proxy")


def _is_exempt(netloc: str, host: str, listed: str) -> bool:
    """Return whether a server is in a list of names, their ends, addresses and networks."""
    entries = (each.strip().rpartition("://")[2].lower() for each in listed.split(","))
    names = tuple(f".{name}" for name in (host, netloc.rpartition("@")[2].lower()))
    return any(
        entry == "*"
        or _is_within(host, entry.strip("[]"))
        or any(name.endswith(f".{entry.lstrip('*.')}") for name in names)
        for entry in entries
        if entry
    )


def _is_within(host: str, network: str) -> bool:
    try:
        return ip_address(host) in ip_network(network, strict=False)
    except ValueError:
        return False
