"""Clients of Amazon's services, and of servers that speak as these do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypedDict

from app.runtime.outgoing import BUNDLES, proxy_of, require_certificates


class Access(TypedDict, total=False):
    """Where a service is, and whose key calls it; what is unset, Amazon's own tools look for."""

    endpoint: str | None
    region: str | None
    access_key: str | None
    secret_key: str | None


def client_of(
    service: str, access: Access, *, timeouts_s: tuple[float, float], attempts: int, **options: str
) -> Any:  # noqa: ANN401 - boto3 makes its class when it is asked for it
    """Return a client; ``timeouts_s`` are for connecting and for reading.

    It waits and tries again when the service throttles.
    """
    import boto3  # noqa: PLC0415 - slow to import, and rarely needed
    from botocore.config import Config  # noqa: PLC0415

    require_certificates(*BUNDLES)
    proxy_of(access.get("endpoint") or f"https://{service}.amazonaws.com")
    connect_timeout_s, read_timeout_s = timeouts_s
    return boto3.session.Session().client(
        service,
        config=Config(
            connect_timeout=connect_timeout_s,
            read_timeout=read_timeout_s,
            retries={"mode": "standard", "total_max_attempts": attempts},
            **options,
        ),
        endpoint_url=access.get("endpoint"),
        region_name=access.get("region"),
        aws_access_key_id=access.get("access_key"),
        aws_secret_access_key=access.get("secret_key"),
    )


@contextmanager
def errors_in_words(
    refused: Callable[[str], Exception], away: Callable[[str], Exception]
) -> Iterator[None]:
    """Raise what ``refused`` makes of an error's code, and ``away`` of a failure's type."""
    from boto3.exceptions import Boto3Error  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    try:
        yield
    except ClientError as error:
        raise refused(error.response.get("Error", {}).get("Code", "unknown")) from error
    except (BotoCoreError, Boto3Error, OSError) as error:
        raise away(type(error).__name__) from error
