"""A folder from which imports are allowed, a dataset of columns, and imports to the end."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

COLUMNS = {"age": "int32?", "name": "string", "score": "float64", "tags": "list<int32>"}
DEFINITION = {"name": "members", "columns": COLUMNS, "record_id": "member", "subject_id": "person"}


def members(first, count, **columns):
    """A table of members; other columns may replace those that a row has."""
    numbers = range(first, first + count)
    table = {
        "member": [f"m-{i}" for i in numbers],
        "person": [None if i % 3 == 0 else f"p-{i // 2}" for i in numbers],
        "age": [None if i % 10 == 3 else 20 + i % 50 for i in numbers],
        "name": [f"Zoë {i}" for i in numbers],
        "score": np.arange(first, first + count) / 7,
        "tags": [[i, i + 1][: i % 3] for i in numbers],
        "internal": ["not kept"] * count,
    }
    return pa.table(table | columns)


def write(path, table, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "allowed"
    folder.mkdir()
    return folder


@pytest.fixture
def prefixes(folder):
    """What the operator allows."""
    return [f"file://{folder}"]


@pytest.fixture(autouse=True)
def settings(settings, prefixes, monkeypatch):
    """The service's settings, with the prefixes, in the environment of the worker, too."""
    import json

    monkeypatch.setenv("EXPUNGE_IMPORT_PREFIXES", json.dumps(prefixes))
    return type(settings)()


@pytest.fixture
def dataset(api):
    assert api.post("/v1/datasets", json=DEFINITION).status_code == 201


@pytest.fixture
def ask(api):
    """Ask for an import; return its answer."""

    def ask(url, name="members"):
        answer = api.post(f"/v1/datasets/{name}/imports", json={"url": str(url)})
        assert answer.status_code == 202, answer.text
        assert answer.headers["Location"].endswith(answer.json()["id"])
        return answer.json()

    return ask


@pytest.fixture
def ended(api, ask, work):
    """Ask for an import and carry it out; return what became of it."""

    def ended(url, name="members"):
        asked = ask(url, name)
        work()
        return api.get(f"/v1/datasets/{name}/imports/{asked['id']}").json()

    return ended


def counts(found):
    return tuple(found[name] for name in ("added", "already_present", "changed"))


def url_of(path: Path):
    return path.as_uri()
