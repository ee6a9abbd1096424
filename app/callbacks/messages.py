"""The bodies and headers of callbacks, for both kinds of requests."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from app.callbacks.keys import sign
from app.callbacks.repository import Delivery
from app.certificates.processor_signing import ProcessorSigner


@dataclass(frozen=True)
class Message:
    """A body and its signed headers."""

    headers: Mapping[str, str]
    body: bytes


def standard_message(
    delivery: Delivery, *, base_url: str, secrets: Sequence[str], now: datetime
) -> Message:
    """Return a message of Standard Webhooks 1.0.0, signed with every given secret."""
    path = f"{base_url}/v1/forget-requests/{delivery.facts['request']}"
    body = _json(
        {
            "type": delivery.event_type,
            "timestamp": delivery.occurred_at.astimezone(UTC).isoformat(),
            "data": {
                **delivery.facts,
                "sequence": delivery.sequence,
                "links": {"request": path, "certificates": f"{path}/certificates"},
            },
        }
    )
    timestamp = int(now.timestamp())
    signatures = [
        sign(secret, message_id=delivery.event_id, timestamp=timestamp, body=body)
        for secret in secrets
    ]
    headers = {
        "webhook-id": delivery.event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }
    return Message(headers, body)


def opendsr_message(*, facts: Mapping[str, Any], url: str, signer: ProcessorSigner) -> Message:
    """Return a message of OpenDSR 2.0, section 8.6."""
    body = _json({**facts, "status_callback_url": url})
    return Message(signer.headers(body), body)


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
