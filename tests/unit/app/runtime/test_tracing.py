"""What sends spans needs an extra, and is loaded late."""

import subprocess
import sys

import pytest

from app.domain.errors import MissingExtraError
from app.runtime.settings import Settings


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.sdk"])
def test_without_the_extra_a_service_that_is_to_send_traces_does_not_start(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.sdk", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError, match=r"expunge\[otel\]"):
        Settings(traces=True)
    Settings()


@pytest.mark.slow  # it starts programs that import PyTorch
def test_what_sends_is_loaded_with_the_first_span_alone() -> None:
    """Redis' client imports the SDK's metrics where they are installed, and uses none."""
    code = (
        "import sys, app.cli.application, app.cli.commands.service, workers.worker;"
        "import workers.dispatcher;"
        "sending = ('opentelemetry.sdk.trace', 'opentelemetry.exporter', 'opentelemetry.proto');"
        "print([name for name in sys.modules if name.startswith(sending)])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
