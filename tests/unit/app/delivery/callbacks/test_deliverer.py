"""What is posted, and how it is signed."""

import base64
import hmac
from datetime import UTC, datetime, timedelta, timezone

import pytest

from app.delivery.callbacks.deliverer import standard_message
from app.delivery.callbacks.keys import CallbackKeys
from app.delivery.callbacks.repository import Delivery

KEYS = CallbackKeys(b"k" * 32)
NOW = datetime(2026, 1, 1, 0, 0, 0, 900_000, tzinfo=UTC)
DELIVERY = Delivery(
    event_id="evt_1",
    event_type="forget_request.accepted",
    sequence=1,
    facts={"request": "fr_1", "word": "ü"},
    occurred_at=NOW,
    attempt=1,
    endpoint_id="cbe_1",
    url=b"",
    api_key_id="key_1",
    is_opendsr=False,
    generation=1,
    rotated_at=None,
)


@pytest.mark.parametrize("hours", [0, 2, -5])
def test_signatures_are_those_of_the_standard_in_every_time_zone(hours: int) -> None:
    secrets = [KEYS.secret("key_1", generation=generation) for generation in (1, 0)]
    now = NOW.astimezone(timezone(timedelta(hours=hours)))
    message = standard_message(DELIVERY, base_url="", secrets=secrets, now=now)
    assert (message.headers["webhook-id"], message.headers["webhook-timestamp"]) == (
        "evt_1",
        "1767225600",
    )
    keys = [base64.b64decode(secret.removeprefix("whsec_")) for secret in secrets]
    signed = b"evt_1.1767225600." + message.body
    expected = [base64.b64encode(hmac.digest(key, signed, "sha256")).decode() for key in keys]
    assert message.headers["webhook-signature"] == " ".join(f"v1,{each}" for each in expected)
