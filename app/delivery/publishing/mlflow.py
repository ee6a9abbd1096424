"""MLflow's model registry: a registered model for each of ours, whose one version is served.

The artifacts of all versions are in folders of one run, named by the versions' ids, so every
attempt writes to the same place, and whatever else lies in the run is left over and goes. MLflow
keeps no artifacts of a version that is deleted here: they are deleted first, through its server.
"""

import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from app.delivery.publishing.target import Step, Subject, are_weights, weights_of
from app.domain.errors import ConfigurationError, PlaceTakenError, TargetError
from app.domain.release import WEIGHTS, Release
from app.runtime.outgoing import TRUSTED, require_certificates
from app.runtime.settings import MlflowPublisher, revealed

ALIAS = "certified"
MODEL_TAG = "expunge.model"
VERSION_TAG = "expunge.version"
CERTIFICATE_TAG = "expunge.certificate"
_STARTED_MS = 0
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
    """The parts of MLflow's REST API that are needed here; every method raises ``TargetError``.

    Artifacts go through the server, which must serve them itself, as ``mlflow server`` does by
    default.
    """

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


@dataclass(frozen=True)
class Mlflow:
    """The registry of one server."""

    kind = "mlflow"

    server: MlflowServer
    prefix: str
    experiment: str

    def hold(self, subject: Subject, release: Release | None, step: Step) -> None:
        """See ``Target``."""
        server, name = self.server, self.prefix + subject.name
        model = server.registered_model(name)
        is_taken = model is not None and model.tags.get(MODEL_TAG) != subject.id
        if is_taken:
            model = None  # what was placed here is in our own runs
        folders = server.folders(self.experiment, MODEL_TAG, subject.id)
        if release is None or is_taken:
            if model is not None and ALIAS in model.aliases:
                server.delete_alias(name, ALIAS)
            step("switched")
            self._remove_others(name, model, folders, step, kept=None)
            if release is None:
                return
            raise PlaceTakenError(f"the registered model {name} is there already, and is not ours")
        step("noted")
        tags = {MODEL_TAG: subject.id}
        if model is None:
            server.create_registered_model(name, tags)
            model = RegisteredModel(tags, {})
        step("registered")
        if not folders:
            folders = [server.create_folder(self.experiment, name, tags, started_ms=_STARTED_MS)]
        step("begun")
        number = self._place(name, folders[0], release, step)
        if model.aliases.get(ALIAS) != number:
            server.set_alias(name, ALIAS, number)
        step("switched")
        self._remove_others(name, model, folders, step, kept=(number, release.version_id))

    def _place(self, name: str, folder: ArtifactFolder, release: Release, step: Step) -> str:
        """Have a version of a registered model with the release's artifacts; return its number."""
        server, tags = self.server, _tags_of(release)
        place = f"{folder.path}/{release.version_id}"
        source = f"{folder.uri}/{release.version_id}"
        version = next(
            (
                each
                for each in server.versions(name)
                if each.tags.get(VERSION_TAG) == release.version_id and each.source == source
            ),
            None,
        )
        present = server.files(place)
        weights = f"{place}/{WEIGHTS}"
        is_whole = (
            version is not None
            and present.get(WEIGHTS) == release.size_bytes
            and are_weights(release, server.download(weights))
        )
        if not is_whole:
            server.upload(weights, weights_of(release))
            step("weights")
        is_described = version is not None and version.tags.get(CERTIFICATE_TAG) == (
            release.certificate_id
        )
        if not (is_whole and is_described and release.files.keys() <= present.keys()):
            for file, content in release.files.items():
                server.upload(f"{place}/{file}", [content])
            step("written")
        if version is None:
            return server.create_version(name, source, folder.run_id, tags)
        if not is_described:
            server.tag_version(name, version.number, tags)
        return version.number

    def _remove_others(
        self,
        name: str,
        model: RegisteredModel | None,
        folders: Sequence[ArtifactFolder],
        step: Step,
        *,
        kept: tuple[str, str] | None,
    ) -> None:
        """Delete all other artifacts and versions of the model; ``kept`` is a number and an id.

        Artifacts go first: while they may be there, so does the version that says so.
        """
        kept_number, kept_folder = kept or (None, None)
        for place, folder in enumerate(folders):
            for name_there in self.server.files(folder.path):
                if place or name_there != kept_folder:
                    self.server.delete(f"{folder.path}/{name_there}")
                    step("erased")
        for version in self.server.versions(name) if model is not None else ():
            if VERSION_TAG in version.tags and version.number != kept_number:
                self.server.delete_version(name, version.number)
                step("removed")


def target_of(publisher: MlflowPublisher) -> Mlflow:
    """Return the registry that the settings name; ``ConfigurationError`` of its certificates."""
    server = MlflowServer(
        str(publisher.url),
        username=publisher.username,
        password=revealed(publisher.password),
        token=revealed(publisher.token),
        ca_file=publisher.ca_file,
    )
    return Mlflow(server, prefix=publisher.prefix, experiment=publisher.experiment)


def _tags_of(release: Release) -> dict[str, str]:
    """Return what a version's tags say; the last is only true when all else is there."""
    guarantee = {"expunge.epsilon": release.epsilon, "expunge.delta": release.delta}
    return {
        VERSION_TAG: release.version_id,
        "expunge.number": str(release.number),
        "expunge.sha256": release.sha256,
        **{key: repr(value) for key, value in guarantee.items() if value is not None},
        CERTIFICATE_TAG: release.certificate_id,
    }


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
