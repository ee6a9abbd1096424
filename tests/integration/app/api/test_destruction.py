"""Everything derived from a dataset is destroyed, and one signed entry says so."""

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.delivery.publishing.tables import PlacementRow
from app.domain.merkle import leaf_hash, verify_inclusion
from app.domain.states import Scope
from app.evidence.certificates.bundle import read_log_proof
from app.evidence.certificates.note import open_checkpoint
from app.runtime.settings import FolderPublisher, Settings
from app.services import Services
from tests.integration.app.api.conftest import CallerOf
from tests.support.workshop import DATASET, RECORDS, Workshop

PATH = f"/v1/datasets/{DATASET}"


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    publishers = {"shelf": FolderPublisher(kind="folder", path=tmp_path)}
    return settings.model_copy(update={"publishers": publishers})


def _define_backbone(api: TestClient) -> None:
    body = {
        "name": "made-of-it",
        "architecture": {"name": "logistic"},
        "input": {"shape": [8, 8]},
        "classes": 10,
        "source": "elsewhere",
    }
    assert api.post("/v1/backbones", json=body).status_code == 201


def _settle(services: Services) -> None:
    with services.database.transaction() as session:
        (placement,) = session.scalars(select(PlacementRow.id))
    assert services.publisher().settle(placement)


def test_all_that_came_from_a_dataset_goes_and_the_log_says_so(
    services: Services, workshop: Workshop, caller_of: CallerOf, tmp_path: Path
) -> None:
    api = caller_of(Scope.ADMIN)
    workshop.define("one")
    workshop.define("two")
    version = workshop.work("one")
    workshop.work("two")
    _define_backbone(api)
    weights = api.get("/v1/models/one/certified/weights").content
    assert api.put("/v1/backbones/made-of-it/weights", content=weights).status_code == 200
    api.put("/v1/models/one/targets/shelf")
    _settle(services)
    workshop.archive("two")

    before = api.get(f"{PATH}/destruction").json()
    assert [each["name"] for each in before["models"]] == ["one", "two"]
    assert [each["name"] for each in before["backbones"]] == ["made-of-it"]
    assert (before["records"], before["complete"], before["statement"]) == (RECORDS, False, None)
    assert before["models"][0]["versions"][0]["sha256"] == version.sha256
    assert api.get("/v1/models/one/certified").status_code == 200  # looking changes nothing

    for scope in (Scope.DATA_WRITE, Scope.MODELS_WRITE, Scope.MODELS_READ):
        assert caller_of(scope).post(f"{PATH}/destroy", json={}).status_code == 403
    gone = api.post(f"{PATH}/destroy", json={}).json()
    assert all(each["archived_at"] for each in (*gone["models"], *gone["backbones"]))
    assert not gone["complete"]  # the copy is still there
    services.clean_up()
    _settle(services)
    assert not [*tmp_path.rglob("*.safetensors")]
    again = api.post(f"{PATH}/destroy", json={}).json()
    assert again["complete"]
    assert again["models"][0]["copies"][0]["removed_at"]
    assert again["statement"]["entry"] == gone["statement"]["entry"]

    stated = json.loads(again["statement"]["entry"])
    assert (stated["kind"], stated["records"]) == ("dataset.destroyed", RECORDS)
    assert [(m["name"], m["versions"]) for m in stated["models"]] == [
        ("one", {"1": version.sha256}),
        ("two", {"1": version.sha256}),
    ]
    assert [(b["name"], b["sha256"]) for b in stated["backbones"]] == [
        ("made-of-it", version.sha256)
    ]
    for each in (*stated["models"], *stated["backbones"]):
        assert each["id"].startswith(("model_", "bb_"))
    assert "downloaded" in stated["beyond_reach"][0]
    proof = read_log_proof(again["statement"])
    key = services.signer.note_key(proof.checkpoint.partition("\n")[0])
    checkpoint = open_checkpoint(proof.checkpoint.encode(), [key])
    verify_inclusion(
        leaf=leaf_hash(proof.entry.encode()),
        index=proof.index,
        size=checkpoint.size,
        proof=proof.inclusion,
        root=checkpoint.root,
    )


def test_weights_that_were_destroyed_do_not_come_back(
    services: Services, workshop: Workshop, caller_of: CallerOf
) -> None:
    api = caller_of(Scope.ADMIN)
    workshop.define("one")
    workshop.work("one")
    weights = api.get("/v1/models/one/certified/weights").content
    _define_backbone(api)
    assert api.post(f"{PATH}/destroy", json={}).json()["statement"]
    services.clean_up()
    for named in ({"backbones": ["nobody"]}, {"backbones": ["made-of-it"]}):
        assert api.get(f"{PATH}/destruction").json()["complete"]
        brought = api.put("/v1/backbones/made-of-it/weights", content=weights)
        assert (brought.status_code, "was destroyed" in brought.text) == (410, True)
        services.clean_up()
        code = api.post(f"{PATH}/destroy", json=named).status_code
        assert code == (404 if named["backbones"] == ["nobody"] else 200)
    gone = api.get(f"{PATH}/destruction").json()
    assert [each["name"] for each in gone["backbones"]] == ["made-of-it"]  # named later: one more
    assert gone["complete"]
