"""The benchmark of exact heads, on small digits and made-up ratings."""

from dataclasses import asdict, replace

import pytest

from benchmarks import exact_heads_people as people
from benchmarks import exact_heads_service as service
from benchmarks.exact_heads import QUICK, head_rows, network_rows, other_groups
from benchmarks.exact_heads_arithmetic import RidgeRows
from benchmarks.exact_heads_figures import draw, table
from benchmarks.public_features import pixels_of_digits

FEATURES = pixels_of_digits()


@pytest.fixture(scope="module")
def rows():
    scale = replace(QUICK, tracked_epochs=1, requests=((4, 4), (40, 1)))
    return [*head_rows(FEATURES, scale, product_s=0.1), *other_groups(FEATURES, scale)]


def rows_of(rows, head):
    return [row for row in rows if row.head == head and row.features == QUICK.group]


def test_every_head_forgets_and_still_tells_digits_apart(rows):
    for head in ("ridge", "softmax"):
        accuracies = [row.accuracy for row in rows_of(rows, head)]
        assert min(accuracies) > 0.9
        assert {row.forgotten for row in rows_of(rows, head)} == {0, 4, 40}
    assert len(rows_of(rows, "tracked release")) == 3
    assert {row.features for row in rows} == set(FEATURES.groups)


def test_only_softmax_and_tracked_release_take_gradients(rows):
    assert all(row.gradients == 0 for row in rows if row.head == "ridge")
    assert all(row.gradients > 0 for row in rows if row.head == "softmax")


def test_a_ridge_head_that_remembers_is_noticed():
    exact = RidgeRows(FEATURES, "all pixels", regularisation=0.01, product_s=1.0)
    exact._sums.crossed[0] += 1
    with pytest.raises(RuntimeError, match="fresh start"):
        exact.row(4, requests=2)


def test_people_leave_and_what_is_left_is_a_fresh_start():
    document = people.measure(people.made_up())
    assert [row["people"] for row in document["rows"]] == [0, 1, 10, 13]
    assert document["rows"][1]["records"] == 10
    assert document["rows"][1]["retained"] == document["ratings"] - 10


def test_tables_and_picture(rows, tmp_path):
    document = {
        "data": "digits",
        "note": "",
        "records": 1437,
        "tested": 360,
        "threads": 1,
        "product_s": 0.1,
        "rows": [asdict(row) for row in rows],
        "networks": list(network_rows(FEATURES, replace(QUICK, longer_s=0.1), seconds=0.1)),
        "people": people.measure(people.made_up()),
        "service": [
            {
                "head": "ridge",
                "records": 500,
                "forgotten": 1,
                "seconds": 0.5,
                "phase_seconds": {"loading": 0.1},
            }
        ],
    }
    assert "| ridge | all pixels | 40 | 1 |" in table(document)
    assert draw(document, tmp_path / "plot.png").stat().st_size > 0


@pytest.mark.nightly
def test_the_service_answers_with_certificates_that_hold():
    heads = service.definitions(FEATURES, weight_decay=1e-3, tolerance=1e-4, regularisation=0.01)
    rows = service.measure(FEATURES, heads, records=300, batches=(1, 5))
    assert [(row["head"], row["forgotten"]) for row in rows] == [
        ("ridge", 1),
        ("ridge", 5),
        ("softmax", 1),
        ("softmax", 5),
    ]
    assert all(row["seconds"] > 0 for row in rows)
