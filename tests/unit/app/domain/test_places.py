"""URLs of imports: what they mean, what they may not say, and which prefixes they lie under."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import InvalidInputError, PlaceNotAllowedError
from app.domain.places import Place, prefix_of, require_importable

PREFIXES = (
    "s3://bucket/exports",
    "file:///srv/in",
    "https://data.example.org:8443/open",
    "gs://b-b",
)


@pytest.mark.parametrize(
    ("url", "spelt"),
    [
        ("s3://bucket/exports/a.parquet", "s3://bucket/exports/a.parquet"),
        ("S3://bucket/exports/x y", "s3://bucket/exports/x%20y"),
        ("s3://bucket/exports/%5Bx%5D=1/", "s3://bucket/exports/%5Bx%5D=1/"),
        ("file:///srv/in/2026-*/part-?.parquet", "file:///srv/in/2026-*/part-?.parquet"),
        ("https://DATA.example.org:8443/open/a", "https://data.example.org:8443/open/a"),
        ("https://data.example.org:443/a", "https://data.example.org/a"),
        ("gs://b-b", "gs://b-b/"),
        ("s3://bucket/exports/a%25b", "s3://bucket/exports/a%25b"),
    ],
)
def test_a_place_has_one_spelling(url, spelt):
    place = Place.parse(url)
    assert place.url == spelt
    assert Place.parse(spelt) == place


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/exports/a.parquet",
        "s3://bucket/exports",
        "s3://bucket/exports/",
        "s3://bucket/exports/*/x",
        "file:///srv/in/a/b/c",
        "https://data.example.org:8443/open/a",
        "gs://b-b/anything",
    ],
)
def test_what_lies_under_a_prefix_is_allowed(url):
    assert Place.parse(url).lies_under(require_importable(Place.parse(url), PREFIXES))


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/exports-secret/a",
        "s3://bucket/export",
        "s3://bucket/*/a",
        "s3://bucket/e*/a",
        "s3://bucket/",
        "s3://bucket.evil/exports/a",
        "gs://bucket/exports/a",
        "file:///srv/in2/a",
        "file:///srv",
        "file:///*/in/a",
        "https://data.example.org/open/a",
        "https://data.example.org:8444/open/a",
        "https://evil.data.example.org:8443/open/a",
        "https://data.example.org:8443/Open/a",
    ],
)
def test_what_lies_elsewhere_is_not_allowed(url):
    with pytest.raises(PlaceNotAllowedError):
        require_importable(Place.parse(url), PREFIXES)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a.parquet",
        "/srv/in/a.parquet",
        "http://data.example.org:8443/open/a",
        "ftp://x/y",
        "s3:/bucket/exports/a",
        "s3://bucket/exports/../secret",
        "s3://bucket/exports/./a",
        "s3://bucket/exports//a",
        "s3://bucket/exports/%2e%2E/secret",
        "s3://bucket/exports/.%2e/secret",
        "s3://bucket/exports/a%2fb",
        "s3://bucket/exports/a%5cb",
        "s3://bucket/exports/a\\b",
        "s3://bucket/exports/a%00",
        "s3://bucket/exports/a%0ab",
        "s3://bucket/exports/a\nb",
        "s3://bucket/exports/%ff",
        "s3://bucket/exports/%zz",
        "s3://bucket/exports/a#b",
        "s3://key:secret@bucket/exports/a",
        "s3://Bucket/exports/a",
        "s3://bu..cket/exports/a",
        "s3://../exports/a",
        "s3:///exports/a",
        "file://host/srv/in/a",
        "file://srv/in/a",
        "file:///srv/in/\u202egnp",
        "https://user@data.example.org:8443/open/a",
        "https://data.example.org:8443@evil.org/open/a",
        "https://data.example.org:8443/open/a?x=1",
        "https://data.example.org:8443?x=/open/a",
        "https://data.example.org:8443/open/%252e%252e/a",
        "https://data.example.org:8443/open/%3fa",
        "https://data.example.org:8443/open/*",
        "https://data.example.org:8443\\@evil.org/open/a",
        "https://data.example.org:0/open/a",
        "https://data.example.org:99999/open/a",
        "https://dаta.example.org:8443/open/a",  # a Cyrillic letter
        "https:///open/a",
        "s3://bucket/exports/" + "a" * 2000,
    ],
)
def test_what_could_mean_two_things_is_refused(url):
    with pytest.raises(InvalidInputError):
        Place.parse(url)


@pytest.mark.parametrize(
    "url", ["https://data.example.org:8443/open/", "https://data.example.org:8443/open/x/"]
)
def test_https_names_a_file(url):
    with pytest.raises(InvalidInputError, match="one file"):
        require_importable(Place.parse(url), PREFIXES)


@pytest.mark.parametrize("url", ["file:///", "s3://bucket/x*", "file:///srv/?"])
def test_a_prefix_is_no_pattern_and_no_whole_machine(url):
    with pytest.raises(InvalidInputError):
        prefix_of(url)


def test_without_prefixes_nothing_is_allowed():
    with pytest.raises(PlaceNotAllowedError):
        require_importable(Place.parse("s3://bucket/a"), ())


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("s3://bucket/a/*.parquet", "a/x.parquet", True),
        ("s3://bucket/a/*.parquet", "a/b/x.parquet", False),
        ("s3://bucket/a/*/x?", "a/b/x1", True),
        ("s3://bucket/a/*/x?", "a/b/x", False),
        ("s3://bucket/a/[x]*", "a/[x]y", True),
        ("s3://bucket/a/[x]*", "a/xy", False),
        ("s3://bucket/a/x.y*", "a/xzy", False),
        ("s3://bucket/[a-z]/part-[0-9]*", "[a-z]/part-[0-9]7", True),
        ("s3://bucket/[a-z]/part-[0-9]*", "b/part-77", False),
        ("s3://bucket/a/!x*]", "a/!xy]", True),
        ("s3://bucket/a/Ab*", "a/aB", False),
        ("s3://bucket/a/x*y*z", "a/xyyz", True),
        ("s3://bucket/a/x*yy*yz", "a/xyyz", False),
        ("s3://bucket/a/?*?", "a/x", False),
        ("s3://bucket/a/x*", "a/x\ny", True),
    ],
)
def test_wildcards_stand_for_no_separator(pattern, path, fits):
    assert Place.parse(pattern).fits(path.split("/")) is fits


LONG = 254 * "a"


@pytest.mark.parametrize(
    "name",
    [
        "*a*a*a*a*a*a*a*az",
        "*?*?*?*?z",
        "?*?*?*?*z",
        "*[*[*[*[*[*[*[*[z",
        "*aaaaaaaa*aaaaaaaa*aaaaaaaa*aaaaaaaa*z",
    ],
)
def test_no_pattern_goes_back_over_a_name(name):
    """A backtracking expression would take years."""
    place = Place.parse(f"file:///srv/in/{name}")
    for fitting in (LONG, 127 * "[a"):
        assert not place.fits(("srv", "in", fitting))


@pytest.mark.parametrize("scheme", ["file:///srv", "s3://bucket", "gs://bucket"])
@pytest.mark.parametrize("name", ["*?" * 12 + "z.parquet", "*/" * 9 + "x", "%2Aa%3f" * 5, 9 * "?"])
def test_more_than_eight_wildcards_are_refused(scheme, name):
    with pytest.raises(InvalidInputError, match="at most 8 wildcards"):
        Place.parse(f"{scheme}/in/{name}")


@pytest.mark.parametrize("name", ["**", "**/x.parquet", "a**b", "%2a*/x"])
def test_a_pattern_for_folders_of_any_depth_is_refused(name):
    with pytest.raises(InvalidInputError, match="write a folder"):
        Place.parse(f"s3://bucket/in/{name}")


@given(st.text(max_size=40))
def test_whatever_is_accepted_stays_below_its_prefix(tail):
    url = f"file:///srv/in/{tail}"
    try:
        place = Place.parse(url)
        prefix = require_importable(place, PREFIXES)
    except InvalidInputError:
        return
    assert place.segments[:2] == ("srv", "in")
    assert prefix.segments == ("srv", "in")
    assert not {"", ".", ".."} & set(place.segments)
    assert not any(
        "/" in segment or "\\" in segment or "\0" in segment for segment in place.segments
    )
    assert Place.parse(place.url) == place
