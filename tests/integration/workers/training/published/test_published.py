"""Published files are used as they were trained: in PyTorch, in NumPy for heads, and as ONNX."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import safetensors.torch
import torch

import expunge
from app.client.published import head_outputs, read_published
from app.domain.architectures import ArchitectureSpec
from app.domain.errors import (
    ConfigurationError,
    InvalidInputError,
    InvalidRecordsError,
    MissingExtraError,
    RunFailedError,
)
from app.domain.tasks.built_in import RegressionSpec
from app.registry.datasets.columns.encoding import features_of
from app.registry.datasets.columns.outputs import predictions_of
from tests.support.described import (
    DESCRIPTIONS,
    FACTORIES,
    HEADS,
    of_own_task,
    raw_features,
    written,
)
from tests.support.operators import operators_package
from tests.support.own_tasks import Rents
from tests.support.representatives import mostly_nightly
from tests.support.shops import rows
from workers.training.published.onnx_export import export, output_name


@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_the_same_in_numpy_and_in_torch(name: str, tmp_path: Path) -> None:
    description = DESCRIPTIONS[name]
    path = written(description, tmp_path / "m.safetensors")
    features = raw_features(description)

    logits = head_outputs(read_published(path, check=False), features)

    expected = expunge.load(path, check=False).outputs_of(features).numpy()
    assert logits.shape == expected.shape == (9, description.schema.classes)
    assert np.abs(logits - expected).max() < 1e-12 * np.abs(expected).max()
    assert np.abs(logits).max() > 0.01


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_network_sees_scaled_features_and_the_backbones(name: str, tmp_path: Path) -> None:
    description = DESCRIPTIONS[name]
    path = written(description, tmp_path / "m.safetensors")
    model = expunge.load(path, check=False, factories=FACTORIES)
    features = raw_features(description)

    logits = model(torch.from_numpy(features))

    schema, tensors = description.schema, safetensors.torch.load_file(path)
    seen = torch.from_numpy(features).long()
    if not schema.tokens:
        seen = (torch.from_numpy(features).float() - schema.offset) * schema.scale
    if description.backbone is not None:  # by hand: one hidden layer
        flat = seen.flatten(1) @ tensors["backbone.1.weight"].T + tensors["backbone.1.bias"]
        seen = flat.relu().half().float()  # as it was stored
    if description.architecture.name == "logistic":
        expected = seen.flatten(1) @ tensors["1.weight"].T + tensors["1.bias"]
    else:
        expected = model._network(seen if schema.tokens else seen.to(model._dtype))
    if isinstance(description.task, RegressionSpec):
        expected = expected.double() / description.task.scale + description.task.offset
    assert torch.allclose(logits.double(), expected.double(), atol=1e-5)
    assert not model.training
    assert model.outputs_of(features).equal(logits)


def test_tables_are_read_by_the_encoding_and_classes_have_their_names(tmp_path: Path) -> None:
    path = written(DESCRIPTIONS["head_of_a_table"], tmp_path / "m.safetensors")
    model = expunge.load(path, check=False)
    table = pa.table({"plan": ["plus", "gold", None], "age": [20, None, 250]})
    encoded = np.float32([[0.2, 0, 1, 0], [0.5, 0, 0, 1], [1, 0, 0, 1]])

    assert torch.equal(model.outputs_of(table), model.outputs_of(encoded))
    names = [("no", "yes")[index] for index in model.outputs_of(encoded).argmax(1)]
    assert model.predict(table)["prediction"].to_pylist() == names
    with pytest.raises(InvalidRecordsError, match="'plan'"):
        model.predict(table.drop_columns(["plan"]))


class Frame:
    """A table as pandas and polars hand it over."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "given", [Frame, pa.Table.to_pydict, lambda table: table.to_batches()[0], pa.Table.to_reader]
)
def test_tables_of_other_libraries_are_read(given, tmp_path: Path) -> None:
    model = expunge.load(
        written(DESCRIPTIONS["head_of_a_table"], tmp_path / "m.safetensors"), check=False
    )
    table = pa.table({"age": [20, None], "other": [1, 2], "plan": ["plus", "gold"]})
    assert model.predict(given(table)).equals(model.predict(table))
    assert torch.equal(model.outputs_of(given(table)), model.outputs_of(table))


