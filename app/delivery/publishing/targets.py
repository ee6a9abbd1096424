"""The targets that the settings name."""

from collections.abc import Mapping

from app.delivery.publishing.bucket import Bucket
from app.delivery.publishing.folder import Folder
from app.delivery.publishing.mlflow import Mlflow
from app.delivery.publishing.mlflow_server import MlflowServer
from app.delivery.publishing.target import Target
from app.runtime.publisher_settings import FolderPublisher, MlflowPublisher, Publisher, revealed
from app.storage.s3 import S3ObjectStore


def targets_of(publishers: Mapping[str, Publisher]) -> dict[str, Target]:
    """Return the targets by name; none of them is reached yet.

    Raises:
        ConfigurationError: a file of certificates cannot be read.
    """
    return {name: _target(publisher) for name, publisher in publishers.items()}


def _target(publisher: Publisher) -> Target:
    if isinstance(publisher, FolderPublisher):
        return Folder(publisher.path)
    if isinstance(publisher, MlflowPublisher):
        server = MlflowServer(
            str(publisher.url),
            username=publisher.username,
            password=revealed(publisher.password),
            token=revealed(publisher.token),
            ca_file=publisher.ca_file,
        )
        return Mlflow(server, prefix=publisher.prefix, experiment=publisher.experiment)
    return Bucket(
        S3ObjectStore(
            publisher.bucket,
            endpoint=publisher.endpoint,
            region=publisher.region,
            prefix=publisher.prefix,
            access_key=revealed(publisher.access_key),
            secret_key=revealed(publisher.secret_key),
        )
    )
