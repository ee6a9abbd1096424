"""What becomes of a forget request, from acceptance to completion."""

import json
from datetime import timedelta

import pytest
from sqlalchemy import event, func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.access.api_keys import create_key
from app.domain.errors import ConflictError, GoneError, InvalidInputError, UnknownRecordsError
from app.domain.ids import commitment
from app.domain.states import Scope, Serving
from app.evidence.certificates.signing import statement_of
from app.evidence.certificates.verification import verify
from app.evidence.log.tables import LogEntryRow
from app.ledger import repository
from app.ledger.certificates import bundles, issuing
from app.ledger.models import serving
from app.ledger.new_requests import NewForgetRequest
from app.ledger.requests import ForgetRequests
from app.ledger.tables import ForgetRequestRow, ForgottenRecordRow, ObligationRow
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from tests.support.dumps import everything_in_postgres
from tests.support.markers import Marker, search_bytes
from tests.support.salts import salt_of
from tests.support.trust import trust_in
from tests.support.weights import WEIGHTS
from tests.support.workshop import DATASET, Workshop, record_ids

PERSON = "alice.liddell@example.com"


def _counts(workshop: Workshop) -> tuple[int, int, int]:
    with workshop.transaction() as session:
        return datasets.counts(session, datasets.dataset_named(session, DATASET).id)


def test_unknown_ids_are_counted_and_twenty_are_named_and_nothing_changes(
    workshop: Workshop,
) -> None:
    workshop.train()

    def state() -> list[object]:
        with workshop.transaction() as session:
            return [
                session.scalar(select(func.count()).select_from(table))
                for table in (ForgetRequestRow, ForgottenRecordRow, ObligationRow, LogEntryRow)
            ] + [datasets.dataset_named(session, DATASET).forget_epoch]

    before = state()
    unknown = [f"stranger-{i}" for i in range(30)]

    with pytest.raises(UnknownRecordsError) as caught:
        workshop.forget("record-1", *unknown, subjects=["nobody"])

    assert caught.value.count == 31
    assert len(caught.value.examples) == 20
    assert set(caught.value.examples) <= {*unknown, "nobody"}
    assert not any(example in str(caught.value) for example in caught.value.examples)
    assert state() == before
    assert _counts(workshop) == (40, 0, 0)


def test_a_request_must_name_someone(workshop: Workshop) -> None:
    with pytest.raises(InvalidInputError):
        workshop.forget()


@pytest.mark.parametrize("name", ["external_id", "idempotency_key"])
def test_the_same_call_again_is_the_same_request(workshop: Workshop, name: str) -> None:
    first = workshop.forget("record-1", "record-2", **{name: "ticket"})
    again = workshop.forget("record-2", "record-1", **{name: "ticket"})

    assert again == first
    with pytest.raises(InvalidInputError):
        workshop.forget("record-3", **{name: "ticket"})
    assert _counts(workshop)[0] == 38


def test_a_repeated_key_with_another_external_id_is_another_body(workshop: Workshop) -> None:
    workshop.forget("record-1", external_id="ticket-1", idempotency_key="key-1")
    workshop.forget("record-2", external_id="ticket-2", idempotency_key="key-2")

    with pytest.raises(InvalidInputError):
        workshop.forget("record-1", external_id="ticket-3", idempotency_key="key-1")
    with pytest.raises(InvalidInputError):
        workshop.forget("record-1", external_id="ticket-1", idempotency_key="key-2")


def test_external_ids_of_two_callers_do_not_meet(workshop: Workshop) -> None:
    first = workshop.forget("record-1", external_id="ticket")
    with workshop.transaction() as session:
        workshop.key_id = create_key(session, name="other", scopes=[Scope.ADMIN])[0].id

    assert workshop.forget("record-2", external_id="ticket") != first


@pytest.mark.parametrize("name", ["external_id", "idempotency_key"])
def test_a_callers_name_of_a_request_is_in_no_table(workshop: Workshop, name: str) -> None:
    request_id = workshop.forget("record-1", **{name: PERSON})

    stored = everything_in_postgres(workshop.services.database.engine)
    assert request_id in stored
    assert search_bytes({"postgres": stored.encode()}, [Marker("a person", PERSON.encode())]) == []
    assert workshop.forget("record-1", **{name: PERSON}) == request_id


