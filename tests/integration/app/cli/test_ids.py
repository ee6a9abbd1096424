"""Whole numbers as ids, by every way in: a person is forgotten however a file writes them."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from app.cli.main import app
from app.client import configured as clients
from tests.support.commands import dataset_answer, dataset_command

COLUMNS = {"columns": {"age": "int32"}, "record_id": "member", "subject_id": "person"}
JANUARY = "member,person,age\njan-1,4,31\njan-2,5,32\njan-3,6,33\n"
FEBRUARY = "member,person,age\nfeb-1,4.0,31\nfeb-2,5.0,32\nfeb-3,,33\nfeb-4,6.0,34\n"


@pytest.fixture
def people(served: None, tmp_path: Path) -> Path:
    """A folder of exports, and the dataset ``people`` with nothing in it."""
    (tmp_path / "columns.json").write_text(json.dumps(COLUMNS))
    (tmp_path / "january.csv").write_text(JANUARY)
    (tmp_path / "february.csv").write_text(FEBRUARY)
    dataset_answer("create", "--json", "people", "--columns", tmp_path / "columns.json")
    return tmp_path


def forget(*arguments: object) -> dict[str, object]:
    ended = CliRunner().invoke(app, ["forget", "--json", "people", *map(str, arguments)])
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)


@pytest.mark.parametrize("spelt", ["5", "5.0", " 5 ", "+5"])
def test_a_person_is_forgotten_in_every_push_however_the_id_was_written(
    people: Path, spelt: str
) -> None:
    for export in ("january.csv", "february.csv"):
        dataset_answer("push", "--json", "people", people / export)
    found = forget("--subject", spelt)
    assert (found["records"], found["pushes"]) == (2, 2)


def test_ids_from_a_file_and_from_parquet_are_the_same(people: Path) -> None:
    rows = {"member": [1.0, 2.0], "person": pa.array([5, None], pa.int64()), "age": [40, 41]}
    pq.write_table(pa.table(rows), people / "march.parquet")
    for export in ("january.csv", "march.parquet"):
        dataset_answer("push", "--json", "people", people / export)
    (people / "ids.txt").write_text("5.00\n")
    assert forget("--subjects-from", people / "ids.txt")["records"] == 2
    (people / "ids.txt").write_text("2.0\n")
    assert forget("--records-from", people / "ids.txt")["records"] == 1


@pytest.mark.parametrize("ids", [["1", "9.007e15"], [1.0, 2.0**53], [1.0, 1.5]])
def test_damaged_ids_are_refused_by_row_and_column(people: Path, ids: list[object]) -> None:
    rows = pa.table({"member": ids, "person": ["a", "b"], "age": [1, 2]})
    pq.write_table(rows, people / "damaged.parquet")
    ended = dataset_command("push", "people", people / "damaged.parquet")
    assert ended.exit_code == 1
    assert "damaged.parquet: row 2, column 'member'" in ended.stderr


def test_several_files_are_one_push_in_order(people: Path) -> None:
    found = dataset_answer(
        "push", "--json", "people", people / "january.csv", people / "february.csv"
    )
    assert found["added"] == 7
    (people / "bad.csv").write_text("member,person,age\njan-1,4,31\nmay-1,4,old\n")
    ended = dataset_command("push", "people", people / "january.csv", people / "bad.csv")
    assert "bad.csv: row 2, column 'age'" in ended.stderr


def test_mixed_notations_are_told(people: Path) -> None:
    (people / "mixed.csv").write_text("member,person,age\na,5,1\nb,6.0,2\n")
    assert "5.0 and 5 are one id" in dataset_command("push", "people", people / "mixed.csv").stderr
    (people / "zeros.csv").write_text("member,person,age\nc,007,1\nd,7,2\n")
    assert "007 and 7 are two ids" in dataset_command("push", "people", people / "zeros.csv").stderr


def test_two_datasets_that_spell_the_same_ids_differently_are_told(people: Path) -> None:
    dataset_answer("push", "--json", "people", people / "january.csv")
    dataset_answer("create", "--json", "members", "--columns", people / "columns.json")
    (people / "zeros.csv").write_text("member,person,age\nc,0004,1\nd,0005,2\n")
    told = dataset_command("push", "members", people / "zeros.csv").stderr
    assert "'members' has numbers with leading zeros, 'people' has whole numbers" in told


def test_the_api_takes_the_same_ids(people: Path, api: TestClient, admin_key: str) -> None:
    dataset_answer("push", "--json", "people", people / "january.csv")
    client = clients.ExpungeClient("http://service.test", admin_key)
    assert client.forget("people", subject_ids=[4.0])["records"] == 1
    body = {"dataset": "people", "subject_ids": ["5", "5e0"]}
    answer = api.post("/v1/forget-requests", json=body)
    assert answer.status_code == 422
    assert "subject_ids[1]" in answer.json()["detail"]
