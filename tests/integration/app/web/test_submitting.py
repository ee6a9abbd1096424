"""Forget requests from the page: previewed, sent, found, cancelled; receipts and answers."""

import json
import re
from datetime import UTC, datetime
from html import unescape

import pytest
from fastapi.testclient import TestClient
from httpx import Response

from app.delivery.publishing import repository as publishing
from app.delivery.publishing.tables import CopyRow
from app.domain.states import Scope
from app.evidence.certificates.receipts import Receipt
from app.ledger.subjects.requests import NewSubjectRequest
from app.registry import repository as registry
from app.registry.datasets import repository
from app.services import Services
from tests.integration.app.web.conftest import VisitorOf, token_in
from tests.support.workshop import DATASET, Workshop


def _sent(page: str, action: str) -> dict[str, str]:
    """Return the hidden fields of the form with this action."""
    (form,) = re.findall(rf'<form[^>]*action="{action}".*?</form>', page, re.S)
    fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form)
    return {name: unescape(value) for name, value in fields}


def _preview(visitor: TestClient, **fields: str) -> str:
    token = token_in(visitor.get("/requests/new").text)
    answer = visitor.post("/requests/preview", data={"token": token, "dataset": DATASET, **fields})
    assert answer.status_code == 200, answer.text
    return answer.text


def _submit(visitor: TestClient, preview: str) -> str:
    answer = visitor.post("/requests", data=_sent(preview, "/requests"))
    assert answer.status_code == 201, answer.text
    return answer.text


def _ids(page: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r'href="/requests/(fr_\w+)"', page)))


def _find(visitor: TestClient, name: str) -> list[str]:
    token = token_in(visitor.get("/requests").text)
    return _ids(visitor.post("/requests/found", data={"token": token, "name": name}).text)


def test_ids_are_previewed_and_sent_once(operator: TestClient, workshop: Workshop) -> None:
    workshop.train()
    learned = workshop.split()[0][:3]

    preview = _preview(
        operator,
        kind="record_ids",
        ids="\r\n".join([*learned, learned[0], ""]),
        external_id=" ticket-1 ",
    )

    assert "It names 3 ids" in preview
    assert "it is made to forget them" in preview
    assert not _ids(operator.get("/requests").text)

    accepted = _submit(operator, preview)
    (request,) = _ids(accepted)
    assert _ids(_submit(operator, preview)) == [request]
    assert workshop.request(request).record_count == 3
    assert _ids(operator.get("/requests").text) == [request]

    fields = _sent(accepted, f"/requests/{request}/receipt")
    receipt = operator.post(f"/requests/{request}/receipt", data=fields)
    assert (
        receipt.headers["content-disposition"] == f'attachment; filename="{request}.receipt.json"'
    )
    assert set(Receipt.from_json(receipt.content).record_ids) == set(learned)
    for wrong in (learned[:2], [*learned, "record-39"], []):
        answer = operator.post(
            f"/requests/{request}/receipt", data={**fields, "record_ids": "\n".join(wrong)}
        )
        assert answer.status_code == 422


def test_a_person_is_forgotten_everywhere_and_found_by_all_names(
    operator: TestClient, workshop: Workshop
) -> None:
    preview = _preview(operator, dataset="", ids="subject-2", external_id="T 7")
    assert "people: 4 records" in preview
    accepted = _submit(operator, preview)
    (request,) = _ids(accepted)
    assert _ids(_submit(operator, preview)) == [request]
    fields = _sent(accepted, f"/requests/{request}/receipt")
    receipt = operator.post(f"/requests/{request}/receipt", data=fields).json()
    assert receipt["subject_ids"] == ["subject-2"]

    for name in ("T 7", "subject-2", "record-8", request):
        assert _find(operator, name) == [request]
    for name in ("t 7", "subject-3", "record-1", "fr_", "subject-unknown"):
        assert _find(operator, name) == []


_ENGINEERS = re.compile(
    r"accountant|attempt|batch|checkpoint|delta|dispatch|embedding|epoch|epsilon|gradient|hyper|"
    r"mechanism|noise|phase|pseudonym|queue|scheduled|seed|shard|tensor|weights|worker|"
    r"\bruns?\b|\bsteps?\b|[εδσ]",
    re.I,
)


