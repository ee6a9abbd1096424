"""What a published file says of itself is read as it was written, or refused."""

import json
from typing import Any

import pytest

from app.domain.description import METADATA_NAME, ModelDescription
from app.domain.errors import InvalidInputError
from tests.support.described import DESCRIPTIONS

TABLE = DESCRIPTIONS["head_of_a_table"]


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_description_comes_back_as_it_was(name: str) -> None:
    description = DESCRIPTIONS[name]
    assert ModelDescription.from_metadata(description.to_metadata()) == description


def test_other_files_describe_no_model() -> None:
    assert ModelDescription.from_metadata({"format": "pt"}) is None


def test_classes_have_names_or_numbers() -> None:
    assert TABLE.output_names == ("no", "yes")
    assert DESCRIPTIONS["mlp"].output_names == (0, 1, 2, 3, 4)


def _changed(**changes: Any) -> str:
    return json.dumps(json.loads(TABLE.to_metadata()[METADATA_NAME]) | changes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        b"{}",
        _changed(unknown=1),
        _changed(model=None, schema=None),
        _changed(schema={"shape": [4]}),
        _changed(output_names=["yes", "no"]),
        _changed(encoding=None),
        _changed(
            schema={"shape": [5], "dtype": "float32", "offset": 0.5, "scale": 2.0, "classes": 2}
        ),
        _changed(architecture={"name": "none"}),
        _changed(backbone={"name": "b"}),
    ],
)
def test_a_malformed_description_is_refused(text: object) -> None:
    with pytest.raises(InvalidInputError, match="malformed"):
        ModelDescription.from_metadata({METADATA_NAME: text})
