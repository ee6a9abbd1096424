"""The benchmark of exact heads, on small digits."""

from dataclasses import replace

import pytest

from benchmarks.exact_heads import QUICK, Heads, rows_of, table
from benchmarks.public_features import pixels_of_digits

FEATURES = pixels_of_digits()


@pytest.fixture(scope="module")
def rows():
    scale = replace(QUICK, tracked_epochs=1, forgotten=(4, 40))
    return list(rows_of(FEATURES, scale))


def rows_with(rows, head):
    return [row for row in rows if row["head"] == head and row["features"] == QUICK.group]


def test_every_head_forgets_and_still_tells_digits_apart(rows):
    for head in ("ridge", "softmax"):
        accuracies = [row["accuracy"] for row in rows_with(rows, head)]
        assert min(accuracies) > 0.9
        assert {row["forgotten"] for row in rows_with(rows, head)} == {0, 4, 40}
    assert len(rows_with(rows, "tracked release")) == 2
    assert {row["features"] for row in rows} == set(FEATURES.groups)


def test_a_ridge_head_that_remembers_is_noticed():
    heads = Heads(FEATURES, "all pixels", QUICK)
    heads._sums.crossed[0] += 1
    with pytest.raises(RuntimeError, match="fresh start"):
        heads.ridge_row(4)


def test_the_table_has_each_row(rows):
    text = table({"data": "digits", "rows": rows})
    assert "| all pixels | 40 |" in text
    assert text.count("\n") == 1 + len(rows)
