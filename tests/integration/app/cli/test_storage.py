"""``expunge storage check``."""

import subprocess
import sys

from typer.testing import CliRunner

from app.cli.main import app
from app.locations import object_store
from app.services import Services
from tests.support.workshop import Workshop

runner = CliRunner()


def test_a_store_in_order_passes_and_a_stranger_does_not(
    workshop: Workshop, services: Services
) -> None:
    with services.database.transaction() as session:
        services.blobs.reserve(session, "weights")
    alone = [sys.executable, "-m", "app.cli", "storage", "check"]  # nothing else is imported there
    answer = subprocess.run(alone, check=False, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.endswith("1 objects, 1 keys, 2 rows: 1 pending, 0 fault\nno fault\n")

    object_store(services.settings).write("stranger", [b"content"])
    answer = runner.invoke(app, ["storage", "check"])
    assert answer.exit_code == 1
    assert "fault: object stranger: no row" in answer.stdout
    assert answer.stderr == "1 fault(s)\n"
