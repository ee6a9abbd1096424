"""Demands that are taken on together are answered as if each had come alone."""

import json
from collections.abc import Sequence

import pytest
from sqlalchemy import func, select

from app.domain.errors import ExpungeError, InvalidInputError, NotFoundError, UnknownRecordsError
from app.evidence.log.tables import LogEntryRow
from app.ledger import outbox, repository
from app.ledger.accepting import Accepted
from app.ledger.new_requests import Call, NewForgetRequest
from app.ledger.tables import ForgetRequestRow
from tests.support.salts import salt_of
from tests.support.workshop import DATASET, Workshop


@pytest.fixture
def trained(workshop: Workshop) -> list[str]:
    workshop.train()
    return workshop.split()[0]


def _calls(workshop: Workshop, *requests: NewForgetRequest) -> list[Call]:
    return [Call(request, workshop.key_id, f"actor-{i}") for i, request in enumerate(requests)]


def _submit(workshop: Workshop, *requests: NewForgetRequest) -> list[Accepted | ExpungeError]:
    with workshop.transaction() as session:
        return workshop.services.acceptance.submit_all(session, _calls(workshop, *requests))


def _naming(*records: str, **more: str) -> NewForgetRequest:
    return NewForgetRequest(DATASET, record_ids=records, **more)


def _epochs(workshop: Workshop, answers: Sequence[Accepted | ExpungeError]) -> list[int]:
    taken = [answer for answer in answers if isinstance(answer, Accepted)]
    return [workshop.request(answer.request_id).forget_epoch for answer in taken]


def test_one_that_is_refused_concerns_no_neighbour(workshop: Workshop, trained: list[str]) -> None:
    answers = _submit(
        workshop,
        _naming(trained[0]),
        _naming("stranger", trained[1]),
        NewForgetRequest("elsewhere", record_ids=["x"]),
        _naming(),
        _naming(trained[2]),
    )

    kinds = [type(answer) for answer in answers]
    assert kinds == [Accepted, UnknownRecordsError, NotFoundError, InvalidInputError, Accepted]
    assert _epochs(workshop, answers) == [1, 2]
    with workshop.transaction() as session:
        assert workshop.record(session, trained[0]).forgotten_epoch == 1
        assert workshop.record(session, trained[1]).forgotten_epoch is None
        assert workshop.record(session, trained[2]).forgotten_epoch == 2
        assert session.scalar(select(func.count()).select_from(ForgetRequestRow)) == 2
    assert workshop.forget(trained[3]) is not None
    assert workshop.request(workshop.forget(trained[4])).forget_epoch == 4


def test_a_record_that_two_name_is_forgotten_with_the_first_and_owed_to_both(
    workshop: Workshop, trained: list[str]
) -> None:
    first, second = _submit(workshop, _naming(trained[0]), _naming(trained[0], trained[1]))

    assert isinstance(first, Accepted)
    assert isinstance(second, Accepted)
    with workshop.transaction() as session:
        assert workshop.record(session, trained[0]).forgotten_epoch == 1
        assert workshop.record(session, trained[1]).forgotten_epoch == 2
        commitments = [
            set(repository.commitments_of(session, of.request_id)) for of in (first, second)
        ]
    assert [len(of) for of in commitments] == [1, 2]
    assert not commitments[0] & commitments[1]
    salts = {salt_of(workshop.services, taken.request_id) for taken in (first, second)}
    assert len(salts) == 2
    for taken in (first, second):
        assert [o.state for o in workshop.obligations(taken.request_id)] == ["open"]


@pytest.mark.parametrize("name", ["external_id", "idempotency_key"])
def test_a_name_that_comes_twice_is_a_replay_or_a_mistake(
    workshop: Workshop, trained: list[str], name: str
) -> None:
    first, again, mistaken = _submit(
        workshop,
        _naming(trained[0], **{name: "ticket"}),
        _naming(trained[0], **{name: "ticket"}),
        _naming(trained[1], **{name: "ticket"}),
    )

    assert isinstance(first, Accepted)
    assert isinstance(again, Accepted)
    assert (first.is_new, again.is_new) == (True, False)
    assert again.request_id == first.request_id
    assert isinstance(mistaken, InvalidInputError)
    assert workshop.forget(trained[0], **{name: "ticket"}) == first.request_id


def test_each_is_logged_under_its_own_caller(workshop: Workshop, trained: list[str]) -> None:
    answers = _submit(workshop, _naming(trained[0]), _naming("record-39"), _naming(trained[1]))

    with workshop.transaction() as session:
        query = select(LogEntryRow.body).where(LogEntryRow.kind == "request.accepted")
        entries = [json.loads(body) for body in session.scalars(query)]
    assert {entry["request"]: entry["by"] for entry in entries} == {
        answer.request_id: f"actor-{i}"
        for i, answer in enumerate(answers)
        if isinstance(answer, Accepted)
    }
    assert len(entries) == 3


def test_a_model_is_woken_once_and_owes_everyone(workshop: Workshop, trained: list[str]) -> None:
    answers = _submit(workshop, *(_naming(record) for record in trained[:5]))

    assert len(workshop.waiting(outbox.Topic.SCHEDULE_MODEL)) == 1
    workshop.unlearn()
    for answer in answers:
        assert isinstance(answer, Accepted)
        assert workshop.request(answer.request_id).state == "certified"


def test_what_is_certified_at_once_stands_beside_what_waits(
    workshop: Workshop, trained: list[str]
) -> None:
    held_out = workshop.split()[1]
    answers = _submit(workshop, _naming(trained[0]), _naming(held_out[0]), _naming(held_out[1]))

    states = [workshop.request(of.request_id).state for of in answers if isinstance(of, Accepted)]
    assert states == ["accepted", "certified", "certified"]