def test_a_name_is_hashed_in_a_domain_of_its_use(workshop: Workshop) -> None:
    request_id = workshop.forget("record-1", external_id=PERSON, idempotency_key=PERSON)

    row = workshop.request(request_id)
    pseudonyms = workshop.services.forget_requests.pseudonyms
    assert row.external_key == pseudonyms.external_id(PERSON)
    assert row.idempotency_key == pseudonyms.idempotency_key(PERSON)
    assert row.external_key != row.idempotency_key
    assert workshop.forget("record-2", external_id="another") != request_id


def test_records_in_no_model_are_erased_and_the_request_completes(workshop: Workshop) -> None:
    request_id = workshop.forget("record-1")
    workshop.services.clean_up()

    assert workshop.request(request_id).state == "completed"
    assert workshop.obligations(request_id) == []
    assert _counts(workshop) == (39, 0, 1)


def test_every_model_on_the_dataset_owes_one_obligation(workshop: Workshop) -> None:
    names = [workshop.define(f"model-{i}") for i in range(3)]
    for name in names:
        workshop.work(name)

    request_id = workshop.forget(subjects=["subject-0", "subject-1", "subject-2"])

    obligations = workshop.obligations(request_id)
    assert {o.model_id for o in obligations} == {workshop.model(name).id for name in names}
    assert {o.state for o in obligations} == {"open"}
    workshop.dispatch()
    for done, name in enumerate(names, start=1):
        workshop.work(name)
        state = workshop.request(request_id).state
        assert state == ("certified" if done == 3 else "unlearning")


