"""What a place where versions are published must do, and the places that the settings name.

Each kind is a module of its own, which an installation may leave out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from typing import Final, Protocol

from app.domain.errors import ConfigurationError, CorruptObjectError
from app.domain.release import Release
from app.runtime.settings import Publisher

Step = Callable[[str], None]
"""Called, with its name, after each step that changes something; raises to stop there."""


@dataclass(frozen=True)
class Subject:
    """The model of which a target holds at most one version.

    ``id`` marks what is the model's own there: nothing else is ever changed or removed.
    """

    id: str
    name: str


class Target(Protocol):
    """A place that holds at most one version of each model."""

    kind: str

    def hold(self, subject: Subject, release: Release | None, step: Step) -> None:
        """Bring the place to hold exactly this release of a model, or nothing of it.

        The new version is there before the old one goes. Called again after any interruption, it
        ends the same. The step ``noted`` comes before anything is sent.

        Raises:
            PlaceTakenError: a release cannot be there; what was left of the model is gone.
            UnmarkedPlaceError: nothing was sent or removed.
            TargetError: it cannot be done, or not be seen to be done.
            GoneError, CorruptObjectError, ObjectStoreError: the weights cannot be read.
        """


def weights_of(release: Release) -> Iterator[bytes]:
    """Yield a release's weights in parts; ``CorruptObjectError`` at the end if they are others."""
    digest = sha256()
    for part in release.weights():
        digest.update(part)
        yield part
    if digest.hexdigest() != release.sha256:
        raise CorruptObjectError("the weights are not those that were published")


def are_weights(release: Release, parts: Iterable[bytes]) -> bool:
    """Return whether what a place holds are a release's weights, byte for byte."""
    digest = sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest() == release.sha256


_MODULES: Final = {
    "folder": "app.delivery.publishing.folder",
    "s3": "app.delivery.publishing.bucket",
    "mlflow": "app.delivery.publishing.mlflow",
}
"""By the kind of publisher, what has its ``target_of``."""


def targets_of(publishers: Mapping[str, Publisher]) -> dict[str, Target]:
    """Return the targets by name; none of them is reached yet.

    Raises:
        ConfigurationError: a file of certificates cannot be read, or no module is for this kind.
    """
    targets: dict[str, Target] = {}
    for name, publisher in publishers.items():
        if publisher.kind not in _MODULES:
            raise ConfigurationError(
                f"EXPUNGE_PUBLISHERS: {name}: publishing to {publisher.kind} is not a part of this "
                "installation"
            )
        targets[name] = import_module(_MODULES[publisher.kind]).target_of(publisher)
    return targets
