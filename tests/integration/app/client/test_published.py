"""What the service publishes is used as the service evaluated it."""

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
import torch
from typer.testing import CliRunner

import expunge
from app.cli.main import app
from app.domain.errors import VerificationError
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.shards import unpack
from app.registry.membership import membership_of
from app.runtime.processes.starting import START
from app.services import Services
from tests.support.described import PLAIN
from tests.support.digits import DATASET, RECIPE, TASK, digits_parquet
from tests.support.shards import decode_shard

BACKBONE = {
    "name": "public",
    "architecture": {"name": "mlp", "options": {"hidden": [12]}},
    "input": {"shape": [8, 8]},
    "classes": 10,
    "source": "random weights",
}
ARCHITECTURES = {
    "net": {"name": "mlp", "options": {"hidden": [16]}},
    "head": {"name": "linear_head"},
    "head-on-backbone": {"name": "linear_head", "backbone": {"name": "public"}},
    "ridge": {"name": "ridge_head"},
    "ridge-on-backbone": {"name": "ridge_head", "backbone": {"name": "public"}},
    "ensemble": {
        "name": "ensemble",
        "members": 3,
        "of": {"name": "mlp", "options": {"hidden": [8]}},
    },
    "ensemble-on-backbone": {
        "name": "ensemble",
        "members": 2,
        "of": {"name": "logistic"},
        "backbone": {"name": "public"},
    },
}
CHURN = {
    "name": "churn",
    "columns": {"age": "int16?", "plan": "string", "churned": "string"},
    "record_id": "customer",
}
CURVE = {"name": "age", "kind": "number", "knots": [18, 40, 60, 90], "missing": 50}
CURVED = PLAIN | {"inputs": [CURVE, PLAIN["inputs"][1]]}
CLASSES = [str(each) for each in PLAIN["target"]["classes"]]
_WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = None; sys.path.insert(0, {ours!r}); "
    "from app.cli import main; main()"
)


def _backbone_weights() -> bytes:
    numbers = np.random.default_rng(1)
    shapes = {"1.weight": (12, 64), "1.bias": (12,), "3.weight": (10, 12), "3.bias": (10,)}
    tensors = {name: numbers.normal(size=shape) / 3 for name, shape in shapes.items()}
    return safetensors.numpy.save({n: t.astype(np.float32) for n, t in tensors.items()})


def _churn() -> pa.Table:
    numbers = np.random.default_rng(2)
    age = numbers.integers(18, 90, 120)
    plan = numbers.choice(["basic", "plus", "gold"], 120)
    churned = np.where((age > 50) ^ (plan == "plus"), "yes", "no")
    return pa.table(
        {
            "customer": [f"Zoë {number}" for number in range(120)],
            "age": pa.array([*age.tolist()[:-1], None]),
            "plan": plan,
            "churned": churned,
        }
    )


@pytest.fixture
def released(api, services: Services, work, tmp_path: Path) -> Iterator[Path]:
    """A folder as downloads leave it: weights and certificates of models, trusted keys."""
    assert api.post("/v1/datasets", json=DATASET).status_code == 201
    api.put("/v1/datasets/digits/records", content=digits_parquet(200))
    assert api.post("/v1/datasets", json=CHURN).status_code == 201
    pushed = api.put("/v1/datasets/churn/records", content=to_parquet(_churn()))
    assert pushed.json()["added"] == 120
    api.post("/v1/backbones", json=BACKBONE)
    assert api.put("/v1/backbones/public/weights", content=_backbone_weights()).is_success
    for name, architecture in [*ARCHITECTURES.items(), ("table", {"name": "linear_head"})]:
        table = name == "table"
        body = {"name": name, "dataset": "churn" if table else "digits"}
        body |= {"task": CURVED if table else TASK}
        recipe = {"held_out_fraction": 0.2}
        recipe |= {} if name.startswith("ridge") else {"epochs": 3}
        body |= {"architecture": architecture, "recipe": RECIPE if name == "net" else recipe}
        assert api.post("/v1/models", json=body).status_code in (201, 202)
    work()
    for name in (*ARCHITECTURES, "table"):
        path = f"/v1/models/{name}/versions/1"
        (tmp_path / f"{name}-v1.safetensors").write_bytes(api.get(f"{path}/weights").content)
        bundle = api.get(f"{path}/certificate").content
        (tmp_path / f"{name}-v1.certificate.json").write_bytes(bundle)
    keys = api.get("/.well-known/expunge-keys.json").content
    (tmp_path / "trusted-keys.json").write_bytes(keys)
    return tmp_path


def _held_out(
    services: Services, model: str, dataset: str
) -> tuple[np.ndarray | pa.Table, np.ndarray]:
    """Return the raw features, or the rows, and the labels that the service evaluates on."""
    with services.database.transaction() as session:
        membership = membership_of(registry.model_named(session, model))
        row = datasets.dataset_named(session, dataset)
        (shard,) = datasets.shards(session, row.id)
        keys = {
            record.seq: record
            for record in session.query(datasets.RecordRow).filter_by(dataset_id=row.id)
        }
    content = services.blobs.read(shard.blob_id)
    if dataset == "churn":
        seqs, rows = unpack(content)
        labels = np.array([CLASSES.index(each) for each in rows["churned"].to_pylist()])
    else:
        seqs, labels, rows = decode_shard(content)
    chosen = np.array([membership.is_held_out(keys[seq]) for seq in seqs.tolist()])
    return rows.filter(chosen) if dataset == "churn" else rows[chosen], labels[chosen]