def test_a_request_that_cannot_be_erased_holds_up_no_other(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the error is; only without a database nothing more is tried."""
    requests = [workshop.forget("record-1"), workshop.forget("record-2")]
    erase, tried = ForgetRequests.erase, list[str]()

    def states() -> list[str]:
        return sorted(workshop.request(each).state for each in requests)

    def fail(self: ForgetRequests, session: Session, request_id: str, *, wait: bool) -> bool:
        tried.append(request_id)
        if request_id == tried[0]:
            raise error
        return erase(self, session, request_id, wait=wait)

    monkeypatch.setattr(ForgetRequests, "erase", fail)
    for error, expected in (
        (OperationalError("SELECT", {}, Exception("gone")), ["certified", "certified"]),
        (ValueError("unexpected"), ["certified", "completed"]),
    ):
        with pytest.raises(type(error)):
            workshop.services.clean_up()
        assert states() == expected
    monkeypatch.undo()
    workshop.services.clean_up()
    assert states() == ["completed", "completed"]


def test_what_was_forgotten_before_completes_at_once_with_a_certificate_of_its_own(
    workshop: Workshop,
) -> None:
    workshop.train()
    trained, _ = workshop.split()
    workshop.forget(trained[0])
    version = workshop.unlearn()
    workshop.services.clean_up()

    again = workshop.forget(trained[0])
    workshop.services.clean_up()

    (obligation,) = workshop.obligations(again)
    with workshop.transaction() as session:
        second = issuing.certificate(session, obligation.certificate_id)
        first = issuing.certificate(session, version.certificate_id)
    assert second.version_id == version.id
    predicate = statement_of(second.envelope)["predicate"]
    assert predicate["previous_certificate"] == first.sha256
    assert predicate["guarantee"] == statement_of(first.envelope)["predicate"]["guarantee"]
    assert workshop.request(again).state == "completed"
    workshop.dispatch()
    assert workshop.active_run() is None


def test_a_record_whose_forgetting_is_still_owed_is_owed_again(workshop: Workshop) -> None:
    workshop.train()
    trained, _ = workshop.split()
    workshop.forget(trained[0])

    again = workshop.forget(trained[0])

    assert [o.state for o in workshop.obligations(again)] == ["open"]


def test_held_out_records_complete_at_once_with_an_exclusion_certificate_that_verifies(
    workshop: Workshop, tmp_path
) -> None:
    workshop.train()
    _, held_out = workshop.split()

    request_id = workshop.forget(*held_out[:2])
    workshop.services.clean_up()

    assert workshop.request(request_id).state == "completed"
    (obligation,) = workshop.obligations(request_id)
    assert (obligation.state, obligation.basis) == ("certified", "excluded_from_training")
    with workshop.transaction() as session:
        certificate = issuing.certificate(session, obligation.certificate_id)
        bundle = bundles.bundle_of(
            session, certificate, signer=workshop.services.signer, request_id=request_id
        )
    weights = tmp_path / "weights"
    weights.write_bytes(WEIGHTS)
    predicate = verify(
        bundle=json.dumps(bundle).encode(),
        weights=weights,
        trusted=trust_in(workshop.services),
    )
    assert predicate["basis"] == "excluded_from_training"
    assert predicate["forgotten"]["records"] == 2
    assert workshop.active_run() is None


def test_held_out_rows_of_uploaded_weights_count_as_touched(workshop: Workshop) -> None:
    workshop.define(upload=True)
    workshop.upload("model")
    workshop.work()
    _, held_out = workshop.split()

    request_id = workshop.forget(held_out[0])

    (obligation,) = workshop.obligations(request_id)
    assert (obligation.state, obligation.basis) == ("open", "unlearned")


def test_records_that_came_after_training_are_no_part_of_the_model(workshop: Workshop) -> None:
    workshop.train()
    workshop.push(4, first=100)

    request_id = workshop.forget("record-101")

    assert workshop.obligations(request_id) == []
    assert workshop.request(request_id).state == "certified"


def test_the_deadline_is_the_shortest_of_the_models(workshop: Workshop) -> None:
    workshop.define("slow", deadline_s=3600.0)
    workshop.define("fast", deadline_s=60.0)

    request = workshop.request(workshop.forget("record-1"))

    assert request.due_at - request.received_at == timedelta(seconds=60)


def test_without_models_the_deadline_is_thirty_days(workshop: Workshop) -> None:
    request = workshop.request(workshop.forget("record-1"))

    assert request.due_at - request.received_at == timedelta(days=30)


def test_the_receipt_salt_opens_every_commitment(workshop: Workshop) -> None:
    request = workshop.request(workshop.forget("record-9", subjects=["subject-0", "subject-2"]))

    with workshop.transaction() as session:
        commitments = set(repository.commitments_of(session, request.id))
    salt = salt_of(workshop.services, request.id)
    expected = {commitment("record", "record-9", 0, salt=salt)}
    for subject, ordinals in (("subject-0", (0, 1, 2, 3)), ("subject-2", (0, 2, 3))):
        for ordinal in ordinals:
            expected.add(commitment("subject", subject, ordinal, salt=salt))
    assert commitments == expected
    assert request.record_count == 8


def test_forgetting_many_records_takes_a_handful_of_statements(workshop: Workshop) -> None:
    workshop.push(2000, first=1000)
    workshop.train()
    statements: list[object] = []
    event.listen(
        workshop.services.database.engine,
        "before_cursor_execute",
        lambda _c, _cur, statement, *_: statements.append(statement),
    )

    workshop.forget(*record_ids(2000, first=1000))

    assert 5 < len(statements) < 40


def test_what_a_cancelled_request_named_is_forgotten_all_the_same(workshop: Workshop) -> None:
    workshop.train()
    trained, _ = workshop.split()
    cancelled = workshop.forget(trained[0])

    workshop.cancel(cancelled)

    assert {o.state for o in workshop.obligations(cancelled)} == {"open"}
    workshop.services.clean_up()
    assert _counts(workshop) == (39, 1, 0)
    assert workshop.push_again(trained[0]).added == 1
    workshop.unlearn()
    assert {o.state for o in workshop.obligations(cancelled)} == {"certified"}
    workshop.services.clean_up()
    assert _counts(workshop) == (40, 0, 1)
    request = workshop.request(cancelled)
    assert (request.state, request.completed_at is None) == ("cancelled", False)


def test_a_cancelled_request_that_a_model_fails_can_be_retried(workshop: Workshop) -> None:
    workshop.train()
    cancelled = workshop.forget(workshop.split()[0][0])
    workshop.cancel(cancelled)
    workshop.dispatch()
    held = workshop.begun()
    workshop.give_up(held)
    request = workshop.request(cancelled)
    assert (request.state, request.failure_reason is None) == ("cancelled", False)

    with workshop.transaction() as session:
        workshop.services.forget_requests.retry(session, cancelled)
    workshop.unlearn()

    assert {o.state for o in workshop.obligations(cancelled)} == {"certified"}
    assert workshop.request(cancelled).failure_reason is None
    with pytest.raises(ConflictError), workshop.transaction() as session:
        workshop.services.forget_requests.retry(session, cancelled)


def test_a_model_stays_withdrawn_for_a_cancelled_request(workshop: Workshop) -> None:
    workshop.train(serving=Serving.WITHDRAW_ON_REQUEST)
    workshop.cancel(workshop.forget(workshop.split()[0][0]))

    with workshop.transaction() as session, pytest.raises(GoneError):
        serving.current_version(session, registry.model_named(session, "model"))
    workshop.unlearn()
    with workshop.transaction() as session:
        assert serving.current_version(session, registry.model_named(session, "model")).number == 2


def test_an_id_names_every_record_that_was_pushed_with_it(workshop: Workshop) -> None:
    first = workshop.forget("record-9")
    workshop.push_again("record-9")
    replaced = workshop.replace("record-9").forget_request
    assert replaced is not None
    third = workshop.forget("record-9")

    counts = [workshop.request(each).record_count for each in (first, replaced, third)]
    assert counts == [1, 2, 3]
    salt = salt_of(workshop.services, third)
    with workshop.transaction() as session:
        commitments = set(repository.commitments_of(session, third))
    assert commitments == {
        commitment("record", "record-9", number, salt=salt) for number in range(3)
    }


def test_a_request_in_a_run_cannot_be_cancelled(workshop: Workshop) -> None:
    workshop.train()
    request_id = workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    workshop.begin(workshop.lease())

    with pytest.raises(ConflictError), workshop.transaction() as session:
        workshop.services.forget_requests.cancel(session, request_id)


def test_a_request_that_a_run_takes_up_meanwhile_is_not_cancelled(workshop: Workshop) -> None:
    """The finding: what was read before the lock counted."""
    workshop.train()
    request_id = workshop.forget(workshop.split()[0][0])
    workshop.dispatch()

    with workshop.transaction() as session:
        seen = repository.request(session, request_id)
        assert seen.state == "accepted"
        workshop.begin(workshop.lease())
        with pytest.raises(ConflictError, match="unlearning"):
            workshop.services.forget_requests.cancel(session, request_id)


def test_only_a_failed_request_can_be_retried(workshop: Workshop) -> None:
    request_id = workshop.forget("record-1")

    with pytest.raises(ConflictError), workshop.transaction() as session:
        workshop.services.forget_requests.retry(session, request_id)


def test_withdrawal_begins_with_the_request_and_ends_with_the_new_version(
    workshop: Workshop,
) -> None:
    workshop.train(serving=Serving.WITHDRAW_ON_REQUEST)
    workshop.forget(workshop.split()[0][0])

    with workshop.transaction() as session:
        model = registry.model_named(session, "model")
        with pytest.raises(GoneError):
            serving.current_version(session, model)
        with pytest.raises(GoneError):
            serving.served_version(session, model, 1)
    workshop.dispatch()
    held = workshop.begun()
    workshop.give_up(held)
    with workshop.transaction() as session, pytest.raises(GoneError):
        serving.current_version(session, registry.model_named(session, "model"))


def test_completing_twice_at_once_erases_each_record_once(workshop: Workshop) -> None:
    """Two processes clean up: neither may count a record out of its shard twice."""
    first, second = workshop.forget("record-1", "record-2"), workshop.forget("record-2", "record-3")
    with workshop.transaction() as one, workshop.transaction() as stale:
        # What the second process has seen before the first commits.
        seen = list(repository.records_of(stale, second))
        assert workshop.services.forget_requests.erase(one, first, wait=True)
        one.commit()
        assert workshop.services.forget_requests.erase(stale, second, wait=True)
        assert len(seen) == 2
    with workshop.transaction() as session:
        (shard,) = datasets.shards(session, datasets.dataset_named(session, DATASET).id)
        assert shard.rows == 37
    assert _counts(workshop) == (37, 0, 3)


def test_a_demand_for_another_dataset_finds_nothing_here(workshop: Workshop) -> None:
    asked = NewForgetRequest("elsewhere", record_ids=["record-1"])

    with pytest.raises(Exception, match="no dataset"), workshop.transaction() as session:
        workshop.services.acceptance.submit(session, asked, api_key_id=workshop.key_id)
