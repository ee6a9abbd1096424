"""A network's outputs become what its task predicts: worked out by hand, and as in training."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from app.domain.errors import InvalidInputError, InvalidRecordsError
from app.registry.datasets.columns.outputs import (
    inputs_of,
    predictions_of,
    table_of,
    write_predictions,
)
from tests.support import layouts
from tests.support.described import DESCRIPTIONS
from workers.training.tasks.catalogue import task_of
from workers.training.tasks.task import INPUTS

_NOTHING = np.zeros((2, 0))


def test_classes_have_names_and_probabilities() -> None:
    found = predictions_of(
        DESCRIPTIONS["head_of_a_table"], np.array([[0.0, 1.0], [800.0, 0.0]]), _NOTHING
    )
    assert found["prediction"].to_pylist() == ["yes", "no"]
    assert found["probabilities"].to_pylist()[0] == pytest.approx([0.26894142, 0.73105858])
    assert found["probabilities"].to_pylist()[1] == [1.0, 0.0]


def test_a_ridge_heads_scores_are_no_probabilities() -> None:
    found = predictions_of(DESCRIPTIONS["ridge_head_of_two"], np.array([[0.7, 0.1]]), _NOTHING)
    assert found.to_pydict() == {"prediction": [0], "scores": [[0.7, 0.1]]}
    found = predictions_of(
        DESCRIPTIONS["ridge_head_of_labels"], np.array([[0.7, -0.1, 0.2]]), _NOTHING
    )
    assert found.to_pydict() == {"prediction": [["open", "old"]], "scores": [[0.7, -0.1, 0.2]]}


def test_labels_are_those_that_are_likelier_than_not() -> None:
    outputs = np.array([[0.1, -0.1, 0.0], [-9.0, -900.0, -1.0], [3.0, 3.0, 900.0]])
    found = predictions_of(DESCRIPTIONS["labels"], outputs, _NOTHING)
    assert found["prediction"].to_pylist() == [["open"], [], ["open", "cheap", "old"]]
    assert found["probabilities"].to_pylist()[0] == pytest.approx([0.52497919, 0.47502081, 0.5])
    assert found["probabilities"].to_pylist()[1][1] == 0.0


def test_numbers_have_a_column_for_each_target() -> None:
    found = predictions_of(DESCRIPTIONS["numbers"], np.array([[900.0, 100.0]]), _NOTHING)
    assert found.to_pydict() == {"rent": [900.0], "deposit": [100.0]}


@pytest.mark.parametrize("name", ["texts", "tokens"])
def test_texts_are_as_likely_as_in_training(name: str) -> None:
    description = DESCRIPTIONS[name]
    vocabulary, (places,) = description.schema.vocabulary, description.schema.shape
    padding = description.task.padding
    numbers = np.random.default_rng(4)
    tokens = numbers.integers(1, 9, (4, places))
    tokens[1, 3:], tokens[2, 1:], tokens[3] = padding, padding, padding
    scores = numbers.normal(size=(4, places, vocabulary)) * 5

    found = predictions_of(description, scores, tokens)

    learned = task_of(description.task).predict(
        lambda _: torch.from_numpy(scores), {INPUTS: torch.from_numpy(tokens)}
    )
    for column, values in learned.items():
        assert found[column].to_pylist() == pytest.approx(values.tolist())
    assert found["tokens"].to_pylist() == [places - 1, 2, 0, 0]
    mean = -found["log_likelihood"][1].as_py() / 2
    assert found["perplexity"].to_pylist()[1:] == [pytest.approx(np.exp(mean)), None, None]
    assert ("next_text" in found.column_names) == (name == "texts")


def test_the_next_token_of_a_text_is_shown_as_text() -> None:
    scores = np.zeros((3, 9, 257))
    for row, token in enumerate((0, 1 + ord("e"), 1 + 0xC3)):
        scores[row, 1, token] = 1
    tokens = np.array([[5, 5, *[0] * 7]] * 3)
    found = predictions_of(DESCRIPTIONS["texts"], scores, tokens)
    assert found["next_text"].to_pylist() == ["", "e", None]


def test_rows_are_tables_or_arrays() -> None:
    description = DESCRIPTIONS["labels"]
    table = pa.table({"street": ["south", "north"], "area": ["25", "50"], "more": [1, 2]})
    encoded = np.float32([[0.5, 0, 1], [1, 1, 0]])
    assert np.array_equal(inputs_of(table, description), encoded)
    assert inputs_of(encoded, description) is not None
    with pytest.raises(InvalidInputError, match=r"shape \[2\], where the model reads \[3\]"):
        inputs_of(encoded[:, :2], description)
    with pytest.raises(InvalidRecordsError, match="column 'area': the table has no such column"):
        inputs_of(table.drop_columns(["area"]), description)


def test_an_operators_predictions_are_columns() -> None:
    found = table_of({"one": np.arange(2), "more": np.ones((2, 2, 2))})
    assert found.to_pydict() == {"one": [0, 1], "more": [[1.0] * 4] * 2}
    with pytest.raises(InvalidInputError, match="no columns of numbers"):
        table_of({"one": np.arange(2), "other": np.arange(3)})


def test_a_folder_that_is_missing_is_told_in_words(tmp_path: Path) -> None:
    rows = pa.table({"a": [1]})
    with pytest.raises(InvalidInputError, match="cannot be written: No such file or directory"):
        write_predictions(tmp_path / "no" / "p.parquet", rows, rows, DESCRIPTIONS["labels"])


@pytest.mark.parametrize("layout", layouts.TEXTS)
def test_ids_are_written_whatever_their_layout(tmp_path: Path, layout: str) -> None:
    described = DESCRIPTIONS["labels"]
    rows = pa.table({described.record_id: layouts.TEXTS[layout](["a", "b"])})
    found = pa.table({"prediction": [0, 1]})
    write_predictions(tmp_path / "p.parquet", rows, found, described)
    written = pq.read_table(tmp_path / "p.parquet")
    assert written.to_pydict() == {described.record_id: ["a", "b"], "prediction": [0, 1]}
