"""A new user with a table and a network: quick start and tutorial in one folder, then badly."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sqlalchemy import select

import expunge
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.registry.datasets.columns.encoding import features_of, labels_of
from app.registry.datasets.shards import unpack
from app.registry.datasets.tables import RecordRow
from app.registry.membership import membership_at
from app.registry.tasks import task_of
from app.runtime.settings import Settings
from app.services import open_services
from tests.support.documents import Reader, reader

pytestmark = pytest.mark.nightly

ROWS = 26_000
FORGOTTEN = 10
COLUMNS = ("--subject-id", "customer", "--drop", "signup")
PROPOSED = ("model", "create", "proposed", "--dataset", "few", "--missing", "age=45", "--dry-run")
NARROW = """

def narrow(*, input_shape, classes):
    return nn.Sequential(nn.Linear(11, 4), nn.ReLU(), nn.Linear(4, classes))
"""


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Somebody who has followed the quick start, and then the tutorial."""
    with reader(tmp_path_factory.mktemp("user") / "work") as user:
        user.printed = user.follow("quick-start.md") + user.follow("tutorial.md")
        yield user


def _held_out(user: Reader, model: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the raw features and the labels that the service evaluates a model on."""
    services = open_services(Settings(data_dir=user.directory / ".expunge"))
    with services.database.transaction() as session:
        row = registry.model_named(session, model)
        membership = membership_at(row, through=ROWS, after_epoch=0)
        query = select(RecordRow).where(
            RecordRow.dataset_id == row.dataset_id, RecordRow.forgotten_epoch.is_(None)
        )
        chosen = {row.seq for row in session.scalars(query) if membership.is_held_out(row)}
        shards = [shard.blob_id for shard in datasets.shards(session, row.dataset_id)]
    task = task_of(row)
    parts = [unpack(services.blobs.read(blob_id)) for blob_id in shards]
    seqs = np.concatenate([seqs for seqs, _ in parts])
    rows = pa.concat_tables([rows for _, rows in parts])
    labels, features = labels_of(rows, task.target), features_of(rows, task.inputs)
    assert len(seqs) == ROWS - FORGOTTEN
    held_out = np.isin(seqs, list(chosen))
    return features[held_out], labels[held_out]


def test_the_tutorial_leads_from_a_table_to_an_archived_model(
    user: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = user.printed
    assert "NameError: name 'with_' is not defined" in printed
    assert "gradient_clipping     works" in printed
    assert "FAIL  digest" in printed
    assert "no fault" in printed
    assert '"added": 2000' in printed
    assert "completed 4 [" in printed
    assert "urn:expunge:problem:unknown-records" in printed
    assert "model 'churn-net' was archived on" in printed
    assert printed.count("the certificate holds") == 3
    release = user.directory / "release"
    assert len([*release.glob("churn-net-v4.*")]) == 2

    # What was downloaded computes what the service has computed: on the same records, to 1e-6.
    monkeypatch.syspath_prepend(user.directory)
    trusted = user.directory / "trusted-keys.json"
    file = release / "churn-net-v4.safetensors"
    model = expunge.load(file, trusted=trusted, factories=["churn_models:build"])
    evaluation = expunge.verify(file, trusted=trusted)["evaluation"]
    with user.service():
        features, labels = _held_out(user, "churn-net")
    assert len(labels) == evaluation["held_out_records"] > 2000
    logits = model.outputs_of(features)
    loss = torch.nn.functional.cross_entropy(logits.double(), torch.from_numpy(labels))
    assert loss.item() == pytest.approx(evaluation["held_out_loss"], abs=1e-6)
    accuracy = (logits.argmax(dim=1).numpy() == labels).mean()
    assert accuracy == pytest.approx(evaluation["metrics"]["accuracy"], abs=1e-6)

    scores = pq.read_table(user.directory / "scores.parquet")
    assert scores["(index)"].to_pylist() == [str(row) for row in range(24_000)]
    assert set(scores["prediction"].to_pylist()) == {"yes", "no"}


def _refused(user: Reader, *words: object) -> str:
    """Return the one line in which a command says why it did nothing."""
    done = user.expunge(*words)
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert (done.returncode, len(lines)) == (1, 1), done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


def _done(user: Reader, *words: object) -> Any:
    done = user.expunge(*words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _define(user: Reader, name: str, **fields: object) -> str:
    """Write a definition; return its file's name."""
    file = user.directory / f"{name}.json"
    network = {"name": "custom", "factory": "churn_models:narrow"}
    recipe = {"epochs": 2}
    body = {"name": name, "dataset": "few", "architecture": network, "recipe": recipe} | fields
    file.write_text(json.dumps(body))
    return file.name


def test_a_user_who_goes_wrong_is_told_how_to_go_on(user: Reader) -> None:
    table = user.directory / "churn.csv"
    header, *rows = table.read_text().splitlines()[:601]
    (user.directory / "few.csv").write_text("\n".join([header, *rows]))
    stayed = [row for row in rows if row.endswith(",no")]
    (user.directory / "stayed.csv").write_text("\n".join([header, *stayed]))
    network = user.directory / "churn_models.py"
    network.write_text(network.read_text() + NARROW)
    key = Settings(data_dir=user.directory / ".expunge").admin_key_file.read_text()

    own = {
        "EXPUNGE_ALLOWED_FACTORIES": "churn_models:*",
        "PYTHONPATH": f"{user.environment()['PYTHONPATH']}:{user.directory}",
    }
    with user.service(**own) as address:
        client = expunge.Client(address, key)

        # The wrong column, and a file in which one of two classes is missing.
        push = ("dataset", "push", "few")
        assert "has no column 'client'" in _refused(
            user, *push, "few.csv", "--subject-id", "client"
        )
        assert "'few'" in _refused(user, "dataset", "show", "few")
        assert _done(user, *push, "stayed.csv", *COLUMNS)["added"] == len(stayed)
        for target, reason in (
            ("churn", "column 'churn': the dataset has no such column"),
            ("signup", "column 'signup': the dataset has no such column"),
            ("churned", "column 'churned': one value in all rows; name the public classes"),
        ):
            told = _refused(user, *PROPOSED, "--target", target, "--data", "stayed.csv")
            assert reason in told
        proposed = ("--target", "churned", "--data", "stayed.csv", "--classes", "no,yes")
        task = _done(user, *PROPOSED, *proposed)["task"]
        definition = _define(user, "one-class", task=task, architecture={"name": "logistic"})
        assert _done(user, "model", "create", definition, "--wait")["certified"]["number"] == 1
        assert _done(user, *push, "few.csv")["added"] == len(rows) - len(stayed)

        # A network of the wrong width: the author sees what it raised, corrects it, goes on.
        definition = _define(user, "narrow", task=task)
        failed = user.expunge("model", "create", definition, "--wait")
        assert failed.returncode == 1
        assert "mat1 and mat2 shapes cannot be multiplied (2x13 and 11x4)" in failed.stderr
        network.write_text(network.read_text().replace("(11, 4)", "(13, 4)"))
        assert _done(user, "model", "create", definition, "--wait")["certified"]["number"] == 1

        # The same person twice; and a model that is archived while it owes.
        policy = {"mechanism": "gradient_clipping", "window_s": 3600}
        _done(user, "model", "create", _define(user, "patient", task=task, policy=policy), "--wait")
        for _ in range(2):
            request = _done(user, "forget", "few", "--subject", "José Müller 1")
            assert {owed["model"] for owed in request["obligations"]} >= {"patient"}
        archived = _done(user, "model", "archive", "patient", "--yes")
        assert (archived["certified"], archived["archived_at"] is None) == (None, False)
        ended = _done(user, "status", request["id"], "--wait")
        states = {owed["model"]: owed["state"] for owed in ended["obligations"]}
        assert ended["state"] == "completed"
        assert states.pop("patient") == "cancelled"
        assert set(states.values()) <= {"certified"}
        for words in (
            ("archive", "patient", "--yes"),
            ("retrain", "patient"),
            ("delete", "patient"),
        ):
            assert "'patient' was archived on" in _refused(user, "model", *words)
        assert "keeps its name" in _refused(user, "model", "create", "patient.json")
        assert "unknown to this dataset: 1" in _refused(user, "forget", "few", "--subject", "Zoe")

        # While it trains for hours.
        slow = _define(
            user, "slow", task=task, recipe={"epochs": 100_000}, policy={"mechanism": "retraining"}
        )
        run = _done(user, "model", "create", slow)["latest_run"]["id"]
        assert f"run {run} of model 'slow' is" in _refused(user, "model", "retrain", "slow")
        assert "slow" in _refused(user, "download", "slow", "--out", "slow")
        assert "exists already" in _refused(user, "model", "create", slow)
        assert "is used by another expunge" in _refused(user, "up")
        assert "is in use" in _refused(user, "dataset", "archive", "few", "--yes")
        assert _done(user, "run", "cancel", run)["state"] == "cancelled"
        assert client.model("narrow")["certified"] is not None
