"""A database whose time zone is not UTC: moments are told and reckoned as everywhere else."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import make_url, text

from app.runtime.embedded import EmbeddedServers
from tests.support.fixtures import as_admin
from tests.support.workshop import Workshop

_MOMENT = re.compile(r'"(\d{4}-\d\d-\d\dT[\d:.]+)([^"]*)"')


@pytest.fixture(
    params=[
        ("DATABASE {name}", "Asia/Kolkata"),
        ("ROLE expunge_service IN DATABASE {name}", "America/New_York"),
        ("DATABASE {name}", "Pacific/Chatham"),
    ],
    ids=str,
)
def database_url(
    request: pytest.FixtureRequest, servers: EmbeddedServers, database_url: str
) -> Iterator[str]:
    """A database that gives its sessions another zone."""
    whose, zone = request.param
    altered = whose.format(name=make_url(database_url).database)
    with as_admin(servers) as execute:
        execute(f"ALTER {altered} SET timezone = '{zone}'")
    yield f"{database_url}&application_name={zone}"  # of the shared pool's URL nothing is new
    with as_admin(servers) as execute:
        execute(f"ALTER {altered} RESET timezone")


def test_moments_are_in_utc_whatever_the_databases_zone(
    api: TestClient, workshop: Workshop
) -> None:
    workshop.train()
    request = workshop.forget(workshop.split()[0][0])

    with workshop.transaction() as session:
        # Half a year from now summer time has begun or ended.
        later = text("SELECT now(), now() + make_interval(days => 183)")
        now, then = session.execute(later).one()
        assert then - now == (then.astimezone(UTC) - now.astimezone(UTC)) == timedelta(days=183)
    paths = [f"/v1/forget-requests/{request}", "/v1/forget-requests", "/v1/models/model/versions"]
    for path in [*paths, "/v1/runs", "/v1/audit", "/v1/api-keys", "/v1/datasets"]:
        answer = api.get(path)
        assert answer.status_code == 200
        moments = _MOMENT.findall(answer.text)
        assert {zone for _, zone in moments} <= {"Z", "+00:00"}, path
        told = [datetime.fromisoformat(moment).replace(tzinfo=UTC) for moment, _ in moments]
        assert told
        assert min(told) > now - timedelta(hours=1), path
    shown = api.get(paths[0]).json()
    received, due = (datetime.fromisoformat(shown[at]) for at in ("received_at", "due_at"))
    assert due - received == timedelta(days=30)
