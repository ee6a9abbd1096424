"""A published ensemble says what its members would say as models of their own, on average."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pyarrow as pa
import pytest
import safetensors.torch
import torch
from torch import nn

import expunge
from app.domain.architectures import ArchitectureSpec, BaseDigest, by_member
from app.domain.description import BackboneDescription, ModelDescription
from app.domain.errors import InvalidInputError
from tests.support.described import DESCRIPTIONS, FACTORIES, of_own_task, raw_features, written
from tests.support.operators import operators_package
from tests.support.own_tasks import Rents
from workers.training.networks.base import digests_of
from workers.training.published.model import PublishedModel
from workers.training.published.onnx_export import export

ENSEMBLES = [name for name in DESCRIPTIONS if name.startswith("ensemble")]
FACTORY = f"{__name__}:adapted"
ADAPTED = replace(
    DESCRIPTIONS["ensemble"],
    architecture=ArchitectureSpec(
        "ensemble", members=3, of=ArchitectureSpec("custom", factory=FACTORY)
    ),
)


class Adapted(nn.Module):
    """A frozen layer and a frozen buffer that no file keeps, and a layer that learns."""

    def __init__(self, frozen: nn.Linear, classes: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(requires_grad=False)
        self.register_buffer("shift", torch.linspace(0, 1, 6), persistent=False)
        self.head = nn.Linear(6, classes)

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        return self.head((self.frozen(records.flatten(1)) + self.shift).relu())


def adapted(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the network with a base that is drawn anew: a file has to bring the stated one."""
    return Adapted(nn.Linear(int(np.prod(input_shape)), 6), classes)


def members_of(path: Path, description: ModelDescription) -> list[PublishedModel]:
    """Write each member as a model of its own, and load that."""
    tensors = safetensors.torch.load_file(path)
    backbone = {name: each for name, each in tensors.items() if name.startswith("backbone.")}
    own = replace(description, architecture=description.architecture.member)
    models = []
    for member, names in by_member(tensors.keys() - backbone.keys()).items():
        single = {name: tensors[full] for name, full in names.items()}
        file = path.with_name(f"{member}.safetensors")
        safetensors.torch.save_file(single | backbone, file, metadata=own.to_metadata())
        models.append(expunge.load(file, check=False, factories=FACTORIES))
    return models


@pytest.mark.parametrize("name", ENSEMBLES)
def test_it_says_the_average_of_what_its_members_predict(name: str, tmp_path: Path) -> None:
    description = DESCRIPTIONS[name]
    path = written(description, tmp_path / "m.safetensors")
    features = raw_features(description)
    found = expunge.load(path, check=False, factories=FACTORIES).outputs_of(features)

    members = members_of(path, description)

    outputs = torch.stack([member.outputs_of(features) for member in members])
    expected = {
        "multi_label": lambda: outputs.sigmoid().mean(0).logit(),
        "regression": lambda: outputs.mean(0),
    }.get(description.task.name, lambda: outputs.softmax(-1).mean(0).log())()
    assert len(members) == 3
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found, outputs[0], atol=1e-2)


def test_members_that_started_from_public_weights_are_loaded_without_them(tmp_path: Path) -> None:
    described = DESCRIPTIONS["ensemble"]
    architecture = ArchitectureSpec.from_json(
        {**described.architecture.to_json(), "backbone": {"name": "public", "frozen": False}}
    )
    backbone = BackboneDescription(
        name="public", sha256="0" * 64, frozen=False, architecture=architecture.of, classes=5
    )
    started = replace(described, architecture=architecture, backbone=backbone)
    plain = written(described, tmp_path / "plain.safetensors")
    path = tmp_path / "m.safetensors"
    tensors = safetensors.torch.load_file(plain)
    safetensors.torch.save_file(tensors, path, metadata=started.to_metadata())
    features = raw_features(started)
    found = expunge.load(path, check=False).outputs_of(features)
    assert found.equal(expunge.load(plain, check=False).outputs_of(features))


