"""The targets that the settings name, each in a module that an installation may leave out."""

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from app.delivery.publishing.target import Target
from app.domain.errors import ConfigurationError
from app.runtime.publisher_settings import Publisher

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
