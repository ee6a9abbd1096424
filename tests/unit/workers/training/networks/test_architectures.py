"""Specs and the networks built from them."""

import json

import pytest
import torch
from torch import nn

from app.domain.architectures import PRESETS, ArchitectureSpec, FeatureLayer
from app.domain.errors import InvalidInputError, RunFailedError
from app.domain.parameters import features_of, parameters_of
from tests.support.networks import Computing
from tests.support.operators import operators_package
from workers.training.networks.architectures import Layered, build, build_features

CALLS = []


def factory(*, input_shape, classes, width=4):
    CALLS.append((input_shape, classes, width))
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.Linear(width, classes)).double()


def broken(*, input_shape, classes):
    raise OSError("a secret path")


def wrong_size(*, input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes + 1))


def not_a_module(*, input_shape, classes):
    return 7


class Returning(nn.Linear):
    def __init__(self, inputs, classes, change):
        super().__init__(inputs, classes)
        self.change = change

    def forward(self, features):
        return self.change(super().forward(features))


def tuple_of_two(*, input_shape, classes):
    return Returning(*input_shape, classes, lambda logits: (logits, logits))


def whole_numbers(*, input_shape, classes):
    return Returning(*input_shape, classes, lambda logits: logits.long())


def on_meta(*, input_shape, classes):
    return nn.Linear(*input_shape, classes, device="meta")


def greedy(*, input_shape, classes, depth):
    return nn.Linear(*input_shape, classes)


def compiled(*, input_shape, classes):
    first = torch.compile(nn.Linear(*input_shape, 4))
    first.compile()
    return torch.compile(nn.Sequential(first, nn.Linear(4, classes)))


def embedding(*, input_shape, classes):
    return nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.LazyLinear(classes))


@pytest.fixture
def package(monkeypatch):
    CALLS.clear()
    made = operators_package(
        monkeypatch,
        *(factory, broken, wrong_size, not_a_module, tuple_of_two, whole_numbers),
        *(on_meta, greedy, compiled, embedding),
    )
    return made.__name__


def make(spec, input_shape=(64,), classes=10, allowed=()):
    return build(spec, input_shape=input_shape, classes=classes, allowed_factories=allowed)


def parameters(module):
    return sum(tensor.numel() for tensor in module.parameters())


@pytest.mark.parametrize(
    ("document", "shape", "size"),
    [
        ({"name": "logistic"}, (64,), 650),
        ({"name": "mlp", "options": {"hidden": [7, 3]}}, (8, 8), 64 * 7 + 7 + 24 + 40),
        ({"name": "cnn", "options": {"channels": [4]}}, (8, 8), 40 + 50),
        ({"name": "cnn", "options": {"channels": [4, 5]}}, (3, 8, 8), 112 + 185 + 60),
        ({"name": "mlp", "options": {"hidden": []}}, (8, 8), 650),
        ({"name": "linear_head"}, (8, 8), 650),
        ({"name": "linear_head", "options": {"bias": 0}}, (64,), 640),
        ({"name": "koloskova_mnist"}, (28, 28), 784 * 5 + 5 + 60),
        ({"name": "koloskova_cifar"}, (3, 32, 32), 20_042),
    ],
)
def test_the_zoo_has_the_sizes_it_says(document, shape, size):
    module = make(ArchitectureSpec.from_json(document), shape)
    spec = ArchitectureSpec.from_json(document)
    assert parameters(module) == size == parameters_of(spec, input_shape=shape, classes=10)
    assert module(torch.zeros(3, *shape)).shape == (3, 10)
    assert module.training


def test_a_linear_head_of_two_classes_has_one_row():
    spec = ArchitectureSpec("linear_head")
    module = build(spec, input_shape=(64,), classes=2, allowed_factories=())
    assert parameters(module) == 65 == parameters_of(spec, input_shape=(64,), classes=2)


@pytest.mark.parametrize(
    "document",
    [
        {"name": "logistic"},
        {"name": "mlp", "options": {"hidden": [7, 3]}},
        {"name": "cnn", "options": {"channels": [4, 5]}},
    ],
)
def test_a_backbone_gives_as_many_features_as_it_says(document):
    spec = ArchitectureSpec.from_json(document)
    _, module = build_features(spec, input_shape=(8, 8), classes=10, allowed_factories=())
    assert module(torch.zeros(2, 8, 8)).shape == (2, features_of(spec, input_shape=(8, 8)))


