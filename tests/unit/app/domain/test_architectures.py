"""How a model says what its network is and what it stands on."""

import pytest

from app.domain.architectures import (
    PRESETS,
    ArchitectureSpec,
    BackboneUse,
    FeatureLayer,
    Member,
    definition_digest,
    members_by_version,
    members_in_words,
    network_in_words,
)
from app.domain.errors import InvalidInputError


def test_a_backbone_is_frozen_unless_the_model_says_otherwise() -> None:
    document = {"name": "logistic", "backbone": {"name": "public"}}
    spec = ArchitectureSpec.from_json(document)
    assert spec.backbone == BackboneUse("public", frozen=True)
    assert spec.on_features
    trained_on = ArchitectureSpec.from_json(
        document | {"backbone": {"name": "public", "frozen": False}}
    )
    assert not trained_on.on_features
    assert trained_on.without_backbone == spec.without_backbone == ArchitectureSpec("logistic")


def test_a_use_survives_json_and_a_spec_without_one_is_written_as_before() -> None:
    spec = ArchitectureSpec("mlp", {"hidden": [3]}, backbone=BackboneUse("public", frozen=False))
    assert ArchitectureSpec.from_json(spec.to_json()) == spec
    assert ArchitectureSpec("logistic").to_json() == {"name": "logistic", "options": {}}


def test_a_preset_may_stand_on_a_backbone() -> None:
    spec = ArchitectureSpec.from_json(
        {"name": "koloskova_mnist", "backbone": {"name": "public", "frozen": False}}
    )
    assert spec.without_backbone == PRESETS["koloskova_mnist"]
    assert spec.backbone == BackboneUse("public", frozen=False)


@pytest.mark.parametrize(
    ("backbone", "reason"),
    [
        ("public", "must be an object"),
        ({}, "name must be text"),
        ({"name": ""}, "name must be text"),
        ({"name": 7}, "name must be text"),
        ({"name": "public", "frozen": "yes"}, "true or false"),
        ({"name": "public", "frozen": None}, "true or false"),
        ({"name": "public", "layers": 3}, "backbone: unknown field 'layers'"),
    ],
)
def test_what_is_no_use_is_refused(backbone: object, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        ArchitectureSpec.from_json({"name": "logistic", "backbone": backbone})


def test_a_head_that_reads_images_cannot_stand_on_flat_features() -> None:
    cnn = {"name": "cnn", "options": {"channels": [4]}}
    with pytest.raises(InvalidInputError, match="flat features"):
        ArchitectureSpec.from_json(cnn | {"backbone": {"name": "public"}})
    ArchitectureSpec.from_json(cnn | {"backbone": {"name": "public", "frozen": False}})


def test_layers_survive_json_and_have_defaults() -> None:
    layers = FeatureLayer.all_from_json(
        [{"module": "a.0"}, {"module": "a.0", "pool": "2x2", "std": True}]
    )
    assert layers == (FeatureLayer("a.0", "1x1", std=False), FeatureLayer("a.0", "2x2", std=True))
    assert FeatureLayer.all_from_json([layer.to_json() for layer in layers]) == layers


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        ("a", "must be a list"),
        ([{"module": "a"}] * 65, "at most 64"),
        (["a"], "must be an object"),
        ([{"pool": "1x1"}], "must be an object"),
        ([{"module": ""}], "name of a module"),
        ([{"module": 3}], "name of a module"),
        ([{"module": "a", "pool": "3x3"}], "1x1, 2x2"),
        ([{"module": "a", "std": 1}], "true or false"),
        ([{"module": "a", "size": 1}], "unknown field 'size'"),
        ([{"module": "a"}, {"module": "a", "pool": "1x1"}], "twice"),
    ],
)
def test_what_is_no_list_of_layers_is_refused(layers: object, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        FeatureLayer.all_from_json(layers)


def test_every_part_of_a_definition_and_their_order_are_in_its_digest() -> None:
    own = {
        "architecture": {"name": "custom", "options": {"size": 64}, "factory": "nets:build"},
        "layers": (FeatureLayer("a"), FeatureLayer("b")),
        "input_shape": (8, 8),
        "classes": 3,
    }
    others = [
        {"architecture": {**own["architecture"], "options": {"size": 65}}},
        {"architecture": {**own["architecture"], "factory": "nets:other"}},
        {"layers": (FeatureLayer("b"), FeatureLayer("a"))},
        {"layers": (FeatureLayer("a", "2x2"), FeatureLayer("b"))},
        {"layers": (FeatureLayer("a"), FeatureLayer("b", std=True))},
        {"layers": ()},
        {"input_shape": (64,)},
        {"classes": 4},
    ]
    digests = {definition_digest(**(own | other)) for other in [{}, *others]}
    assert len(digests) == len(others) + 1
    assert definition_digest(**own) == definition_digest(**(own | {"input_shape": [8, 8]}))


OWN = {"name": "custom", "factory": "package:secret"}


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        ({"name": "mlp", "options": {"hidden": [3]}}, "mlp"),
        ({"name": "ensemble", "members": 8, "of": {"name": "cnn"}}, "8 members of cnn"),
        ({"name": "ensemble", "members": 1, "of": {"name": "cnn"}}, "1 member of cnn"),
        (OWN, "the operator's own network"),
        (
            {"name": "ensemble", "members": 3, "of": OWN},
            "3 members of the operator's own network",
        ),
    ],
)
def test_a_network_is_named_without_the_operators_code(architecture, words):
    assert network_in_words(architecture) == words


def members(*versions):
    return [Member("0" * 64, version) for version in versions]


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ((2, 2, 2), "3 members, all trained in this version"),
        ((2, 1, 1), "3 members, 1 trained anew in this version, 2 in version 1"),
        ((0, 1, 0), "3 members, 0 trained anew in this version, 1 in version 1, 2 in version 0"),
    ],
)
def test_who_was_trained_when_is_counted(versions, words):
    assert members_in_words(members(*versions), version=2) == words


def test_members_are_listed_by_the_newest_version_first():
    assert members_by_version(members(1, 3, 1, 2)) == {3: [1], 2: [3], 1: [0, 2]}
    assert list(members_by_version(members(1, 3, 2))) == [3, 2, 1]