def test_an_operators_own_task_averages_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operators_package(monkeypatch, Rents)
    described = of_own_task("ensemble")
    path = written(described, tmp_path / "m.safetensors")
    rows = pa.table({"area": pa.array([10, 20], pa.float32()), "rent": [0.0, 0.0]})

    model = expunge.load(path, check=False, factories=["operators_networks:*"])

    each = [member.outputs_of(np.float32([[0.2], [0.4]])) for member in members_of(path, described)]
    expected = torch.stack(each).mean(0)[:, 0] * 500
    assert model.predict(rows)["rent"].to_pylist() == pytest.approx(expected.tolist(), rel=1e-5)


@pytest.fixture
def on_base(tmp_path: Path) -> tuple[Path, Path]:
    """An ensemble's file, as the service writes it, and the file with its base."""
    base = adapted(input_shape=(8, 8), classes=5)
    described = replace(ADAPTED, base=BaseDigest.of(digests_of(base)))
    heads = {
        f"members.{member}.head.{name}": torch.randn_like(tensor)
        for member in range(3)
        for name, tensor in base.head.state_dict().items()
    }
    path, public = tmp_path / "m.safetensors", tmp_path / "public.safetensors"
    safetensors.torch.save_file(heads, path, metadata=described.to_metadata())
    safetensors.torch.save_file(base.frozen.state_dict(prefix="frozen."), public)
    return path, public


def test_a_base_is_brought_once_for_all_members(on_base: tuple[Path, Path]) -> None:
    path, public = on_base
    model = expunge.load(path, check=False, factories=[FACTORY], base=public)

    stated = safetensors.torch.load_file(public)
    members = list(model.get_submodule("_network.members").values())
    assert len(members) == 3
    for member in members:
        assert member.frozen.weight.equal(stated["frozen.weight"])
    for name in ("frozen.weight", "frozen.bias", "shift", "head.weight"):
        places = {
            dict([*member.named_parameters(), *member.named_buffers()])[name].data_ptr()
            for member in members
        }
        assert len(places) == (3 if name == "head.weight" else 1)
    features = raw_features(model.description)
    flat = (torch.from_numpy(features).float() - 3) * 0.0625
    hidden = flat.flatten(1) @ stated["frozen.weight"].T + stated["frozen.bias"]
    hidden = (hidden + torch.linspace(0, 1, 6)).relu()
    tensors = safetensors.torch.load_file(path)
    logits = [
        hidden @ tensors[f"members.{member}.head.weight"].T + tensors[f"members.{member}.head.bias"]
        for member in range(3)
    ]
    expected = torch.stack(logits).softmax(-1).mean(0).log()
    assert torch.allclose(model.outputs_of(features), expected, atol=1e-5)


def test_an_exported_graph_has_the_base_once(on_base: tuple[Path, Path], tmp_path: Path) -> None:
    path, public = on_base
    model = expunge.load(path, check=False, factories=[FACTORY], base=public)
    out, features = tmp_path / "m.onnx", raw_features(model.description)

    export(model, out)

    shapes = [list(each.dims) for each in onnx.load(out).graph.initializer]
    assert (shapes.count([6, 64]), shapes.count([5, 6])) == (1, 3)
    (logits,) = onnxruntime.InferenceSession(out).run(["logits"], {"features": features})
    assert np.abs(logits - model.outputs_of(features).numpy()).max() < 1e-5


def test_another_base_is_refused(on_base: tuple[Path, Path]) -> None:
    path, public = on_base
    other = {name: each + 1 for name, each in safetensors.torch.load_file(public).items()}
    safetensors.torch.save_file(other, public)
    for brought in (None, public):
        with pytest.raises(InvalidInputError, match="not the base that the file names"):
            expunge.load(path, check=False, factories=[FACTORY], base=brought)


def test_the_factory_of_its_members_is_called_only_if_it_is_allowed(
    on_base: tuple[Path, Path],
) -> None:
    path, public = on_base
    with pytest.raises(InvalidInputError, match=f"allow it with --factory {FACTORY}"):
        expunge.load(path, check=False, base=public)
