"""Making the secrets of the compose file."""

import json
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy import make_url

from app.runtime.embedded.redis import permissions
from tests.support.compose import ROOT, compose


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    make(tmp_path / "secrets")
    return tmp_path / "secrets"


def make(directory: Path) -> None:
    subprocess.run([ROOT / "deploy/make-secrets", directory], check=True)


def content(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text().strip() for path in directory.iterdir()}


def test_exactly_those_of_the_compose_file_are_made(secrets: Path) -> None:
    files = {Path(secret["file"]) for secret in compose()["secrets"].values()}
    assert {file.name for file in files} == set(content(secrets))
    assert {file.parent for file in files} == {Path("secrets")}


def test_containers_can_read_them_and_other_users_here_cannot(secrets: Path) -> None:
    assert secrets.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in secrets.iterdir()} == {0o444}


def test_made_again_they_stay_as_they_are(secrets: Path) -> None:
    before = content(secrets)
    (secrets / "redis_url").unlink()
    make(secrets)
    assert content(secrets) == before


def test_every_password_is_another_and_long(secrets: Path, tmp_path: Path) -> None:
    make(tmp_path / "others")
    words = [
        value
        for directory in (secrets, tmp_path / "others")
        for name, value in content(directory).items()
        if name.endswith(("_password", "_secret_key"))
    ]
    assert len(set(words)) == len(words) == 10
    assert min(map(len, words)) == 64


def test_each_url_leads_to_its_service_with_its_password(secrets: Path) -> None:
    made = content(secrets)
    for name, role in (("database_url", "service"), ("migration_url", "owner")):
        url = make_url(made[name])
        assert (url.host, url.database) == ("postgres", "expunge")
        assert (url.username, url.password) == (
            f"expunge_{role}",
            made[f"postgres_{role}_password"],
        )
    assert made["redis_url"] == f"redis://expunge:{made['redis_password']}@redis:6379/0"
    digest = sha256(made["redis_password"].encode()).hexdigest()
    assert made["redis.conf"].splitlines() == [
        "user default off",
        f"user expunge on #{digest} ~* &* {permissions()}",
    ]
    (identity,) = json.loads(made["s3.json"])["identities"]
    assert identity["credentials"] == [
        {"accessKey": made["s3_access_key"], "secretKey": made["s3_secret_key"]}
    ]
    assert {"postgres", "redis", "objects"} <= set(compose()["services"])
