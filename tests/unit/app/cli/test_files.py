"""Ids from files: one a line, as their owner writes them."""

from pathlib import Path

import pytest

from app.cli.files import json_file, read_ids
from app.domain.errors import InvalidInputError


def test_lines_are_ids_whatever_ends_them(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    path.write_bytes("\ufeffZoë\r\n\n two words \nlast".encode())
    assert read_ids(path) == ["Zoë", " two words ", "last"]
    assert read_ids(None) == []


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"", "holds no id"), (b"\n\r\n", "holds no id"), (b"a\n\xff\n", "line 2 is not UTF-8")],
)
def test_a_file_without_ids_is_an_error(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "ids"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=told):
        read_ids(path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{\n  "name": "half",\n', "line 3"),
        ('{"epsilon": 1, "epsilon": 8}', "names a field twice"),
        ('{"epsilon": 1e999}', "not finite"),
        ('{"epsilon": NaN}', "not finite"),
    ],
)
def test_a_definition_that_is_not_what_it_seems_is_refused(
    content: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.json"
    path.write_text(content)
    with pytest.raises(InvalidInputError, match=rf"model\.json does not hold JSON: .*{told}"):
        json_file(path)
