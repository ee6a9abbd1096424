"""Public backbones in a worker: features that are public functions of one record, public starts."""

from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from app.domain.architectures import ArchitectureSpec, BackboneUse, FeatureLayer
from app.domain.errors import RunFailedError
from app.domain.schema import InputSchema
from app.registry import backbones
from app.registry.backbones import BackboneDefinition
from tests.support.networks import Computing
from tests.support.operators import PACKAGE, operators_package
from workers.data.backbone import (
    FrozenBackbone,
    frame_of,
    load_backbone,
    publishable,
    starting,
    trainable,
)
from workers.training.examples import classified
from workers.training.networks.architectures import build
from workers.training.networks.network import Network

CPU = torch.device("cpu")
MLP = ArchitectureSpec("mlp", {"hidden": [6]})


def centred(_, features):
    """Normalise by the batch's own statistics."""
    return features - features.mean(dim=0, keepdim=True)


def rounded_by_place(_, features):
    """Round otherwise at odd places of a batch, as a kernel might."""
    return features * (1 + 1e-6 * (torch.arange(len(features)) % 2)[:, None])


class Remembering(nn.Module):
    """Keeps a sum of what it has seen."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, features):
        self.seen += features.sum()
        return features


def table(*, input_shape, classes):
    """Three features by two, whatever the number of classes."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(6), nn.Dropout(0.5), nn.Unflatten(1, (3, 2)))


def unit_range(*, input_shape, classes):
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    network.input_range = (0.0, 1.0)
    return network


def batch_statistics(*, input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(4), Computing(centred))


def by_place(*, input_shape, classes):
    return nn.Sequential(nn.Flatten(), Computing(rounded_by_place))


def remembering(*, input_shape, classes):
    return nn.Sequential(nn.Flatten(), Remembering())


def no_rows(*, input_shape, classes):
    return nn.Sequential(nn.Flatten(), Computing(lambda _, x: x.sum(dim=0, keepdim=True)))


RECORDS = InputSchema(shape=(8, 8), dtype="uint8", offset=8.0, scale=0.125, classes=10)


@pytest.fixture
def services(services):
    allowed = services.settings.model_copy(update={"allowed_factories": (f"{PACKAGE}:*",)})
    return replace(services, settings=allowed)


@pytest.fixture
def package(monkeypatch):
    functions = (table, unit_range, batch_statistics, by_place, remembering, no_rows)
    return operators_package(monkeypatch, *functions).__name__


def store(services, architecture, weights, *, shape=(8, 8), classes=10, layers=(), features=None):
    """Define a backbone and give it its weights."""
    with services.database.transaction() as session:
        backbones.define_backbone(
            session,
            BackboneDefinition(
                name="public",
                architecture=architecture,
                input_shape=shape,
                classes=classes,
                source="a test",
                layers=layers,
                features=features,
            ),
        )
    content = safetensors.torch.save(dict(weights))
    with services.database.transaction() as session:
        return backbones.upload_weights(session, services.blobs, "public", content).sha256


def network(architecture=MLP, *, shape=(8, 8), classes=10):
    return build(architecture, input_shape=shape, classes=classes, allowed_factories=[])


def frozen(services):
    spec = ArchitectureSpec("logistic", backbone=BackboneUse("public"))
    return load_backbone(services, spec, RECORDS)


def trained_on(services, architecture=MLP):
    use = BackboneUse("public", frozen=False)
    spec = ArchitectureSpec(architecture.name, architecture.options, backbone=use)
    return load_backbone(services, spec, RECORDS)


def features_of(backbone, examples):
    return torch.cat(list(backbone.features(examples, device=CPU)))


def some_records(count=600, shape=(8, 8)):
    raw = np.random.default_rng(1).integers(0, 17, (count, *shape), dtype=np.uint8)
    return classified(raw, np.zeros(count, np.int64), offset=8.0, scale=0.125)


def test_without_a_backbone_nothing_is_loaded(services):
    assert load_backbone(services, MLP, RECORDS) is None
    factory = object()
    assert starting(None, factory) is factory
    tensors = {"backbone.weight": torch.zeros(1)}
    assert publishable(None, tensors) == tensors
    assert trainable(MLP, tensors) is tensors


