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


def test_a_half_written_definition_says_where_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text('{\n  "name": "half",\n')
    with pytest.raises(InvalidInputError, match=r"model\.json does not hold JSON: line 3"):
        json_file(path)
