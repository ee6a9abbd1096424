"""An id is found however it is written, wherever it begins."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.operations.spellings import Spellings

ID = 'Zoë "Z" \\ 42'


@pytest.mark.parametrize("around", [b"", b"x", b"xy", b"xyz", b"\0" * 8])
def test_every_spelling_is_found(around: bytes) -> None:
    raw = ID.encode()
    spellings = Spellings(ID)
    for how, content in {
        "as it is": raw,
        "in hexadecimal": raw.hex().encode(),
        "in base64": base64.b64encode(around + raw + around),
    }.items():
        assert spellings.found_in(around + content + around) == how
    assert spellings.found_in(json.dumps({"id": ID}).encode()) == "escaped"
    assert spellings.found_in(ID.replace("\\", "\\\\").replace('"', '""').encode()) == "escaped"


def test_another_id_is_not() -> None:
    spellings = Spellings("record-7")
    for content in (b"record-8", b"record-", base64.b64encode(b"record-8"), b"", bytes(100)):
        assert spellings.found_in(content) is None


@pytest.mark.parametrize("shift", range(3))
@pytest.mark.parametrize("length", range(6, 12))
def test_base64_decides_by_every_bit_of_the_id(shift: int, length: int) -> None:
    raw = b"abcdefghijkl"[:length]
    spellings = Spellings(raw.decode())
    around = b"\xff" * shift
    assert spellings.found_in(base64.b64encode(around + raw + b"\xff\x00\xff")) == "in base64"
    assert spellings.found_in(base64.b64encode(around + raw)) == "in base64"
    for bit in range(8 * length):
        other = bytearray(raw)
        other[bit // 8] ^= 1 << bit % 8
        assert spellings.found_in(base64.b64encode(around + other + b"\xff")) is None


@given(data=st.data())
def test_an_id_is_found_across_the_borders_of_parts(data: st.DataObject) -> None:
    content = b"." * 20 + b"subject-eleven" + b"." * 20
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=30)))
    parts = [
        content[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(content)], strict=True)
    ]
    assert Spellings("subject-eleven").found_in_parts(parts) == "as it is"
    assert Spellings("subject-twelve").found_in_parts(parts) is None


@pytest.mark.parametrize("stored", ["Zo\u00eb Meier", "Zoe\u0308 Meier"])
@pytest.mark.parametrize("sought", ["Zo\u00eb Meier", "Zoe\u0308 Meier"])
def test_accents_are_found_as_one_character_and_as_two(stored: str, sought: str) -> None:
    assert Spellings(sought).found_in(b"x" + stored.encode()) == "as it is"
    assert Spellings(sought).found_in(stored.encode().hex().encode()) == "in hexadecimal"