@pytest.mark.parametrize(
    ("architecture", "size"),
    [
        pytest.param(ArchitectureSpec("logistic"), 64, marks=pytest.mark.nightly),
        (MLP, 6),
        pytest.param(ArchitectureSpec("cnn", {"channels": [4, 5]}), 5, marks=pytest.mark.nightly),
    ],
)
def test_features_of_the_zoo_are_all_but_the_last_layer(services, architecture, size):
    public = network(architecture)
    digest = store(services, architecture, public.state_dict())
    backbone = frozen(services)
    assert isinstance(backbone, FrozenBackbone)
    assert (backbone.size, backbone.sha256) == (size, digest)
    records = some_records()
    inputs = (records.inputs.float() - 8) / 8
    with torch.no_grad():
        expected = nn.Sequential(*list(public)[:-1])(inputs)
    found = features_of(backbone, records)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)


def test_features_of_a_factorys_network_are_its_whole_output_flattened(services, package):
    public = table(input_shape=(8, 8), classes=10)
    public(torch.zeros(2, 8, 8))
    spec = ArchitectureSpec("custom", factory=f"{package}:table")
    store(services, spec, public.state_dict())
    backbone = frozen(services)
    assert backbone.size == 6
    records = some_records(5)
    with torch.no_grad():
        expected = public.eval()((records.inputs.float() - 8) / 8).flatten(1)
    torch.testing.assert_close(features_of(backbone, records), expected)


def test_a_records_features_are_the_same_bits_whatever_other_records_there_are(services):
    wide = ArchitectureSpec("mlp", {"hidden": [300, 200]})
    store(services, wide, network(wide).state_dict())
    backbone = frozen(services)
    records = some_records(70)
    everything = features_of(backbone, records)
    for chosen in ([0], [69], [3, 1], [7, 9, 11, 13, 15], list(range(33))):
        some = records.select(np.array(chosen))
        assert torch.equal(features_of(backbone, some), everything[chosen])


def test_a_network_whose_places_in_a_batch_differ_gets_one_record_at_a_time(services, package):
    spec = ArchitectureSpec("custom", factory=f"{package}:by_place")
    store(services, spec, {})
    records = some_records(5)
    inputs = (records.inputs.float() - 8) / 8
    assert torch.equal(features_of(frozen(services), records), inputs.flatten(1))


def test_stored_features_are_float16_and_what_it_cannot_reach_is_clipped(services):
    public = {"1.weight": torch.full((6, 64), 1e6), "1.bias": torch.full((6,), 1e5)}
    last = {name: tensor for name, tensor in network().state_dict().items() if name[0] == "3"}
    store(services, MLP, {**public, **last})
    (stored,) = frozen(services).stored(some_records(3), device=CPU)
    assert stored.dtype == np.float16
    assert np.isfinite(stored).all()
    assert stored.max() == np.finfo(np.float16).max


def test_features_come_from_named_layers_in_their_order(services):
    architecture = ArchitectureSpec("cnn", {"channels": [4, 5]})
    public = network(architecture)
    layers = (FeatureLayer("4", "2x2"), FeatureLayer("1", std=True))
    store(services, architecture, public.state_dict(), layers=layers, features=28)
    backbone = frozen(services)
    assert backbone.size == 28
    records = some_records(5)
    with torch.no_grad():
        first = public[:2]((records.inputs.float() - 8) / 8)
        second = public[:5]((records.inputs.float() - 8) / 8)
    quarters = nn.functional.adaptive_avg_pool2d(second, 2).flatten(1)
    spread = first.std(dim=(2, 3), correction=0)
    expected = torch.cat([quarters, first.mean(dim=(2, 3)), spread], dim=1)
    torch.testing.assert_close(features_of(backbone, records), expected)


@pytest.mark.parametrize(
    ("layers", "features", "reason"),
    [
        ((FeatureLayer("7"),), None, "no module '7': among its 4 are"),
        ((FeatureLayer("1", "2x2"),), None, r"shape \[2, 6\], has no quarters"),
        ((FeatureLayer("1"),), 7, "makes 6 features, and its definition says 7"),
    ],
)
def test_layers_that_do_not_fit_are_refused_before_a_record_is_read(
    services, layers, features, reason
):
    store(services, MLP, network().state_dict(), layers=layers, features=features)
    with pytest.raises(RunFailedError, match=reason):
        frozen(services)


def test_bytes_on_another_scale_than_the_network_reads_are_refused(services, package):
    public = unit_range(input_shape=(8, 8), classes=10)
    spec = ArchitectureSpec("custom", factory=f"{package}:unit_range")
    store(services, spec, public.state_dict())
    with pytest.raises(RunFailedError, match="reads numbers from 0 to 1, and the dataset's"):
        frozen(services)
    use = ArchitectureSpec("logistic", backbone=BackboneUse("public"))
    records = replace(RECORDS, offset=0.0, scale=1 / 255)
    assert load_backbone(services, use, records).size == 4


