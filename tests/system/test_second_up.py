"""A second ``expunge up`` in a data directory leaves the first one alone."""

import subprocess
import sys
from pathlib import Path

import httpx

from tests.support.patience import PATIENCE_S
from tests.support.service import Service, free_port


def test_it_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    service = Service(tmp_path / "data")
    try:
        service.start()
        servers = (service.servers.postgres.pid(), service.servers.redis.pid())
        parts = service.parts()
        for port in (service.url.rpartition(":")[2], str(free_port())):
            second = subprocess.run(
                [sys.executable, "-m", "app.cli", "up"],
                env=service.environment() | {"EXPUNGE_PORT": port},
                capture_output=True,
                check=False,
                timeout=PATIENCE_S,
            )
            assert second.returncode == 1
            assert f"process {service.process.pid}" in second.stderr.decode()
        assert servers == (service.servers.postgres.pid(), service.servers.redis.pid())
        assert parts == service.parts()
        assert httpx.get(f"{service.url}/readyz", timeout=PATIENCE_S).json()["status"] == "ok"
        service.process.kill()  # the next one waits for what it left behind
        service.start()
        service.parts()  # of this one: until then it may be the killed one's API that answered
        assert service.stop() == 0
    finally:
        service.discard()