def test_the_officers_day_takes_three_pages_without_an_engineers_word(
    operator: TestClient, workshop: Workshop, services: Services
) -> None:
    recipe = {"epochs": 2, "held_out_fraction": 0}  # so each model has learned from everybody
    workshop.train("noisy", recipe=recipe)
    workshop.train("anew", recipe=recipe, mechanism="retraining")
    titles = set()

    def read(answer: Response) -> str:
        """Return what stands on the page; no engineer's word does."""
        body = answer.text.partition("<main")[2]
        text = re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", body)))
        assert _ENGINEERS.findall(text) == [], text
        titles.add(re.search(r"<title>(.*?)</title>", answer.text)[1])  # type: ignore[index]
        return text

    # Find a person everywhere: what is known, and what a request would do.
    start = operator.get("/requests")
    assert "No one has asked to be forgotten yet" in read(start)
    assert '<button type="submit" formaction="/requests/preview">' in start.text
    typed = {"token": token_in(start.text), "name": "subject-2"}
    preview = operator.post("/requests/preview", data=typed)
    previewed = read(preview)
    assert "people: 4 records" in previewed
    assert "noisy it is made to forget them" in previewed
    assert "anew it is trained anew without them" in previewed

    # Send; and tell the person that it is going on.
    sent = operator.post("/requests", data=_sent(preview.text, "/requests"))
    assert "We are working on your request." in read(sent)
    assert "Download the receipt of people" in sent.text

    # Explain why it is not done yet; once it is, answer.
    assert "noisy: waits for its turn" in read(operator.get("/requests"))
    for model in ("noisy", "anew"):
        workshop.unlearn(model)
    services.clean_up()
    assert "Nothing is owed." in read(operator.get("/requests"))
    found = operator.post("/requests/found", data=typed)
    read(found)
    (answer,) = re.findall(r'href="(/requests/fr_\w+/answer)"', found.text)
    letter = read(operator.get(answer))
    assert "Your request has been met." in letter
    assert "The model was made without your records" in letter
    assert "is right at most 56 times in 100" in letter
    assert len(titles) == 3, titles


def test_a_ticket_is_found_among_those_of_other_keys(
    operator: TestClient, visitor_of: VisitorOf, workshop: Workshop
) -> None:
    first = _submit(operator, _preview(operator, ids="subject-1", external_id="same"))
    other = visitor_of(Scope.FORGET_WRITE, Scope.FORGET_READ)
    second = _submit(other, _preview(other, ids="subject-3", external_id="same"))

    assert _find(other, "same") == [*_ids(second), *_ids(first)]


@pytest.mark.parametrize("dataset", [DATASET, ""])
def test_a_ticket_of_the_desk_is_found_through_the_api(
    operator: TestClient, api: TestClient, workshop: Workshop, services: Services, dataset: str
) -> None:
    (request,) = _ids(
        _submit(operator, _preview(operator, dataset=dataset, ids="subject-1", external_id="T 7"))
    )
    opendsr = "0b8a5a2e-5f0c-4f0e-9a5c-0d6d3f1f7a11"
    asked = NewSubjectRequest(opendsr, ["subject-2"], (), "gdpr", datetime.now(UTC))
    with services.database.transaction() as session:
        services.subject_requests.submit(session, asked, api_key_id=workshop.key_id)
    for name, found in (("T 7", [request]), (f"T 7/{DATASET}", [request] * (not dataset))):
        page = api.get("/v1/forget-requests", params={"external_id": name}).json()
        assert [each["id"] for each in page["items"]] == found
    assert len(api.get(f"/v1/forget-requests?external_id={opendsr}").json()["items"]) == 1
    assert api.get("/v1/forget-requests?external_id=T").json()["items"] == []


