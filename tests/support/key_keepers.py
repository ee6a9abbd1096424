"""The places where the keys of periods may be kept, each with what it takes to use it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import boto3
import pytest

from app.runtime.settings import Settings
from app.storage.file_keys import Wrapping
from app.storage.stores import key_wrapping
from tests.support.s3 import ACCESS, environment_of, moto_at
from tests.support.service import free_port
from tests.support.vault import ROLE, TransitKey, VaultServer

Service = TypeVar("Service", bound="Kms | Vault")
# To what is above them, both services are alike.
EVERY = (
    "directory",
    pytest.param("vault", marks=pytest.mark.slow),
    pytest.param("kms", marks=pytest.mark.nightly),
)


class Keeper(Protocol):
    """``variables`` are the settings that name it, without their prefix."""

    variables: Mapping[str, str]


@contextmanager
def running(kind: type[Service]) -> Iterator[Service]:
    """Run a service, where its own tools find it."""
    service = kind()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in service.environment.items():
            patch.setenv(name, value)
        yield service
    service.stop()


class Directory:
    """Nothing but the key store's directory."""

    variables: Mapping[str, str] = {}


class Kms:
    """A real KMS server, moto's, with one key."""

    def __init__(self) -> None:
        self._port = free_port()
        self._server = moto_at(self._port)
        self.variables = {"KMS_KEY": self.new_key()}
        self.environment = environment_of("kms", self.endpoint)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def new_key(self) -> str:
        """Return the id of another key."""
        return str(self.client().create_key()["KeyMetadata"]["KeyId"])

    def client(self) -> Any:
        """Return Amazon's own client of this server."""
        return boto3.client(
            "kms",
            endpoint_url=self.endpoint,
            region_name=ACCESS["region"],
            aws_access_key_id=ACCESS["access_key"],
            aws_secret_access_key=ACCESS["secret_key"],
        )

    def stop(self) -> None:
        """Refuse connections from now on."""
        self._server.stop()

    def start(self) -> None:
        """Answer again, at the same place, with the same keys."""
        self._server = moto_at(self._port)


class Vault:
    """A Vault with one key and one role."""

    environment: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.server = VaultServer()
        self.key = self.server.keys["transit", "expunge"] = TransitKey()
        self.variables = {
            "VAULT_KEY": "expunge",
            "VAULT_URL": self.server.url,
            "VAULT_ROLE_ID": ROLE["role_id"],
            "VAULT_SECRET_ID": ROLE["secret_id"],
        }

    def stop(self) -> None:
        """Refuse connections from now on."""
        self.server.stop()

    def start(self) -> None:
        """Answer again, at the same place, with the same keys."""
        self.server.start()


def wrapping_of(keeper: Keeper) -> Wrapping:
    """Return what the settings make of a keeper, with nothing remembered."""
    return key_wrapping(Settings(**{name.lower(): v for name, v in keeper.variables.items()}))
