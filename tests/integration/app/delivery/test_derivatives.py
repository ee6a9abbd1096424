"""Teams that made something of a version are told when it is withdrawn, and answer."""

import io
import logging

import pytest
from fastapi.testclient import TestClient
from standardwebhooks import Webhook

from app.access import api_keys
from app.cli.application import create_app
from app.delivery.callbacks.deliverer import Deliverer, Terms
from app.delivery.callbacks.posting import Poster
from app.domain.states import Scope
from app.evidence.certificates.signing import statement_of
from app.ledger import dossiers
from app.runtime.settings import Settings
from app.services import Services
from tests.support.dumps import everything_in_postgres
from tests.support.logbook import bodies
from tests.support.patience import until
from tests.support.receiver import Receiver, status
from tests.support.workshop import Workshop

PATH = "/v1/models/model/derivatives"
CONTACT = "someone@shop.example"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow_private": True})


def _caller(services: Services, *scopes: Scope) -> TestClient:
    with services.database.transaction() as session:
        _, secret = api_keys.create_key(session, name="caller", scopes=scopes)
    return TestClient(create_app(services), headers={"Authorization": f"Bearer {secret}"})


def _deliver(services: Services) -> None:
    deliverer = Deliverer(
        services.database,
        services.callbacks.keys,
        Poster(timeout_s=30.0, allow_private=True),
        lambda: services.processor_signer,
        Terms(base_url="https://expunge.example"),
    )
    while deliverer.tick():
        until(lambda: not deliverer._going)


def test_a_team_is_told_once_and_answers_and_the_dossier_says_so(
    workshop: Workshop, services: Services, receiver: Receiver
) -> None:
    logged = io.StringIO()
    handler = logging.StreamHandler(logged)
    logging.getLogger().addHandler(handler)
    workshop.train()
    api = _caller(services, Scope.FORGET_WRITE, Scope.MODELS_READ)
    body = {
        "name": "bot",
        "version": 1,
        "contact": CONTACT,
        "callback": f"http://127.0.0.1:{receiver.port}/sesame",
    }
    assert _caller(services, Scope.MODELS_READ).post(PATH, json=body).status_code == 403
    assert _caller(services, Scope.FORGET_WRITE).get(PATH).status_code == 403
    made = api.post(PATH, json=body)
    assert (made.status_code, made.json()["told_at"]) == (201, None)
    assert api.post(PATH, json=body).status_code == 409
    path = f"{PATH}/{made.json()['id']}/acknowledge"
    assert api.post(path, json={"answer": "too early"}).status_code == 409

    workshop.forget(workshop.split()[0][0])
    workshop.unlearn()
    receiver.answers = [status(503)]
    _deliver(services)
    with services.database.transaction() as session:
        session.connection().exec_driver_sql("UPDATE callback_events SET next_attempt_at = now()")
    _deliver(services)
    (_, told) = receiver.received
    secret = api.get("/v1/callback-secret").json()["secret"]
    message = Webhook(secret).verify(told.body, told.headers)
    assert (message["type"], message["data"]["version"]) == ("derivative.withdrawn", 1)
    assert message["data"]["links"]["acknowledge"] == f"https://expunge.example{path}"

    def dossier() -> tuple[list[str], str]:
        with services.database.snapshot() as session:
            files, signed = dossiers.collect(
                session, "model", "model", given={}, signer=services.signer
            )
        return statement_of(signed)["predicate"]["open"], files["answers.html"]

    assert "bot, made of model v1, was told and has not answered" in dossier()[0]
    answered = api.post(path, json={"answer": "trained anew"}).json()
    assert (answered["answer"], answered["contact"]) == ("trained anew", CONTACT)
    assert api.post(path, json={"answer": "again"}).status_code == 409
    assert not any("bot" in each for each in dossier()[0])
    assert "trained anew" in dossier()[1]
    late = api.post(PATH, json={**body, "name": "late"}).json()
    assert late["told_at"]  # the version was withdrawn before

    logging.getLogger().removeHandler(handler)
    for text in (logged.getvalue(), str(bodies(services)), str(dossier())):
        assert CONTACT not in text
        assert "sesame" not in text
    assert CONTACT not in everything_in_postgres(services.database.engine)