@pytest.mark.parametrize(
    ("mechanism", "said"),
    [
        ("retraining", "as if they had never been there"),
        ("exact_training", "as if they had never been there"),
        ("gradient_clipping", "nearly so: the certificate says how nearly"),
        ("output_perturbation", "nearly so: the certificate says how nearly"),
    ],
)
def test_a_preview_says_what_each_mechanism_gives(
    operator: TestClient, workshop: Workshop, mechanism: str, said: str
) -> None:
    head = {"architecture": "linear_head", "recipe": {"epochs": 4, "held_out_fraction": 0.25}}
    workshop.train(mechanism=mechanism, **(head if mechanism == "exact_training" else {}))
    record = workshop.split()[0][0]
    preview = _preview(operator, kind="record_ids", ids=record)
    assert f'data-label="Afterwards">{said}<' in preview


@pytest.mark.parametrize(
    ("scopes", "path"),
    [
        ((Scope.FORGET_WRITE,), "/requests/new"),
        ((Scope.FORGET_READ,), "/requests/all"),
    ],
)
def test_a_form_offers_no_name_that_the_api_would_not_list(
    visitor_of: VisitorOf, workshop: Workshop, scopes: tuple[Scope, ...], path: str
) -> None:
    workshop.define("secret-model")
    names = (DATASET, "secret-model")
    assert not any(f">{name}<" in visitor_of(*scopes).get(path).text for name in names)
    knowing = visitor_of(*scopes, Scope.MODELS_READ).get(path).text
    assert any(f">{name}<" in knowing for name in names)


def test_a_name_that_is_not_offered_can_be_given(visitor_of: VisitorOf, workshop: Workshop) -> None:
    visitor = visitor_of(Scope.FORGET_WRITE, Scope.FORGET_READ)
    page = visitor.get("/requests/new").text
    assert '<input id="dataset" name="dataset"' in page
    assert _ids(_submit(visitor, _preview(visitor, ids="subject-1")))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "give at least one id"),
        ({"ids": "x" * 513}, "at most 512 characters"),
        ({"ids": "nobody-knows"}, "nobody-knows"),
        ({"ids": "record-1", "kind": "record_ids", "dataset": ""}, "record_ids have one dataset"),
        ({"ids": "subject-1\nnobody-knows", "dataset": ""}, "nobody-knows"),
        ({"ids": "record-1", "kind": "other"}, "people or of records"),
        ({"ids": "subject-1", "dataset": "other"}, "other"),
        ({"ids": "subject-1", "external_id": "x" * 513}, "ticket"),
        ({"ids": "\n".join(map(str, range(10_001)))}, "10,000"),
    ],
)
def test_what_cannot_be_sent_says_why(
    operator: TestClient, workshop: Workshop, fields: dict[str, str], said: str
) -> None:
    token = token_in(operator.get("/requests/new").text)
    data = {"token": token, "dataset": DATASET, **fields}
    for path in ("/requests/preview", "/requests"):
        answer = operator.post(path, data=data)
        assert answer.status_code in (404, 422)
        assert said in unescape(answer.text)
    assert not _ids(operator.get("/requests").text)


def test_a_damaged_form_is_refused(operator: TestClient, workshop: Workshop) -> None:
    for body, kind in (
        (b"--x\r\n\r\n1\r\n--x--", "multipart/form-data; boundary=x"),
        (b"\xff=1", "application/x-www-form-urlencoded"),
        (b"{}", "application/json"),
    ):
        answer = operator.post("/requests", content=body, headers={"content-type": kind})
        assert answer.status_code in (403, 422), kind
    large = b"x" * (17 << 20)
    kind = "application/x-www-form-urlencoded"
    answer = operator.post("/requests", content=large, headers={"content-type": kind})
    assert answer.status_code == 413


def test_a_request_is_cancelled_and_its_records_stay_forgotten(
    operator: TestClient, workshop: Workshop
) -> None:
    workshop.train()
    request = workshop.forget(workshop.split()[0][0])
    page = operator.get(f"/requests/{request}").text
    fields = _sent(page, f"/requests/{request}/cancel")
    operator.post(f"/requests/{request}/cancel", data=fields)

    with workshop.transaction() as session:
        (dataset,) = repository.datasets(session)
        assert repository.counts(session, dataset.id)[1] == 1
    assert workshop.request(request).state == "cancelled"
    page = operator.get(f"/requests/{request}").text
    assert f"/requests/{request}/cancel" not in page
    assert request in operator.get("/requests").text
    again = operator.post(f"/requests/{request}/cancel", data=fields)
    assert again.status_code == 409


