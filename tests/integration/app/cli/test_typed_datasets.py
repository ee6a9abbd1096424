"""``expunge dataset``: from a file to a dataset of typed columns, and with the next export."""

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import layouts
from tests.support.commands import dataset_answer, dataset_command

TYPES = {
    "age": "int64?",
    "height": "float64",
    "member": "bool",
    "postcode": "string",
    "remark": "string?",
    "since": "date",
}
CSV = """id,person,age,height,member,postcode,remark,since,empty
a,x,20,1.80,true,01234,,2026-01-02,
b,x,,1.75,false,99999,"it's, fine",2026-01-03,
c,y,40,2,true,00001,,2026-01-04,
"""


@pytest.fixture
def members(tmp_path: Path) -> Path:
    (tmp_path / "members.csv").write_text(CSV)
    return tmp_path / "members.csv"


@pytest.fixture
def columns(members: Path) -> Path:
    """The types as the command proposes them."""
    file = members.with_name("columns.json")
    ids = ("--record-id", "id", "--subject", "person")
    dataset_answer("columns", "--json", members, *ids, "--drop", "empty", "--write", file)
    return file


def test_types_are_proposed_from_a_csv(members: Path, columns: Path) -> None:
    assert json.loads(columns.read_text()) == {
        "columns": TYPES,
        "record_id": "id",
        "subject_id": "person",
    }


def test_types_are_proposed_from_arrow(tmp_path: Path) -> None:
    rows = {
        "record_id": [1, 2],
        "photo": [b"\xff", None],
        "vector": pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)),
        "words": [["a"], []],
        "small": pa.array([1, 2], pa.uint8()),
        "at": [dt.datetime(2026, 1, 1)] * 2,  # noqa: DTZ001 - UTC
        "code": ["1", "2"],
        "nothing": pa.nulls(2),
    }
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    shown = dataset_answer("columns", "--json", tmp_path / "rows.parquet")
    assert shown == {
        "rows": 2,
        "columns": {
            "at": "timestamp",
            "code": "string",
            "nothing": "string?",
            "photo": "binary?",
            "small": "uint8",
            "vector": "list<float32, 2>",
            "words": "list<string>",
        },
        "record_id": "record_id",
        "subject_id": None,
    }


def test_a_column_of_no_type_is_named(tmp_path: Path) -> None:
    rows = {"record_id": [1], "group": [{"a": 1}]}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    refused = dataset_command("columns", tmp_path / "rows.parquet")
    assert refused.exit_code == 1
    assert "column 'group': a group of fields, which no type of column holds" in refused.stderr


def test_a_file_becomes_a_dataset_and_the_next_export_is_compared(
    served: None, members: Path, columns: Path
) -> None:
    assert dataset_answer("create", "members", "--columns", columns)["columns"] == TYPES
    again = dataset_answer("create", "members", "--columns", columns)  # it changes nothing
    assert again["records"] == 0
    assert dataset_answer("push", "members", members)["added"] == 3

    later = CSV.replace("1.75", "1.76") + "d,z,50,1.5,false,12345,,2026-01-05,\n"
    members.write_text(later)
    answer = dataset_command("push", "members", members)
    pushed = json.loads(answer.stdout)
    assert (pushed["added"], pushed["already_present"]) == (1, 2)
    assert pushed["changed_rows"] == [2]
    assert answer.stderr.strip().endswith("members.csv: row 2")


def test_faults_are_named_before_anything_is_sent(
    served: None, members: Path, columns: Path
) -> None:
    dataset_answer("create", "members", "--columns", columns)
    members.write_text(CSV.replace("40", "forty") + "a,x,1,1,true,1,,2026-01-02,\n")
    refused = dataset_command("push", "members", members)
    assert refused.exit_code == 1
    assert "members.csv: row 3, column 'age': text that is not int64" in refused.stderr
    assert "members.csv: row 4, column 'id': the id of an earlier row" in refused.stderr
    assert "forty" not in refused.output
    assert dataset_answer("show", "members")["records"] == 0


def test_options_about_features_have_no_place(served: None, members: Path, columns: Path) -> None:
    dataset_answer("create", "members", "--columns", columns)
    refused = dataset_command("push", "members", members, "--label", "member")
    assert refused.exit_code == 1
    assert "consists of columns" in refused.stderr


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"columns": {"a": "int8"}}', '{"columns": [], "record_id": "id"}']
)
def test_a_faulty_file_of_columns_is_refused(served: None, tmp_path: Path, content: str) -> None:
    (tmp_path / "columns.json").write_text(content)
    refused = dataset_command("create", "members", "--columns", tmp_path / "columns.json")
    assert refused.exit_code == 1
    assert refused.stderr.strip()


def test_any_layout_of_arrow_becomes_the_same_dataset(served: None, tmp_path: Path) -> None:
    """As polars writes Arrow by default, and others by choice."""
    table = pa.table(
        {
            "id": layouts.TEXTS["runs of views"](["a", "b"]),
            "note": layouts.TEXTS["dictionary of views"](["x", None]),
            "price": layouts.decimals([5, 7], pa.decimal128(9, 2)),
            "tags": pa.array([["u"], []], pa.list_view(pa.string_view())),
        }
    )
    rows = tmp_path / "rows.arrow"
    with pa.ipc.new_file(str(rows), table.schema) as writer:
        writer.write_table(table)
    types = tmp_path / "types.json"
    shown = dataset_answer("columns", "--json", rows, "--record-id", "id", "--write", types)
    assert shown["columns"] == {"note": "string?", "price": "int64", "tags": "list<string>"}
    dataset_answer("create", "members", "--columns", types)
    assert dataset_answer("push", "members", rows)["added"] == 2
    pq.write_table(
        pa.table({"id": ["a"], "note": ["x"], "price": [5], "tags": [["u"]]}),
        tmp_path / "p.parquet",
    )
    assert dataset_answer("push", "members", tmp_path / "p.parquet")["already_present"] == 1


@pytest.mark.parametrize(("columns", "footer"), [(["id"], True), (["x"], False), (["id"], False)])
def test_an_encrypted_file_is_named_as_such(
    tmp_path: Path, columns: list[str], *, footer: bool
) -> None:
    content = layouts.encrypted(pa.table({"id": ["a"], "x": [1]}), columns, footer=footer)
    (tmp_path / "a.parquet").write_bytes(content)
    refused = dataset_command("columns", tmp_path / "a.parquet", "--record-id", "id")
    assert refused.exit_code == 1
    assert "a.parquet: this Parquet file is encrypted: write it without" in refused.stderr
