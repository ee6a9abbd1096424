"""What a request and the desk cost does not grow with what is stored."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, event, text

from app.ledger import previews
from app.ledger.new_requests import NewForgetRequest
from app.planning.planner import make_plan
from app.services import Services
from tests.support.workshop import DATASET, RECORDS, Workshop

MANY = 20_000
PAGES = ("/data", f"/data/{DATASET}", "/models", "/models/model", "/requests", "/runs", "/settings")


@contextmanager
def _statements(engine: Engine) -> Iterator[list[tuple[str, Any]]]:
    sent: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        sent.append((statement, values))

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", note)


def _rows_read(plan: Mapping[str, Any]) -> Iterator[float]:
    """Yield how many rows of ``records`` PostgreSQL expects to read at each step."""
    if plan.get("Relation Name") == "records" and "Scan" in plan["Node Type"]:
        yield MANY if plan["Node Type"] == "Seq Scan" else plan["Plan Rows"]
    for part in plan.get("Plans", ()):
        yield from _rows_read(part)


@pytest.mark.parametrize("mechanism", ["gradient_clipping", "retraining"])
def test_neither_a_request_nor_its_plan_nor_a_page_reads_all_records(
    services: Services,
    workshop: Workshop,
    operator: TestClient,
    app_database: Engine,
    mechanism: str,
) -> None:
    workshop.push(MANY, first=RECORDS)
    workshop.train(mechanism=mechanism)
    learned = workshop.split()[0][:2]
    asked = NewForgetRequest(DATASET, record_ids=learned[:1])
    with _statements(services.database.engine) as sent:
        previews.preview(
            services.database,
            services.acceptance,
            asked,
            api_key_id=workshop.key_id,
            make=make_plan,
        )
        workshop.forget(learned[1])
        workshop.dispatch()
        for page in PAGES:
            assert operator.get(page).status_code == 200
    assert workshop.active_run() is not None
    with app_database.connect() as connection:
        connection.execute(text("ANALYZE"))
        for statement, values in sent:
            if " records" in statement and not statement.startswith("COPY"):
                found = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", values)
                told = found.scalar_one()
                plan = (json.loads(told) if isinstance(told, str) else told)[0]["Plan"]
                assert all(rows < MANY / 10 for rows in _rows_read(plan)), statement