def test_certificates_and_the_answer_to_the_person(
    operator: TestClient, workshop: Workshop, services: Services
) -> None:
    workshop.train()
    record = workshop.split()[0][0]
    request = workshop.forget(record)
    assert "We are working on your request" in operator.get(f"/requests/{request}/answer").text
    assert operator.get(f"/requests/{request}/certificates").json() == []
    workshop.unlearn()
    services.clean_up()

    (found,) = operator.get(f"/requests/{request}/certificates").json()
    path = f"/requests/{request}/certificates/{found['certificate']}"
    assert f'href="{path}"' in operator.get(f"/requests/{request}").text
    one = operator.get(path)
    assert one.headers["content-disposition"].startswith("attachment")
    assert one.json()["request"]
    assert json.dumps(one.json()["envelope"]) == json.dumps(found["bundle"]["envelope"])
    assert operator.get(f"/requests/{request}/certificates/cert_x").status_code == 404

    answer = operator.get(f"/requests/{request}/answer").text
    assert "Your request has been met" in answer
    assert "is right at most 56 times in 100" in answer
    assert "unless requests were chosen by looking at earlier versions" in answer
    assert record not in answer


def test_the_answer_does_not_deny_a_training_that_goes_on(
    operator: TestClient, workshop: Workshop
) -> None:
    workshop.define()
    held = workshop.lease()
    read = workshop.begin(held).retain
    record = workshop.split()[0][0]
    assert workshop.seqs(record) <= read
    assert "no run reads" not in _preview(operator, kind="record_ids", ids=record)

    request = workshop.forget(record)

    answer = operator.get(f"/requests/{request}/answer").text
    assert "have not been used" not in answer
    assert "No training that began since we accepted it uses your records" in answer
    workshop.publish(held)  # which has learned from it


def test_the_answer_waits_for_copies_of_earlier_versions(
    operator: TestClient, workshop: Workshop, services: Services
) -> None:
    version = workshop.train()
    with workshop.transaction() as session:
        model = registry.model_named(session, "model", lock=True)
        place = publishing.want(session, model, "shelf").id
        session.add(CopyRow(id="copy-1", placement_id=place, version_id=version.id))
    request = workshop.forget(workshop.split()[0][0])
    workshop.unlearn()
    services.publisher().settle(place)
    said = "Copies of earlier versions are still being withdrawn"
    assert said in operator.get(f"/requests/{request}/answer").text
    services.clean_up()

    answer = operator.get(f"/requests/{request}/answer").text
    assert said in answer
    assert "has been met" not in answer

    with workshop.transaction() as session:
        row = publishing.locked(session, place)
        publishing.note_done(session, row, generation=row.generation)
    answer = operator.get(f"/requests/{request}/answer").text
    assert said not in answer
    assert "Your request has been met" in answer


def test_a_model_that_is_gone_may_have_learned_from_the_records(
    operator: TestClient, workshop: Workshop
) -> None:
    workshop.train()
    record = workshop.split()[0][0]
    workshop.archive()

    preview = _preview(operator, kind="record_ids", ids=record)
    page = operator.get(f"/requests/{workshop.forget(record)}").text

    for shown in (preview, page):
        assert "No model was trained" not in shown
        assert "No model that exists now has learned from these records" in shown


def test_the_queue_says_why_each_request_waits(operator: TestClient, workshop: Workshop) -> None:
    def reasons() -> str:
        page = re.sub(r"\s+", " ", operator.get("/requests").text)
        return unescape(" ".join(re.findall(r"<li>(.*?)</li>", page.split("<main")[1])))

    assert "No one has asked to be forgotten yet" in operator.get("/requests").text
    workshop.train()
    learned = workshop.split()[0]
    first = workshop.forget(learned[0])
    assert reasons() == "model: waits for its turn"
    workshop.dispatch()
    assert reasons() == "model: waits for its turn, and no computer is there for it"
    held = workshop.begun()
    second = workshop.forget(learned[1])
    assert "came while the model was busy, and is next" in reasons()
    workshop.give_up(held, "it broke")
    assert "model: failed: it broke" in reasons()
    assert _ids(operator.get("/requests").text) == [first, second]
    assert f'action="/requests/{first}/retry"' in operator.get("/requests").text


