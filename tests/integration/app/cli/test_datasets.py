"""``expunge dataset``: one command from a file to a dataset, and again with the next export."""

import csv
import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from app.cli.main import app
from app.ledger.views import request_views
from app.services import Services
from tests.support import layouts
from tests.support.commands import dataset_answer, dataset_command

TYPES = {
    "age": "int64?",
    "height": "float64?",
    "member": "bool?",
    "postcode": "string?",
    "remark": "string?",
    "since": "date?",
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
    ids = ("--record-id", "id", "--subject-id", "person")
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
            "at": "timestamp?",
            "code": "string?",
            "nothing": "string?",
            "photo": "binary?",
            "small": "uint8?",
            "vector": "list<float32, 2>?",
            "words": "list<string>?",
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


def test_a_dataset_is_defined_by_the_types_in_a_file(
    served: None, members: Path, columns: Path
) -> None:
    assert dataset_answer("create", "members", "--columns", columns)["columns"] == TYPES
    again = dataset_answer("create", "members", "--columns", columns)  # it changes nothing
    assert again["records"] == 0
    assert dataset_answer("push", "members", members)["added"] == 3


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
    assert shown["columns"] == {"note": "string?", "price": "int64?", "tags": "list<string>?"}
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


ROWS = 60
OPTIONS = ("--subject-id", "customer", "--drop", "signup")


def _churn(path: Path, rows: int = ROWS, **changed: list[str]) -> Path:
    """Write a table as pandas does; ``changed`` replaces rows, by ``row_7``."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["", "customer", "signup", "age", "plan", "churned"])
        for i in range(rows):
            plan = ("basic", "plus")[i % 2]
            row = [f"Zo\u00eb {i // 2}", "2026-01-01", 20 + i % 50, plan, ("no", "yes")[i % 2]]
            if i % 10 == 3:
                row[2] = ""
            writer.writerow([i, *changed.get(f"row_{i + 1}", row)])
    return path


@pytest.fixture
def churn(tmp_path: Path) -> Path:
    return _churn(tmp_path / "churn.csv")


def test_one_command_from_a_table_to_a_dataset(served: None, churn: Path) -> None:
    pushed = dataset_answer("push", "churn", churn, *OPTIONS)

    assert (pushed["added"], pushed["changed"], pushed["forget_requests"]) == (ROWS, 0, [])
    shown = dataset_answer("show", "churn")
    assert shown["records"] == ROWS
    assert shown["columns"] == {"age": "int64?", "churned": "string?", "plan": "string?"}
    assert (shown["record_id"], shown["subject_id"]) == ("(index)", "customer")


def test_the_next_export_adds_new_rows_and_names_changed_ones(
    served: None, churn: Path, tmp_path: Path
) -> None:
    dataset_answer("push", "churn", churn, *OPTIONS)
    decomposed = ["Zoe\u0308 2", "2026-02-02", "25", "plus", "yes"]
    later = _churn(
        tmp_path / "later.csv",
        ROWS + 5,
        row_6=decomposed,  # the same, as another system writes it
        row_8=["Zo\u00eb 3", "2026-01-01", "99", "plus", "yes"],
    )

    answer = dataset_command("push", "churn", later)  # the dataset knows its columns
    pushed = json.loads(answer.stdout)

    assert answer.exit_code == 0
    assert (pushed["added"], pushed["already_present"]) == (5, ROWS - 1)
    assert pushed["changed_rows"] == [8]
    assert answer.stderr.strip().endswith("later.csv: row 8")
    # The same options as at first fit; others do not.
    assert dataset_answer("push", "churn", later, *OPTIONS)["added"] == 0
    contradiction = dataset_command("push", "churn", later, "--drop", "age")
    assert contradiction.exit_code == 1
    assert "--drop contradicts the definition of dataset 'churn'" in contradiction.stderr
    contradiction = dataset_command("push", "churn", later, "--subject-id", "plan")
    assert "--subject-id contradicts the definition of dataset" in contradiction.stderr


def test_changed_rows_take_the_place_of_those_stored_if_they_are_to(
    served: None, services: Services, churn: Path, tmp_path: Path
) -> None:
    dataset_answer("push", "churn", churn, *OPTIONS)
    changed = {f"row_{i}": [f"Zo\u00eb {i // 2}", "", "33", "basic", "no"] for i in (8, 21)}
    later = _churn(tmp_path / "later.csv", ROWS + 5, **changed)

    pushed = dataset_answer("push", "churn", later, "--replace")

    assert (pushed["added"], pushed["already_present"], pushed["changed"]) == (5, ROWS - 2, 0)
    assert (pushed["replaced"], pushed["replaced_rows"]) == (2, [8, 21])
    (request,) = pushed["forget_requests"]
    services.clean_up()
    with services.database.transaction() as session:
        shown = request_views.one(session, request)
    assert (shown.state, shown.records) == ("completed", 2)
    shown_dataset = dataset_answer("show", "churn")
    assert (shown_dataset["records"], shown_dataset["erased"]) == (ROWS + 5, 2)
    assert dataset_answer("push", "churn", later, "--replace")["forget_requests"] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--record-id", "gone"), "churn.csv has no column 'gone'"),
        (("--encoding", "utf-99"), "unknown encoding 'utf-99'"),
        ((), "churn.csv: row 8, column 'age': text, where a number is expected; --text 'age'"),
    ],
    ids=lambda each: str(each)[-40:],
)
def test_a_first_push_that_fails_says_why_and_leaves_nothing(
    served: None, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    odd = ["Zo\u00eb 3", "2026-01-01", "diplomat", "plus", "yes"]
    answer = dataset_command("push", "churn", _churn(tmp_path / "churn.csv", row_8=odd), *options)

    assert answer.exit_code == 1
    lines = answer.stderr.splitlines()
    assert len([line for line in lines if said in line]) == 1
    assert all(line.startswith("error: ") and "diplomat" not in line for line in lines)
    assert dataset_command("show", "churn").exit_code == 1
    kept = dataset_answer("push", "churn", tmp_path / "churn.csv", "--text", "age")
    assert kept["added"] == ROWS
    assert dataset_answer("show", "churn")["columns"]["age"] == "string?"


def test_a_public_dataset_is_so_from_its_first_push_on(served: None, churn: Path) -> None:
    assert dataset_answer("push", "open", churn, "--public")["added"] == ROWS
    assert dataset_answer("show", "open")["public"]
    dataset_answer("push", "churn", churn)
    refused = dataset_command("push", "churn", churn, "--public")
    assert "is not public, and never becomes so" in refused.stderr


def test_a_long_table_goes_in_parts_whose_rows_count_through(
    served: None, churn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.registry.datasets.columns.sources._PART_ROWS", 7)
    assert dataset_answer("push", "churn", churn, *OPTIONS)["added"] == ROWS

    changed = _churn(churn, row_50=["Zo\u00eb 24", "", "90", "plus", "yes"])
    answer = dataset_command("push", "churn", changed)

    assert json.loads(answer.stdout)["changed_rows"] == [50]
    assert "churn.csv: row 50" in answer.stderr


@pytest.fixture
def learned(served: None, churn: Path) -> None:
    """A dataset with a model of age and plan."""
    dataset_answer("push", "churn", churn, *OPTIONS)
    options = ("--target", "churned", "--data", churn, "--accept-values", "--missing", "age=40")
    command = ["model", "create", "leave", "--dataset", "churn", *map(str, options)]
    ended = CliRunner().invoke(app, command)
    assert ended.exit_code == 0, ended.output


def _second_month(path: Path, **cells: str) -> Path:
    row = {"(index)": "900", "customer": "Li", "age": "", "plan": "team", "churned": "no"} | cells
    path.write_text("\n".join(",".join(each) for each in (row.keys(), row.values())))
    return path


def test_the_second_month_alters_the_dataset_and_says_what_it_means(
    learned: None, tmp_path: Path
) -> None:
    file = _second_month(tmp_path / "two.csv", age="40.5", tenure="7")
    plain = dataset_command("push", "churn", file)
    assert plain.exit_code == 1
    assert "row 1, column 'age': text that is not int64 without loss" in plain.stderr

    pushed = dataset_command("push", "churn", file, "--alter")

    assert pushed.exit_code == 0, pushed.output
    assert json.loads(pushed.stdout)["added"] == 1
    assert pushed.stderr.splitlines() == [
        "'age': int64? becomes float64?",
        "  leave reads stored rows as before",
        "'tenure': new, int64?",
        "  leave does not use it",
        "leave: 1 unlisted value(s) of 'plan' count as one",
    ]
    columns = {"age": "float64?", "churned": "string?", "plan": "string?", "tenure": "int64?"}
    assert dataset_answer("show", "churn")["columns"] == columns
    again = dataset_answer("push", "churn", file, "--alter")
    assert (again["added"], again["already_present"]) == (0, 1)


def test_a_row_that_would_stop_a_model_is_refused_before_anything_is_altered(
    learned: None, tmp_path: Path
) -> None:
    listed = ("--category", "plan=basic,plus,team", "--missing", "age=40")
    command = ["model", "create", "strict", "--dataset", "churn", "--target", "churned"]
    command += ["--classes", "no,yes", *listed]
    assert CliRunner().invoke(app, command).exit_code == 0
    before = dataset_answer("show", "churn")
    file = _second_month(tmp_path / "two.csv", plan="", tenure="7")
    for options in ((), ("--alter",)):
        refused = dataset_command("push", "churn", file, *options)
        assert refused.exit_code == 1
        assert "rows need a value in 'plan', for which a model's task has no" in refused.stderr
        assert "two.csv: row 1, column 'plan': is missing" in refused.stderr
    assert dataset_answer("show", "churn") == before
    assert dataset_answer("push", "churn", _second_month(file))["added"] == 1  # without an age


def test_a_row_without_a_target_is_taken_and_said_not_to_be_learned_from(
    learned: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.registry.datasets.columns.sources._PART_ROWS", 2)
    lines = _second_month(tmp_path / "two.csv").read_text().splitlines()
    lines += [f"90{i},Li,40,team," for i in range(1, 5)]
    (tmp_path / "two.csv").write_text("\n".join(lines))
    pushed = dataset_command("push", "churn", tmp_path / "two.csv")
    answer = json.loads(pushed.stdout)
    assert (answer["added"], answer["without_target"]) == (5, {"leave": 4})
    assert "leave: 4 of 5 rows have no value of 'churned': not learned from" in pushed.stderr


def test_a_target_that_is_no_class_is_named_before_a_row_is_sent(
    learned: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.registry.datasets.columns.sources._PART_ROWS", 2)
    lines = _second_month(tmp_path / "two.csv").read_text().splitlines()
    lines += [f"90{i},Li,40,team,{'perhaps' if i > 2 else 'no'}" for i in range(1, 5)]
    (tmp_path / "two.csv").write_text("\n".join(lines))
    before = dataset_answer("show", "churn")
    refused = dataset_command("push", "churn", tmp_path / "two.csv")
    assert refused.exit_code == 1
    assert "two.csv: row 4, column 'churned': text that is not the name" in refused.stderr
    assert "(and in 1 more)" in refused.stderr
    assert dataset_answer("show", "churn") == before


def test_an_export_without_some_columns_has_no_values_there(learned: None, tmp_path: Path) -> None:
    row = {"(index)": "900", "customer": "Li", "plan": "plus"}
    file = tmp_path / "two.csv"
    file.write_text("\n".join(",".join(each) for each in (row.keys(), row.values())))
    pushed = dataset_command("push", "churn", file)
    assert json.loads(pushed.stdout)["added"] == 1, pushed.stderr
    assert "not in two.csv, and so without values: age, churned" in pushed.stderr
    assert "leave: 1 of 1 rows have no value of 'churned': not learned from" in pushed.stderr


def test_a_dataset_is_altered_by_name(served: None, members: Path, columns: Path) -> None:
    strict = json.loads(columns.read_text()) | {"columns": TYPES | {"member": "bool"}}
    columns.write_text(json.dumps(strict))
    dataset_answer("create", "members", "--columns", columns)
    changes = (
        "--column",
        "height=float64?",
        "--column",
        "note=string?",
        "--column",
        "member=bool?",
    )
    shown = dataset_answer("alter", "members", *changes)
    assert shown["columns"] == TYPES | {"note": "string?"}
    assert dataset_answer("alter", "members", *changes)["columns"] == shown["columns"]
    for change, said in {
        "age=int8?": "'age' is int64?, and cannot become int8?, but float64?",
        "age": "--column must have the form COLUMN=",
        "note=strnig": "the type of 'note' must be one of",
    }.items():
        refused = dataset_command("alter", "members", "--column", change)
        assert refused.exit_code == 1
        assert said in refused.stderr
