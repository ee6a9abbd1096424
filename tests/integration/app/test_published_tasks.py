"""What the service publishes for each task computes what its certificate says of held-out rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import f1_score, r2_score, roc_auc_score
from typer.testing import CliRunner

import expunge
from app.cli.main import app
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.tables import RecordRow
from app.registry.membership import membership_of
from app.services import Services
from tests.support.described import next_token
from tests.support.operators import operators_package
from tests.support.own_tasks import OWN, Rents
from tests.support.shops import COLUMNS, SHOPS, TASKS, rows

FACTORY = "operators_networks:next_token"
ALLOWED = "operators_networks:*"
NETWORKS: dict[str, Any] = {
    "language_model": {"name": "custom", "factory": FACTORY},
    "images": {"name": "cnn", "options": {"channels": [16]}},
}
TWO_RENTS = TASKS["squared"] | {
    "target": {"columns": ["rent", "trust"], "offset": 100, "scale": 0.01}
}
MODELS = {**TASKS, "two_numbers": TWO_RENTS, "own": OWN}


@pytest.fixture
def released(api, work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model of every task, as downloads leave it, and the trusted keys."""
    operators_package(monkeypatch, next_token, Rents)
    monkeypatch.setenv("EXPUNGE_ALLOWED_FACTORIES", ALLOWED)
    ids = {"record_id": "shop", "subject_id": "owner"}
    body = {"name": SHOPS, "columns": COLUMNS} | ids
    assert api.post("/v1/datasets", json=body).status_code == 201
    pushed = api.put(f"/v1/datasets/{SHOPS}/records", content=to_parquet(rows(range(60))))
    assert pushed.json()["added"] == 60
    for name, task in MODELS.items():
        model = {
            "name": name.replace("_", "-"),
            "dataset": SHOPS,
            "task": task,
            "architecture": NETWORKS.get(name, {"name": "mlp", "options": {"hidden": [8]}}),
            "recipe": {"epochs": 30, "batch_size": 16, "held_out_fraction": 0.3},
            "policy": {"mechanism": "retraining"},
        }
        answer = api.post("/v1/models", json=model)
        assert answer.status_code == 201, answer.text
        assert answer.json()["task"]["name"] == task["name"]
    work()
    for name in MODELS:
        stem = name.replace("_", "-")
        path = f"/v1/models/{stem}/versions/1"
        (tmp_path / f"{stem}-v1.safetensors").write_bytes(api.get(f"{path}/weights").content)
        bundle = api.get(f"{path}/certificate").content
        (tmp_path / f"{stem}-v1.certificate.json").write_bytes(bundle)
    keys = api.get("/.well-known/expunge-keys.json").content
    (tmp_path / "trusted-keys.json").write_bytes(keys)
    return tmp_path


def _held_out(services: Services, model: str) -> pa.Table:
    with services.database.transaction() as session:
        membership = membership_of(registry.model_named(session, model))
        dataset = datasets.dataset_named(session, SHOPS).id
        records = session.query(RecordRow).filter_by(dataset_id=dataset).order_by(RecordRow.seq)
        held = [membership.is_held_out(record) for record in records]
    return rows(range(60)).filter(pa.array(held))


def _figures(task: dict[str, Any], found: pa.Table, truth: pa.Table) -> dict[str, float]:
    """Work out a task's metrics from predictions, by hand or by scikit-learn."""
    match task["name"]:
        case "classification":
            actual = np.array(truth["open"].to_pylist())
            said = np.array(found["prediction"].to_pylist())
            positive = np.array(found["probabilities"].to_pylist())[:, 1]
            return {
                "accuracy": (said == actual).mean(),
                "f1": f1_score(actual, said, average="macro"),
                "auc": roc_auc_score(actual, positive),
            }
        case "multi_label":
            labels = task["target"]["columns"]
            actual = np.array([truth[label].to_pylist() for label in labels]).T
            said = np.array([[label in row.as_py() for label in labels] for row in found[0]])
            return {
                "accuracy": (said == actual).mean(),
                "subset_accuracy": (said == actual).all(axis=1).mean(),
                "f1": f1_score(actual, said, average="macro"),
            }
        case "regression":
            names = task["target"]["columns"]
            actual = np.array([truth[name].to_pylist() for name in names]).T
            said = np.array([found[name].to_pylist() for name in names]).T
            share, short = task.get("quantile", 0.5), actual - said
            quantile = np.maximum(share * short, (share - 1) * short).mean()
            return {
                "mae": np.abs(said - actual).mean(),
                "rmse": np.sqrt(np.square(said - actual).mean()),
                "r2": r2_score(actual, said),
                **({"quantile_loss": quantile} if task.get("loss") == "quantile" else {}),
            }
        case "language_model":
            nats = -sum(found["log_likelihood"].to_pylist())
            return {"perplexity": np.exp(nats / sum(found["tokens"].to_pylist()))}
    said, actual = np.array(found["rent"].to_pylist()), np.array(truth["rent"].to_pylist())
    return {"median_error": np.median(np.abs(said - actual)) / task["options"]["unit"]}


def _expunge(*words: object) -> str:
    answer = CliRunner().invoke(app, [str(word) for word in words])
    assert answer.exit_code == 0, answer.output
    return answer.output


@pytest.mark.slow  # it trains a model of every task
def test_each_tasks_file_predicts_what_its_certificate_says(
    services: Services, released: Path
) -> None:
    trusted = released / "trusted-keys.json"
    for name, task in MODELS.items():
        stem = name.replace("_", "-")
        file = released / f"{stem}-v1.safetensors"
        evaluation = expunge.verify(file, trusted=trusted)["evaluation"]
        truth = _held_out(services, stem)
        assert evaluation["held_out_records"] == truth.num_rows > 5
        model = expunge.load(file, trusted=trusted, factories=[ALLOWED])

        predicted = model.predict(truth)

        figures = _figures(task, predicted, truth)
        assert evaluation["headline"] in figures
        for metric, value in figures.items():
            if metric == "r2" and metric not in evaluation["metrics"]:
                continue  # not defined where all held-out targets are alike
            assert value == pytest.approx(evaluation["metrics"][metric], rel=1e-5, abs=1e-5), (
                name,
                metric,
            )

        source, out = released / f"{stem}.parquet", released / f"{stem}-out.parquet"
        written = truth.drop_columns(["open", "cheap", "rent", "trust"])
        pq.write_table(written, source)  # as rows of tomorrow: without any target
        words = ("predict", file, "--input", source, "--out", out, "--trusted", trusted)
        assert f"{truth.num_rows} predictions" in _expunge(*words, "--factory", ALLOWED)
        table = pq.read_table(out)
        assert table["shop"].to_pylist() == truth["shop"].to_pylist()
        assert table.drop_columns(["shop"]).equals(predicted)

    # An operator's own task is called only if its user allows it.
    words = ("predict", released / "own-v1.safetensors", "--input", released / "own.parquet")
    answer = CliRunner().invoke(
        app, [*map(str, words), "--out", str(released / "x.parquet"), "--trusted", str(trusted)]
    )
    assert answer.exit_code == 1
    assert answer.stderr == (
        "error: to predict with this task the class 'operators_networks:Rents' must be called: if "
        "you trust it, allow it with --factory operators_networks:Rents, or "
        "factories=['operators_networks:Rents'] in Python\n"
    )
