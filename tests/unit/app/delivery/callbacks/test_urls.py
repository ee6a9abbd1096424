"""Which URLs callers may give."""

import pytest

from app.delivery.callbacks.urls import MAX_URLS, check_urls
from app.domain.errors import InvalidInputError


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
