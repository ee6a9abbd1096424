"""A subject request's status follows its forget requests, whoever changes them and when."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest
from sqlalchemy import select, text

from app.delivery.callbacks.tables import CallbackEventRow
from app.domain.errors import ConflictError
from app.domain.states import SubjectRequestStatus
from app.evidence.log.tables import LogEntryRow
from app.ledger import decisions
from app.ledger.subjects.requests import NewSubjectRequest
from app.ledger.subjects.status import status_of
from app.ledger.tables import ForgetRequestRow, SubjectRequestRow
from app.registry.datasets.service import define_dataset
from tests.support.arrays import array_schema
from tests.support.logbook import faults
from tests.support.workshop import DATASET, Workshop, records_parquet

URL = "https://privacy.example/callbacks"


@pytest.mark.parametrize(
    ("states", "status"),
    [
        ([], "completed"),
        (["accepted"], "pending"),
        (["accepted", "accepted"], "pending"),
        (["accepted", "completed"], "in_progress"),
        (["unlearning"], "in_progress"),
        (["certified"], "in_progress"),
        (["failed", "completed"], "in_progress"),
        (["completed", "completed"], "completed"),
        (["cancelled"], "cancelled"),
        (["cancelled", "completed"], "cancelled"),
        (["cancelled", "certified"], "in_progress"),
        (["cancelled", "accepted"], "pending"),
        (["cancelled", "failed"], "in_progress"),
    ],
)
def test_the_status_of_several_requests(states: list[str], status: str) -> None:
    assert status_of(states) == status


@pytest.fixture
def twice(workshop: Workshop) -> tuple[Workshop, str]:
    """A person in two datasets without models; the id of the subject request."""
    schema = array_schema(2)
    with workshop.transaction() as session:
        define_dataset(session, name="more", schema=schema)
    workshop.services.records.push("more", records_parquet(8))
    return workshop, submit(workshop)


def submit(workshop: Workshop, subject: str = "subject-1") -> str:
    asked = NewSubjectRequest(
        subject_request_id=str(uuid4()),
        subject_ids=[subject],
        datasets=[],
        regulation="gdpr",
        submitted_at=datetime.now(UTC),
        status_callback_urls=[URL],
    )
    with workshop.transaction() as session:
        service = workshop.services.subject_requests
        return service.submit(session, asked, api_key_id=workshop.key_id).id


def status(workshop: Workshop, subject_id: str) -> str | None:
    with workshop.transaction() as session:
        return session.get_one(SubjectRequestRow, subject_id).status


def told(workshop: Workshop) -> list[str]:
    with workshop.transaction() as session:
        query = select(CallbackEventRow.type).order_by(CallbackEventRow.sequence)
        return [what.removeprefix("subject_request.") for what in session.scalars(query)]


def test_one_that_was_cancelled_in_a_dataset_is_never_completed(
    twice: tuple[Workshop, str],
) -> None:
    workshop, _ = twice
    workshop.train()
    subject_id = submit(workshop, "subject-0")
    with workshop.transaction() as session:
        mine = ForgetRequestRow.subject_request_id == subject_id
        (owed,) = session.scalars(
            select(ForgetRequestRow.id).where(mine, ForgetRequestRow.state == "accepted")
        ).all()
        workshop.services.forget_requests.cancel(session, owed)

    workshop.services.clean_up()

    with workshop.transaction() as session:
        record = workshop.record(session, "record-0")
        assert (record.forgotten_epoch is None, record.erased_at is None) == (False, True)
    assert status(workshop, subject_id) == SubjectRequestStatus.CANCELLED


def test_what_is_pending_can_be_cancelled_although_a_part_was(
    twice: tuple[Workshop, str],
) -> None:
    workshop, _ = twice
    for name, dataset in (("model", DATASET), ("other", "more")):
        workshop.train(name, dataset=dataset)
    subject_id = submit(workshop, "subject-0")
    with workshop.transaction() as session:
        uuid = session.get_one(SubjectRequestRow, subject_id).subject_request_id
        mine = ForgetRequestRow.subject_request_id == subject_id
        part = session.scalars(select(ForgetRequestRow.id).where(mine)).first()
        workshop.services.forget_requests.cancel(session, part)
    assert status(workshop, subject_id) == SubjectRequestStatus.PENDING

    with workshop.transaction() as session:
        workshop.services.subject_requests.cancel(session, uuid, api_key_id=workshop.key_id)

    assert status(workshop, subject_id) == SubjectRequestStatus.CANCELLED
    with pytest.raises(ConflictError), workshop.transaction() as session:
        workshop.services.subject_requests.cancel(session, uuid, api_key_id=workshop.key_id)


def test_two_that_end_at_the_same_moment_complete_it_once(twice: tuple[Workshop, str]) -> None:
    workshop, subject_id = twice
    with workshop.transaction() as session:
        first, second = session.scalars(select(ForgetRequestRow.id)).all()
    requests = workshop.services.forget_requests
    for request_id in (first, second):
        with workshop.transaction() as session:
            assert requests.erase(session, request_id, wait=True)
    complete = requests.complete
    with workshop.transaction() as one, workshop.transaction() as stale:
        # The second process has seen the first request before that was completed.
        seen = stale.get_one(ForgetRequestRow, first)
        assert complete(one, first)
        one.commit()
        assert seen.state == "certified"
        assert complete(stale, second)

    assert status(workshop, subject_id) == SubjectRequestStatus.COMPLETED
    assert told(workshop) == ["in_progress", "completed"]
    with workshop.transaction() as session:
        kinds = session.scalars(select(LogEntryRow.kind)).all()
    assert kinds.count("subject_request.completed") == 1


def test_who_changes_requests_of_the_same_people_in_another_order_does_not_wait(
    twice: tuple[Workshop, str],
) -> None:
    workshop, first = twice
    second = submit(workshop, "subject-0")
    requests = {}
    with workshop.transaction() as session:
        for request in session.scalars(select(ForgetRequestRow)):
            requests[request.subject_request_id, request.dataset_id] = request.id
    here, there = sorted({dataset for _, dataset in requests})
    for request_id in requests.values():
        with workshop.transaction() as session:
            workshop.services.forget_requests.erase(session, request_id, wait=True)
    complete = workshop.services.forget_requests.complete
    with workshop.transaction() as one, workshop.transaction() as two:
        for session in (one, two):
            session.execute(text("SET LOCAL lock_timeout = '3s'"))
        complete(one, requests[first, here])
        complete(two, requests[second, there])
        complete(one, requests[second, here])
        complete(two, requests[first, there])
        one.commit()
    assert {status(workshop, subject) for subject in (first, second)} == {"completed"}


def test_nothing_is_cancelled_unless_everything_is(twice: tuple[Workshop, str]) -> None:
    workshop, _ = twice
    workshop.services.clean_up()
    workshop.train()
    third = workshop.forget(subjects=["subject-2"])
    subject_id = submit(workshop)
    with workshop.transaction() as session:
        row = session.get_one(SubjectRequestRow, subject_id)
        uuid = row.subject_request_id

    with pytest.raises(ConflictError), workshop.transaction() as session:
        workshop.services.subject_requests.cancel(session, uuid, api_key_id=workshop.key_id)

    assert workshop.request(third).state == "accepted"
    with workshop.transaction() as session:
        query = select(ForgetRequestRow.state).where(
            ForgetRequestRow.subject_request_id == subject_id
        )
        assert "cancelled" not in session.scalars(query).all()


def test_its_deadline_is_the_latest_of_its_parts(twice: tuple[Workshop, str]) -> None:
    workshop, _ = twice
    with workshop.transaction() as session:
        first, other = session.scalars(select(ForgetRequestRow)).all()
        decisions.extend(session, first.id, "many requests")
    with workshop.transaction() as session:
        due_at = session.get_one(ForgetRequestRow, first.id).due_at
        assert due_at > session.get_one(ForgetRequestRow, other.id).due_at
        assert session.scalars(select(SubjectRequestRow)).one().due_at == due_at
        extended = CallbackEventRow.type == "subject_request.extended"
        told = session.scalars(select(CallbackEventRow).where(extended)).one()
        assert told.facts["expected_completion_time"] == due_at.astimezone(UTC).isoformat()
    assert faults(workshop.services) == []
