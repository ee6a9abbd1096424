"""What entries about imports, placements, keys and secrets change in the rows they name."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from app.access.api_keys import fingerprint
from app.access.tables import ApiKeyRow
from app.delivery.callbacks.tables import CallbackSecretRow
from app.delivery.publishing.tables import CopyRow, PlacementRow
from app.domain.states import ImportState
from app.evidence.log.tables import SigningKeyRow
from app.operations.replay import Columns, Story
from app.operations.story_rules import born, born_or_changed, counts, is_set, moment, sets, takes
from app.registry.datasets.imports import service as imports
from app.registry.datasets.imports.tables import ImportRow

PLACEMENTS = Story(
    name="placement",
    rows=select(*PlacementRow.__table__.columns),
    rules={
        "placement.wanted": born_or_changed(
            takes(model_id="model", target="target"), sets(is_wanted=True)
        ),
        "placement.unwanted": sets(is_wanted=False),
    },
)

COPIES = Story(
    name="copy",
    rows=select(*CopyRow.__table__.columns),
    derived={"placed": is_set("placed_at"), "removed": is_set("removed_at")},
    rules={
        "copy.sent": born(
            takes(placement_id="at", version_id="version"), sets(placed=False, removed=False)
        ),
        "copy.placed": sets(placed=True),
        "copy.removed": sets(removed=True),
    },
    ends=frozenset({"copy.removed"}),
)


IMPORTS = Story(
    name="import",
    rows=select(*ImportRow.__table__.columns),
    derived={"source": lambda row: imports.source_digest(row.url)},
    rules={
        "import.queued": born(
            takes(dataset_id="dataset", source="source"), sets(state="queued", added=0)
        ),
        "import.requeued": sets(state="queued"),
        "records.pushed": counts("added"),
        **{
            f"import.{state}": sets(state=state)
            for state in ImportState
            if state is not ImportState.QUEUED
        },
    },
    ends=frozenset({"import.completed"}),
)


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
    named_by="key",
    rows=select(*ApiKeyRow.__table__.columns),
    derived={
        "fingerprint": lambda row: fingerprint(row.key_hash),
        "revoked": is_set("revoked_at"),
    },
    rules={
        "key.created": born(_key_created),
        "caller.added": born(
            takes(fingerprint="fingerprint"),
            sets(kind="oidc", scopes=[], expires_at=None, revoked=False),
        ),
        "key.revoked": sets(revoked=True),
    },
    ends=frozenset({"key.revoked"}),
)


def _key_activated(facts: Mapping[str, Any], _row: Columns) -> Columns:
    since = moment(facts["valid_from"])
    ahead = {"valid_until": None, "compromised_since": None}
    return {"pem": facts["pem"], "valid_from": since, **ahead}


SIGNING_KEYS = Story(
    name="signing key",
    named_by="key",
    rows=select(*SigningKeyRow.__table__.columns),
    rules={
        "key.activated": born(_key_activated),
        "key.retired": lambda facts, _row: {
            "valid_until": moment(facts["valid_until"]),
            "compromised_since": moment(facts.get("compromised_since")),
        },
    },
    ends=frozenset({"key.retired"}),
)

CALLBACK_SECRETS = Story(
    name="callback secret of",
    named_by="key",
    rows=select(CallbackSecretRow.api_key_id.label("id"), CallbackSecretRow.generation),
    rules={
        "callback_secret.rotated": born_or_changed(
            lambda _facts, row: {"generation": row.get("generation", 0) + 1}
        )
    },
)
