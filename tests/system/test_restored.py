"""A request is cancelled and its records restored, while models come and go: all over HTTP."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.evidence.certificates.verification import verify
from tests.support.digits import DATASET, digits_parquet, head, model

RECORDS, RESTORED, A_PERSON = 360, 40, 10


@pytest.fixture
def story(api: TestClient, work: Callable[[], None]) -> "Story":
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet(RECORDS))
    return Story(api, work)


class Story:
    """Models that learn from every record they can, and what they certify."""

    def __init__(self, api: TestClient, work: Callable[[], None]) -> None:
        self.api = api
        self.work = work
        self.receipts: dict[str, bytes] = {}

    def train(self, definition: dict[str, Any]) -> None:
        recipe = {**definition["recipe"], "held_out_fraction": 0.0}
        answer = self.api.post("/v1/models", json={**definition, "recipe": recipe})
        assert answer.status_code == 201, answer.text
        self.work()

    def forget(self, *subjects: int) -> str:
        ids = {"subject_ids": [f"subject-{n}" for n in subjects]}
        answer = self.api.post("/v1/forget-requests", json={"dataset": "digits", **ids})
        assert answer.status_code in (201, 202), answer.text
        request: str = answer.json()["id"]
        self.receipts[request] = json.dumps(answer.json() | ids).encode()
        return request

    def state(self, request: str) -> str:
        found: str = self.api.get(f"/v1/forget-requests/{request}").json()["state"]
        return found

    def patch(self, name: str, **policy: object) -> None:
        answer = self.api.patch(f"/v1/models/{name}", json={"policy": policy})
        assert answer.status_code == 200, answer.text

    def certified(self, request: str) -> dict[str, dict[str, Any]]:
        """Verify a request's certificates with its receipt; return what they say, by model."""
        found = {}
        for certificate in self.api.get(f"/v1/forget-requests/{request}/certificates").json():
            name = certificate["model"]
            predicate = verify(
                bundle=json.dumps(certificate["bundle"]).encode(),
                weights=self.api.get(f"/v1/models/{name}/certified/weights").content,
                trusted=self.api.get("/.well-known/expunge-keys.json").content,
                receipt=self.receipts[request],
            )
            found[name] = predicate["forgotten"]
        return found

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Have forty records forgotten for a while, and then restored."""
        request = self.forget(0, 1, 2, 3)
        yield
        answer = self.api.delete(f"/v1/forget-requests/{request}", params={"restore": True})
        assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")


def test_restored_records_are_new_to_every_model_that_exists(story: Story) -> None:
    story.train(model("before", window_s=3600.0))
    with story.restored():
        story.train(head("meanwhile", mechanism="tracked_release"))
        early = story.forget(20)
        story.work()
        shown = story.certified(early)
    story.train(head("after", mechanism="tracked_release"))

    # What was certified before the restoration can still be proved.
    assert story.certified(early) == shown
    assert shown["meanwhile"]["excluded_records"] == RESTORED

    # Somebody else is forgotten by all of them.
    story.patch("before", window_s=0.0)
    person = story.forget(10)
    story.work()
    assert [story.state(request) for request in (early, person)] == ["completed"] * 2
    records = {name: found["records"] for name, found in story.certified(person).items()}
    assert records == {
        "before": RESTORED + 2 * A_PERSON,  # it lets go of the forty with its next run
        "meanwhile": 2 * A_PERSON,  # it never had them
        "after": A_PERSON,  # it has them, and lost none of them
    }

    # So is one of the forty, of whom two models know nothing any more.
    story.patch("meanwhile", mechanism="retraining")
    again = story.forget(3)
    story.work()
    assert story.state(again) == "completed"
    found = story.certified(again)
    assert {name: forgotten["records"] for name, forgotten in found.items()} == {
        "before": RESTORED + 2 * A_PERSON,
        "after": 2 * A_PERSON,
    }
