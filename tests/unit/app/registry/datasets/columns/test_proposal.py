"""What a file alone may put into a schema, which is public and outlives its records."""

from pathlib import Path

import pytest

from app.domain.errors import TableError
from app.registry.datasets.columns.choices import Choices, Listed
from app.registry.datasets.columns.encoding import features_of, labels_of
from app.registry.datasets.columns.proposal import LEAST_ROWS, Proposal, proposed
from app.registry.datasets.columns.reading import read_source
from app.registry.datasets.columns.sources import Source


def _source(path: Path, *, persons: int, rows: int = 60) -> Source:
    """Return a table of two plans, one of which only a few persons have."""
    lines = [
        f"{i},p{i % persons},{'gold' if i % persons < 3 else 'basic'},{i},{'yn'[i % 2]}"
        for i in range(rows)
    ]
    (path / "t.csv").write_text("\n".join(["id,person,plan,n,out", *lines]))
    return read_source(path / "t.csv")


def _proposal(source: Source, **choices: object) -> Proposal:
    base = {"label": "out", "record_id": "id", "subject_id": "person"}
    return proposed(source, Choices(**(base | choices)))  # type: ignore[arg-type]


def test_a_value_of_few_persons_is_never_listed_by_itself(tmp_path: Path) -> None:
    source = _source(tmp_path, persons=30)
    rows = source.table["plan"].to_pylist().count("gold")
    assert 3 < rows < LEAST_ROWS

    proposal = _proposal(source)

    plan = proposal.encoding.columns[0]
    assert (plan.name, plan.values, plan.other) == ("plan", ("basic",), True)
    assert proposal.unconfirmed == ["plan", "out"]
    # Counted by rows, or by persons with several rows each.
    assert _proposal(source, subject_id=None, drop=("person",)).encoding.columns[0] == plan
    twice = _source(tmp_path, persons=15, rows=90)
    assert twice.table["plan"].to_pylist().count("gold") >= LEAST_ROWS
    assert _proposal(twice).encoding.columns[0] == plan


def test_a_number_of_few_persons_is_no_class_by_itself(tmp_path: Path) -> None:
    lines = [f"{i},p{i},{i},{93517 if i == 7 else 20 + i % 2}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["id,person,n,out", *lines]))
    source = read_source(tmp_path / "t.csv")
    with pytest.raises(TableError, match="column 'out': values of fewer than 10 persons; name"):
        _proposal(source)
    assert _proposal(source, classes=("20", "21", "93517")).unconfirmed == []
    (tmp_path / "t.csv").write_text("\n".join(["id,person,n,out", *lines[8:]]))
    proposal = _proposal(read_source(tmp_path / "t.csv"))
    assert proposal.encoding.label.classes == (20, 21)
    assert proposal.unconfirmed == ["out"]


def test_what_the_user_lists_needs_no_confirmation(tmp_path: Path) -> None:
    listed = Listed(values=("basic", "gold"), other=False)
    proposal = _proposal(
        _source(tmp_path, persons=30), categories={"plan": listed}, classes=("y", "n")
    )

    assert proposal.unconfirmed == []
    assert proposal.encoding.columns[0].values == ("basic", "gold")
    assert proposal.encoding.label.classes == ("y", "n")


def test_predictions_need_the_feature_columns_only(tmp_path: Path) -> None:
    source = _source(tmp_path, persons=30)
    encoding = _proposal(source).encoding

    features = features_of(source.table.select(["plan", "n"]), encoding)

    assert features.tolist() == features_of(source.table, encoding).tolist()
    assert features.shape == (60, encoding.width)
    assert labels_of(source.table, encoding.label).tolist() == [1, 0] * 30


def test_free_text_and_a_label_of_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="column 'id': 300 different values; name the public"):
        _proposal(_source(tmp_path, persons=300, rows=300), label="id", record_id="person")


@pytest.mark.parametrize(
    ("choices", "option"),
    [
        ({}, None),
        ({"label": "out", "record_id": "id", "subject_id": "person"}, None),
        ({"features": ("n", "plan")}, None),
        ({"drop": ("another",)}, None),
        ({"categories": {"plan": Listed(values=("basic",), other=True)}}, None),
        ({"bounds": {"n": (0.0, 60.0)}}, None),
        ({"classes": ("n", "y")}, None),
        ({"class_count": 2}, None),
        ({"label": "plan"}, "--label"),
        ({"record_id": "n"}, "--record-id"),
        ({"subject_id": "id"}, "--subject"),
        ({"features": ("n",)}, "--features"),
        ({"drop": ("n",)}, "--drop"),
        ({"categories": {"plan": Listed(values=("basic",), other=False)}}, "--category plan"),
        ({"bounds": {"n": (0.0, 50.0)}}, "--bounds n"),
        ({"missing": {"n": "3"}}, "--missing n"),
        ({"classes": ("y", "n")}, "--classes"),
        ({"class_count": 3}, "--classes"),
    ],
    ids=str,
)
def test_the_same_command_fits_again_and_another_one_is_refused(
    tmp_path: Path, choices: dict, option: str | None
) -> None:
    encoding = _proposal(_source(tmp_path, persons=30), bounds={"n": (0.0, 60.0)}).encoding

    assert Choices(**choices).contradicts(encoding) == option
