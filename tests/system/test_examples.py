"""The example projects, as their page says: from a table to predictions of what has forgotten."""

import json
from collections.abc import Iterator

import pyarrow.parquet as pq
import pytest

from tests.support.documents import Reader, reader

pytestmark = pytest.mark.nightly

LEAST = {
    "customers": ("auc", 0.85),
    "topics": ("auc", 0.8),
    "pictures": ("accuracy", 0.3),
    "texts": ("accuracy", 0.45),  # 1/3 by chance
    "demand": ("deviance_explained", 0.6),
}
TABLES = {
    "customers": "contracts",
    "prices": "houses",
    "topics": "articles",
    "pictures": "pictures",
    "texts": "sentences",
    "demand": "visits",
}


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Somebody who has followed the page."""
    with reader(tmp_path_factory.mktemp("user") / "work") as user:
        user.printed = user.follow("../examples/README.md")
        yield user


def test_each_project_learns_and_forgets(user: Reader) -> None:
    lines = [line for line in user.printed.splitlines() if line.startswith('{"name"')]
    figures = {each["name"]: each["figures"] for each in map(json.loads, lines)}
    assert figures.keys() == TABLES.keys()
    for name, (metric, least) in LEAST.items():
        assert figures[name][metric] > least, (name, figures[name])
    assert figures["prices"]["mae"] < 120_000
    assert user.printed.count('"state": "completed"') == len(TABLES)
    for name in TABLES:
        # Version 1, if the person was held out.
        assert len(list(user.directory.glob(f"releases/{name}-v[12].certificate.json"))) == 1


def test_each_project_predicts_all_of_its_rows(user: Reader) -> None:
    for model, table in TABLES.items():
        rows = pq.read_table(user.directory / f"{table}.parquet").num_rows
        predicted = pq.read_table(user.directory / f"{model}-predicted.parquet")
        assert predicted.num_rows == rows, model
        assert predicted.num_columns >= 2, model
