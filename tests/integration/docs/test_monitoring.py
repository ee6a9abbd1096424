"""Alert rules, dashboard and page for operators: of nothing but what is really exported."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from rq import Worker
from rq.serializers import JSONSerializer

from app.cli.application import create_app
from app.delivery.publishing import repository as publishing
from app.domain.states import Phase
from app.ledger import runs
from app.operations.monitoring.queue_state import QUEUE, note_dispatcher
from app.registry import repository as registry
from app.runtime.locations import redis_connection
from app.runtime.settings import FolderPublisher
from app.services import Services, open_services
from tests.support.workshop import LEASE_S, Workshop

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations"
ALERTS = yaml.safe_load((OPERATIONS / "alerts.yml").read_text())
DASHBOARD = json.loads((OPERATIONS / "dashboard.json").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
# Added by Prometheus when it scrapes.
SCRAPED = {"job", "instance"}
HEAD = {"epochs": 4, "batch_size": 4, "held_out_fraction": 0.25, "weight_decay": 0.05}
_SUFFIXES = ("_bucket", "_count", "_sum", "_gcount", "_gsum", "_created")
DURATION = re.compile(r"\d+[smhd]")


@pytest.fixture
def exported(services: Services, tmp_path: Path) -> dict[str, set[str]]:
    """Return the labels of every sample that a service at work exports, by its name."""
    workshop = Workshop(services)
    workshop.train("head", architecture="linear_head", mechanism="tracked_release", recipe=HEAD)
    workshop.train()
    _publish_and_supersede(workshop, tmp_path)
    workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    held = workshop.begun()
    with workshop.transaction() as session:
        progress = {"phase": Phase.UNLEARNING, "step": 1, "total_steps": 2}
        runs.heartbeat(session, held.run_id, held.token, lease_s=LEASE_S, progress=progress)
    redis = redis_connection(services.settings)
    redis.flushdb()
    worker = Worker([QUEUE], connection=redis, serializer=JSONSerializer)
    worker.register_birth()
    note_dispatcher(redis, "dispatcher_1")
    public = open_services(services.settings.model_copy(update={"metrics_public": True}))
    client = TestClient(create_app(public))
    client.get("/livez")
    text = client.get("/metrics").text
    worker.register_death()
    public.database.dispose()
    found: dict[str, set[str]] = {"up": set()}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def _publish_and_supersede(workshop: Workshop, folder: Path) -> None:
    """Leave a version at a target that should be gone from there."""
    shelf = FolderPublisher(kind="folder", path=folder)
    settings = workshop.services.settings.model_copy(update={"publishers": {"shelf": shelf}})
    workshop.train("published")
    with workshop.transaction() as session:
        model = registry.model_named(session, "published", lock=True)
        placement = publishing.want(session, model, "shelf").id
    assert replace(workshop.services, settings=settings).publisher().settle(placement)
    workshop.retrain("published")
    workshop.work("published")


def _selectors(node: Any) -> Iterator[Any]:
    """Yield every selector of a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for part in ("expr", "lhs", "rhs", "vector_selector"):
        if getattr(node, part, None) is not None:
            yield from _selectors(getattr(node, part))
    for argument in getattr(node, "args", None) or ():
        yield from _selectors(argument)


def _labels_grouped_by(expression: str) -> set[str]:
    groups = re.findall(r"(?:by|without)\s*\(([^)]*)\)", expression)
    return {label.strip() for group in groups for label in group.split(",")}


def _expressions() -> list[tuple[str, str]]:
    of_rules = [(rule.get("alert", rule.get("record")), rule["expr"]) for rule in RULES]
    of_panels = [(p["title"], target["expr"]) for p in PANELS for target in p["targets"]]
    return of_rules + of_panels


def test_every_metric_and_label_in_an_expression_is_exported(
    exported: dict[str, set[str]],
) -> None:
    assert len(_expressions()) > 50
    for where, expression in _expressions():
        used: set[str] = set()
        selectors = list(_selectors(promql_parser.parse(expression)))
        assert selectors, where
        for selector in selectors:
            assert selector.name in exported, (where, selector.name)
            used |= exported[selector.name]
            matched = {matcher.name for matcher in selector.matchers.matchers}
            assert matched <= exported[selector.name] | SCRAPED, (where, selector.name)
        assert _labels_grouped_by(expression) <= used | SCRAPED, where


def test_every_family_of_ours_is_on_the_dashboard_or_in_a_rule(
    exported: dict[str, set[str]],
) -> None:
    everything = " ".join(expression for _, expression in _expressions())
    unused = {
        name
        for name in exported
        if name.startswith("expunge_")
        and not name.endswith(("_sum", "_count", "_gsum", "_gcount", "_created"))
        and name not in everything
    }
    assert unused == set()


def test_every_figure_is_explained(exported: dict[str, set[str]]) -> None:
    lines = (OPERATIONS / "README.md").read_text().splitlines()
    page = "".join(line for line in lines if line.startswith("* `expunge_"))
    for name, labels in exported.items():
        family = name
        for suffix in _SUFFIXES:
            family = family.removesuffix(suffix)
        if not family.startswith("expunge_"):
            continue
        (told,) = set(re.findall(rf"`{family}(\{{[^`]*\}})?`", page)) or {None}
        assert told is not None, family
        assert set(told.strip("{}").split(",")) - {""} == labels - {"le"}, family
