"""A bucket of S3 with a folder for each model.

Objects cannot be replaced together: the weights come first, so that no new certificate lies beside
old weights for longer than an upload takes. In a bucket that keeps versions, those that were
replaced or deleted are deleted for good.
"""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

from app.delivery.publishing.target import Step, Subject, are_weights, weights_of
from app.domain.errors import (
    CorruptObjectError,
    ObjectStoreError,
    PlaceTakenError,
    TargetError,
    UnmarkedPlaceError,
)
from app.domain.release import WEIGHTS, Release
from app.runtime.settings import S3Publisher, revealed
from app.storage.aws import S3ObjectStore

_MARK = ".expunge.json"
_MOST_MARK_BYTES = 1000
_PART_BYTES: Final = 1 << 20


@contextmanager
def _errors_in_words() -> Iterator[None]:
    try:
        yield
    except ObjectStoreError as error:
        raise TargetError(str(error).replace("object store", "bucket's server")) from error


class Bucket:
    """A bucket, or the objects in it whose names begin alike."""

    kind = "s3"

    def __init__(self, objects: S3ObjectStore) -> None:
        self._objects = objects

    @_errors_in_words()
    def hold(self, subject: Subject, release: Release | None, step: Step) -> None:
        """See ``Target``."""
        store = self._objects.below(f"{subject.name}/")
        present = set(store.names())
        mark = _mark(store) if _MARK in present else {}
        if present and (owner := mark.get("model")) != subject.id:
            if owner and release is None:
                return
            words = f"{subject.name}/ is in the bucket already, and is not this model's"
            raise PlaceTakenError(words) if owner else UnmarkedPlaceError(words)
        if release is None:
            kept = {_MARK} if present else set()
        else:
            step("noted")
            kept = {WEIGHTS, *release.files, _MARK}
            is_marked = kept <= present and mark.get("content") == release.content_id
            if not (is_marked and _has_weights(store, release)):
                self._write(store, subject, release, step)
        for name in sorted(present - kept):
            store.delete(name)
        store.drop_old_versions()
        step("removed")
        if release is None and present:  # last: until now it says whose the rest is
            store.delete(_MARK)
            store.drop_old_versions()

    def _write(self, store: S3ObjectStore, subject: Subject, release: Release, step: Step) -> None:
        store.write(_MARK, [_mark_of(subject, content=None)])
        step("begun")
        store.write(WEIGHTS, weights_of(release))
        step("written")
        for name, text in release.files.items():
            store.write(name, [text])
        store.write(_MARK, [_mark_of(subject, content=release.content_id)])
        step("switched")


def _has_weights(store: S3ObjectStore, release: Release) -> bool:
    size = release.size_bytes
    try:
        with closing(store.open_range(WEIGHTS, 0, size)) as reader:
            sizes = (min(_PART_BYTES, size - at) for at in range(0, size, _PART_BYTES))
            return reader.object_size == size and are_weights(release, map(reader.read, sizes))
    except CorruptObjectError:  # it is empty
        return False


def _mark_of(subject: Subject, *, content: str | None) -> bytes:
    return json.dumps({"model": subject.id, "content": content}).encode()


def _mark(store: S3ObjectStore) -> dict[str, Any]:
    reader = store.open_range(_MARK, 0, _MOST_MARK_BYTES)
    try:
        found = json.loads(reader.read(min(reader.object_size, _MOST_MARK_BYTES)))
    except ValueError:
        return {}
    finally:
        reader.close()
    return found if isinstance(found, dict) else {}


def target_of(publisher: S3Publisher) -> Bucket:
    """Return the bucket that the settings name."""
    return Bucket(
        S3ObjectStore(
            publisher.bucket,
            endpoint=publisher.endpoint,
            region=publisher.region,
            prefix=publisher.prefix,
            access_key=revealed(publisher.access_key),
            secret_key=revealed(publisher.secret_key),
        )
    )
