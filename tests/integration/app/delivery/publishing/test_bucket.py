"""A bucket holds one version of each model, also where it keeps versions of objects."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from app.delivery.publishing.bucket import Bucket
from app.delivery.publishing.target import Target
from app.domain.errors import PlaceTakenError, TargetError, UnmarkedPlaceError
from app.domain.release import WEIGHTS
from app.storage.aws import S3ObjectStore
from tests.support.s3 import ACCESS, S3Server
from tests.support.targets import (
    OTHER,
    SUBJECT,
    Seen,
    check_interrupted_everywhere,
    files_of,
    hold,
    release,
)

_MARK = ".expunge.json"


@pytest.fixture(params=["plain", "versioned"])
def server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    server = S3Server()
    if request.param == "versioned":
        server.client().put_bucket_versioning(
            Bucket=server.bucket, VersioningConfiguration={"Status": "Enabled"}
        )
    yield server
    server.stop()


def _bucket(server: S3Server, prefix: str = "models/") -> Bucket:
    return Bucket(S3ObjectStore(server.bucket, endpoint=server.endpoint, prefix=prefix, **ACCESS))


def _seen(server: S3Server, prefix: str = "models/") -> Seen:
    """Return a model's objects; there may be no older version of any, and no trace of deleted."""
    client = server.client()
    listed = client.list_object_versions(Bucket=server.bucket, Prefix=prefix)
    assert "DeleteMarkers" not in listed
    found = {}
    for each in listed.get("Versions", []):
        assert each["IsLatest"]
        name = each["Key"].removeprefix(f"{prefix}{SUBJECT.name}/")
        found[name] = client.get_object(Bucket=server.bucket, Key=each["Key"])["Body"].read()
    if found:
        del found[_MARK]
    return found


def test_a_version_is_there_and_the_one_before_is_gone_for_good(server: S3Server) -> None:
    bucket = _bucket(server)
    for number in (1, 2, 3):
        hold(bucket, release(number))
        assert _seen(server) == files_of(release(number))
    assert "written" not in hold(bucket, release(3))
    hold(bucket, None)
    assert _seen(server) == {}


@pytest.mark.nightly  # hundreds of calls; ``test_folder`` does the same in a folder
def test_interrupted_anywhere_it_ends_the_same(server: S3Server) -> None:
    def fresh() -> tuple[Target, Callable[[], Seen]]:
        prefix = f"{uuid4().hex}/"
        return _bucket(server, prefix), lambda: _seen(server, prefix)

    check_interrupted_everywhere(fresh, all_ends=False)


@pytest.mark.parametrize("false", [b"", b"x" * release(1).size_bytes, b"x" * 100_000])
def test_other_weights_under_our_mark_are_replaced(server: S3Server, false: bytes) -> None:
    hold(_bucket(server), release(1))
    key = f"models/{SUBJECT.name}/{WEIGHTS}"
    server.client().put_object(Bucket=server.bucket, Key=key, Body=false)
    hold(_bucket(server), release(1))
    assert _seen(server) == files_of(release(1))
    assert hold(_bucket(server), release(1)) == [
        "noted",
        "removed",
    ]  # what is whole is not sent again


def test_nothing_of_others_is_touched(server: S3Server) -> None:
    server.client().put_object(Bucket=server.bucket, Key="models/digits/mine", Body=b"mine")
    for wanted in (release(1), None):
        with pytest.raises(UnmarkedPlaceError, match="already"):
            hold(_bucket(server), wanted)
    assert server.names() == {"models/digits/mine"}


def test_a_model_of_the_same_name_of_another_service_is_not_touched(server: S3Server) -> None:
    hold(_bucket(server), release(1), OTHER)
    with pytest.raises(PlaceTakenError, match="not this model's"):
        hold(_bucket(server), release(2))
    assert hold(_bucket(server), None) == []
    assert _seen(server) == files_of(release(1))


def test_a_server_that_is_away_is_an_error(server: S3Server) -> None:
    server.stop()
    with pytest.raises(TargetError, match="bucket's server"):
        hold(_bucket(server), release(1))
    server.start()
