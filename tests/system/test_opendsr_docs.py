"""The connector in deploy/fides, filled in as fides fills it in, against our API."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.ledger.tables import ForgetRequestRow
from tests.support.workshop import Workshop

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/opendsr.md").read_text()
CONFIG, DATASET = (
    yaml.safe_load(
        (ROOT / f"deploy/fides/{name}.yml").read_text().replace("<instance_fides_key>", "expunge_1")
    )
    for name in ("expunge_config", "expunge_dataset")
)
REQUEST_MEMBERS = {"method", "path", "query_params", "body", "param_values", "output"}


def fill(template: str, values: dict[str, str]) -> str:
    """Replace placeholders as fides' ``assign_placeholders`` does; all must be known."""
    for name in re.findall("<([^<>]+)>", template):
        template = template.replace(f"<{name}>", values[name])
    return template


def requests_of(config: dict[str, Any]) -> list[dict[str, Any]]:
    (endpoint,) = config["endpoints"]
    return [config["test_request"], *endpoint["requests"].values()]


def test_the_config_has_the_shape_that_fides_asks_for() -> None:
    config = CONFIG["saas_config"]
    for name in ("fides_key", "name", "type", "description", "version", "client_config"):
        assert config[name]
    parameters = {parameter["name"] for parameter in config["connector_params"]}
    client = config["client_config"]
    used = [client["host"], client["authentication"]["configuration"]["token"]]
    assert {name.strip("<>") for name in used} == parameters
    references = {reference["name"] for reference in config["external_references"]}
    for request in requests_of(config):
        assert set(request) <= REQUEST_MEMBERS
        assert ("method" in request and "path" in request) or "output" in request
        for value in request.get("param_values", []):
            assert set(value) == {"name", "references"}
            for reference in value["references"]:
                if isinstance(reference, str):
                    assert reference in references
                else:
                    where = (reference["dataset"], reference["direction"])
                    assert where == (config["fides_key"], "from")


def test_the_dataset_has_the_fields_that_the_config_refers_to() -> None:
    (dataset,) = DATASET["dataset"]
    (collection,) = dataset["collections"]
    fields = {f"{collection['name']}.{field['name']}" for field in collection["fields"]}
    (endpoint,) = CONFIG["saas_config"]["endpoints"]
    (value,) = endpoint["requests"]["delete"]["param_values"]
    assert {reference["field"] for reference in value["references"]} == fields
    read = json.loads(fill(endpoint["requests"]["read"]["output"], {"subject_id": "x"}))
    assert {f"{collection['name']}.{name}" for name in read} == fields
    assert dataset["fides_key"] == CONFIG["saas_config"]["fides_key"]


def test_fides_requests_are_understood(api: TestClient, workshop: Workshop) -> None:
    config = CONFIG["saas_config"]
    test = config["test_request"]
    params = {p["name"]: p["value"] for p in test["query_params"]}
    assert api.request(test["method"], test["path"], params=params).status_code == 200

    delete = config["endpoints"][0]["requests"]["delete"]
    values = {
        "uuid": str(uuid4()),
        "iso_8601_datetime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "subject_id": "subject-3",
    }
    answer = api.request(
        delete["method"],
        delete["path"],
        content=fill(delete["body"], values),
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 201, answer.text
    with workshop.transaction() as session:
        assert session.scalars(select(ForgetRequestRow)).one().record_count == 4
    workshop.services.clean_up()  # as the dispatcher does at each tick
    status = api.get(f"{delete['path']}/{values['uuid']}").json()
    assert status["request_status"] == "completed"


def test_the_pages_example_request_is_accepted(api: TestClient, workshop: Workshop) -> None:
    (body,) = re.findall(r"-d '(\{.*?\n\})'", PAGE, re.S)
    answer = api.post(
        "/opendsr/v2/requests", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 201, answer.text
