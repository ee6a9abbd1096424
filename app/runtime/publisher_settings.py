"""The places where versions may be published, as the operator configures them."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    SecretStr,
    StringConstraints,
    model_validator,
)


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    return path


class _Publisher(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class FolderPublisher(_Publisher):
    """A folder on the dispatcher's machine, with one folder for each model in it.

    Attributes:
        path: of the folder; it must exist.
    """

    kind: Literal["folder"]
    path: Annotated[Path, AfterValidator(_absolute)]


class S3Publisher(_Publisher):
    """A bucket with one folder for each model.

    Attributes:
        bucket: its name.
        prefix: what all names begin with, such as ``models/``.
        endpoint: the server, if it is not Amazon's.
        region: the bucket's region.
        access_key: when unset, found where Amazon's own tools look for it.
        secret_key: that key's secret; likewise.
    """

    kind: Literal["s3"]
    bucket: str = Field(min_length=1)
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    access_key: SecretStr | None = None
    secret_key: SecretStr | None = None


class MlflowPublisher(_Publisher):
    """The model registry of an MLflow server that serves artifacts itself.

    Attributes:
        url: of the server.
        prefix: what the names of registered models begin with, before the model's.
        experiment: which holds one run for each model; made when it is missing.
        username: for servers with MLflow's own login.
        password: of that user.
        token: a bearer token, instead of these two.
        ca_file: certificates of the authorities to trust instead of the usual ones.
    """

    kind: Literal["mlflow"]
    url: HttpUrl
    prefix: str = Field(default="", pattern=r"^[A-Za-z0-9._-]*$")
    experiment: str = Field(default="expunge", pattern=r"^[A-Za-z0-9._-]+$")
    username: str | None = None
    password: SecretStr | None = None
    token: SecretStr | None = None
    ca_file: Path | None = None

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password belong together")
        if self.username is not None and self.token is not None:
            raise ValueError("set username and password, or token: not both")
        return self


Publisher = Annotated[FolderPublisher | S3Publisher | MlflowPublisher, Field(discriminator="kind")]
TargetName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
]


def revealed(secret: SecretStr | None) -> str | None:
    """Return a secret's text, or None for None."""
    return None if secret is None else secret.get_secret_value()
