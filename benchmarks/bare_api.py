"""What the API is measured against: FastAPI and one statement on a row like a forget request's.

``uvicorn --factory benchmarks.bare_api:app``, with the service's own environment. The rows lie in
``bare_requests``, a copy of the ledger's table, which ``benchmarks.api_load`` makes.
"""

import secrets
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from sqlalchemy import insert, select

from app.ledger.tables import ForgetRequestRow
from app.runtime.database import Base, Database
from app.runtime.locations import database_url
from app.runtime.settings import Settings

TABLE = "bare_requests"
_SHOWN = ("id", "state", "record_count", "received_at", "due_at")


class BareBody(BaseModel):
    """What a forget request's body is."""

    dataset: str
    record_ids: list[str]


def app() -> FastAPI:
    """Return the application, over the configured database with the service's own pool."""
    api = FastAPI()
    database = Database(database_url(Settings()))
    known = Base.metadata.tables  # the copy of the ledger's table has no foreign keys
    copied = ForgetRequestRow.__table__.to_metadata  # type: ignore[attr-defined]
    table = known[TABLE] if TABLE in known else copied(Base.metadata, name=TABLE)

    @api.post("/rows", status_code=202)
    def insert_row(body: BareBody) -> dict[str, Any]:
        now = datetime.now(UTC)
        row = {
            "id": f"fr_{secrets.token_hex(16)}",
            "dataset_id": body.dataset,
            "api_key_id": "key",
            "request_digest": bytes(32),
            "state": "accepted",
            "forget_epoch": 1,
            "record_count": len(body.record_ids),
            "push_count": 1,
            "received_at": now,
            "due_at": now,
        }
        with database.transaction() as session:
            session.execute(insert(table), row)
        return {"id": row["id"], "state": "accepted"}

    @api.get("/rows/{row_id}")
    def select_row(row_id: str) -> dict[str, Any]:
        with database.transaction() as session:
            row = session.execute(select(table).where(table.c.id == row_id)).mappings().one()
        return {name: row[name] for name in _SHOWN}

    return api