def test_a_factorys_network_is_counted_by_no_one_but_its_builder(package):
    spec = ArchitectureSpec("custom", {"width": 6}, f"{package}:factory")
    assert parameters_of(spec, input_shape=(64,), classes=10) is None
    assert features_of(spec, input_shape=(64,)) is None


@pytest.mark.parametrize(
    ("channels", "shape"), [([4, 4, 4, 4], (8, 8)), ([4], (64,)), ([4], (1, 1, 8))]
)
def test_images_too_small_for_a_cnn_are_refused(channels, shape):
    with pytest.raises(RunFailedError, match="cnn"):
        make(ArchitectureSpec("cnn", {"channels": channels}), shape)


def test_a_factory_runs_only_if_it_is_allowed(package):
    spec = ArchitectureSpec("custom", {"width": 6}, f"{package}:factory")
    for allowed in ([], [f"{package}:broken"], [package], ["*"], [f"{package[:-1]}:*"]):
        with pytest.raises(RunFailedError, match="EXPUNGE_ALLOWED_FACTORIES"):
            make(spec, allowed=allowed)
    assert not CALLS
    for allowed in ([f"{package}:factory"], [f"{package}:*"]):
        module = make(spec, allowed=allowed)
        assert module(torch.zeros(2, 64)).dtype == torch.float32
    assert CALLS == [((64,), 10, 6)] * 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broken", "OSError"),
        ("wrong_size", "10\\], as its task asks for"),
        ("not_a_module", "Module"),
        ("absent", "no function 'absent'"),
        ("tuple_of_two", "not tuple: return it alone"),
        ("whole_numbers", "floating-point numbers"),
        ("on_meta", "'weight' is on the meta device"),
    ],
)
def test_a_factory_that_fails_says_how_without_its_own_words(package, name, words):
    with pytest.raises(RunFailedError, match=words) as caught:
        make(ArchitectureSpec("custom", {}, f"{package}:{name}"), allowed=[f"{package}:*"])
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("operators_networks:broken", "OSError: a secret path"),
        ("operators_networks:greedy", "missing 1 required keyword-only argument: 'depth'"),
        ("no_such_package:build", "No module named 'no_such_package'"),
    ],
)
def test_before_records_are_read_its_own_words_are_shown(package, path, words):
    spec = ArchitectureSpec("custom", {}, path)
    with pytest.raises(RunFailedError, match="raised") as caught:
        build(spec, input_shape=(64,), classes=10, allowed_factories=[path], in_full=True)
    assert words in str(caught.value)
    with pytest.raises(RunFailedError, match="raised") as caught:
        build(spec, input_shape=(64,), classes=10, allowed_factories=[path])
    assert words not in str(caught.value)


@pytest.mark.slow
def test_a_compiled_network_is_used_as_it_was_written(package):
    spec = ArchitectureSpec("custom", {}, f"{package}:compiled")
    module = make(spec, allowed=[f"{package}:*"])
    assert set(module.state_dict()) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert not any(layer._compiled_call_impl for layer in module.modules())


def test_tokens_reach_the_network_as_whole_numbers(package):
    path = f"{package}:embedding"
    spec = ArchitectureSpec("custom", {}, path)
    module = build(spec, input_shape=(64,), classes=10, allowed_factories=[path], tokens=True)
    assert module(torch.ones((3, 64), dtype=torch.int64)).shape == (3, 10)
    with pytest.raises(RunFailedError, match="does not read tokens"):
        build(
            ArchitectureSpec("logistic"),
            input_shape=(64,),
            classes=10,
            allowed_factories=[],
            tokens=True,
        )


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"name": 3},
        {"name": "resnet"},
        {"name": "mlp"},
        {"name": "mlp", "options": {"hidden": [0]}},
        {"name": "mlp", "options": {"hidden": [True]}},
        {"name": "mlp", "options": {"hidden": "12"}},
        {"name": "mlp", "options": {"hidden": [3], "width": 3}},
        {"name": "cnn", "options": {"channels": []}},
        {"name": "logistic", "options": {"hidden": []}},
        {"name": "logistic", "factory": "a:b"},
        {"name": "logistic", "options": []},
        {"name": "logistic", "layers": 3},
        {"name": "custom"},
        {"name": "custom", "factory": "os.system"},
        {"name": "custom", "factory": "a:b; import os"},
        {"name": "custom", "factory": "a:b\n"},
        {"name": "custom", "factory": "a:b", "options": {"classes": 3}},
        {"name": "koloskova_mnist", "options": {"hidden": [3]}},
    ],
)
def test_specs_that_cannot_be_built_are_refused(document):
    with pytest.raises(InvalidInputError, match="architecture"):
        ArchitectureSpec.from_json(document)


