"""The parts of MLflow's REST API that publishing needs, over plain HTTP.

Artifacts go through the server, which must serve them itself, as ``mlflow server`` does by default.
"""

import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from app.domain.errors import ConfigurationError, TargetError
from app.runtime.outgoing import TRUSTED, require_certificates

_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
_API = "/api/2.0/mlflow"
_ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
_SCHEME = "mlflow-artifacts:/"
_PAGE = 200
_MISSING = "RESOURCE_DOES_NOT_EXIST"
_EXISTS = "RESOURCE_ALREADY_EXISTS"


class _RefusedError(TargetError):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"the MLflow server answered {status} {code}".rstrip())
        self.code = code


@dataclass(frozen=True)
class RegisteredModel:
    """A registered model's tags, and the versions that its aliases name."""

    tags: Mapping[str, str]
    aliases: Mapping[str, str]


@dataclass(frozen=True)
class ModelVersion:
    """A version of a registered model: its number, tags, and where its artifacts are."""

    number: str
    tags: Mapping[str, str]
    source: str


@dataclass(frozen=True)
class ArtifactFolder:
    """The artifacts of one run; ``uri`` is as MLflow spells it."""

    run_id: str
    uri: str

    @property
    def path(self) -> str:
        """Where it is below the server's artifacts.

        Raises:
            TargetError: the server gives its artifacts to clients to reach by themselves.
        """
        rest = self.uri.removeprefix(_SCHEME)
        if rest == self.uri or rest.startswith("/"):
            raise TargetError("the MLflow server does not serve artifacts itself")
        return rest


