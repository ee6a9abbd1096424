"""What entries about imports change in the rows they name."""

from sqlalchemy import select

from app.domain.states import ImportState
from app.imports import service as imports
from app.imports.tables import ImportRow
from app.maintenance.replay import Story
from app.maintenance.story_rules import both, columns, counts, once, sets, takes

IMPORTS = Story(
    name="import",
    field="import",
    rows=select(*ImportRow.__table__.columns),
    read=lambda row: {
        "source": imports.source_digest(row.url),
        **columns("dataset_id", "state", "added")(row),
    },
    rules={
        "import.queued": once(
            both(takes(dataset_id="dataset", source="source"), sets(state="queued", added=0))
        ),
        "import.requeued": sets(state="queued"),
        "records.pushed": counts("added"),
        **{
            f"import.{state}": sets(state=state)
            for state in ImportState
            if state is not ImportState.QUEUED
        },
    },
    births=frozenset({"import.queued"}),
    ends=frozenset({"import.completed"}),
)
