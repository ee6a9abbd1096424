"""A copy of the database identifies no one, not even to somebody who guesses ids."""

import base64
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.runtime.embedded import EmbeddedServers
from tests.support import backups
from tests.support.guessing import guessed
from tests.support.workshop import DATASET, RECORDS, RECORDS_PER_SUBJECT, Workshop, record_ids

PEOPLE = [f"subject-{i}" for i in range(RECORDS // RECORDS_PER_SUBJECT)]


@pytest.fixture
def asked(workshop: Workshop, api: TestClient) -> dict[str, str]:
    """A completed request for two people, whose ids stand wherever a caller may write them."""
    workshop.train()
    answer = api.post(
        "/v1/forget-requests",
        json={
            "dataset": DATASET,
            "subject_ids": PEOPLE[:2],
            "external_id": PEOPLE[0],
            "status_callback_urls": [f"https://privacy.example/{PEOPLE[1]}"],
        },
        headers={"Idempotency-Key": PEOPLE[1]},
    )
    workshop.unlearn()
    workshop.services.clean_up()
    request: dict[str, str] = api.get(answer.headers["Location"]).json()
    assert request["state"] == "completed"
    return request


@pytest.fixture
def dump(asked: dict[str, str], servers: EmbeddedServers, database_url: str, tmp_path: Path) -> str:
    """What a backup of the database holds."""
    target = tmp_path / "ledger.sql"
    backups.dump(servers, database_url, target, form="plain")
    return target.read_text()


@pytest.mark.slow
def test_every_id_is_guessed_and_none_is_found(dump: str) -> None:
    assert "forget_request_records" in dump
    assert guessed(dump, [*PEOPLE, *record_ids()]) == set()


@pytest.mark.slow
def test_who_has_the_receipt_finds_just_whom_it_names(asked: dict[str, str], dump: str) -> None:
    salt = base64.b64decode(asked["receipt_salt"])
    assert guessed(dump, [*PEOPLE, *record_ids()], known=[salt]) == set(PEOPLE[:2])
