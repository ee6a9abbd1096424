"""Where callbacks may go."""

import pytest

from app.delivery.callbacks.addresses import MAX_URLS, check_urls, checked, resolve, why_refused
from app.domain.errors import CallbackError, InvalidInputError

PUBLIC = [
    "8.8.8.8",
    "93.184.216.34",
    "1.1.1.1",
    "172.32.0.1",
    "100.128.0.1",
    "2606:4700:4700::1111",
    "2a00:1450:4001:800::200e",
    "64:ff9b::808:808",  # 8.8.8.8 through NAT64
]
PRIVATE = [
    "127.0.0.1",
    "127.255.255.254",
    "::1",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.1.1",
    "fe80::1",
    "fe80::1%eth0",
    "fc00::1",
    "fd12:3456:789a::1",
    "fec0::1",
    "192.0.2.1",
    "198.51.100.1",
    "203.0.113.1",
    "198.18.0.1",
    "192.0.0.9",
    "192.88.99.1",
    "2001:db8::1",
    "2001::1",  # Teredo
    "2002:7f00:1::1",  # 127.0.0.1 through 6to4
    "3fff::1",
    "100::1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",  # no public receiver is reached like this
    "::127.0.0.1",
    "64:ff9b::7f00:1",  # 127.0.0.1 through NAT64
    "64:ff9b::a00:1",
    "64:ff9b:1::a00:1",
]
NEVER = [
    "169.254.169.254",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "169.254.170.2",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "fd00:ec2::254",
    "fd20:ce::254",
    "0.0.0.0",
    "0.1.2.3",
    "::",
    "255.255.255.255",
    "224.0.0.1",
    "239.255.255.250",
    "ff02::1",
    "240.0.0.1",
    "4000::1",
    "nowhere",
    "",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_called(address: str) -> None:
    assert why_refused(address, allow_private=False) is None
    assert why_refused(address, allow_private=True) is None


@pytest.mark.parametrize("address", PRIVATE)
def test_others_are_called_only_where_that_is_allowed(address: str) -> None:
    assert why_refused(address, allow_private=False) is not None


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.0.0.1", "fe80::1", "fd12::1"])
def test_private_addresses_can_be_allowed(address: str) -> None:
    assert why_refused(address, allow_private=True) is None


@pytest.mark.parametrize("address", NEVER)
def test_some_are_never_called(address: str) -> None:
    assert why_refused(address, allow_private=False) is not None
    assert why_refused(address, allow_private=True) is not None


def test_one_refused_address_refuses_the_name() -> None:
    assert checked(["8.8.8.8", "1.1.1.1"], allow_private=False) == ["8.8.8.8", "1.1.1.1"]
    for addresses in (["8.8.8.8", "10.0.0.1"], []):
        with pytest.raises(CallbackError):
            checked(addresses, allow_private=False)


@pytest.mark.parametrize("name", ["localhost", "127.1", "2130706433", "0x7f.1", "017700000001"])
def test_every_spelling_of_this_machine_is_recognised(name: str) -> None:
    with pytest.raises(CallbackError):
        checked(resolve(name, 443), allow_private=False)


@pytest.mark.parametrize("name", ["nowhere.invalid", "a" * 64 + ".example", "a..b"])
def test_names_without_addresses_are_errors_of_ours(name: str) -> None:
    with pytest.raises(CallbackError, match="cannot be resolved"):
        resolve(name, 443)


@pytest.mark.parametrize(
    "url",
    [
        "https://privacy.example/callbacks?token=x",
        "https://privacy.example:8443/",
        "https://bücher.example/",
        "https://8.8.8.8/",
        "https://[2606:4700:4700::1111]/",
    ],
)
def test_public_https_urls_are_taken(url: str) -> None:
    assert check_urls([url, url], allow_private=False) == [url]


@pytest.mark.parametrize(
    "url",
    [
        "http://privacy.example/",
        "ftp://privacy.example/",
        "file:///etc/passwd",
        "privacy.example/",
        "//privacy.example/",
        "https://",
        "https:///path",
        "https://user:secret-word@privacy.example/",
        "https://token@privacy.example/",
        "https://privacy.example/#part",
        "https://privacy.example:0/",
        "https://privacy.example:65536/",
        "https://a b/",
        "https://privacy.example/\nHost: other",
        "https://[fe80::1%25eth0]/",
        "https://[::1/",
        "https://127.0.0.1/",
        "https://10.0.0.1/",
        "https://[::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://169.254.169.254/latest/meta-data/",
        "https://privacy.example/" + "x" * 2048,
    ],
)
def test_others_are_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_urls(["https://privacy.example/", url], allow_private=False)
    assert str(caught.value).startswith("status_callback_urls[1]: ")
    assert url not in str(caught.value)
    assert "secret-word" not in str(caught.value)


def test_what_is_allowed_is_taken() -> None:
    urls = ["http://127.0.0.1:8080/", "http://[::1]/", "https://10.0.0.1/"]
    assert check_urls(urls, allow_private=True) == urls
    with pytest.raises(InvalidInputError):
        check_urls(["https://169.254.169.254/"], allow_private=True)


def test_there_is_a_limit_to_their_number() -> None:
    urls = [f"https://privacy.example/{i}" for i in range(MAX_URLS + 1)]
    assert len(check_urls(urls[:-1], allow_private=False)) == MAX_URLS
    with pytest.raises(InvalidInputError, match="at most 5"):
        check_urls(urls, allow_private=False)
