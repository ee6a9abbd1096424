"""Objects in a bucket of Amazon S3 or a compatible server.

Deleting removes a name. If a bucket keeps versions, or a provider keeps copies, the bytes may stay;
they are encrypted, and their key was destroyed before.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from io import BufferedReader, RawIOBase
from typing import TYPE_CHECKING, Any

from app.domain.errors import CorruptObjectError, GoneError, ObjectStoreError

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 20
_ATTEMPTS = 4
_PART_BYTES = 16 * 1024 * 1024
_MISSING = ("404", "NoSuchKey", "NotFound")


class S3ObjectStore:
    """Objects under one prefix of one bucket."""

    def __init__(
        self,
        bucket: str,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        prefix: str = "",
        access_key: str | None = None,
        secret_key: str | None = None,
        connect_timeout_s: float = _CONNECT_TIMEOUT_S,
        read_timeout_s: float = _READ_TIMEOUT_S,
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._timeouts_s = (connect_timeout_s, read_timeout_s)
        self._connection: dict[str, Any] = {
            "endpoint_url": endpoint,
            "region_name": region,
            "aws_access_key_id": access_key,
            "aws_secret_access_key": secret_key,
        }

    @cached_property
    def _client(self) -> "S3Client":
        import boto3  # noqa: PLC0415 - slow to import, and rarely needed
        from botocore.config import Config  # noqa: PLC0415

        connect_timeout_s, read_timeout_s = self._timeouts_s
        config = Config(
            connect_timeout=connect_timeout_s,
            read_timeout=read_timeout_s,
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            # Servers other than Amazon's do not support these; the chunks verify themselves.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        client: S3Client = boto3.session.Session().client("s3", config=config, **self._connection)
        return client

    def create_bucket(self) -> bool:
        """Create the bucket if it does not exist; return whether it was created."""
        try:
            with _errors_in_words():
                self._client.head_bucket(Bucket=self._bucket)
        except GoneError:
            region = self._client.meta.region_name
            # S3 rejects the name of its default region.
            place: dict[str, Any] = (
                {}
                if region in ("us-east-1", "aws-global")
                else {"CreateBucketConfiguration": {"LocationConstraint": region}}
            )
            with _errors_in_words():
                self._client.create_bucket(Bucket=self._bucket, **place)
            return True
        return False

    def write(self, name: str, parts: Iterable[bytes]) -> None:
        """Upload an object in parts; it becomes visible when it is complete."""
        from boto3.s3.transfer import TransferConfig  # noqa: PLC0415

        config = TransferConfig(
            multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES, use_threads=False
        )
        with _errors_in_words():
            self._client.upload_fileobj(
                BufferedReader(_Joined(parts)), self._bucket, self._prefix + name, Config=config
            )

    def open_range(self, name: str, start: int, stop: int) -> "_S3Reader":
        """Read bytes ``start`` up to ``stop``; ``GoneError`` if the object does not exist."""

        def get(position: int, etag: str | None) -> Any:  # noqa: ANN401 - a dictionary of boto3
            condition: dict[str, Any] = {} if etag is None else {"IfMatch": etag}
            with _errors_in_words():
                return self._client.get_object(
                    Bucket=self._bucket,
                    Key=self._prefix + name,
                    Range=f"bytes={position}-{stop - 1}",
                    **condition,
                )

        return _S3Reader(name, get, start)

    def delete(self, name: str) -> None:
        """Delete an object; a missing one is not an error."""
        with _errors_in_words():
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    def names(self) -> Iterator[str]:
        """Yield the names of all objects."""
        with _errors_in_words():
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
                for found in page.get("Contents", []):
                    yield found["Key"].removeprefix(self._prefix)

    def drop_old_versions(self) -> None:
        """Delete for good what a bucket with versions keeps of replaced and deleted objects.

        Raises:
            ObjectStoreError: it may not be listed or deleted, so that it may still be there.
        """
        with _errors_in_words():
            old: list[tuple[str, str]] = []
            markers: list[tuple[str, str]] = []
            pages = self._client.get_paginator("list_object_versions")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
                old += [
                    (found["Key"], found["VersionId"])
                    for found in page.get("Versions", [])
                    if not found["IsLatest"]
                ]
                markers += [
                    (found["Key"], found["VersionId"]) for found in page.get("DeleteMarkers", [])
                ]
            # What a marker hides would come back if it went first.
            for key, version in (*old, *markers):
                self._client.delete_object(Bucket=self._bucket, Key=key, VersionId=version)


class _S3Reader:
    """A ranged download that resumes if its connection breaks."""

    def __init__(self, name: str, get: Callable[[int, str | None], Any], start: int) -> None:
        self._name = name
        self._get = get
        self._position = start
        answer = get(start, None)
        self._etag, self._body = answer["ETag"], answer["Body"]
        self.object_size = int(answer["ContentRange"].rpartition("/")[2])

    def read(self, size: int) -> bytes:
        """Return exactly the next ``size`` bytes."""
        content = bytearray()
        failures = 0
        while len(content) < size:
            try:
                more = self._read(size - len(content))
            except ObjectStoreError:
                failures += 1
                if failures == _ATTEMPTS:
                    raise
                self.close()
                self._body = self._get(self._position, self._etag)["Body"]
                continue
            if not more:
                raise CorruptObjectError(f"object {self._name} is shorter than what was stored")
            content += more
            self._position += len(more)
        return bytes(content)

    def close(self) -> None:
        """Close the connection; safe to repeat."""
        self._body.close()

    def _read(self, size: int) -> bytes:
        with _errors_in_words():
            return bytes(self._body.read(size))


class _Joined(RawIOBase):
    """Parts as one stream that is read once."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = iter(parts)
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any writable bytes
        """Read from the next part; 0 bytes at the end."""
        if not self._left:
            self._left = memoryview(next(self._parts, b""))
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count


@contextmanager
def _errors_in_words() -> Iterator[None]:
    from boto3.exceptions import Boto3Error  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "unknown")
        if code in _MISSING:
            raise GoneError("the stored object was shredded") from error
        if code in ("InvalidRange", "416"):
            raise CorruptObjectError("a stored object is shorter than what was stored") from error
        raise ObjectStoreError(f"the object store answered {code}") from error
    except (BotoCoreError, Boto3Error, OSError) as error:
        raise ObjectStoreError(
            f"the object store does not answer: {type(error).__name__}"
        ) from error
