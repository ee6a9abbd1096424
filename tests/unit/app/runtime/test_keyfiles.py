"""Secret keys lie in files that only their owner may read."""

import stat
from pathlib import Path

import pytest

from app.domain.errors import ConfigurationError
from app.evidence.certificates.signing import StatementSigner
from app.runtime.keyfiles import create_key_file, read_key_file


def test_a_new_key_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "secret"

    assert create_key_file(path, lambda: b"secret") == b"secret"

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_an_existing_key_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    create_key_file(path, lambda: b"first")

    assert create_key_file(path, lambda: b"second") == b"first"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_key_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    create_key_file(path, lambda: b"secret")
    path.chmod(mode)

    for use in (lambda: read_key_file(path), lambda: create_key_file(path, lambda: b"")):
        with pytest.raises(ConfigurationError, match="chmod 600"):
            use()


def test_a_missing_key_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="expunge init"):
        read_key_file(tmp_path / "secret")


def test_a_key_that_could_not_be_made_leaves_no_file_behind(tmp_path: Path) -> None:
    path = tmp_path / "secret"

    def fails() -> bytes:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        create_key_file(path, fails)

    assert list(tmp_path.iterdir()) == []
    assert create_key_file(path, lambda: b"secret") == b"secret"


@pytest.mark.parametrize("content", [b"", b"junk", b"-----BEGIN PRIVATE KEY-----\n"])
def test_a_signing_key_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "signing.pem"
    create_key_file(path, lambda: content)

    with pytest.raises(ConfigurationError, match="PEM"):
        StatementSigner.from_file(path)
