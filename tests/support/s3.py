"""A real S3 server that goes away and comes back, with what it holds."""

from typing import Any
from uuid import uuid4

import boto3
from moto.server import ThreadedMotoServer

from tests.support.service import free_port

ACCESS = {"access_key": "access", "secret_key": "secret", "region": "eu-central-1"}


def environment_of(service: str, endpoint: str) -> dict[str, str]:
    """Return the variables by which Amazon's own tools find one of its services."""
    return {
        f"AWS_ENDPOINT_URL_{service.upper()}": endpoint,
        "AWS_DEFAULT_REGION": ACCESS["region"],
        "AWS_ACCESS_KEY_ID": ACCESS["access_key"],
        "AWS_SECRET_ACCESS_KEY": ACCESS["secret_key"],
    }


class S3Server:
    """moto's server on a port of its own, with one bucket.

    Attributes:
        bucket: its name.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self._server = moto_at(self.port)
        self.bucket = f"bucket-{uuid4().hex}"
        self.client().create_bucket(
            Bucket=self.bucket,
            CreateBucketConfiguration={"LocationConstraint": ACCESS["region"]},
        )

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Refuse connections from now on."""
        self._server.stop()

    def start(self) -> None:
        """Answer again, at the same place."""
        self._server = moto_at(self.port)

    def client(self) -> Any:
        """Return Amazon's own client of this server."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=ACCESS["region"],
            aws_access_key_id=ACCESS["access_key"],
            aws_secret_access_key=ACCESS["secret_key"],
        )

    def names(self) -> set[str]:
        """Return the names of all objects."""
        listed = self.client().list_objects_v2(Bucket=self.bucket)
        return {found["Key"] for found in listed.get("Contents", [])}


def moto_at(port: int) -> ThreadedMotoServer:
    """Start moto's server at a port."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    return server
