"""What entries about keys and secrets change in the rows they name."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from app.access.api_keys import fingerprint
from app.access.tables import ApiKeyRow
from app.callbacks.tables import CallbackSecretRow
from app.log.tables import SigningKeyRow
from app.maintenance.replay import Columns, Story
from app.maintenance.story_rules import both, columns, moment, once, sets, takes


def _key_created(facts: Mapping[str, Any], _row: Columns) -> Columns:
    return {
        "kind": "key",
        "fingerprint": facts["fingerprint"],
        "scopes": facts["scopes"],
        "expires_at": moment(facts.get("expires_at")),
        "revoked": False,
    }


API_KEYS = Story(
    name="API key",
    field="key",
    rows=select(*ApiKeyRow.__table__.columns),
    read=lambda row: {
        "fingerprint": fingerprint(row.key_hash),
        "revoked": row.revoked_at is not None,
        **columns("kind", "scopes", "expires_at")(row),
    },
    rules={
        "key.created": once(_key_created),
        "caller.added": once(
            both(
                takes(fingerprint="fingerprint"),
                sets(kind="oidc", scopes=[], expires_at=None, revoked=False),
            )
        ),
        "key.revoked": sets(revoked=True),
    },
    births=frozenset({"key.created", "caller.added"}),
    ends=frozenset({"key.revoked"}),
)


def _key_activated(facts: Mapping[str, Any], _row: Columns) -> Columns:
    since = moment(facts["valid_from"])
    ahead = {"valid_until": None, "compromised_since": None}
    return {"pem": facts["pem"], "valid_from": since, **ahead}


SIGNING_KEYS = Story(
    name="signing key",
    field="key",
    rows=select(*SigningKeyRow.__table__.columns),
    read=columns("pem", "valid_from", "valid_until", "compromised_since"),
    rules={
        "key.activated": once(_key_activated),
        "key.retired": lambda facts, _row: {
            "valid_until": moment(facts["valid_until"]),
            "compromised_since": moment(facts.get("compromised_since")),
        },
    },
    births=frozenset({"key.activated"}),
    ends=frozenset({"key.retired"}),
)

CALLBACK_SECRETS = Story(
    name="callback secret of",
    field="key",
    rows=select(CallbackSecretRow.api_key_id.label("id"), CallbackSecretRow.generation),
    read=columns("generation"),
    rules={
        "callback_secret.rotated": lambda _facts, row: {"generation": row.get("generation", 0) + 1}
    },
    births=frozenset({"callback_secret.rotated"}),
)
