"""``expunge plan --members --model`` shows what models of the service have measured."""

import json
import re
from collections.abc import Callable

from fastapi.testclient import TestClient
from typer.testing import CliRunner

from app.cli.main import app
from tests.support.digits import DATASET, RECIPE, TASK, digits_parquet

NETWORK = {"name": "mlp", "options": {"hidden": [4]}}
MODEL = {
    "dataset": "digits",
    "task": TASK,
    "recipe": RECIPE | {"epochs": 1, "held_out_fraction": 0.2},
}


def test_a_size_that_a_model_has_is_shown_with_its_score_and_file(
    api: TestClient, served: None, work: Callable[[], None]
) -> None:
    assert api.post("/v1/datasets", json=DATASET).status_code == 201
    api.put("/v1/datasets/digits/records", content=digits_parquet(100))
    ensemble = {"name": "ensemble", "members": 2, "of": NETWORK}
    for name, architecture, mechanism in (
        ("two", ensemble, "sharded_retraining"),
        ("one", NETWORK, "retraining"),
    ):
        body = MODEL | {"name": name, "architecture": architecture}
        body["policy"] = {"mechanism": mechanism, "forget": "retrain"}
        assert api.post("/v1/models", json=body).status_code == 201
    work()
    shown = {name: api.get(f"/v1/models/{name}").json()["certified"] for name in ("one", "two")}

    words = ["plan", "--model", "two", "--members", "1,2,4"]
    answer = CliRunner().invoke(app, [*words, "--json"])

    assert answer.exit_code == 0, answer.output
    one, two, four = json.loads(answer.output)
    assert one["model"] == "one"
    assert (one["one"], two["one"]) == (2 * 64, 64)  # 80 and 40 records: batches count in full
    for name, found in (("one", one), ("two", two)):
        assert found["model"] == name
        assert found["size_bytes"] == shown[name]["size_bytes"]
        assert found["score"] == shown[name]["evaluation"]["metrics"]["accuracy"]
        assert found["seconds"] > 0
    assert (four["model"], four["score"], four["seconds"]) == (None, None, None)
    assert one["outweighs"] > 0
    assert two["outweighs"] is None
    assert four["size_bytes"] == 2 * two["size_bytes"]
    quoted = CliRunner().invoke(app, ["plan", "--model", "one"]).output
    assert re.search(r"^retraining.*\n.* seconds [\d.]+ \([\d.]+ to [\d.]+\)", quoted, re.MULTILINE)
    assert "seconds not measured yet" in quoted  # of gradient_clipping
    assert f"held out accuracy {one['score']:.5g}" in quoted
    assert "gradients" not in quoted
    assert re.search(r"^retraining.*\n.* disk [\d.]+ MB", quoted, re.MULTILINE)
    full = CliRunner().invoke(app, ["plan", "--model", "one", "--verbose"]).output
    assert re.search(rf"seconds [\d.]+ .*, gradients {one['one']}", full)
    said = CliRunner().invoke(app, words).output
    assert "two has a held out accuracy of" in said
    assert re.search(r"^2 members: [\d.]+ MB, a request in [\d.e-]+ s; two has", said, re.MULTILINE)
    assert f"worth it from about {one['outweighs']:,} records on" in said
    assert "no model of this size was measured" in said
