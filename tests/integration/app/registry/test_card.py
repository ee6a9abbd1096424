"""The model card: complete, true to the certificate, and with commands that work."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from markdown_it import MarkdownIt

from app.cli.application import create_app
from app.evidence.certificates.signing import statement_of
from app.ledger.certificates import issuing
from app.registry import repository as registry
from app.registry.card import model_card
from app.registry.tables import VersionRow
from app.registry.tasks import task_of
from app.services import Services
from tests.support.patience import PATIENCE_S
from tests.support.serving import serve
from tests.support.shops import TASKS, define_shop_model, push_shops
from tests.support.trust import trust_in
from tests.support.weights import weights_of_version
from tests.support.workshop import Workshop

_REPOSITORY = Path(__file__).parents[4]
SECTIONS = [
    "What it is",
    "How it was trained",
    "What was forgotten",
    "What is guaranteed",
    "What is not covered",
    "What it rests on",
    "Evaluation (outside the guarantee)",
    "How to verify",
]


def _card(api: TestClient, number: int = 1) -> str:
    answer = api.get(f"/v1/models/model/versions/{number}/card")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
    return answer.text


def _section(card: str, title: str) -> str:
    return card.split(f"## {title}\n")[1].split("\n## ", maxsplit=1)[0]


def _forget(workshop: Workshop, *records: str) -> VersionRow:
    workshop.forget(*records)
    workshop.dispatch()
    return workshop.work()


def test_a_card_has_every_section_and_says_what_the_certificate_says(
    api: TestClient, workshop: Workshop
) -> None:
    workshop.train()
    version = _forget(workshop, *workshop.split()[0][:3])
    with workshop.transaction() as session:
        envelope = issuing.certificate(session, version.certificate_id).envelope
    predicate = statement_of(envelope)["predicate"]

    card = _card(api, 2)

    assert card.startswith("# model, version 2\n")
    assert re.findall(r"^## (.*)$", card, re.MULTILINE) == SECTIONS
    assert version.sha256 in card
    assert '"batch_size": 4' in _section(card, "How it was trained")
    forgotten = _section(card, "What was forgotten")
    assert "3 records, of 1 forget request:" in forgotten
    assert "Its run began at" in _section(card, "How it was trained")
    assert predicate["forgotten"]["covered"]["root"] in forgotten
    assert predicate["guarantee"]["reference"] in _section(card, "What is guaranteed")
    rests_on = _section(card, "What it rests on")
    assert predicate["accountant"]["source"] in rests_on
    for assumption in predicate["assumptions"]:
        assert assumption["statement"] in rests_on
    assert predicate["scope"] in _section(card, "What is not covered")
    assert "not covered" in _section(card, "Evaluation (outside the guarantee)")
    assert "held out records" in _section(card, "Evaluation (outside the guarantee)")


def test_a_card_names_no_record_and_no_person(api: TestClient, workshop: Workshop) -> None:
    workshop.train()
    workshop.forget(workshop.split()[0][0], external_id="ticket-7")
    workshop.forget(subjects=["subject-3"])
    workshop.unlearn()

    for number in (1, 2):
        card = _card(api, number)
        assert not re.search(r"record-\d|subject-\d|ticket-7|fr_|blob_|ver_", card)


def test_a_card_names_no_run_where_a_request_was_certified_without_one(
    api: TestClient, workshop: Workshop
) -> None:
    workshop.train(
        architecture="linear_head",
        recipe={"epochs": 4, "batch_size": 4, "held_out_fraction": 0.25},
        mechanism="tracked_release",
        epsilon=20.0,
        parameters={"noise_std": 5.0},
    )
    workshop.forget(workshop.split()[0][0])

    card = _card(api)

    assert "without a run" in _section(card, "How it was trained")
    assert "run began" not in card
    assert "1 records, of 1 forget request: " in _section(card, "What was forgotten")


def test_before_anyone_has_asked_the_card_says_so(api: TestClient, workshop: Workshop) -> None:
    workshop.train()

    assert "No record yet" in _section(_card(api), "What was forgotten")


def test_a_card_does_not_deny_what_was_asked_during_the_run(
    api: TestClient, workshop: Workshop
) -> None:
    workshop.define()
    held = workshop.begun()
    workshop.forget(workshop.split()[0][0])
    workshop.publish(held)
    said = _section(_card(api), "What was forgotten")
    assert "when its run began, none of the records that it was trained on" in said


def test_a_model_released_as_trained_claims_nothing(api: TestClient, workshop: Workshop) -> None:
    workshop.train(first_release="as_trained")

    card = _card(api)

    assert "No record is protected" in _section(card, "What is guaranteed")
    assert "Nothing" in _section(card, "What was forgotten")
    assert "ε" not in card


def test_weights_from_elsewhere_are_not_said_to_be_trained_here(
    api: TestClient, workshop: Workshop
) -> None:
    workshop.define(upload=True)
    workshop.upload("model")
    workshop.work()

    told = _section(_card(api), "How it was trained")

    assert "were imported" in told
    assert "Trained by this service" not in told


def test_the_card_of_a_retired_version_says_why_and_offers_no_download(
    api: TestClient, workshop: Workshop
) -> None:
    workshop.train()
    _forget(workshop, workshop.split()[0][0])

    card = _card(api, 1)

    assert "This version is retired" in card
    assert "replaced by version 2, to meet forget requests" in card
    assert "expunge download" not in card
    assert "model.sig" not in card


MEASURED = {
    "held_out_records": 15,
    "held_out_loss": 0.021234567,
    "headline": "mae",
    "metrics": {"r2": 0.87, "rmse": 210.5678, "mae": 151.23456},
}


def test_a_card_of_a_table_names_task_inputs_and_target_and_the_figures_headline_first(
    api: TestClient, workshop: Workshop
) -> None:
    push_shops(workshop)
    define_shop_model(workshop, "huber")
    workshop.evaluation = MEASURED
    workshop.work()

    card = _card(api)

    what = _section(card, "What it is")
    assert "| task | regression: 1 number, Huber's loss with threshold 1 |" in what
    assert "records like those that it was trained on" in what
    fences = [each for each in MarkdownIt().parse(what) if each.type == "fence"]
    assert json.loads(fences[0].content) == {**TASKS["huber"], "threshold": 1.0}
    told = _section(card, "Evaluation (outside the guarantee)")
    assert "not covered by the guarantee" in told
    assert re.findall(r"^\| (.*) \| (.*) \|$", told, re.MULTILINE)[1:] == [
        ("held out records", "15"),
        ("mean absolute error", "151.2"),
        ("R²", "0.87"),
        ("root mean squared error", "210.6"),
        ("mean loss", "0.02123"),
    ]
    assert "accuracy" not in card
    assert "classes" not in card


def _facts(workshop: Workshop) -> dict[str, Any]:
    with workshop.transaction() as session:
        model = registry.model_named(session, "model")
        version = registry.version_numbered(session, model, 1)
        schema = task_of(model).schema()
        certificate = issuing.certificate(session, version.certificate_id)
        session.expunge_all()
    predicate = statement_of(certificate.envelope)["predicate"]
    facts = {"model": model, "version": version, "schema": schema, "predicate": predicate}
    return facts | {"served": True}


def test_no_text_of_a_definition_breaks_out_of_its_fence(workshop: Workshop) -> None:
    workshop.train()
    honest = _facts(workshop)
    options = {"a": "```\n````\n# Certified harmless", "`````": 1}
    architecture = {"name": "custom", "options": options}

    honest["model"].architecture = architecture
    tokens = MarkdownIt().parse(model_card(**honest))

    headings = [tokens[i + 1].content for i, t in enumerate(tokens) if t.type == "heading_open"]
    assert headings == ["model, version 1", *SECTIONS]
    fences = [token for token in tokens if token.type == "fence" and token.info == "json"]
    assert architecture in [json.loads(fence.content) for fence in fences]


@pytest.mark.slow
def test_the_commands_on_the_card_run_and_succeed(
    services: Services, admin_key: str, workshop: Workshop, api: TestClient, tmp_path: Path
) -> None:
    workshop.train()
    _forget(workshop, workshop.split()[0][0])
    commands = re.findall(r"^```sh\n(.*?)\n```$", _card(api, 2), re.MULTILINE | re.DOTALL)
    assert len(commands) == 3
    (tmp_path / "trusted-keys.json").write_bytes(trust_in(services))
    (tmp_path / "model-signing-p256.pub").write_text(services.model_signer.public_key_pem)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(_REPOSITORY),
        "EXPUNGE_API_KEY": admin_key,
        "HOME": str(tmp_path),
    }

    with serve(create_app(services)) as url:
        for command in commands:
            ran = subprocess.run(
                ["bash", "-eu", "-c", command],
                cwd=tmp_path,
                env=environment | {"EXPUNGE_API_URL": url},
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr

    assert (tmp_path / "model-v2.safetensors").read_bytes() == weights_of_version(2)