def test_a_held_request_is_refused_reopened_extended_and_accepted(
    operator: TestClient, workshop: Workshop, visitor_of: VisitorOf
) -> None:
    workshop.train()
    preview = _preview(operator, kind="record_ids", ids=workshop.split()[0][0], hold="yes")
    assert "nothing is forgotten until a person accepts it" in preview
    sent = _submit(operator, preview)
    assert "The request was received" in sent
    (request,) = _ids(sent)
    path = f"/requests/{request}"
    assert "a person has to accept or refuse it" in operator.get("/requests").text
    assert "are examining it" in operator.get(f"{path}/answer").text
    reader = visitor_of(Scope.FORGET_READ)
    assert "/decide" not in reader.get(path).text
    token = {"token": token_in(operator.get(path).text)}

    def decide(**fields: str) -> int:
        answer = operator.post(f"{path}/decide", data=token | fields, follow_redirects=False)
        return answer.status_code

    foreign = {"token": token_in(reader.get(path).text), "choice": "reopen"}
    assert reader.post(f"{path}/decide", data=foreign).status_code == 403
    assert decide(choice="refuse", ground="other") == 422
    assert decide(choice="refuse", ground="none") == 422
    assert decide(choice="extend", text=" ") == 422
    assert decide(choice="refuse", ground="17(3)(e)", text="<b>A lawsuit.</b>") == 303
    for page in (operator.get(path).text, operator.get(f"{path}/answer").text):
        assert "legal claims (GDPR Art. 17(3)(e))" in page
        assert "&lt;b&gt;A lawsuit.&lt;/b&gt;" in page
    assert "lodge a complaint" in operator.get(f"{path}/answer").text
    assert request not in operator.get("/requests").text
    assert decide(choice="reopen") == 303
    assert decide(choice="extend", text="The archive is large.") == 303
    for language, said in (("de", "zwei Monate länger"), ("fr", "deux mois de plus")):
        asked = operator.get(f"{path}/answer", params={"language": language})
        accepted = operator.get(f"{path}/answer", headers={"Accept-Language": f"{language}-CH"})
        for letter in (asked.text, accepted.text):
            assert said in letter
            assert f'lang="{language}"' in letter
            assert "The archive is large." in letter
    letter = operator.get(f"{path}/answer").text
    assert "We need two more months" in letter
    assert "The archive is large." in letter
    accepted = operator.post(f"{path}/accept", data=token, follow_redirects=False)
    assert accepted.status_code == 303
    assert workshop.request(request).state == "accepted"
    assert "We are working on your request" in operator.get(f"{path}/answer").text


def test_corrected_rows_replace_what_is_forgotten(
    operator: TestClient, workshop: Workshop, visitor_of: VisitorOf
) -> None:
    workshop.train()
    record = workshop.split()[0][0]
    row = json.dumps({"record_id": record, "subject_id": "s", "features": [1, 2.5], "label": 0})
    named = {"kind": "record_ids", "ids": record, "replacement": row}
    sender = visitor_of(Scope.FORGET_READ, Scope.FORGET_WRITE)
    assert "Corrected rows" not in sender.get("/requests/new").text
    token = {"token": token_in(sender.get("/requests/new").text), "dataset": DATASET}
    assert sender.post("/requests/preview", data=token | named).status_code == 403
    token["token"] = token_in(operator.get("/requests/new").text)
    unfit = row.replace("2.5", '"a secret"')
    of_nobody = row.replace(record, "another")
    for wrong in ("a secret", "[1]", unfit, of_nobody):
        answer = operator.post("/requests/preview", data=token | named | {"replacement": wrong})
        assert (answer.status_code, wrong in answer.text) == (422, False)

    (request,) = _ids(_submit(operator, _preview(operator, **named)))

    assert workshop.request(request).replacement_count == 1
    assert "1 corrected record has taken their place" in (
        operator.get(f"/requests/{request}/answer").text
    )
