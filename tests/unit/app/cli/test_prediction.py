"""Which of several downloaded files ``expunge predict`` takes."""

from pathlib import Path

import pytest

from app.cli.commands.prediction import _newest
from app.domain.errors import InvalidInputError


def _files(*names: str) -> list[Path]:
    return [Path("release", f"{name}.safetensors") for name in names]


def test_of_several_versions_the_newest_counts() -> None:
    versions = _files("churn-trees-v10", "churn-trees-v2", "churn-trees-v9")
    assert _newest(versions).stem == "churn-trees-v10"
    assert _newest(_files("mine")).stem == "mine"


@pytest.mark.parametrize(
    "others", [("churn-v1", "churn-trees-v1"), ("churn-v1", "mine"), ("mine", "yours")]
)
def test_files_of_several_models_are_refused(others: tuple[str, str]) -> None:
    with pytest.raises(InvalidInputError, match="not versions of one model"):
        _newest(_files(*others))
