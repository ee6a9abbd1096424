"""Everywhere that a service, its servers and its libraries could have written."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
from redis import Redis
from sqlalchemy import create_engine

from app.runtime.embedded import EmbeddedServers
from tests.support.dumps import everything_in_postgres, everything_in_redis
from tests.support.markers import Finding, Marker, Search, files_below, files_changed_since

SHARED = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
# File systems tell the time of a write in steps of some milliseconds.
_CLOCK_STEP_S = 1.0


class Places:
    """Places that a forensic examiner would look into, from now on.

    Args:
        servers: they must run whenever ``dump`` is called.
        roots: directories and files to search: data, logs, temporary files.
        ours: a directory whose other parts are the test's own.
        database_url: of the database to dump, by default the servers' only one.
        processes: says which processes to ask for their command lines.
    """

    def __init__(
        self,
        servers: EmbeddedServers,
        *roots: Path,
        ours: Path,
        database_url: str | None = None,
        processes: Callable[[], Iterable[psutil.Process]] = list,
    ) -> None:
        self._servers = servers
        self._roots = roots
        self._ours = ours
        self._database_url = database_url or servers.database_url
        self._processes = processes
        self._began = time.time() - _CLOCK_STEP_S
        self._searched: dict[Path, tuple[int, int]] = {}
        self._dumps: dict[str, bytes] = {}

    def dump(self) -> None:
        """Have the servers write down all that they hold, as it is and unpacked."""
        checkpoint(self._servers)
        engine = create_engine(self._database_url)
        with Redis.from_url(self._servers.redis_url) as redis:
            self._dumps = {
                "the rows of Postgres": everything_in_postgres(engine).encode(),
                "the values of Redis": everything_in_redis(redis),
                "command lines": "\n".join(_command_lines(self._processes())).encode(),
            }
        engine.dispose()

    def files(self) -> Iterator[Path]:
        """Yield all files that may have been written since these places are watched."""
        for root in self._roots:
            yield from filter(self._is_new, [root] if root.is_file() else files_below(root))
        for root in SHARED:
            changed = files_changed_since(self._began, root, depth=2)
            yield from (path for path in changed if self._ours not in path.parents)

    def _is_new(self, path: Path) -> bool:
        try:
            return path.stat().st_mtime >= self._began
        except OSError:
            return False

    def search(self, markers: Iterable[Marker]) -> list[Finding]:
        """Return the markers that are anywhere: in the last dumps, or in files."""
        return self._found(markers, self.files())

    def search_what_changed(self, markers: Iterable[Marker]) -> list[Finding]:
        """Search the last dumps and the files that changed since this was last called.

        It finds whatever ``search`` would, if these markers are younger than the last call or were
        searched for then too.
        """
        return self._found(markers, list(self._changed()))

    def _found(self, markers: Iterable[Marker], files: Iterable[Path]) -> list[Finding]:
        assert self._dumps
        search = Search(markers)
        return [*search.of_bytes(self._dumps), *search.of_files(files)]

    def _changed(self) -> Iterator[Path]:
        settled = time.time_ns() - int(_CLOCK_STEP_S * 1e9)
        for path in self.files():
            with suppress(OSError):
                status = path.stat()
                now = (status.st_ino, status.st_mtime_ns)
                if self._searched.get(path) != now or status.st_mtime_ns > settled:
                    self._searched[path] = now
                    yield path


def checkpoint(servers: EmbeddedServers) -> None:
    """Have Postgres write to its files what it has so far written to its log alone."""
    url = servers.migration_url.replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")


def _command_lines(processes: Iterable[psutil.Process]) -> Iterator[str]:
    for process in processes:
        with suppress(psutil.Error):
            yield " ".join([process.name(), *process.cmdline()])
