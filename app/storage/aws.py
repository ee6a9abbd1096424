"""Objects in a bucket of Amazon S3 or a compatible server, and a key of AWS KMS.

Deleting an object removes a name. If a bucket keeps versions, or a provider keeps copies, the bytes
may stay; they are encrypted, and their key was destroyed before.

A symmetric key of KMS wraps the keys of periods. Its id is given when decrypting too: KMS then
refuses what another key made. The service needs ``kms:Encrypt`` and ``kms:Decrypt``.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import cached_property, partial
from io import BufferedReader, RawIOBase
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from app.domain.errors import (
    CorruptObjectError,
    GoneError,
    KeyServiceError,
    KeyStoreError,
    ObjectStoreError,
)
from app.runtime.outgoing import BUNDLES, proxy_of, require_certificates
from app.storage.file_keys import Context


class Access(TypedDict, total=False):
    """Where a service is, and whose key calls it; what is unset, Amazon's own tools look for."""

    endpoint: str | None
    region: str | None
    access_key: str | None
    secret_key: str | None


def client_of(
    service: str, access: Access, *, timeouts_s: tuple[float, float], attempts: int, **options: str
) -> Any:  # noqa: ANN401 - boto3 makes its class when it is asked for it
    """Return a client; ``timeouts_s`` are for connecting and for reading.

    It waits and tries again when the service throttles.
    """
    import boto3  # noqa: PLC0415 - slow to import, and rarely needed
    from botocore.config import Config  # noqa: PLC0415

    require_certificates(*BUNDLES)
    proxy_of(access.get("endpoint") or f"https://{service}.amazonaws.com")
    connect_timeout_s, read_timeout_s = timeouts_s
    return boto3.session.Session().client(
        service,
        config=Config(
            connect_timeout=connect_timeout_s,
            read_timeout=read_timeout_s,
            retries={"mode": "standard", "total_max_attempts": attempts},
            **options,
        ),
        endpoint_url=access.get("endpoint"),
        region_name=access.get("region"),
        aws_access_key_id=access.get("access_key"),
        aws_secret_access_key=access.get("secret_key"),
    )


@contextmanager
def errors_in_words(
    refused: Callable[[str], Exception], away: Callable[[str], Exception]
) -> Iterator[None]:
    """Raise what ``refused`` makes of an error's code, and ``away`` of a failure's type."""
    from boto3.exceptions import Boto3Error  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    try:
        yield
    except ClientError as error:
        raise refused(error.response.get("Error", {}).get("Code", "unknown")) from error
    except (BotoCoreError, Boto3Error, OSError) as error:
        raise away(type(error).__name__) from error


if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

_TIMEOUTS_S = (5, 20)
"""For connecting, and for reading."""
_ATTEMPTS = 4
_PART_BYTES = 16 * 1024 * 1024
_MISSING = ("404", "NoSuchKey", "NotFound")


class S3ObjectStore:
    """Objects under one prefix of one bucket."""

    def __init__(
        self,
        bucket: str,
        *,
        prefix: str = "",
        timeouts_s: tuple[float, float] = _TIMEOUTS_S,
        **access: Unpack[Access],
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._timeouts_s = timeouts_s
        self._access = access

    @cached_property
    def _client(self) -> "S3Client":
        client: S3Client = client_of(
            "s3",
            self._access,
            timeouts_s=self._timeouts_s,
            attempts=_ATTEMPTS,
            # Servers other than Amazon's do not support these; the chunks verify themselves.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        return client

    def below(self, prefix: str) -> "S3ObjectStore":
        """Return the objects whose names go on with ``prefix``, over the same connections."""
        with _errors_in_words():
            self._client  # noqa: B018 - it takes a while to make: so the copy has it, too
        found = copy(self)
        found._prefix += prefix  # noqa: SLF001 - its own class
        return found

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
        """Delete for good what a bucket with versions keeps of replaced and deleted objects."""
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
                with _errors_in_words():
                    more = self._body.read(size - len(content))
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


def _refused_by_s3(code: str) -> Exception:
    if code in _MISSING:
        return GoneError("the stored object was shredded")
    if code in ("InvalidRange", "416"):
        return CorruptObjectError("a stored object is shorter than what was stored")
    return ObjectStoreError(f"the object store answered {code}")


_errors_in_words = partial(
    errors_in_words,
    _refused_by_s3,
    lambda failure: ObjectStoreError(f"the object store does not answer: {failure}"),
)


_KMS_TIMEOUTS_S = (3, 5)
_KMS_ATTEMPTS = 3
_NOT_OURS = ("InvalidCiphertextException", "IncorrectKeyException")


class KmsKey:
    """One key, named by its id, ARN or alias."""

    name = "kms"

    def __init__(self, key: str) -> None:
        self._key = key

    @cached_property
    def _client(self) -> Any:  # noqa: ANN401 - as boto3 makes it
        named = self._key.split(":")
        access = Access(region=named[3]) if named[0] == "arn" and len(named) > 3 else Access()
        return client_of("kms", access, timeouts_s=_KMS_TIMEOUTS_S, attempts=_KMS_ATTEMPTS)

    def encrypt(self, content: bytes, context: Context) -> bytes:
        """Return the ciphertext; ``KeyServiceError`` if KMS fails or refuses."""
        with _kms_errors():
            answer = self._client.encrypt(
                KeyId=self._key, Plaintext=content, EncryptionContext=dict(context)
            )
            return bytes(answer["CiphertextBlob"])

    def decrypt(self, ciphertext: bytes, context: Context) -> bytes:
        """Return the content."""
        with _kms_errors():
            answer = self._client.decrypt(
                KeyId=self._key, CiphertextBlob=ciphertext, EncryptionContext=dict(context)
            )
            return bytes(answer["Plaintext"])


def _refused_by_kms(code: str) -> Exception:
    if code in _NOT_OURS:
        return KeyStoreError(f"KMS cannot unwrap its period's key: {code}")
    return KeyServiceError(f"KMS refused to serve the key store: {code}")


_kms_errors = partial(
    errors_in_words,
    _refused_by_kms,
    lambda failure: KeyServiceError(f"KMS does not answer: {failure}"),
)
