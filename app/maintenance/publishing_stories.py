"""What entries change in the rows of placements and of the copies there."""

from sqlalchemy import select

from app.maintenance.replay import Story
from app.maintenance.story_rules import both, columns, once, sets, takes
from app.publishing.tables import CopyRow, PlacementRow

PLACEMENTS = Story(
    name="placement",
    field="placement",
    rows=select(*PlacementRow.__table__.columns),
    read=columns("model_id", "target", "is_wanted"),
    rules={
        "placement.wanted": both(takes(model_id="model", target="target"), sets(is_wanted=True)),
        "placement.unwanted": sets(is_wanted=False),
    },
    births=frozenset({"placement.wanted"}),
)

COPIES = Story(
    name="copy",
    field="copy",
    rows=select(*CopyRow.__table__.columns),
    read=lambda row: {
        "placed": row.placed_at is not None,
        "removed": row.removed_at is not None,
        **columns("placement_id", "version_id")(row),
    },
    rules={
        "copy.sent": once(
            both(takes(placement_id="at", version_id="version"), sets(placed=False, removed=False))
        ),
        "copy.placed": sets(placed=True),
        "copy.removed": sets(removed=True),
    },
    births=frozenset({"copy.sent"}),
    ends=frozenset({"copy.removed"}),
)
