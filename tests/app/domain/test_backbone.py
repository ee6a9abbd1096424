"""How a model says that it stands on a backbone."""

import pytest

from app.domain.architecture import PRESETS, ArchitectureSpec
from app.domain.backbone import BackboneUse
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
        ({"name": "public", "layers": 3}, "backbone.layers"),
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
