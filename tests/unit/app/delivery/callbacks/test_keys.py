"""Encrypted addresses and derived secrets."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.delivery.callbacks.keys import OVERLAP, CallbackKeys, signing
from app.domain.errors import CallbackError

URL = "https://privacy.example/?token=sesame"
KEYS = CallbackKeys(b"k" * 32)


def test_an_address_is_read_under_its_key_and_in_its_place_alone() -> None:
    stored = KEYS.encrypt(URL, endpoint_id="cbe_1")

    assert KEYS.decrypt(stored, endpoint_id="cbe_1") == URL
    assert KEYS.encrypt(URL, endpoint_id="cbe_1") != stored
    assert b"sesame" not in stored
    for keys, place, content in (
        (CallbackKeys(b"l" * 32), "cbe_1", stored),
        (KEYS, "cbe_2", stored),
        (KEYS, "cbe_1", stored[:-1]),
        (KEYS, "cbe_1", b""),
    ):
        with pytest.raises(CallbackError):
            keys.decrypt(content, endpoint_id=place)


def test_the_same_address_is_recognised_within_a_caller_alone() -> None:
    digest = KEYS.digest(URL, api_key_id="key_1")
    assert digest == KEYS.digest(URL, api_key_id="key_1")
    assert digest != KEYS.digest(URL + "x", api_key_id="key_1")
    assert digest != KEYS.digest(URL, api_key_id="key_2")
    assert digest != CallbackKeys(b"l" * 32).digest(URL, api_key_id="key_1")


def test_every_caller_and_every_rotation_has_a_secret_of_its_own() -> None:
    secrets = {
        keys.secret(caller, generation=generation)
        for keys in (KEYS, CallbackKeys(b"l" * 32))
        for caller in ("key_1", "key_2")
        for generation in (0, 1)
    }
    assert len(secrets) == 8
    assert all(secret.startswith("whsec_") for secret in secrets)


def test_the_previous_secret_signs_for_a_day() -> None:
    now = datetime.now(UTC)
    new, old = (KEYS.secret("key_1", generation=generation) for generation in (3, 2))

    def at(moment: datetime) -> list[str]:
        return signing(KEYS, "key_1", generation=3, rotated_at=now, now=moment)

    assert at(now + OVERLAP - timedelta(seconds=1)) == [new, old]
    assert at(now + OVERLAP) == [new]
    first = signing(KEYS, "key_1", generation=0, rotated_at=None, now=now)
    assert first == [KEYS.secret("key_1", generation=0)]


def test_the_key_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "callbacks.key"
    made = CallbackKeys.from_file(path, create=True)
    read = CallbackKeys.from_file(path)
    assert made.secret("k", generation=0) == read.secret("k", generation=0)
    assert path.stat().st_mode & 0o777 == 0o600