def test_a_network_that_mixes_the_records_of_a_batch_is_refused(services, package):
    public = batch_statistics(input_shape=(8, 8), classes=10)
    public(torch.zeros(2, 8, 8))
    spec = ArchitectureSpec("custom", factory=f"{package}:batch_statistics")
    store(services, spec, public.state_dict())
    with pytest.raises(RunFailedError, match="mixes the records of a batch"):
        frozen(services)


def test_a_network_that_remembers_is_refused_by_name(services, package):
    spec = ArchitectureSpec("custom", factory=f"{package}:remembering")
    store(services, spec, {"1.seen": torch.zeros(())})
    with pytest.raises(RunFailedError, match=r"keeps '1\.seen' from one batch to the next"):
        frozen(services)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(
            lambda weights: weights.pop("1.bias"), "do not fit", marks=pytest.mark.nightly
        ),
        pytest.param(
            lambda weights: weights.update({"extra": torch.zeros(1)}),
            "do not fit",
            marks=pytest.mark.nightly,
        ),
        (lambda weights: weights.update({"1.bias": torch.zeros(7)}), "do not fit"),
        (lambda weights: weights.update({"1.bias": torch.full((6,), torch.inf)}), "not finite"),
    ],
)
def test_weights_that_do_not_fit_are_refused(services, change, reason):
    weights = dict(network().state_dict())
    change(weights)
    store(services, MLP, weights)
    with pytest.raises(RunFailedError, match=reason):
        frozen(services)


def test_a_factory_that_is_not_allowed_is_refused(services):
    store(services, ArchitectureSpec("custom", factory="os:getcwd"), {"a": torch.zeros(1)})
    with pytest.raises(RunFailedError, match="not allowed"):
        frozen(services)


def test_features_without_a_row_per_record_are_refused(services, package):
    spec = ArchitectureSpec("custom", factory=f"{package}:no_rows")
    store(services, spec, {"unused": torch.zeros(1)})
    with pytest.raises(RunFailedError, match="one row per record"):
        frozen(services)


def test_weights_that_were_damaged_are_refused(services, monkeypatch):
    store(services, MLP, network().state_dict())
    other = safetensors.torch.save(dict(network().state_dict()))
    monkeypatch.setattr(services.blobs, "read", lambda _: other)
    with pytest.raises(RunFailedError, match="damaged"):
        frozen(services)


def test_the_complete_model_is_published_and_its_head_comes_back(services):
    public = network()
    store(services, MLP, public.state_dict())
    head = {"1.weight": np.ones((2, 6), np.float32), "1.bias": np.zeros(2, np.float32)}
    complete = publishable(frozen(services), head)
    for name, tensor in public.state_dict().items():
        np.testing.assert_array_equal(complete[f"backbone.{name}"], tensor.numpy())
    spec = ArchitectureSpec("logistic", backbone=BackboneUse("public"))
    back = trainable(spec, {name: torch.from_numpy(t) for name, t in complete.items()})
    assert set(back) == set(head)
    with pytest.raises(RunFailedError, match="rename"):
        publishable(frozen(services), {"backbone.1.weight": head["1.weight"]})


def test_training_starts_from_public_weights_but_for_the_layer_of_other_classes(services):
    public = network(classes=4)
    store(services, MLP, public.state_dict(), classes=4)
    backbone = trained_on(services)
    assert not isinstance(backbone, FrozenBackbone)

    start = Network(starting(backbone, network), device=CPU).tensors()
    again = Network(starting(backbone, network), device=CPU).tensors()

    for name in ("1.weight", "1.bias"):
        np.testing.assert_array_equal(start[name], public.state_dict()[name].numpy())
    assert start["3.weight"].shape == (10, 6)
    assert not np.array_equal(start["3.weight"], again["3.weight"])


def test_the_frame_is_centred_on_public_weights_and_keeps_its_scale(services):
    public = network(classes=4)
    digest = store(services, MLP, public.state_dict(), classes=4)
    frame = frame_of(trained_on(services), network)
    plain = frame_of(None, network)
    assert frame.scale == plain.scale
    assert torch.equal(frame.centre["1.weight"], public.state_dict()["1.weight"])
    assert not frame.centre["3.weight"].any()
    assert frame.to_json()["public_source"] == {"name": "public", "sha256": digest}
    assert plain.to_json()["centre"] == frame_of(frozen(services), network).to_json()["centre"]


def test_a_start_that_takes_nothing_from_the_backbone_is_refused(services):
    logistic = ArchitectureSpec("logistic")
    store(services, logistic, network(logistic, classes=4).state_dict(), classes=4)
    backbone = trained_on(services, logistic)
    with pytest.raises(RunFailedError, match="no tensor"):
        starting(backbone, lambda: network(logistic))()
