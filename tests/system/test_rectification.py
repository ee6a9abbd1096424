"""Records come back, are corrected and are forgotten again, while models come and go: over HTTP."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from app.evidence.certificates.verification import verify
from app.registry.datasets.columns.parquet import to_parquet
from app.services import Services
from demo.tables import record_table
from tests.support.digits import DATASET, digits_parquet, head, model
from tests.support.logbook import faults
from workers import run

RECORDS, CANCELLED, A_PERSON = 360, 40, 10


@pytest.fixture
def story(api: TestClient, services: Services, work: Callable[[], None]) -> "Story":
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet(RECORDS))
    return Story(api, services, work)


class Story:
    """Models that learn from every record they can, and what they certify."""

    def __init__(self, api: TestClient, services: Services, work: Callable[[], None]) -> None:
        self.api = api
        self.services = services
        self.work = work
        self.receipts: dict[str, bytes] = {}

    def train(self, definition: dict[str, Any]) -> None:
        recipe = {**definition["recipe"], "held_out_fraction": 0.0}
        if definition["architecture"]["name"] == "ridge_head":
            recipe = {"held_out_fraction": 0.0}
        answer = self.api.post("/v1/models", json={**definition, "recipe": recipe})
        assert answer.status_code == 201, answer.text
        self.work()

    def forget(self, **ids: list[str]) -> str:
        answer = self.api.post("/v1/forget-requests", json={"dataset": "digits", **ids})
        assert answer.status_code in (201, 202), answer.text
        request: str = answer.json()["id"]
        self.receipts[request] = json.dumps(answer.json() | ids).encode()
        return request

    def forget_people(self, *subjects: int) -> str:
        return self.forget(subject_ids=[f"subject-{n}" for n in subjects])

    def push(self, *numbers: int, shade: int | None = None) -> dict[str, Any]:
        """Push some digits as they are; or of one shade of grey, in the place of those stored."""
        table = pq.read_table(pa.BufferReader(digits_parquet(RECORDS))).take(list(numbers))
        options = {}
        if shade is not None:
            grey = np.full((len(numbers), 8, 8), shade, dtype=np.uint8)
            table = record_table(
                record_ids=table["record_id"].to_pylist(),
                subject_ids=table["subject_id"].to_pylist(),
                labels=table["label"].to_numpy(),
                features=grey,
            )
            options = {"replace": True}
        answer = self.api.put(
            "/v1/datasets/digits/records", content=to_parquet(table), params=options
        )
        assert answer.status_code == 200, answer.text
        pushed: dict[str, Any] = answer.json()
        request = pushed["forget_request"]
        if request is not None:
            named = {"record_ids": [f"record-{numbers[row]}" for row in pushed["replaced_rows"]]}
            self.receipts[request] = json.dumps(self.shown(request) | named).encode()
        return pushed

    def shown(self, request: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api.get(f"/v1/forget-requests/{request}").json()
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

    def met(self, request: str) -> dict[str, int]:
        """Have a request met; verify it, and return how many records each model forgot so far."""
        self.work()
        shown = self.shown(request)
        assert shown["completed_at"] is not None, shown
        assert faults(self.services) == []
        return {name: stated["records"] for name, stated in self.certified(request).items()}


def test_records_that_are_pushed_again_are_new_to_every_model_that_exists(story: Story) -> None:
    story.train(model("before", window_s=3600.0))
    cancelled = story.forget_people(0, 1, 2, 3)
    answer = story.api.delete(f"/v1/forget-requests/{cancelled}")
    assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
    story.train(head("meanwhile", mechanism="tracked_release"))
    assert story.push(*range(CANCELLED))["added"] == CANCELLED
    story.train(head("after", mechanism="tracked_release"))

    # Somebody else is forgotten by all of them; the model from before owed the forty, too.
    story.patch("before", window_s=0.0)
    person = story.forget_people(10)
    assert story.met(person) == {
        "before": CANCELLED + A_PERSON,
        "meanwhile": A_PERSON,  # it never had them
        "after": A_PERSON,  # it has them as new ones, and lost none of them
    }
    assert story.met(cancelled) == {"before": CANCELLED + A_PERSON}
    assert story.shown(cancelled)["state"] == "cancelled"

    # So is one of the forty, whose first records one model had, and whose second ones another.
    story.patch("meanwhile", mechanism="retraining")
    again = story.forget_people(3)
    assert story.shown(again)["records"] == 2 * A_PERSON
    assert story.met(again) == {"before": CANCELLED + A_PERSON, "after": 2 * A_PERSON}


ADAPTIVE = {"adaptive": True, "epsilon": 8.0, "parameters": {"forgotten": 20}}


@pytest.mark.parametrize(
    "definition",
    [
        model("model", mechanism="retraining"),
        model("model", mechanism="dp_sgd", epsilon=8.0, parameters={"capacity": 20}),
        head("model", mechanism="tracked_release"),
        head("model", mechanism="sufficient_statistics") | {"architecture": {"name": "ridge_head"}},
        head("model", epochs=60, mechanism="noisy_gd_convex", **ADAPTIVE),
    ],
    ids=lambda definition: definition["policy"]["mechanism"],
)
def test_records_are_corrected_once_and_again(story: Story, definition: dict[str, Any]) -> None:
    story.train(definition)

    one = story.push(7, shade=3)
    assert (one["added"], one["replaced"], one["changed"]) == (0, 1, 0)
    assert story.met(one["forget_request"]) == {"model": 1}

    many = story.push(*range(5, 15), RECORDS - 1, shade=4)
    assert (many["replaced"], many["already_present"]) == (11, 0)
    # Number 7 names the record that was corrected before, too: the model had that one.
    assert story.shown(many["forget_request"])["records"] == 12
    assert story.met(many["forget_request"]) == {"model": 11}

    third = story.push(7, shade=5)["forget_request"]
    assert story.shown(third)["records"] == 3
    assert story.met(third) == {"model": 11}
    same = story.push(7, shade=5)
    assert (same["already_present"], same["forget_request"]) == (1, None)

    if "adaptive" in definition["policy"]:  # it plans no second training for this budget
        return
    # A new training learns from the corrected ones, and forgets these as any others.
    assert story.api.post("/v1/models/model/retrain").status_code == 202
    story.work()
    last = story.forget(record_ids=["record-7", "record-100"])
    assert story.shown(last)["records"] == 5
    assert story.met(last) == {"model": 2}
    assert story.push(7)["added"] == 1


def test_what_is_pending_or_read_by_a_run_is_replaced(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.train(model("patient", window_s=3600.0))
    pending = story.forget(record_ids=["record-7"])
    back = story.push(7, shade=3)
    assert (back["added"], back["forget_request"]) == (1, None)
    replaced = story.push(7, 8, shade=4)["forget_request"]
    story.patch("patient", window_s=0.0)
    during: list[str] = []
    publish = run.publish_result

    def replace_and_publish(*args: Any) -> Any:
        if not during:  # it holds the records, and has learned without those that are replaced
            during.append(story.push(8, 9, shade=5)["forget_request"])
        return publish(*args)

    monkeypatch.setattr(run, "publish_result", replace_and_publish)
    story.work()
    assert story.met(during[0]) == {"patient": 3}
    for request in (pending, replaced):
        assert story.shown(request)["state"] == "completed"
