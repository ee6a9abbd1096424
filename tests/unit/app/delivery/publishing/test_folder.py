"""A folder holds one version of each model, whole, whatever interrupts the change."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from app.delivery.publishing.folder import Folder
from app.delivery.publishing.target import Target
from app.domain.errors import CorruptObjectError, PlaceTakenError, TargetError, UnmarkedPlaceError
from app.domain.release import CERTIFICATE, WEIGHTS
from tests.support.targets import (
    OTHER,
    SUBJECT,
    KilledError,
    Seen,
    broken,
    check_interrupted_everywhere,
    files_of,
    hold,
    release,
)


def _seen(root: Path) -> Seen:
    """Return what a reader of the model's folder finds; nothing else of it may be there."""
    folder = root / SUBJECT.name
    if not os.path.lexists(folder):
        assert not list(root.rglob("*"))
        return {}
    versions = [path for path in (root / f".{SUBJECT.name}.expunge").iterdir() if path.is_dir()]
    assert [path.resolve() for path in versions] == [folder.resolve()]
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_version_is_there_with_its_files_and_the_one_before_is_gone(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for number in (1, 2, 3):
        hold(folder, release(number))
        assert _seen(tmp_path) == files_of(release(number))
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"version 3" in everything
    assert b"version 2" not in everything


def test_interrupted_anywhere_it_ends_the_same(tmp_path: Path) -> None:
    def fresh() -> tuple[Target, Callable[[], Seen]]:
        root = tmp_path / uuid4().hex
        root.mkdir()
        return Folder(root), lambda: _seen(root)

    check_interrupted_everywhere(fresh)


def test_the_old_version_is_whole_until_the_new_one_is(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    hold(folder, release(1))
    with pytest.raises(KilledError):
        hold(folder, broken(release(2)))
    there = tmp_path / SUBJECT.name
    assert {path.name: path.read_bytes() for path in there.iterdir()} == files_of(release(1))
    hold(folder, release(2))
    assert _seen(tmp_path) == files_of(release(2))


def test_other_weights_than_were_certified_are_not_placed(tmp_path: Path) -> None:
    false = release(1)
    false = type(false)(**{**vars(false), "sha256": "0" * 64})
    with pytest.raises(CorruptObjectError):
        hold(Folder(tmp_path), false)
    assert not (tmp_path / SUBJECT.name).exists()


def test_damaged_files_are_written_again(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    hold(folder, release(1))
    for name in (WEIGHTS, CERTIFICATE):
        path = tmp_path / SUBJECT.name / name
        path.write_bytes(b"damaged") if name == WEIGHTS else path.unlink()
        hold(folder, release(1))
        assert _seen(tmp_path) == files_of(release(1))


def test_nothing_of_others_is_touched(tmp_path: Path) -> None:
    (tmp_path / SUBJECT.name).mkdir()
    (tmp_path / SUBJECT.name / "mine").write_text("mine")
    with pytest.raises(PlaceTakenError, match="already"):
        hold(Folder(tmp_path), release(1))
    assert hold(Folder(tmp_path), None) == ["switched"]
    assert (tmp_path / SUBJECT.name / "mine").read_text() == "mine"


def test_a_model_of_the_same_name_of_another_service_is_not_touched(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    hold(folder, release(1), OTHER)
    with pytest.raises(PlaceTakenError, match="already"):
        hold(folder, release(2))
    assert hold(folder, None) == []
    owner = tmp_path / f".{SUBJECT.name}.expunge" / "owner.json"
    assert json.loads(owner.read_text()) == {"model": OTHER.id}
    assert _seen(tmp_path) == files_of(release(1))


def test_what_was_placed_goes_when_somebody_takes_the_name(tmp_path: Path) -> None:
    hold(Folder(tmp_path), release(1))
    (tmp_path / SUBJECT.name).unlink()
    (tmp_path / SUBJECT.name).write_text("mine")
    with pytest.raises(PlaceTakenError):
        hold(Folder(tmp_path), release(2))
    assert [path.name for path in tmp_path.iterdir()] == [SUBJECT.name]


@pytest.mark.parametrize("owner", [None, "", "[]", "{}", '"model_1"'])
def test_what_does_not_say_whose_it_is_stays(tmp_path: Path, owner: str | None) -> None:
    hold(Folder(tmp_path), release(1))
    path = tmp_path / f".{SUBJECT.name}.expunge" / "owner.json"
    path.unlink() if owner is None else path.write_text(owner)
    for wanted in (release(1), None):
        with pytest.raises(UnmarkedPlaceError):
            hold(Folder(tmp_path), wanted)
    assert _seen(tmp_path) == files_of(release(1))


def test_a_missing_folder_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="does not exist"):
        hold(Folder(tmp_path / "missing"), release(1))
    assert not (tmp_path / "missing").exists()


def test_others_may_read_what_is_there(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        hold(Folder(tmp_path), release(1))
    finally:
        os.umask(before)
    folder = (tmp_path / SUBJECT.name).resolve()
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}
