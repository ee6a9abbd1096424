"""One network with the average of an ensemble's weights, where the certificate offers it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
import torch
from fastapi.testclient import TestClient
from typer.testing import CliRunner

import expunge
from app.cli.main import app
from app.client.published import read_published
from app.domain.errors import InvalidInputError
from tests.integration.app.client.test_published import (
    BACKBONE,
    DATASET,
    _backbone_weights,
    _held_out,
    digits_parquet,
)
from workers.training.published.loading import assembled

MEMBERS = 3
MODEL = {
    "name": "digits",
    "dataset": "digits",
    "architecture": {
        "name": "ensemble",
        "members": MEMBERS,
        "of": {"name": "mlp", "options": {"hidden": [12]}},
        "backbone": {"name": "public", "frozen": False},
    },
    "recipe": {"epochs": 2, "held_out_fraction": 0.2},
    "policy": {"mechanism": "sharded_retraining", "merge_margin": 1.0},
}


@pytest.fixture
def prepared(api: TestClient) -> TestClient:
    assert api.post("/v1/datasets", json=DATASET).status_code == 201
    api.put("/v1/datasets/digits/records", content=digits_parquet(200))
    api.post("/v1/backbones", json=BACKBONE)
    assert api.put("/v1/backbones/public/weights", content=_backbone_weights()).is_success
    return api


def downloaded(api: TestClient, number: int, folder: Path) -> Path:
    versions = f"/v1/models/digits/versions/{number}"
    path = folder / f"digits-v{number}.safetensors"
    path.write_bytes(api.get(f"{versions}/weights").content)
    bundle = api.get(f"{versions}/certificate").content
    path.with_name(f"digits-v{number}.certificate.json").write_bytes(bundle)
    keys = api.get("/.well-known/expunge-keys.json").content
    path.with_name("trusted-keys.json").write_bytes(keys)
    return path


def load(path: Path, **more: bool) -> torch.nn.Module:
    return expunge.load(path, trusted=path.with_name("trusted-keys.json"), **more)


def test_the_average_scores_as_the_certificate_says_at_each_release(
    prepared: TestClient, services, work: Callable[[], None], tmp_path: Path
) -> None:
    assert prepared.post("/v1/models", json=MODEL).status_code == 201
    work()
    scores = []
    for number in (1, 2):
        path = downloaded(prepared, number, tmp_path)
        trusted = path.with_name("trusted-keys.json")
        stated = expunge.verify(path, trusted=trusted)["evaluation"]["merged"]
        assert stated["offered"]
        assert (stated["metric"], stated["margin"]) == ("accuracy", 1.0)

        model = load(path, merged=True)

        raw, labels = _held_out(services, "digits", "digits")
        found = model.outputs_of(raw)
        assert (found.argmax(1).numpy() == labels).mean() == pytest.approx(stated["score"])
        tensors = safetensors.numpy.load_file(path)
        weights = [tensors[f"members.{member}.1.weight"] for member in range(MEMBERS)]
        mean = np.mean(np.stack(weights).astype(np.float64), axis=0)
        own = model.get_submodule("_network").state_dict()
        assert np.abs(own["1.weight"].numpy() - mean).max() < 1e-6
        assert len(own) == len(tensors) / MEMBERS
        assert not torch.allclose(found, load(path).outputs_of(raw), atol=1e-4)
        scores.append(found)
        if number == 1:
            records = [f"record-{row}" for row in range(12)]
            body = {"dataset": "digits", "record_ids": records}
            assert prepared.post("/v1/forget-requests", json=body).status_code in (201, 202)
            work()
    assert not torch.equal(*scores)

    used = _with_every_command(path)
    assert used["predicted"] == used["exported"]
    card = prepared.get("/v1/models/digits/versions/2/card").text
    assert "may take the ensemble's place" in card


def _with_every_command(path: Path) -> dict[str, list[int]]:
    """Predict and export the average by commands; return the classes of both."""
    features = pq.read_table(pa.BufferReader(digits_parquet(50))).select(["record_id", "features"])
    rows, out = path.with_name("rows.parquet"), path.with_name("out.parquet")
    pq.write_table(features, rows)
    common = ["--merged", "--trusted", path.with_name("trusted-keys.json")]
    graph = path.with_name("digits.onnx")
    for words in (
        ["predict", path, "--input", rows, "--out", out, *common],
        ["model", "export", path, "--out", graph, *common],
    ):
        answer = CliRunner().invoke(app, [str(word) for word in words])
        assert answer.exit_code == 0, answer.output
    raw = np.array(features["features"].combine_chunks().to_numpy_ndarray())
    (logits,) = onnxruntime.InferenceSession(graph).run(None, {"features": raw})
    found = pq.read_table(out)["prediction"].to_pylist()
    return {"predicted": found, "exported": logits.argmax(1).tolist()}


def test_without_a_margin_nothing_is_measured_or_offered(
    prepared: TestClient, work: Callable[[], None], tmp_path: Path
) -> None:
    plain = MODEL | {"policy": {"mechanism": "sharded_retraining"}}
    assert prepared.post("/v1/models", json=plain).status_code == 201
    work()
    path = downloaded(prepared, 1, tmp_path)
    with pytest.raises(InvalidInputError, match="no average of members was measured"):
        load(path, merged=True)
    with pytest.raises(InvalidInputError, match="only a certificate that was checked"):
        expunge.load(path, check=False, merged=True)

    published = read_published(path, trusted=path.with_name("trusted-keys.json"))
    refused = {"metric": "accuracy", "score": 0.5, "margin": 0.01, "offered": False}
    evaluation = published.predicate["evaluation"] | {"merged": refused}
    declined = replace(published, predicate=published.predicate | {"evaluation": evaluation})
    with pytest.raises(InvalidInputError, match=r"held out accuracy is 0\.5, more than 0\.01"):
        assembled(declined, merged=True)
    assert (
        "may take the ensemble's place"
        not in prepared.get("/v1/models/digits/versions/1/card").text
    )
    changed = prepared.patch("/v1/models/digits", json={"policy": {"merge_margin": 0.02}})
    assert changed.status_code == 200, changed.text
    assert changed.json()["policy"]["merge_margin"] == 0.02


def test_only_ensembles_merge(prepared: TestClient) -> None:
    single = MODEL | {"architecture": {"name": "mlp", "options": {"hidden": [4]}}}
    answer = prepared.post(
        "/v1/models", json=single | {"policy": {"merge_margin": 0.01, "mechanism": "retraining"}}
    )
    assert answer.status_code == 422
    assert "merge_margin is for an ensemble" in answer.text