class MlflowServer:
    """An MLflow server; every method raises ``TargetError``."""

    def __init__(
        self,
        url: str,
        *,
        username: str | None = None,
        password: str | None = None,
        token: str | None = None,
        ca_file: Path | None = None,
    ) -> None:
        require_certificates(*(TRUSTED if ca_file is None else ()))
        try:
            verify = ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise ConfigurationError(f"{ca_file} cannot be read: {error}") from error
        self._client = httpx.Client(
            base_url=url.rstrip("/"),
            auth=None if username is None or password is None else (username, password),
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            verify=verify,
            timeout=_TIMEOUT,
            trust_env=False,
        )

    # The registry

    def registered_model(self, name: str) -> RegisteredModel | None:
        """Return a registered model, or None."""
        with _unless(_MISSING):
            found = self._call("GET", "registered-models/get", params={"name": name})
            model = found["registered_model"]
            aliases = {each["alias"]: str(each["version"]) for each in model.get("aliases", [])}
            return RegisteredModel(_tags(model), aliases)
        return None

    def create_registered_model(self, name: str, tags: Mapping[str, str]) -> None:
        """Make a registered model, which may not exist yet."""
        self._call("POST", "registered-models/create", json={"name": name, "tags": _pairs(tags)})

    def versions(self, name: str) -> list[ModelVersion]:
        """Return the versions of a registered model, oldest first."""
        params = {"filter": f"name='{name}'", "max_results": str(_PAGE)}
        found = [
            ModelVersion(str(each["version"]), _tags(each), each.get("source", ""))
            for page in self._pages("GET", "model-versions/search", params)
            for each in page.get("model_versions", [])
        ]
        return sorted(found, key=lambda each: int(each.number))

    def create_version(self, name: str, source: str, run_id: str, tags: Mapping[str, str]) -> str:
        """Make a version of the artifacts at ``source``, which are a run's; return its number."""
        body = {"name": name, "source": source, "run_id": run_id, "tags": _pairs(tags)}
        found = self._call("POST", "model-versions/create", json=body)
        return str(found["model_version"]["version"])

    def tag_version(self, name: str, number: str, tags: Mapping[str, str]) -> None:
        """Set tags of a version."""
        for key, value in tags.items():
            body = {"name": name, "version": number, "key": key, "value": value}
            self._call("POST", "model-versions/set-tag", json=body)

    def delete_version(self, name: str, number: str) -> None:
        """Delete a version; a missing one is not an error."""
        with _unless(_MISSING):
            self._call("DELETE", "model-versions/delete", json={"name": name, "version": number})

    def set_alias(self, name: str, alias: str, number: str) -> None:
        """Have an alias name a version."""
        body = {"name": name, "alias": alias, "version": number}
        self._call("POST", "registered-models/alias", json=body)

    def delete_alias(self, name: str, alias: str) -> None:
        """Remove an alias; a missing one is not an error."""
        with _unless(_MISSING):
            body = {"name": name, "alias": alias}
            self._call("DELETE", "registered-models/alias", json=body)

    # Runs and their artifacts

    def folders(self, experiment: str, tag: str, value: str) -> list[ArtifactFolder]:
        """Return the artifact folders of an experiment's runs with a tag, oldest first."""
        found = self._experiment(experiment)
        if found is None:
            return []
        body = {
            "experiment_ids": [found],
            "filter": f"tags.`{tag}` = '{value}'",
            "order_by": ["attributes.start_time ASC"],
            "run_view_type": "ALL",
            "max_results": _PAGE,
        }
        return [
            _folder(run)
            for page in self._pages("POST", "runs/search", body)
            for run in page.get("runs", [])
        ]

    def create_folder(
        self, experiment: str, name: str, tags: Mapping[str, str], *, started_ms: int
    ) -> ArtifactFolder:
        """Make a run, and return the folder of its artifacts."""
        if self._experiment(experiment) is None:
            with _unless(_EXISTS):
                self._call("POST", "experiments/create", json={"name": experiment})
        body = {
            "experiment_id": self._experiment(experiment),
            "run_name": name,
            "start_time": started_ms,
            "tags": _pairs(tags),
        }
        return _folder(self._call("POST", "runs/create", json=body)["run"])

    def _experiment(self, name: str) -> str | None:
        with _unless(_MISSING):
            params = {"experiment_name": name}
            found = self._call("GET", "experiments/get-by-name", params=params)
            return str(found["experiment"]["experiment_id"])
        return None

    def files(self, path: str) -> dict[str, int | None]:
        """Return the names in a folder of artifacts: files with their sizes, folders with None."""
        found = self._send("GET", _ARTIFACTS, params={"path": path})
        return {
            each["path"].rpartition("/")[2]: None
            if each.get("is_dir")
            else int(each.get("file_size", 0))
            for each in found.get("files", [])
        }

    def upload(self, path: str, parts: Iterable[bytes]) -> None:
        """Store a file."""
        self._send("PUT", f"{_ARTIFACTS}/{quote(path)}", content=parts)

    def download(self, path: str) -> Iterator[bytes]:
        """Yield a file's content."""
        with (
            _answering(),
            self._client.stream("GET", f"{_ARTIFACTS}/{quote(path)}") as answer,
        ):
            if not answer.is_success:
                raise _RefusedError(answer.status_code, "")
            yield from answer.iter_bytes()

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all in it."""
        self._send("DELETE", f"{_ARTIFACTS}/{quote(path)}")

    # HTTP

    def _pages(self, method: str, path: str, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        token = ""
        while True:
            asked = dict(query) | ({"page_token": token} if token else {})
            page = self._call(method, path, **{"params" if method == "GET" else "json": asked})
            yield page
            token = page.get("next_page_token") or ""
            if not token:
                return

    def _call(self, method: str, path: str, **content: Any) -> dict[str, Any]:  # noqa: ANN401
        return self._send(method, f"{_API}/{path}", **content)

    def _send(self, method: str, path: str, **content: Any) -> dict[str, Any]:  # noqa: ANN401
        with _answering():
            answer = self._client.request(method, path, **content)
        found = _object(answer)
        if not answer.is_success:
            code = found.get("error_code")
            raise _RefusedError(answer.status_code, code if isinstance(code, str) else "")
        return found


def _object(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json() if answer.content.strip() else {}
    except ValueError as error:
        if not answer.is_success:
            return {}
        raise TargetError("the MLflow server's answer is not JSON") from error
    return found if isinstance(found, dict) else {}


def _folder(run: Mapping[str, Any]) -> ArtifactFolder:
    return ArtifactFolder(run["info"]["run_id"], run["info"]["artifact_uri"])


def _tags(found: Mapping[str, Any]) -> dict[str, str]:
    return {tag["key"]: tag.get("value", "") for tag in found.get("tags", [])}


def _pairs(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in tags.items()]


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        raise TargetError(f"the MLflow server does not answer: {type(error).__name__}") from error


@contextmanager
def _unless(code: str) -> Iterator[None]:
    """Let one refusal pass."""
    try:
        yield
    except _RefusedError as error:
        if error.code != code:
            raise
