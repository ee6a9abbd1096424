"""An id is found as it is written, wherever it begins."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.operations.erase_check import RawId

ID = 'Zoë "Z" \\ 42'


@pytest.mark.parametrize(
    "written", [ID, json.dumps({"id": ID}), ID.replace("\\", "\\\\").replace('"', '""')]
)
def test_every_way_of_writing_it_is_found(written: str) -> None:
    assert RawId(ID).is_in(b"..", b"xy" + written.encode() + b"xy")


def test_another_id_is_not() -> None:
    sought = RawId("record-7")
    assert not sought.is_in(b"record-8", b"record-", b"", bytes(100))


@given(data=st.data())
def test_an_id_is_found_across_the_borders_of_parts(data: st.DataObject) -> None:
    content = b"." * 20 + b"subject-eleven" + b"." * 20
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=30)))
    parts = [
        content[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(content)], strict=True)
    ]
    assert RawId("subject-eleven").is_within(parts)
    assert not RawId("subject-twelve").is_within(parts)


@pytest.mark.parametrize("stored", ["Zo\u00eb Meier", "Zoe\u0308 Meier"])
@pytest.mark.parametrize("sought", ["Zo\u00eb Meier", "Zoe\u0308 Meier"])
def test_accents_are_found_as_one_character_and_as_two(stored: str, sought: str) -> None:
    assert RawId(sought).is_in(b"x" + stored.encode())
