"""Random variants of records: what they change, and that each is of one record alone."""

import pytest
import torch

from app.domain.architectures import ArchitectureSpec, BackboneUse
from app.domain.errors import InvalidInputError
from app.domain.schema import InputSchema
from app.domain.tasks import catalogue
from app.domain.tasks.spec import Augmentation, require_augmentable
from tests.support.arrays import array_task
from workers.training.tasks.catalogue import task_of

TOKENS = InputSchema(shape=(4,), dtype="int64", classes=2, vocabulary=9)
IMAGES = InputSchema(shape=(3, 6, 5), dtype="uint8", offset=0, scale=1, classes=2)
PLAIN = array_task(3, 6, 5, dtype="uint8")


def variants(*augment, images, times=1):
    task = task_of(catalogue.from_json(PLAIN | {"augment": list(augment)}))
    batch = {"inputs": images, "target": torch.zeros(len(images))}
    return [task.augment(batch)["inputs"] for _ in range(times)]


@pytest.mark.parametrize("shape", [(40, 3, 6, 5), (40, 6, 5)])
def test_a_flip_turns_half_of_the_images(shape):
    images = torch.randn(shape)
    (found,) = variants({"name": "flip"}, images=images)
    turned = [torch.equal(one, other.flip(-1)) for one, other in zip(found, images, strict=True)]
    kept = [torch.equal(one, other) for one, other in zip(found, images, strict=True)]
    assert all(a != b for a, b in zip(turned, kept, strict=True))
    assert 0 < sum(turned) < 40


@pytest.mark.parametrize("shape", [(60, 3, 6, 5), (60, 6, 5)])
def test_a_shift_moves_each_image_by_itself_and_brings_zeros(shape):
    images = torch.rand(shape) + 1
    (found,) = variants({"name": "shift", "pixels": 2}, images=images)
    assert found.shape == images.shape
    moves = set()
    for one, other in zip(found, images, strict=True):
        padded = torch.nn.functional.pad(other, (2, 2, 2, 2))
        fits = [
            (y, x)
            for y in range(5)
            for x in range(5)
            if torch.equal(one, padded[..., y : y + 6, x : x + 5])
        ]
        assert len(fits) == 1
        moves |= set(fits)
    assert len(moves) > 10


def test_noise_is_fresh_at_every_visit_and_of_the_stated_size():
    zeros = torch.zeros(100, 3, 6, 5)
    one, other = variants({"name": "noise", "std": 0.5}, images=zeros, times=2)
    assert not torch.equal(one, other)
    assert 0.45 < float(one.std()) < 0.55


@pytest.mark.parametrize(
    "augment",
    [
        "flip",
        [{"name": "turn"}],
        [{"name": "flip", "pixels": 1}],
        [{"name": "shift"}],
        [{"name": "shift", "pixels": 0}],
        [{"name": "shift", "pixels": 1.5}],
        [{"name": "shift", "pixels": 2000}],
        [{"name": "noise", "std": float("inf")}],
        [{"name": "noise", "std": True}],
    ],
)
def test_what_is_malformed_is_refused(augment):
    with pytest.raises(InvalidInputError, match="task: "):
        catalogue.from_json(PLAIN | {"augment": augment})


def test_json_keeps_it():
    document = PLAIN | {"augment": [{"name": "flip"}, {"name": "shift", "pixels": 2}]}
    assert catalogue.from_json(document).to_json() == document


FROZEN = ArchitectureSpec("logistic", backbone=BackboneUse("public"))


@pytest.mark.parametrize(
    ("architecture", "schema", "words"),
    [
        (ArchitectureSpec("linear_head"), IMAGES, "the same gradient of a record at every visit"),
        (ArchitectureSpec("ridge_head"), IMAGES, "looks at it once"),
        (FROZEN, IMAGES, "a frozen backbone computes each record's features once"),
        (ArchitectureSpec("logistic"), InputSchema(shape=(4,), classes=2), "for images"),
        (
            ArchitectureSpec("logistic"),
            InputSchema(shape=(4,), dtype="int64", classes=2, vocabulary=9),
            "tokens",
        ),
    ],
)
def test_it_is_refused_where_a_proof_or_the_inputs_do_not_allow_it(architecture, schema, words):
    augment = (Augmentation("flip"),)
    with pytest.raises(InvalidInputError, match=words):
        require_augmentable(augment, schema, architecture)
    require_augmentable(augment, IMAGES, ArchitectureSpec("logistic"))
    require_augmentable((), schema, architecture)
