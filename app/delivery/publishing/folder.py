"""A folder with a link for each model, which always leads to one whole version.

``NAME`` leads to ``.NAME.expunge/v3-cert_…``. A version is written beside the old one, and the link
is replaced at once, so a reader finds the files of one version and no others. What is superseded is
unlinked, not overwritten: a server may have the old file mapped, and would compute with zeros.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from app.delivery.publishing.target import Step, Subject, are_weights, weights_of
from app.domain.errors import PlaceTakenError, TargetError, UnmarkedPlaceError
from app.domain.release import WEIGHTS, Release
from app.runtime.settings import FolderPublisher
from app.storage.objects import sync_directory

_OWNER = "owner.json"
_UNFINISHED = ".part"


class Folder:
    """A folder that exists already; what is written can be read by everybody on the machine."""

    kind = "folder"

    def __init__(self, root: Path) -> None:
        self._root = root

    def hold(self, subject: Subject, release: Release | None, step: Step) -> None:
        """See ``Target``."""
        with _errors_in_words():
            if not self._root.is_dir():
                raise TargetError("the folder does not exist")
            store = self._root / f".{subject.name}.expunge"
            link = self._root / subject.name
            is_ours = _owner_of(store) in (None, subject.id)
            is_free = is_ours and (not os.path.lexists(link) or _leads_to(store, link))
            if release is not None and is_free:
                step("noted")
                self._place(store, link, subject, release, step)
                return
            if is_ours:
                self._withdraw(store, link, step)
            if release is not None:
                raise PlaceTakenError(f"{subject.name} is there already, and is not this model's")

    def _place(
        self, store: Path, link: Path, subject: Subject, release: Release, step: Step
    ) -> None:
        if not (store / _OWNER).exists():
            store.mkdir(exist_ok=True)
            store.chmod(0o755)
            owned = store.with_name(store.name + _UNFINISHED)  # so that no half a file is there
            _write(owned, [json.dumps({"model": subject.id}).encode()])
            owned.rename(store / _OWNER)
            sync_directory(store)
            sync_directory(self._root)
        content = store / release.content_id
        if not _is_whole(content, release):
            self._write(content, release)
        step("written")
        wanted = f"{store.name}/{content.name}"
        if not link.is_symlink() or str(link.readlink()) != wanted:
            fresh = self._root / f".{subject.name}.link"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(wanted)
            fresh.rename(link)
            sync_directory(self._root)
        step("switched")
        _remove_all(path for path in store.iterdir() if path.name not in (_OWNER, content.name))
        sync_directory(store)
        step("removed")

    def _write(self, content: Path, release: Release) -> None:
        unfinished = content.with_name(content.name + _UNFINISHED)
        _remove_all([unfinished, content])
        unfinished.mkdir(mode=0o755)
        unfinished.chmod(0o755)
        _write(unfinished / WEIGHTS, weights_of(release))
        for name, text in release.files.items():
            _write(unfinished / name, [text])
        sync_directory(unfinished)
        unfinished.rename(content)
        sync_directory(content.parent)

    def _withdraw(self, store: Path, link: Path, step: Step) -> None:
        if _leads_to(store, link):
            link.unlink()
        store.with_name(store.name + _UNFINISHED).unlink(missing_ok=True)
        sync_directory(self._root)
        step("switched")
        if store.is_dir():
            _remove_all(path for path in store.iterdir() if path.name != _OWNER)
            sync_directory(store)
            step("removed")
            _remove_all([store])
        sync_directory(self._root)


def target_of(publisher: FolderPublisher) -> Folder:
    """Return the folder that the settings name."""
    return Folder(publisher.path)


def _leads_to(store: Path, link: Path) -> bool:
    return link.is_symlink() and link.readlink().parts[0] == store.name


def _owner_of(store: Path) -> str | None:
    """Return the id of the model that a store is for; None of one that is not there or empty."""
    try:
        return str(json.loads((store / _OWNER).read_bytes())["model"])
    except FileNotFoundError:
        if store.is_dir() and any(store.iterdir()):
            raise UnmarkedPlaceError(f"{store.name} does not say which model it is for") from None
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise UnmarkedPlaceError(f"{store.name}/{_OWNER} cannot be read") from error


def _is_whole(content: Path, release: Release) -> bool:
    """Return whether the files are there, with the release's bytes."""
    try:
        with (content / WEIGHTS).open("rb") as file:
            has_weights = are_weights(release, iter(partial(file.read, 1 << 20), b""))
    except FileNotFoundError:
        return False
    return has_weights and all((content / name).is_file() for name in release.files)


def _write(path: Path, parts: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        path.chmod(0o644)
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())


def _remove_all(paths: Iterable[Path]) -> None:
    for path in list(paths):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def _errors_in_words() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TargetError(f"the folder cannot be used: {error.strerror}") from error
