"""Published files are used as they were trained: in PyTorch, in NumPy for heads, and as ONNX."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pyarrow as pa
import pytest
import safetensors.torch
import torch

import expunge
from app.domain.architecture import ArchitectureSpec
from app.domain.errors import (
    ConfigurationError,
    InvalidInputError,
    InvalidRecordsError,
    MissingExtraError,
    RunFailedError,
)
from app.published import head_logits, read_published
from tests.support.described import DESCRIPTIONS, HEADS, raw_features, written
from workers.onnx_export import export


@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_the_same_in_numpy_and_in_torch(name: str, tmp_path: Path) -> None:
    description = DESCRIPTIONS[name]
    path = written(description, tmp_path / "m.safetensors")
    features = raw_features(description)

    logits = head_logits(read_published(path, check=False), features)

    expected = expunge.load(path, check=False).logits_of(features).numpy()
    assert logits.shape == expected.shape == (9, description.schema.classes)
    assert np.abs(logits - expected).max() < 1e-12
    assert np.abs(logits).max() > 0.01


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_network_sees_scaled_features_and_the_backbones(name: str, tmp_path: Path) -> None:
    description = DESCRIPTIONS[name]
    path = written(description, tmp_path / "m.safetensors")
    model, features = expunge.load(path, check=False), raw_features(description)

    logits = model(torch.from_numpy(features))

    schema, tensors = description.schema, safetensors.torch.load_file(path)
    seen = (torch.from_numpy(features).float() - schema.offset) * schema.scale
    if description.backbone is not None:  # by hand: one hidden layer
        flat = seen.flatten(1) @ tensors["backbone.1.weight"].T + tensors["backbone.1.bias"]
        seen = flat.relu().half().float()  # as it was stored
    if description.architecture.name == "logistic":
        expected = seen.flatten(1) @ tensors["1.weight"].T + tensors["1.bias"]
    else:
        expected = model._network(seen.to(model._dtype))
    assert torch.allclose(logits, expected, atol=1e-5)
    assert not model.training
    names = [description.class_names[index] for index in logits.argmax(1)]
    assert model.predict(features) == names


def test_tables_are_read_by_the_encoding_and_classes_have_their_names(tmp_path: Path) -> None:
    path = written(DESCRIPTIONS["head_of_a_table"], tmp_path / "m.safetensors")
    model = expunge.load(path, check=False)
    table = pa.table({"plan": ["plus", "gold", None], "age": [20, None, 250]})
    encoded = np.float32([[0.2, 0, 1, 0], [0.5, 0, 0, 1], [1, 0, 0, 1]])

    assert torch.equal(model.logits_of(table), model.logits_of(encoded))
    names = [("no", "yes")[index] for index in model.logits_of(encoded).argmax(1)]
    assert model.predict(table) == names
    with pytest.raises(InvalidRecordsError, match="'plan'"):
        model.predict(table.drop_columns(["plan"]))


def test_without_its_certificate_a_file_is_not_loaded(tmp_path: Path) -> None:
    path = written(DESCRIPTIONS["mlp"], tmp_path / "m-v2.safetensors")
    with pytest.raises(ConfigurationError, match=r"m-v2\.certificate\.json is missing"):
        expunge.load(path, trusted=b"")


def test_a_factory_is_called_only_if_it_is_allowed(tmp_path: Path) -> None:
    factory = f"{__name__}:never"
    spec = ArchitectureSpec(name="custom", factory=factory)
    description = replace(DESCRIPTIONS["mlp"], architecture=spec)
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file({"a": torch.zeros(1)}, path, metadata=description.to_metadata())
    for others in ((), (f"{__name__}:other",), ("another:*",)):
        with pytest.raises(InvalidInputError, match=f"allow it with --factory {factory}"):
            expunge.load(path, check=False, factories=others)
    for allowed in (factory, f"{__name__}:*"):
        with pytest.raises(RunFailedError, match="no function 'never'"):
            expunge.load(path, check=False, factories=[allowed])


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({"a": torch.zeros(1)}, None, "does not say how it is used"),
        ({"a": torch.zeros(1)}, DESCRIPTIONS["mlp"].to_metadata(), "are not those of the network"),
        ({"weight": torch.zeros(1)}, DESCRIPTIONS["linear_head"].to_metadata(), "other shapes"),
    ],
)
def test_a_file_that_does_not_fit_itself_is_refused(
    tensors: dict, metadata: dict, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file(tensors, path, metadata=metadata)
    with pytest.raises(InvalidInputError, match=message):
        expunge.load(path, check=False)


def test_features_of_another_shape_are_refused(tmp_path: Path) -> None:
    model = expunge.load(written(DESCRIPTIONS["mlp"], tmp_path / "m.safetensors"), check=False)
    with pytest.raises(InvalidInputError, match=r"\[8, 8\]"):
        model.predict(np.zeros((3, 5)))


_QUICK = ("cnn", "linear_head", "logistic_on_backbone")


@pytest.mark.parametrize(
    "name",
    [
        name if name in _QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in DESCRIPTIONS
    ],
)
def test_the_exported_model_answers_as_the_module(name: str, tmp_path: Path) -> None:
    description = DESCRIPTIONS[name]
    model = expunge.load(written(description, tmp_path / "m.safetensors"), check=False)
    out, features = tmp_path / "m.onnx", raw_features(description)

    export(model, out)

    session = onnxruntime.InferenceSession(out)
    for rows in (1, 9):  # any number of records
        (logits,) = session.run(["logits"], {"features": features[:rows]})
        assert np.abs(logits - model.logits_of(features[:rows]).numpy()).max() < 1e-5
    told = {entry.key: entry.value for entry in onnx.load(out).metadata_props}
    assert told == description.to_metadata()


def test_what_is_not_installed_is_asked_for_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "workers.published")
    monkeypatch.delitem(vars(expunge), "load", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'expunge\[torch\]'"):
        _ = expunge.load