def _expunge(*words: object) -> str:
    answer = CliRunner().invoke(app, [str(word) for word in words])
    assert answer.exit_code == 0, answer.output
    return answer.output


def _without_torch(*words: object) -> subprocess.CompletedProcess[str]:
    program = _WITHOUT_TORCH.format(ours=str(START.parents[1]))
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow  # models of all kinds are trained, and programs started
def test_published_files_are_used_as_the_service_evaluated_them(
    services: Services, released: Path
) -> None:
    trusted = released / "trusted-keys.json"
    for name in (*ARCHITECTURES, "table"):
        file = released / f"{name}-v1.safetensors"
        evaluation = expunge.verify(file, trusted=trusted)["evaluation"]
        model = expunge.load(file, trusted=trusted)
        raw, labels = _held_out(services, name, "churn" if name == "table" else "digits")
        assert len(labels) == evaluation["held_out_records"] > 10
        logits = model.outputs_of(raw)
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels)).item()
        assert loss == pytest.approx(evaluation["held_out_loss"], rel=1e-6)
        accuracy = (logits.argmax(1).numpy() == labels).mean()
        assert accuracy == pytest.approx(evaluation["metrics"]["accuracy"], rel=1e-6)

    # From the columns of a table, with names of classes: a head needs no PyTorch.
    rows, out = released / "rows.parquet", released / "scores.parquet"
    pq.write_table(_churn().drop_columns(["churned"]), rows)
    head = released / "table-v1.safetensors"
    words = ("predict", head, "--input", rows, "--out", out, "--trusted", trusted)
    answer = _without_torch(*words)
    assert answer.returncode == 0, answer.stderr
    scores = pq.read_table(out)
    model = expunge.load(head, trusted=trusted)
    assert scores["customer"].to_pylist() == [f"Zoë {number}" for number in range(120)]
    assert scores["prediction"].to_pylist() == model.predict(_churn())["prediction"].to_pylist()
    assert set(scores["prediction"].to_pylist()) == {"yes", "no"}
    expected = torch.softmax(model.outputs_of(_churn()), 1).numpy()
    assert np.abs(np.array(scores["probabilities"].to_pylist()) - expected).max() < 1e-12

    # Whatever could be pushed is read, as pushing reads it.
    table = _churn().drop_columns(["churned"])
    (released / "rows.csv.gz").write_bytes(
        gzip.compress(
            "\r\n".join(
                [
                    "customer;age;plan",
                    *(
                        f"{c};{a or 'NA'},0;{p}".replace("NA,0", "NA")
                        for c, a, p in zip(
                            *(table[n].to_pylist() for n in ("customer", "age", "plan")),
                            strict=True,
                        )
                    ),
                ]
            ).encode("utf-16")
        )
    )
    words = (
        "predict",
        head,
        "--input",
        released / "rows.csv.gz",
        "--out",
        out,
        "--trusted",
        trusted,
    )
    _expunge(*words, "--encoding", "utf-16", "--decimal", ",")
    assert pq.read_table(out).equals(scores)
    (released / "rows.csv").write_text("customer,age,plan\nZoë,old,basic\n")
    answer = CliRunner().invoke(
        app, [str(w) for w in (*words[:3], released / "rows.csv", *words[4:])]
    )
    assert answer.exit_code == 1
    assert answer.stderr == (
        "error: rows.csv: row 1, column 'age': text, where a number is expected\n"
    )

    # A network needs it, and says so. A ridge head does not, and has scores.
    images, net = released / "images.parquet", released / "net-v1.safetensors"
    features = pq.read_table(pa.BufferReader(digits_parquet(200))).select(["record_id", "features"])
    pq.write_table(features, images)
    ridge = released / "ridge-v1.safetensors"
    words = ("predict", ridge, "--input", images, "--out", out, "--trusted", trusted)
    answer = _without_torch(*words)
    assert answer.returncode == 0, answer.stderr
    table = pq.read_table(out)
    assert table.column_names == ["record_id", "prediction", "scores"]
    model = expunge.load(ridge, trusted=trusted)
    raw = np.array(features["features"].to_pylist(), dtype=np.uint8)
    assert (
        np.abs(np.array(table["scores"].to_pylist()) - model.outputs_of(raw).numpy()).max() < 1e-9
    )
    assert table["prediction"].to_pylist() == model.predict(raw)["prediction"].to_pylist()
    words = ("predict", net, "--input", images, "--out", out, "--trusted", trusted)
    answer = _without_torch(*words)
    assert answer.returncode == 1
    assert answer.stderr == "error: torch is not installed: pip install 'expunge[torch]'\n"
    assert "200 predictions" in _expunge(*words)
    exported = released / "net.onnx"
    _expunge("model", "export", net, "--out", exported, "--trusted", trusted)
    raw = np.array(features["features"].combine_chunks().to_numpy_ndarray())
    (logits,) = onnxruntime.InferenceSession(exported).run(None, {"features": raw})
    assert logits.argmax(1).tolist() == pq.read_table(out)["prediction"].to_pylist()

    # A file without its own certificate is not used unless one asks for it.
    other = json.loads((released / "head-v1.certificate.json").read_text())
    (released / "net-v1.certificate.json").write_text(json.dumps(other))
    with pytest.raises(VerificationError, match="digest"):
        expunge.load(net, trusted=trusted)
    answer = CliRunner().invoke(app, [str(word) for word in words])
    assert answer.exit_code == 1
    assert "digest: these are not the weights that were certified" in answer.stderr
    assert "was not checked" in _expunge(*words, "--no-check")
