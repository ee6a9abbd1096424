"""Specs and the networks built from them."""

import json

import pytest
import torch
from torch import nn

from app.domain.architectures import PRESETS, ArchitectureSpec
from app.domain.errors import InvalidInputError, RunFailedError
from app.domain.parameters import features_of, parameters_of
from tests.support.operators import operators_package
from workers.training.networks.architectures import build, build_features

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
