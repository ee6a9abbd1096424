"""``expunge dataset``: one command from a file to a dataset, and again with the next export."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from app.domain.columns import CategoryColumn
from app.domain.encoding import TableEncoding
from app.ledger.views import request_views
from app.services import Services
from tests.support.commands import dataset_answer, dataset_command

ROWS = 60
OPTIONS = (
    *("--label", "churned", "--subject", "customer", "--drop", "signup"),
    *("--missing", "age=45", "--bounds", "age=18:98"),
)


def _churn(path: Path, rows: int = ROWS, **changed: list[str]) -> Path:
    """Write a table as pandas does; ``changed`` replaces rows, by ``row_7``."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["", "customer", "signup", "age", "plan", "churned"])
        for i in range(rows):
            plan = "diplomat" if i == 9 else ("basic", "plus")[i % 2]
            row = [f"Zo\u00eb {i // 2}", "2026-01-01", 20 + i % 50, plan, ("no", "yes")[i % 2]]
            if i % 10 == 3:
                row[2] = ""
            writer.writerow([i, *changed.get(f"row_{i + 1}", row)])
    return path


@pytest.fixture
def churn(tmp_path: Path) -> Path:
    return _churn(tmp_path / "churn.csv")


def test_one_command_from_a_table_to_a_dataset(
    served: None, services: Services, churn: Path
) -> None:
    pushed = dataset_answer("push", "churn", churn, *OPTIONS, "--accept-values")

    assert (pushed["added"], pushed["changed"], pushed["forget_requests"]) == (ROWS, 0, [])
    shown = dataset_answer("show", "churn")
    assert (shown["records"], shown["classes"]) == (ROWS, 2)
    assert shown["features"]["shape"] == [4]
    encoding = TableEncoding.from_json(shown["encoding"])
    assert encoding.label.classes == ("no", "yes")
    age, plan = encoding.columns
    assert (age.name, plan.name) == ("age", "plan")
    assert isinstance(plan, CategoryColumn)
    assert (plan.values, plan.other) == (("basic", "plus"), True)
    assert "diplomat" not in json.dumps(shown)


def test_the_next_export_adds_new_rows_and_names_changed_ones(
    served: None, churn: Path, tmp_path: Path
) -> None:
    dataset_answer("push", "churn", churn, *OPTIONS, "--accept-values")
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


def test_changed_rows_take_the_place_of_those_stored_if_they_are_to(
    served: None, services: Services, churn: Path, tmp_path: Path
) -> None:
    dataset_answer("push", "churn", churn, *OPTIONS, "--accept-values")
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
        (OPTIONS, "the listed values of 'plan', 'churned' would be published with each model"),
        (OPTIONS[:4], "churn.csv: column 'signup': dates or times; leave it out with --drop"),
        (OPTIONS[2:], "name the label's column with --label"),
        ((*OPTIONS, "--encoding", "utf-99"), "unknown encoding 'utf-99'"),
        ((*OPTIONS, "--bounds", "age"), "--bounds must have the form COLUMN=…"),
        ((*OPTIONS, "--bounds", "age=9:1"), "low must be below high"),
    ],
    ids=lambda each: str(each)[-40:],
)
def test_a_first_push_that_fails_says_why_and_leaves_nothing(
    served: None, churn: Path, options: tuple[str, ...], said: str
) -> None:
    answer = dataset_command("push", "churn", churn, *options)

    assert answer.exit_code == 1
    lines = answer.stderr.splitlines()
    assert len([line for line in lines if said in line]) == 1
    assert all(line.startswith("error: ") and "diplomat" not in line for line in lines)
    assert dataset_command("show", "churn").exit_code == 1


def test_columns_with_a_comma_or_an_equals_sign_in_their_names_are_quoted(tmp_path: Path) -> None:
    file = tmp_path / "odd.csv"
    rows = [["record_id", "age (=?)", "on, date", "label"]]
    rows += [[f"r{i}", str(20 + i) if i else "", "2026-01-02", str(i % 2)] for i in range(10)]
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows(rows)

    refused = dataset_command("inspect", file).stderr
    quoted = dataset_command(
        *("inspect", file, "--drop", '"on, date"'),
        *("--bounds", '"age (=?)"=0:99', "--missing", '"age (=?)"=45'),
    )
    unquoted = dataset_command("inspect", file, "--bounds", "age (=?)=0:99")

    assert """--drop '"on, date"'""" in refused
    assert """--missing '"age (=?)"'=NUMBER""" in refused
    assert quoted.exit_code == 0
    assert "from 0…99" in quoted.stdout
    assert "--bounds …=?)=0:99: not a number" in unquoted.stderr


def test_inspect_shows_what_would_be_understood_and_writes_the_mapping(
    served: None, churn: Path, tmp_path: Path
) -> None:
    mapping = tmp_path / "mapping.json"
    answer = dataset_command("inspect", churn, *OPTIONS, "--write-mapping", mapping)

    assert answer.exit_code == 0, answer.stderr
    assert "4 features, 2 classes" in answer.stdout
    for shown in ("(index)", "diplomat", "basic", "not read", "confirmed)"):
        assert (shown in answer.stdout) == (shown != "diplomat")
    understood = dataset_answer("inspect", churn, *OPTIONS, "--json")
    assert understood["encoding"] == json.loads(mapping.read_text())
    assert (understood["rows"], understood["ignored"]) == (ROWS, ["signup"])
    assert dataset_answer("list") == []

    assert dataset_answer("push", "churn", churn, "--mapping", mapping)["added"] == ROWS
    both = dataset_command("push", "churn", churn, "--mapping", mapping, "--label", "plan")
    assert both.exit_code == 1


def test_inspect_without_options_shows_the_columns_first(churn: Path) -> None:
    answer = dataset_command("inspect", churn)

    assert answer.exit_code == 1
    assert f"churn.csv: CSV, {ROWS} rows" in answer.stdout
    assert "customer" in answer.stdout
    assert "name the label's column with --label" in answer.stderr


def test_a_long_table_goes_in_parts_whose_rows_count_through(
    served: None, churn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.registry.datasets.columns.parts._PART_ROWS", 7)
    assert dataset_answer("push", "churn", churn, *OPTIONS, "--accept-values")["added"] == ROWS

    changed = _churn(churn, row_50=["Zo\u00eb 24", "", "90", "plus", "yes"])
    answer = dataset_command("push", "churn", changed)

    assert json.loads(answer.stdout)["changed_rows"] == [50]
    assert "churn.csv: row 50" in answer.stderr


def test_records_in_the_form_of_an_upload_need_no_options(served: None, tmp_path: Path) -> None:
    file = tmp_path / "digits.npz"
    np.savez(file, record_id=["a", "b"], label=[0, 1], features=np.zeros((2, 4, 4), np.uint8))

    assert dataset_answer("push", "digits", file, "--classes", "4")["added"] == 2
    assert dataset_answer("push", "digits", file)["already_present"] == 2
    shown = dataset_answer("show", "digits")
    assert (shown["records"], shown["classes"], shown["encoding"]) == (2, 4, None)
    features = {"shape": [4, 4], "dtype": "uint8", "offset": 0.0, "scale": 1 / 255}
    assert shown["features"] == features | {"vocabulary": None}
    np.savez(file, record_id=["c"], label=[7], features=np.zeros((1, 4, 4), np.uint8))
    assert "row 1, column 'label'" in dataset_command("push", "digits", file).stderr
