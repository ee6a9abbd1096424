"""Public backbones over HTTP, and the models that may stand on them."""

import hashlib
import json

import numpy as np
import pytest
import safetensors.numpy
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.domain.architectures import definition_digest
from app.evidence.certificates.signing import statement_of
from app.evidence.log.tables import LogEntryRow
from app.storage.tables import BlobRow
from tests.support.workshop import DATASET, TASK, Workshop

PROBLEM = "application/problem+json"
WEIGHTS = safetensors.numpy.save({"1.weight": np.zeros((2, 2), np.float32)})
DIGEST = hashlib.sha256(WEIGHTS).hexdigest()


def _definition(**changes: object) -> dict:
    return {
        "name": "public",
        "architecture": {"name": "mlp", "options": {"hidden": [3]}},
        "input": {"shape": [2]},
        "classes": 5,
        "source": "trained on nothing but noise",
    } | changes


def _model(backbone: dict, **changes: object) -> dict:
    architecture = {"name": "logistic", "backbone": backbone}
    return {"name": "m", "dataset": DATASET, "task": TASK, "architecture": architecture} | changes


def _refused(answer, status: int, word: str) -> None:
    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM), answer.text
    assert word in answer.json()["detail"]


@pytest.fixture
def uploaded(api: TestClient, workshop: Workshop) -> None:
    assert api.post("/v1/backbones", json=_definition()).status_code == 201
    assert api.put("/v1/backbones/public/weights", content=WEIGHTS).status_code == 200


def test_a_backbone_is_defined_then_gets_its_weights(api: TestClient) -> None:
    made = api.post("/v1/backbones", json=_definition())
    assert (made.status_code, made.headers["location"]) == (201, "/v1/backbones/public")
    assert made.json() == _definition() | {
        "layers": [],
        "features": 3,
        "created_at": made.json()["created_at"],
        "sha256": None,
        "size_bytes": None,
        "archived_at": None,
    }

    given = api.put("/v1/backbones/public/weights", content=WEIGHTS)

    assert given.status_code == 200
    expected = made.json() | {"sha256": DIGEST, "size_bytes": len(WEIGHTS)}
    assert given.json() == expected
    assert api.get("/v1/backbones/public").json() == expected
    assert api.get("/v1/backbones").json()["items"] == [expected]


def test_weights_come_once(api: TestClient, uploaded: None, workshop: Workshop) -> None:
    other = safetensors.numpy.save({"1.weight": np.ones((2, 2), np.float32)})
    for content in (WEIGHTS, other):
        _refused(api.put("/v1/backbones/public/weights", content=content), 409, "never change")
    assert api.get("/v1/backbones/public").json()["sha256"] == DIGEST
    with workshop.transaction() as session:
        (blob,) = session.scalars(select(BlobRow).where(BlobRow.kind == "backbone"))
        kinds = [kind for (kind,) in session.execute(select(LogEntryRow.kind))]
    assert (blob.state, blob.sha256) == ("live", DIGEST)
    assert [kind for kind in kinds if kind.startswith("backbone")] == [
        "backbone.defined",
        "backbone.uploaded",
    ]


def test_a_name_can_be_taken_once(api: TestClient) -> None:
    api.post("/v1/backbones", json=_definition())
    _refused(api.post("/v1/backbones", json=_definition()), 409, "exists already")


IMPOSSIBLE = [
    ({"name": "../x"}, "name"),
    ({"architecture": {"name": "transformer"}}, "architecture"),
    ({"architecture": {"name": "logistic", "backbone": {"name": "x"}}}, "another backbone"),
    ({"input": {"shape": [0]}}, "shape"),
    ({"input": {"shape": []}}, "shape"),
    ({"input": {"shape": [2], "scale": 2.0}}, "scale"),
    ({"classes": 1}, "classes"),
    ({"features": 4}, "makes 3, not 4"),
    ({"features": 0}, "features"),
    ({"layers": [{"module": "1", "pool": "3x3"}]}, "pool"),
    ({"layers": [{"module": "1"}, {"module": "1"}]}, "twice"),
    ({"layers": [{"module": ""}]}, "module"),
    ({"source": ""}, "source"),
    (
        {"architecture": {"name": "ensemble", "members": 2, "of": {"name": "logistic"}}},
        "one network, not an ensemble",
    ),
    ({"source": "\x00"}, "NUL"),
    ({"private": True}, "private"),
    (
        {"architecture": {"name": "mlp", "options": {"hidden": [65_536] * 64}}},
        "270587592709 parameters for these features and classes, and at most 100000000",
    ),
]