@pytest.mark.parametrize("given", [[[1.0]], "rows", 7, None])
def test_what_is_no_table_is_named_by_its_type(given: object, tmp_path: Path) -> None:
    model = expunge.load(written(DESCRIPTIONS["mlp"], tmp_path / "m.safetensors"), check=False)
    with pytest.raises(InvalidInputError, match=f"not {type(given).__name__}"):
        model.predict(given)


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_predictions_of_raw_features_are_those_of_their_outputs(name: str, tmp_path: Path) -> None:
    description = DESCRIPTIONS[name]
    path = written(description, tmp_path / "m.safetensors")
    model = expunge.load(path, check=False, factories=FACTORIES)
    features = raw_features(description, 1030)  # of several parts

    table = model.predict(features)

    outputs = model.outputs_of(features).numpy()
    assert table.equals(predictions_of(description, outputs, features))
    assert table.num_rows == 1030
    assert model.predict(torch.from_numpy(features)).equals(table)
    assert model.predict(features[:0]).schema == table.schema


def test_an_operators_task_predicts_if_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operators_package(monkeypatch, Rents)
    described = of_own_task("logistic")
    path = written(described, tmp_path / "m.safetensors")
    rows = pa.table({"area": pa.array([10, 20], pa.float32())})
    allowed = expunge.load(path, check=False, factories=["operators_networks:*"])

    predicted = allowed.predict(rows)
    runs = pc.run_end_encode(rows["area"])
    assert allowed.predict(pa.table({"area": runs})).equals(predicted)

    outputs = allowed.outputs_of(np.float32([[0.2], [0.4]]))
    assert predicted.column_names == ["rent"]
    assert predicted["rent"].to_pylist() == pytest.approx((outputs[:, 0] * 500).tolist())
    assert torch.equal(allowed.outputs_of(rows), outputs)
    assert allowed.predict(rows.append_column("rent", [[0.0, 20_000.0]])).equals(predicted)
    with pytest.raises(InvalidRecordsError, match="column 'area': the table has no such column"):
        allowed.predict(rows.rename_columns(["size"]))
    with pytest.raises(InvalidRecordsError, match="row 1, column 'area': the task cannot read it"):
        allowed.predict(pa.table({"area": [1.0, -1.0]}))
    refused = expunge.load(path, check=False)
    with pytest.raises(InvalidInputError, match="allow it with --factory operators_networks:Rents"):
        refused.predict(rows)
    assert torch.equal(refused.outputs_of(np.float32([[0.2], [0.4]])), outputs)


def test_images_and_texts_are_encoded_as_in_training(tmp_path: Path) -> None:
    shop = rows(range(3))
    path = written(DESCRIPTIONS["images"], tmp_path / "images.safetensors")
    model = expunge.load(path, check=False)
    raw = features_of(shop, model.description.task.inputs)
    assert model.predict(shop).equals(model.predict(raw))
    assert set(model.predict(shop)["prediction"].to_pylist()) <= {False, True}
    path = written(DESCRIPTIONS["texts"], tmp_path / "texts.safetensors")
    model = expunge.load(path, check=False, factories=FACTORIES)
    predicted = model.predict(shop)
    assert predicted["tokens"].to_pylist() == [
        len(note[:9]) - 1 for note in shop["note"].to_pylist()
    ]
    with pytest.raises(
        InvalidRecordsError, match="column 'note': a number, where text is expected"
    ):
        model.predict(pa.table({"note": [1.5]}))


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


@pytest.mark.parametrize("name", mostly_nightly(DESCRIPTIONS, "linear_head", "texts", "ensemble"))
def test_the_exported_model_answers_as_the_module(name: str, tmp_path: Path) -> None:
    description = DESCRIPTIONS[name]
    path = written(description, tmp_path / "m.safetensors")
    model = expunge.load(path, check=False, factories=FACTORIES)
    out, features = tmp_path / "m.onnx", raw_features(description)

    export(model, out)

    session = onnxruntime.InferenceSession(out)
    for count in (1, 9):  # any number of records
        name = output_name(description)
        (outputs,) = session.run([name], {"features": features[:count]})
        expected = model.outputs_of(features[:count]).numpy()
        assert np.abs(outputs - expected).max() < 1e-5 * max(1, np.abs(expected).max())
    told = {entry.key: entry.value for entry in onnx.load(out).metadata_props}
    assert told == description.to_metadata()
    places = (str(Path(torch.__file__).parent), str(Path(__file__).parents[5]), "in forward")
    assert not [place for place in places if place.encode() in out.read_bytes()]


def test_what_is_not_installed_is_asked_for_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "workers.training.published.model")
    monkeypatch.delitem(vars(expunge), "load", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'expunge\[torch\]'"):
        _ = expunge.load


def test_without_pillow_an_image_is_refused_by_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = expunge.load(written(DESCRIPTIONS["images"], tmp_path / "m.safetensors"), check=False)
    shop = rows(range(2))
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'expunge\[images\]'"):
        model.predict(shop)
