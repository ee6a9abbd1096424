"""An ensemble of adapters on one transformer forgets a person and is loaded with it once."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import safetensors.torch
from fastapi.testclient import TestClient

import expunge
from app.domain.errors import InvalidInputError
from app.registry.datasets.columns.parquet import to_parquet
from app.runtime.settings import Settings
from app.services import Services
from tests.support.adapters import FACTORY, NETWORK, OF, TASK, public_transformer
from workers.recompute import recompute
from workers.training.networks.base import public_tensors
from workers.training.published.model import PublishedModel

MEMBERS = 3
MODEL = {
    "name": "texts",
    "dataset": "sentences",
    "architecture": {"name": "ensemble", "members": MEMBERS, "of": NETWORK},
    "task": TASK,
    "recipe": {"epochs": 2, "batch_size": 8, "optimizer": "adamw", "held_out_fraction": 0.1},
    "policy": {"mechanism": "sharded_retraining", "forget": "retrain"},
}
SENTENCES = pa.table(
    {
        "sentence": [f"sentence-{each}" for each in range(40)],
        "author": [f"author-{each // 5}" for each in range(40)],
        "text": [f"{OF[each % 2]} wind {each}" for each in range(40)],
        "of": [OF[each % 2] for each in range(40)],
    }
)


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return public_transformer(tmp_path, monkeypatch)


@pytest.fixture
def settings(weights: Path, settings: Settings) -> Settings:
    return settings.model_copy(update={"allowed_factories": (FACTORY,)})


@pytest.fixture
def released(api: TestClient, work: Callable[[], None], tmp_path: Path) -> tuple[Path, Path]:
    """The files of two versions: the second has forgotten a person."""
    schema = {"text": "string", "of": "string"}
    dataset = {"columns": schema, "record_id": "sentence", "subject_id": "author"}
    assert api.post("/v1/datasets", json={"name": "sentences", **dataset}).status_code == 201
    pushed = api.put("/v1/datasets/sentences/records", content=to_parquet(SENTENCES))
    assert pushed.json()["added"] == 40
    defined = api.post("/v1/models", json=MODEL)
    assert defined.status_code == 201, defined.text
    work()
    first = downloaded(api, tmp_path, 1)
    body = {"dataset": "sentences", "subject_ids": ["author-3"]}
    assert api.post("/v1/forget-requests", json=body).status_code in (201, 202)
    work()
    run = api.get("/v1/models/texts").json()["latest_run"]
    assert (run["kind"], run["state"]) == ("unlearn", "published"), run["failure_reason"]
    (tmp_path / "trusted-keys.json").write_bytes(api.get("/.well-known/expunge-keys.json").content)
    return first, downloaded(api, tmp_path, 2)


def downloaded(api: TestClient, folder: Path, number: int) -> Path:
    versions = f"/v1/models/texts/versions/{number}"
    path = folder / f"texts-v{number}.safetensors"
    path.write_bytes(api.get(f"{versions}/weights").content)
    bundle = api.get(f"{versions}/certificate").content
    path.with_name(f"texts-v{number}.certificate.json").write_bytes(bundle)
    return path


def load(path: Path, **more: Path) -> PublishedModel:
    trusted = path.with_name("trusted-keys.json")
    return expunge.load(path, trusted=trusted, factories=[FACTORY], **more)


@pytest.mark.slow
def test_adapters_forget_and_share_their_base(
    released: tuple[Path, Path],
    weights: Path,
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert recompute(services, "texts").is_equal
    before, after = map(safetensors.torch.load_file, released)
    changed = {name.split(".")[1] for name in before if not before[name].equal(after[name])}
    assert len(changed) == 1
    assert all("lora" in name or "head" in name for name in after)

    model = load(released[1])

    members = list(model.get_submodule("_network.members").values())
    assert len(members) == MEMBERS
    first = members[0]
    of_file = {name.split(".", 2)[2] for name in after}
    for name, tensor in first.state_dict().items():
        places = {member.state_dict()[name].data_ptr() for member in members}
        assert len(places) == (MEMBERS if name in of_file else 1), name
        assert name in of_file or tensor.numel() > 0
    predicted = model.predict(SENTENCES)
    assert set(predicted["prediction"].to_pylist()) <= set(OF)

    # Where the factory finds other weights, a file brings the stated ones.
    base = {name: each for name, each in public_tensors(first).items() if name not in of_file}
    public = weights.with_name("base.safetensors")
    safetensors.torch.save_file({name: each.clone() for name, each in base.items()}, public)
    other = {name: each + 1 for name, each in safetensors.torch.load_file(weights).items()}
    safetensors.torch.save_file(other, weights)
    with pytest.raises(InvalidInputError, match="not the base that the file names"):
        load(released[1])
    assert load(released[1], base=public).predict(SENTENCES).equals(predicted)
