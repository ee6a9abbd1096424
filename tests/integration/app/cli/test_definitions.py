"""``expunge model create``: from a dataset and what is to be predicted to a definition."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from app.cli.main import app
from tests.support.commands import dataset_answer

_runner = CliRunner()


def _create(*arguments: object) -> Result:
    return _runner.invoke(app, ["model", "create", *map(str, arguments)])


def _proposed(*arguments: object) -> dict:
    """Return the definition that is printed and not sent."""
    ended = _create(*arguments, "--dry-run")
    assert ended.exit_code == 0, ended.output
    found: dict = json.loads(ended.stdout)
    return found


@pytest.fixture
def customers(served: None, tmp_path: Path) -> Path:
    """A table that is pushed."""
    file = tmp_path / "customers.csv"
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["id", "person", "age", "plan", "churned", "rent, net"])
        for i in range(200):
            age = "" if i % 10 == 3 else 20 + i % 60
            plan = "diplomat" if i == 9 else ("basic", "plus")[i % 2]
            writer.writerow([i, f"p{i // 2}", age, plan, ("no", "yes")[i % 2], 500.5 + i])
    dataset_answer("push", "customers", file, "--record-id", "id", "--subject-id", "person")
    return file


def test_a_definition_is_proposed_and_sent(customers: Path) -> None:
    options = ("churn", "--dataset", "customers", "--target", "churned", "--data", customers)

    found = _proposed(*options, "--drop", '"rent, net"')

    assert found == {
        "name": "churn",
        "dataset": "customers",
        "task": {
            "name": "classification",
            "inputs": [
                {
                    "name": "age",
                    "kind": "number",
                    "offset": 50,
                    "scale": 0.02,
                    "missing": 50,
                    "flag_missing": True,
                },
                {"name": "plan", "kind": "category", "values": ["basic", "plus"], "other": True},
            ],
            "target": {"column": "churned", "classes": ["no", "yes"]},
        },
        "architecture": {"name": "linear_head"},
    }
    refused = _create(*options, "--drop", '"rent, net"')
    assert refused.exit_code == 1
    assert "the values or scales of 'age', 'plan', 'churned' above are the file's" in refused.stderr
    sent = _create(*options, "--drop", '"rent, net"', "--accept-values")
    assert sent.exit_code == 0, sent.output
    shown = json.loads(sent.stdout)
    assert (shown["name"], shown["task"]) == ("churn", found["task"])
    assert json.loads(sent.stderr) == found


def test_a_proposal_leaves_out_what_the_dataset_got_after_the_file(customers: Path) -> None:
    dataset_answer("alter", "customers", "--column", "tenure=int8?")
    found = _proposed("churn", "--dataset", "customers", "--target", "churned", "--data", customers)
    names = [each["name"] for each in found["task"]["inputs"]]
    assert names == ["age", "plan", "rent, net"]


def test_a_proposal_can_be_written_changed_and_sent_as_a_file(
    customers: Path, tmp_path: Path
) -> None:
    found = _proposed(
        *("rent", "--dataset", "customers", "--target", "rent, net", "--features", "age"),
        *("--bounds", "age=18:98", "--missing", "age=45"),
    )
    (age,) = found["task"]["inputs"]
    assert age == {"name": "age", "kind": "number", "low": 18, "high": 98, "missing": 45}
    assert (found["task"]["name"], found["task"]["loss"]) == ("regression", "huber")
    file = tmp_path / "rent.json"
    file.write_text(json.dumps(found | {"name": "rent-2"}))
    sent = _create(file)
    assert sent.exit_code == 0, sent.output
    assert json.loads(sent.stdout)["name"] == "rent-2"


def test_arrays_have_shapes_and_bounds(served: None, tmp_path: Path) -> None:
    np.savez(
        tmp_path / "d.npz",
        record_id=range(4),
        label=[0, 1, 1, 0],
        pixels=np.zeros((4, 8, 8), np.uint8),
    )
    dataset_answer("push", "digits", tmp_path / "d.npz")

    found = _proposed(
        *("net", "--dataset", "digits", "--target", "label", "--classes", "10"),
        *("--bounds", "pixels=0:16", "--shape", "pixels=8,8", "--architecture", "nets:build"),
    )

    assert found["architecture"] == {"name": "custom", "factory": "nets:build"}
    assert found["task"]["target"] == {"column": "label", "classes": [*range(10)]}
    assert found["task"]["inputs"] == [
        {
            "name": "pixels",
            "kind": "array",
            "shape": [8, 8],
            "dtype": "uint8",
            "scale": 0.0625,
        }
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--bounds", "age"), "--bounds must have the form COLUMN=…"),
        (("--bounds", "age=x:9"), "--bounds …=x:9: not two numbers"),
        (("--shape", "age=x"), "--shape … x: expected whole numbers"),
        (("--drop", "gone"), "column 'gone': the dataset has no such column"),
        (("--data", "FILE"), "column 'rent, net': text that is not float64"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    customers: Path, options: tuple[str, ...], said: str
) -> None:
    customers.write_text(customers.read_text().replace("505.5", "word"))
    given = [str(customers) if each == "FILE" else each for each in options]
    refused = _create("churn", "--dataset", "customers", "--target", "churned", *given)
    assert refused.exit_code == 1
    assert said in refused.stderr