@pytest.mark.parametrize(
    "spec",
    [
        *PRESETS.values(),
        ArchitectureSpec("logistic"),
        ArchitectureSpec("custom", {"a": 1}, "p.q:f"),
    ],
)
def test_json_round_trip(spec):
    assert ArchitectureSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.unused = nn.Linear(1, 1)

    def forward(self, tokens):
        return self.lstm(tokens)[0][:, -1]

    def token_mask(self, tokens):
        return tokens.abs().sum(dim=2) > 0


@pytest.fixture
def images():
    torch.manual_seed(3)
    return torch.rand(5, 2, 6, 8)


@pytest.fixture
def network():
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(72, 7)
    ).eval()


def features(network, layers, inputs):
    with torch.no_grad():
        return Layered(network, layers)(inputs)


def test_layers_are_pooled_and_put_side_by_side_in_the_order_given(network, images):
    layers = [FeatureLayer("3"), FeatureLayer("0", "2x2"), FeatureLayer("0", std=True)]
    found = features(network, layers, images)
    with torch.no_grad():
        convolved = network[0](images)  # before the next layer changes it in place
        output = network(images)
    quarters = [
        convolved[:, :, rows, columns].mean(dim=(2, 3))
        for rows in (slice(0, 2), slice(2, 4))
        for columns in (slice(0, 3), slice(3, 6))
    ]
    expected = [
        output,
        torch.stack(quarters, dim=2).flatten(1),
        convolved.mean(dim=(2, 3)),
        convolved.std(dim=(2, 3), correction=0),
    ]
    assert float(convolved.min()) < 0
    torch.testing.assert_close(found, torch.cat(expected, dim=1))


def test_what_a_layer_gives_first_counts_and_tokens_that_only_fill_up_do_not():
    torch.manual_seed(5)
    network = Recurrent()
    tokens = torch.rand(4, 6, 3)
    tokens[:, 4:] = 0
    found = features(network, [FeatureLayer("lstm", std=True)], tokens)
    with torch.no_grad():
        states = network.lstm(tokens)[0][:, :4]
    expected = torch.cat([states.mean(dim=1), states.std(dim=1, correction=0)], dim=1)
    torch.testing.assert_close(found, expected)


def test_a_network_is_left_as_it_was(network, images):
    before = network(images)
    layered = Layered(network, [FeatureLayer("0")])
    layered(images)
    assert torch.equal(network(images), before)
    assert not network[0]._forward_hooks
    with pytest.raises(RuntimeError):
        layered(images[:, :1])
    assert not network[0]._forward_hooks


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (FeatureLayer("encoder.block.7"), "among its 4 are '0', '1', '2', '3'"),
        (FeatureLayer("00"), "close to it are '0'"),
        (FeatureLayer("3", "2x2"), r"shape \[5, 7\], has no quarters"),
        (FeatureLayer("3", std=True), "no positions"),
    ],
)
def test_a_layer_that_cannot_be_used_is_refused(network, images, layer, reason):
    with pytest.raises(RunFailedError, match=reason):
        features(network, [layer], images)


@pytest.mark.parametrize(
    ("network", "layer", "inputs", "reason"),
    [
        (
            Computing(lambda own, x: own.layer(own.layer(x)), layer=nn.Linear(3, 3)),
            "layer",
            torch.rand(2, 3),
            "'layer' twice",
        ),
        (Recurrent(), "unused", torch.rand(2, 4, 3), "does not call its layer 'unused'"),
        (nn.Sequential(nn.Flatten(0)), "0", torch.rand(2, 3), r"shape \[6\], cannot be pooled"),
        (nn.Sequential(nn.Unflatten(0, (4, 2))), "0", torch.rand(8, 3), "cannot be pooled"),
        (nn.Sequential(nn.Conv2d(1, 1, 1)), "0", torch.rand(2, 1, 1, 9), "has no quarters"),
    ],
)
def test_an_output_of_another_form_is_refused(network, layer, inputs, reason):
    pool = "2x2" if inputs.dim() == 4 else "1x1"
    with pytest.raises(RunFailedError, match=reason):
        features(network, [FeatureLayer(layer, pool)], inputs)


def test_it_is_exported_for_any_number_of_records(network, images):
    layered = Layered(network, [FeatureLayer("0", "2x2"), FeatureLayer("3")]).eval()
    records = {0: torch.export.Dim("records")}
    exported = torch.export.export(layered, (images,), dynamic_shapes=(records,)).module()
    torch.testing.assert_close(exported(images[:3]), layered(images[:3]))
