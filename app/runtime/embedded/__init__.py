"""Real PostgreSQL and Redis for one machine, from wheels, in a data directory.

Everything raises ``ConfigurationError`` where a server, an account or a folder cannot be used, with
the path of the log if a server does not start, and ``OSError`` within the lock, which makes it one.
"""

from pathlib import Path

from app.runtime.embedded.home import Home
from app.runtime.embedded.postgres import Postgres
from app.runtime.embedded.redis import Redis


class EmbeddedServers:
    """PostgreSQL and Redis for one machine: daemons that listen on unix sockets only.

    They outlive the process that started them; the next `start` reuses or replaces them, even after
    a crash. Several processes may use one directory: a file lock serialises them. Started by root,
    the servers get their own account. Only that account, root and the starting account can reach
    the sockets.
    """

    def __init__(self, data_dir: Path) -> None:
        """Name the directory. Nothing is created or started."""
        self._home = Home(data_dir)
        self.postgres = Postgres(self._home)
        self.redis = Redis(self._home)

    @property
    def database_url(self) -> str:
        """The service's URL for SQLAlchemy; it depends only on the directory."""
        return self.postgres.url

    @property
    def migration_url(self) -> str:
        """The URL of the role that owns the tables and may change the schema."""
        return self.postgres.owner_url

    @property
    def redis_url(self) -> str:
        """The URL for redis-py, with the password created at the first start."""
        return self.redis.url

    def start(self) -> None:
        """Ensure that both servers run and that the database ``expunge`` exists."""
        self.start_postgres()
        self.start_redis()

    def stop(self) -> None:
        """Stop both servers cleanly, if they run."""
        self.stop_redis()
        self.stop_postgres()

    def start_postgres(self) -> None:
        """Ensure that PostgreSQL accepts connections, after crash recovery if needed (60 s)."""
        with self._home.exclusive():
            # The next process may need Redis' URL before Redis was ever started.
            self.redis.make_password()
            self.postgres.start()

    def start_redis(self) -> None:
        """Ensure that Redis answers. A Redis that hangs is replaced; its content is disposable."""
        with self._home.exclusive():
            self.redis.start()

    def stop_postgres(self) -> None:
        """Disconnect clients, write a checkpoint and stop."""
        if self._home.exists():
            with self._home.exclusive():
                self.postgres.stop()

    def stop_redis(self) -> None:
        """Stop Redis and discard its content."""
        if self._home.exists():
            with self._home.exclusive():
                self.redis.stop()
