"""A real MLflow server, from an environment of its own."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from tests.support.environments import programs_of
from tests.support.patience import PATIENCE_S, until
from tests.support.service import free_port

LOCK = Path(__file__).parents[1] / "system" / "mlflow.lock"
_DOWNLOAD = "import mlflow, sys; print(mlflow.artifacts.download_artifacts(sys.argv[1]))"


class MlflowServer:
    """``mlflow server`` over SQLite, with its artifacts in a folder.

    Attributes:
        artifacts: the folder.
    """

    def __init__(self, directory: Path) -> None:
        self._programs = programs_of(LOCK)
        self._directory = directory
        self.artifacts = directory / "artifacts"
        self.artifacts.mkdir(parents=True)
        self.url = f"http://127.0.0.1:{free_port()}"
        self._environment = {
            **os.environ,
            "MLFLOW_TRACKING_URI": self.url,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "HOME": str(directory),
        }
        self._environment.pop("PYTHONPATH", None)
        with (directory / "mlflow.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(str(self._programs / "mlflow"), "server", "--workers", "1"),
                    *("--backend-store-uri", f"sqlite:///{directory / 'mlflow.db'}"),
                    *("--artifacts-destination", str(self.artifacts)),
                    *("--host", "127.0.0.1", "--port", self.url.rpartition(":")[2]),
                ],
                cwd=directory,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until(self._answers)

    def stop(self) -> None:
        """End the server with all its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_S)

    def model(self, name: str) -> dict[str, Any]:
        """Return a registered model."""
        answer = self._get("registered-models/get", name=name)
        return dict(answer["registered_model"])

    def versions(self, name: str) -> list[dict[str, Any]]:
        """Return the versions of a registered model."""
        found = self._get("model-versions/search", filter=f"name='{name}'")
        return list(found.get("model_versions", []))

    def files(self) -> dict[str, list[Path]]:
        """Return every file on the server's disk by its name."""
        found: dict[str, list[Path]] = {}
        for path in self.artifacts.rglob("*"):
            if path.is_file():
                found.setdefault(path.name, []).append(path)
        return found

    def download(self, name: str) -> Path:
        """Return the folder to which MLflow's own client downloads what an alias names."""
        command = [str(self._programs / "python"), "-c", _DOWNLOAD, f"models:/{name}@certified"]
        printed = subprocess.run(
            command, env=self._environment, check=True, stdout=subprocess.PIPE, text=True
        )
        return Path(printed.stdout.strip().splitlines()[-1])

    def _get(self, path: str, **params: str) -> dict[str, Any]:
        answer = httpx.get(
            f"{self.url}/api/2.0/mlflow/{path}", params=params, timeout=PATIENCE_S, trust_env=False
        )
        answer.raise_for_status()
        return dict(answer.json())

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError((self._directory / "mlflow.log").read_text()[-3000:])
        try:
            return httpx.get(f"{self.url}/health", trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False