def test_a_definition_that_cannot_be_is_refused(api: TestClient, subtests: pytest.Subtests) -> None:
    for change, word in IMPOSSIBLE:
        with subtests.test(change=change, word=word):
            _refused(api.post("/v1/backbones", json=_definition(**change)), 422, word)
            assert api.get("/v1/backbones").json()["items"] == []


def test_what_is_no_weight_file_is_refused(api: TestClient) -> None:
    api.post("/v1/backbones", json=_definition())
    _refused(api.put("/v1/backbones/public/weights", content=b"zip"), 422, "safetensors")
    _refused(api.put("/v1/backbones/nobody/weights", content=WEIGHTS), 404, "no backbone")
    _refused(api.get("/v1/backbones/nobody"), 404, "no backbone")


def test_a_model_needs_a_backbone_that_is_there_and_has_weights(
    api: TestClient, workshop: Workshop
) -> None:
    _refused(api.post("/v1/models", json=_model({"name": "public"})), 404, "no backbone")
    api.post("/v1/backbones", json=_definition())
    _refused(api.post("/v1/models", json=_model({"name": "public"})), 409, "no weights")
    assert api.get("/v1/models").json()["items"] == []


def test_a_model_needs_a_backbone_that_reads_its_dataset(
    api: TestClient, workshop: Workshop
) -> None:
    api.post("/v1/backbones", json=_definition(input={"shape": [1, 2]}))
    api.put("/v1/backbones/public/weights", content=WEIGHTS)
    _refused(api.post("/v1/models", json=_model({"name": "public"})), 422, "shape [1, 2]")


def test_training_on_from_a_backbone_needs_its_architecture(
    api: TestClient, uploaded: None
) -> None:
    use = {"name": "public", "frozen": False}
    wider = {"name": "mlp", "options": {"hidden": [4]}, "backbone": use}
    for architecture in ({"name": "logistic", "backbone": use}, wider):
        body = _model({}, architecture=architecture)
        _refused(api.post("/v1/models", json=body), 422, "frozen: false")
    member = {"name": "mlp", "options": {"hidden": [3]}}
    ensemble = {"name": "ensemble", "options": {}, "members": 2, "of": member, "backbone": use}
    for name, same in (("m", member | {"backbone": use}), ("e", ensemble)):
        made = api.post("/v1/models", json=_model({}, name=name, architecture=same))
        assert made.status_code == 201, made.text
        assert made.json()["architecture"] == same


def _predicate(api: TestClient, name: str = "m") -> dict:
    bundle = api.get(f"/v1/models/{name}/versions/1/certificate").json()
    return statement_of(json.dumps(bundle["envelope"]))["predicate"]


@pytest.mark.parametrize("first_release", ["certify", "as_trained"])
def test_a_certificate_names_the_backbone_and_who_vouches_for_it(
    api: TestClient, uploaded: None, workshop: Workshop, first_release: str
) -> None:
    policy = {"mechanism": "gradient_clipping", "first_release": first_release}
    answer = api.post("/v1/models", json=_model({"name": "public"}, policy=policy))
    assert answer.status_code == 201, answer.text
    workshop.work("m")

    predicate = _predicate(api)

    definition = definition_digest(
        architecture=_definition()["architecture"], layers=(), input_shape=(2,), classes=5
    )
    digests = {"sha256": DIGEST, "definition": definition}
    assert predicate["backbone"] == {"name": "public", "frozen": True} | digests
    if first_release == "as_trained":
        assert "assumptions" not in predicate
        return
    public, alone = [a for a in predicate["assumptions"] if "backbone" in a["statement"]]
    assert public["support"] == alone["support"] == "asserted"
    assert all(each in public["statement"] for each in digests.values())
    assert "do not depend on the training data" in public["statement"]
    assert "from that record alone" in alone["statement"]


def test_the_certificate_of_a_held_out_record_names_it_too(
    api: TestClient, uploaded: None, workshop: Workshop
) -> None:
    policy = {"mechanism": "gradient_clipping"}
    recipe = {"held_out_fraction": 0.5, "batch_size": 4}
    api.post("/v1/models", json=_model({"name": "public"}, policy=policy, recipe=recipe))
    workshop.work("m")
    _, held_out = workshop.split("m")
    request = workshop.forget(held_out[0])

    (certificate,) = api.get(f"/v1/forget-requests/{request}/certificates").json()

    predicate = statement_of(json.dumps(certificate["bundle"]["envelope"]))["predicate"]
    assert predicate["basis"] == "excluded_from_training"
    assert predicate["backbone"]["sha256"] == DIGEST
    assert [a["support"] for a in predicate["assumptions"]] == ["enforced", "asserted", "asserted"]


def test_a_certificate_without_a_backbone_says_nothing_of_one(
    api: TestClient, workshop: Workshop
) -> None:
    workshop.train()
    assert "backbone" not in json.dumps(_predicate(api, "model"))
