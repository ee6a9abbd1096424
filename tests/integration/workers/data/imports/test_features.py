"""Imports into datasets of features and labels, with an encoding and without."""

import numpy as np
import pytest

from app.registry.datasets.files import record_table
from tests.integration.workers.data.imports.conftest import counts, url_of, write


def features(first, count):
    ids = [f"r-{i}" for i in range(first, first + count)]
    values = np.arange(first, first + count, dtype=np.float32)[:, None] * np.ones(4, np.float32)
    return record_table(record_ids=ids, labels=np.arange(count) % 3, features=values)


@pytest.fixture
def dataset(api):
    body = {"name": "numbers", "features": {"shape": [4]}, "classes": 3}
    assert api.post("/v1/datasets", json=body).status_code == 201


def test_features_are_imported(dataset, ended, folder):
    for number in range(3):
        write(folder / f"{number}.parquet", features(number * 100, 100), row_group_size=30)
    assert counts(ended(url_of(folder), "numbers")) == (300, 0, 0)
    assert counts(ended(url_of(folder), "numbers")) == (0, 300, 0)


def test_a_label_that_is_no_class_is_named(dataset, ended, folder):
    table = features(0, 10)
    labels = table["label"].to_pylist()
    labels[7] = 3
    write(folder / "a.parquet", table.set_column(1, "label", [labels]))
    (problem,) = ended(url_of(folder), "numbers")["problems"]
    assert (problem["row"], problem["column"]) == (7, "label")


def test_another_shape_is_refused_before_any_row(api, dataset, ended, folder):
    write(folder / "a.parquet", features(0, 10))
    write(folder / "b.parquet", features(10, 10).drop_columns(["label"]))
    found = ended(url_of(folder), "numbers")
    assert (found["state"], found["problems"][0]["column"]) == ("failed", "label")
    assert api.get("/v1/datasets/numbers").json()["records"] == 0


def test_a_row_that_was_taken_for_the_header_is_not_kept(dataset, ended, folder):
    table = features(0, 10)
    write(folder / "a.parquet", table.rename_columns(["Zoë Ng", *table.column_names[1:]]))
    found = ended(url_of(folder), "numbers")
    assert (found["state"], found["problems"][0]["column"]) == ("failed", "number 1")
    assert "Zoë" not in repr(found)


def test_plain_tables_are_encoded(api, ended, folder):
    import pyarrow as pa

    encoding = {
        "columns": [{"name": "age", "kind": "number", "low": 0, "high": 100}],
        "label": {"name": "churned", "classes": ["no", "yes"]},
        "record_id": "customer",
    }
    body = {"name": "churn", "encoding": encoding}
    answer = api.post("/v1/datasets", json=body)
    assert answer.status_code == 201, answer.text
    table = {"customer": ["a", "b"], "age": [10, 20], "churned": ["no", "yes"], "more": [1, 2]}
    write(folder / "a.parquet", pa.table(table))
    assert counts(ended(url_of(folder), "churn")) == (2, 0, 0)
