"""The scores of audits: of models of every task, and of a head whose memory is known."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import safetensors.torch
import torch

from app.domain.columns import ArrayColumn
from app.domain.errors import InvalidInputError
from app.domain.schema import TableSchema
from tests.support.described import DESCRIPTIONS, FACTORIES, written
from workers.audit.canaries import prepare
from workers.audit.scores import BELIEF, BETTER, WORSE, scores
from workers.audit.statistics import right_guesses
from workers.training.published.model import PublishedModel, load

CANARIES, CLASSES, PIXELS = 20, 5, 64
COINS = [place % 3 % 2 for place in range(CANARIES)]
# Each content is an image of one pixel, whose column of weights it alone reads.
CONTENTS = np.arange(2 * CANARIES).reshape(2, CANARIES)
OWN = np.random.default_rng(1).integers(CLASSES, size=(2, CANARIES))
OTHER = (OWN + 1) % CLASSES


KINDS = {"number": "float64", "category": "string", "text": "string"}


def array_of(column: ArrayColumn) -> str:
    return f"list<{column.dtype}, {column.width}>"


def loaded(path: Path) -> PublishedModel:
    return load(path, check=False, factories=FACTORIES)


def tables() -> list[pa.Table]:
    def table(pixels: np.ndarray, labels: np.ndarray) -> pa.Table:
        images = np.full((CANARIES, PIXELS), 3, dtype=np.uint8)
        images[np.arange(CANARIES), pixels] = 19
        features = pa.FixedSizeListArray.from_arrays(images.reshape(-1), PIXELS)
        return pa.table({"features": features, "label": labels})

    return [table(*of) for of in zip(CONTENTS, OWN, strict=True)]


def head(weight: torch.Tensor, path: Path) -> PublishedModel:
    description = DESCRIPTIONS["linear_head"]
    safetensors.torch.save_file({"weight": weight}, path, metadata=description.to_metadata())
    return loaded(path)


@pytest.mark.parametrize(
    ("targets", "moved", "sees"),
    [
        (OWN, [4.0], {BETTER, BELIEF}),
        (OWN, [-4.0], {WORSE, BELIEF}),
        (OWN, [4.0, -4.0], {BELIEF}),
        (OTHER, [2.0], {BELIEF}),
        (OWN, [0.0], set()),
    ],
)
def test_what_a_head_learned_or_was_pushed_away_from_is_seen(
    targets: np.ndarray, moved: list[float], sees: set[int], tmp_path: Path
) -> None:
    noise = np.random.default_rng(2).normal(size=(CLASSES, PIXELS + 1))
    reference = torch.from_numpy(noise)
    weight = torch.from_numpy(noise + np.random.default_rng(3).normal(0, 0.1, noise.shape))
    for place, coin in enumerate(COINS):
        weight[targets[coin, place], CONTENTS[coin, place]] += moved[place % len(moved)]
    attacks = scores(head(weight, tmp_path / "a"), head(reference, tmp_path / "b"), tables())
    rights = [right_guesses([each], COINS, CANARIES) for each in attacks]
    assert {
        attack for attack in (BETTER, WORSE, BELIEF) if rights[attack] >= CANARIES - 1
    } == sees, rights


def test_losses_that_are_no_numbers_are_not_taken_for_forgetting(tmp_path: Path) -> None:
    weight = torch.zeros(CLASSES, PIXELS + 1, dtype=torch.float64)
    reference = head(weight, tmp_path / "a")
    weight[0, 0] = torch.nan
    with pytest.raises(InvalidInputError, match="no number"):
        scores(head(weight, tmp_path / "b"), reference, tables())


@pytest.mark.parametrize("name", sorted({*DESCRIPTIONS} - {"images"}))
def test_models_of_every_task_have_scores(name: str, tmp_path: Path) -> None:
    description = DESCRIPTIONS[name]
    task = description.task
    columns = {each.name: KINDS.get(each.kind) or array_of(each) for each in task.input_columns}
    columns |= dict.fromkeys(task.target_columns, "int64")
    if name.endswith("of_a_table"):
        columns["churned"] = "string"
    release = loaded(written(description, tmp_path / "m.safetensors"))
    canaries = prepare(None, task, TableSchema.of(columns, record_id="id"), 6)
    attacks = np.array(
        scores(
            release,
            None if release.members() else release,
            canaries.contents,
            factories=FACTORIES,
        )
    )
    assert attacks.shape == (3, 6, 2)
    assert np.isfinite(attacks).all()
    assert attacks.any() == bool(release.members())  # a release is no other than itself
