"""The search that the tests of leaks rest on: it finds every spelling of every marker."""

import base64

import numpy as np
import pytest

from tests.support.markers import Marker, marker_of_weights, search_bytes, search_files

CONTENT = bytes(range(200, 232))


def spelt(marker, content):
    return {finding.spelling for finding in search_bytes({"here": content}, [marker])}


@pytest.mark.parametrize(
    ("spelling", "written"),
    [
        ("raw", CONTENT),
        ("hex", CONTENT.hex().encode()),
        ("HEX", CONTENT.hex().upper().encode()),
        *((f"base64+{shift}", base64.b64encode(bytes(shift) + CONTENT)) for shift in range(3)),
    ],
)
def test_every_spelling_is_found(spelling, written):
    marker = Marker("bytes", CONTENT)
    assert spelt(marker, b"before " + written + b" after") == {spelling}
    assert spelt(marker, written[len(written) // 2 :]) == set()


def test_text_is_found_in_utf_16():
    assert spelt(Marker("text", b"record-7"), "about record-7".encode("utf-16-le")) == {"utf-16"}


def test_markers_of_one_name_are_all_searched_for():
    markers = [Marker("an id", content) for content in (b"first-one", b"second-one", b"first-one")]
    places = {"a": b"first-one", "b": b"second-one", "c": b"first", "d": b"first-onsecond-one"}
    assert {finding.place for finding in search_bytes(places, markers)} == {"a", "b", "d"}


def test_markers_that_overlap_are_both_found():
    markers = [Marker("long", b"abcdef"), Marker("short", b"cd"), Marker("next", b"efgh")]
    found = {finding.marker for finding in search_bytes({"here": b"xabcdefghx"}, markers)}
    assert found == {"long", "short", "next"}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("own", [np.float32, np.float64])
def test_weights_are_found_as_numbers_and_as_text(own, dtype):
    weights = np.random.default_rng(3).normal(size=(40, 20)).astype(own)
    markers = marker_of_weights("weights", weights)
    assert search_bytes({"a file": b"." + weights.astype(dtype).tobytes()}, markers)
    assert search_bytes({"a log": str(weights.ravel().tolist()[:100]).encode()}, markers)
    assert search_bytes({"others": (weights + 1).tobytes()}, markers) == []


def test_files_are_searched_and_their_names(tmp_path):
    (tmp_path / "of-record-7").write_bytes(b"")
    (tmp_path / "log").write_bytes(bytes(5_000_000) + b"record-7")
    found = search_files(tmp_path.iterdir(), [Marker("an id", b"record-7")])
    assert {finding.place for finding in found} == {
        f"name of {tmp_path / 'of-record-7'}",
        str(tmp_path / "log"),
    }
