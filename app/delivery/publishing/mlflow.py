"""MLflow's model registry: a registered model for each of ours, whose one version is served.

The artifacts of all versions are in folders of one run, named by the versions' ids, so every
attempt writes to the same place, and whatever else lies in the run is left over and goes. MLflow
keeps no artifacts of a version that is deleted here: they are deleted first, through its server.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.delivery.publishing import mlflow_server
from app.delivery.publishing.target import Step, Subject, are_weights, weights_of
from app.domain.errors import PlaceTakenError
from app.domain.release import WEIGHTS, Release

ALIAS = "certified"
MODEL_TAG = "expunge.model"
VERSION_TAG = "expunge.version"
CERTIFICATE_TAG = "expunge.certificate"
_STARTED_MS = 0


@dataclass(frozen=True)
class Mlflow:
    """The registry of one server."""

    kind = "mlflow"

    server: mlflow_server.MlflowServer
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
            model = mlflow_server.RegisteredModel(tags, {})
        step("registered")
        if not folders:
            folders = [server.create_folder(self.experiment, name, tags, started_ms=_STARTED_MS)]
        step("begun")
        number = self._place(name, folders[0], release, step)
        if model.aliases.get(ALIAS) != number:
            server.set_alias(name, ALIAS, number)
        step("switched")
        self._remove_others(name, model, folders, step, kept=(number, release.version_id))

    def _place(
        self, name: str, folder: mlflow_server.ArtifactFolder, release: Release, step: Step
    ) -> str:
        """Have a version of a registered model with the release's artifacts; return its number."""
        server, tags = self.server, _tags(release)
        place = f"{folder.path}/{release.version_id}"
        source = f"{folder.uri}/{release.version_id}"
        version = next(
            (each for each in server.versions(name) if _is_of(each, release, source)), None
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
        model: mlflow_server.RegisteredModel | None,
        folders: Sequence[mlflow_server.ArtifactFolder],
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


def _is_of(version: mlflow_server.ModelVersion, release: Release, source: str) -> bool:
    return version.tags.get(VERSION_TAG) == release.version_id and version.source == source


def _tags(release: Release) -> dict[str, str]:
    """Return what a version's tags say; the last is only true when all else is there."""
    guarantee = {"expunge.epsilon": release.epsilon, "expunge.delta": release.delta}
    return {
        VERSION_TAG: release.version_id,
        "expunge.number": str(release.number),
        "expunge.sha256": release.sha256,
        **{key: repr(value) for key, value in guarantee.items() if value is not None},
        CERTIFICATE_TAG: release.certificate_id,
    }
