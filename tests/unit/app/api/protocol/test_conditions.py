"""Conditions and ranges, case by case from RFC 9110."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.protocol.conditions import Part, is_not_modified, requested_part
from app.domain.errors import PreconditionError, RangeError

ETAG = '"abc"'


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-", 0, 10),
        ("bytes=3-6", 3, 7),
        ("bytes=9-9", 9, 10),
        ("bytes=4-99999", 4, 10),
        ("bytes=-1", 9, 10),
        ("bytes=-10", 0, 10),
        ("bytes=-99", 0, 10),
        ("Bytes = 2 - 3", 2, 4),
        ("bytes=0-" + "9" * 6000, 0, 10),
        ("bytes=000003-4", 3, 5),
    ],
)
def test_one_range_is_cut_to_what_there_is(asked: str, start: int, stop: int) -> None:
    assert requested_part({"range": asked}, ETAG, 10) == Part(start, stop, 10)


@pytest.mark.parametrize(
    "asked", ["bytes=10-", "bytes=10-12", "bytes=-0", "bytes=" + "9" * 6000 + "-"]
)
def test_a_range_behind_the_end_is_refused_with_the_size(asked: str) -> None:
    with pytest.raises(RangeError) as refused:
        requested_part({"range": asked}, ETAG, 10)
    assert refused.value.size == 10


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=a-b",
        "bytes=5-3",
        "rows=0-1",
        "bytes=0-1,3-4",
        "bytes=٣-٤",
    ],
)
def test_what_is_no_single_range_is_answered_with_the_whole(asked: str) -> None:
    assert requested_part({"range": asked}, ETAG, 10).is_whole


@pytest.mark.parametrize(
    ("if_range", "is_whole"),
    [(ETAG, False), ('"other"', True), ('W/"abc"', True), ("Sat, 29 Oct 1994 19:43:31 GMT", True)],
)
def test_a_range_of_other_content_is_answered_with_the_whole(if_range: str, is_whole: bool) -> None:
    part = requested_part({"range": "bytes=1-2", "if-range": if_range}, ETAG, 10)
    assert part.is_whole is is_whole


@pytest.mark.parametrize(
    ("tags", "matches", "none_matches"),
    [
        (ETAG, True, True),
        ("*", True, True),
        ('"x", "abc"', True, True),
        ('W/"abc"', False, True),
        ('"x"', False, False),
        ("abc", False, False),
        ("", False, False),
    ],
)
def test_if_match_compares_strongly_and_if_none_match_weakly(
    tags: str, matches: bool, none_matches: bool
) -> None:
    assert is_not_modified({"if-none-match": tags}, ETAG) is none_matches
    if matches:
        assert not is_not_modified({"if-match": tags}, ETAG)
    else:
        with pytest.raises(PreconditionError):
            is_not_modified({"if-match": tags, "if-none-match": ETAG}, ETAG)


@given(st.text(), st.text(), st.integers(min_value=0, max_value=50))
def test_whatever_is_sent_the_part_lies_within_the_content(
    asked: str, if_range: str, size: int
) -> None:
    headers = {"range": f"bytes={asked}"} | ({"if-range": if_range} if if_range else {})
    try:
        part = requested_part(headers, ETAG, size)
    except RangeError:
        return
    assert 0 <= part.start <= part.stop <= size
    assert part.start < part.stop or part.is_whole


@given(st.text())
def test_any_condition_is_answered(tags: str) -> None:
    assert is_not_modified({"if-none-match": tags}, ETAG) in (True, False)
