"""Which URLs and network addresses may receive callbacks. No message here quotes one.

A caller chooses the address, and the service posts to it from inside the operator's network.
Without a check, callers could reach internal systems (server-side request forgery): databases,
administration pages, and cloud metadata services, which return credentials.
"""

import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import httpx

from app.domain.errors import CallbackError, InvalidInputError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolve = Callable[[str, int], Sequence[str]]

_NOT_PUBLIC = "its address is not a public one"


def _networks(*names: str) -> tuple[Network, ...]:
    return tuple(ip_network(name) for name in names)


# Never allowed, on any network.
_NEVER = _networks(
    "0.0.0.0/8",
    "255.255.255.255/32",
    "169.254.169.254/32",  # metadata: AWS, Azure, Google and others
    "169.254.170.2/32",  # metadata of AWS's containers
    "169.254.170.23/32",
    "100.100.100.200/32",  # Alibaba
    "168.63.129.16/32",  # Azure's WireServer, though public by its number
    "192.0.0.192/32",  # Oracle
    "fd00:ec2::/32",  # AWS over IPv6
    "fd20:ce::254/128",  # Google over IPv6
)
# Special networks that Python's ``is_global`` does not, or did not always, recognise.
_SPECIAL = _networks(
    "100.64.0.0/10",
    "192.0.0.0/24",
    "192.88.99.0/24",
    "198.18.0.0/15",
    "2001::/23",  # Teredo and other protocols; Teredo hides an IPv4 address
    "2002::/16",  # 6to4 hides an IPv4 address
    "3fff::/20",
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_COMPATIBLE = IPv6Network("::/96")


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a name, in the system's order; ``CallbackError`` if it has none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError) as error:
        raise CallbackError("its name cannot be resolved") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def checked(addresses: Sequence[str], *, allow_private: bool) -> list[str]:
    """Return the addresses if callbacks may go to all of them, or raise ``CallbackError``."""
    for text in addresses:
        reason = why_refused(text, allow_private=allow_private)
        if reason is not None:
            raise CallbackError(reason)
    if not addresses:
        raise CallbackError("its name cannot be resolved")
    return list(addresses)


def why_refused(text: str, *, allow_private: bool) -> str | None:
    """Return why a callback may not go to an address, or None if it may.

    ``allow_private`` admits private, loopback and link-local addresses.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return "its address is malformed"
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None and not allow_private:
            return _NOT_PUBLIC
        address = _embedded(address) or address
    is_local = address.is_loopback or address.is_link_local
    is_never = _is_in(address, _NEVER) or address.is_multicast or address.is_unspecified
    if is_never or (address.is_reserved and not is_local):
        return "its address is blocked"
    return None if allow_private or (not is_local and _is_public(address)) else _NOT_PUBLIC


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and (
        address not in _GLOBAL_UNICAST or address.scope_id is not None
    ):
        return False
    return address.is_global and not _is_in(address, _SPECIAL)


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address embedded in an IPv6 one."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks if network.version == address.version)


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
        reason = _why_url_refused(url, allow_private=allow_private)
        if reason is not None:
            raise InvalidInputError(f"status_callback_urls[{index}]: {reason}")
    return distinct


def parse(url: str) -> httpx.URL:
    """Parse a URL; check and delivery use this same parser."""
    return httpx.URL(url)


def _why_url_refused(text: str, *, allow_private: bool) -> str | None:
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
    try:
        ip_address(host)
    except ValueError:
        return None
    return why_refused(host, allow_private=allow_private)
