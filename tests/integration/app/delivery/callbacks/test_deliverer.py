"""Events on their way: signed, in order, tried again, given up, delivered after all."""

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event, select, text
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from app.access.api_keys import create_key
from app.api.callbacks import Message, MessageHeaders
from app.cli.application import create_app
from app.delivery.callbacks import deliverer as deliverer_module
from app.delivery.callbacks import keys as callback_keys
from app.delivery.callbacks import repository
from app.delivery.callbacks.deliverer import Deliverer
from app.delivery.callbacks.repository import DELAYS_S
from app.delivery.callbacks.tables import CallbackEndpointRow
from app.domain.errors import GoneError, NotFoundError
from app.domain.states import Scope
from app.runtime.spans import place_of_request
from tests.integration.app.delivery.callbacks.conftest import endpoints, events, make_due, settle
from tests.support.collector import assert_connected, handed_over
from tests.support.dumps import everything_in_postgres
from tests.support.patience import PATIENCE_S, until
from tests.support.receiver import Received, Receiver, status
from tests.support.threads import none_can_be_started
from tests.support.workshop import Workshop

Make = Callable[..., Deliverer]


def forget(workshop: Workshop, *urls: str, record: str = "record-1") -> str:
    return workshop.forget(record, status_callback_urls=urls)


def secret_of(workshop: Workshop) -> str:
    with workshop.transaction() as session:
        keys = workshop.services.callbacks.keys
        return callback_keys.current(session, keys, workshop.key_id).secret


def told(receiver: Receiver) -> list[str]:
    return [json.loads(received.body)["type"] for received in receiver.received]


def verify(received: Received, secret: str) -> dict:
    return Webhook(secret).verify(received.body, received.headers)


def test_the_signature_is_verified_by_the_standards_library(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    request_id = forget(workshop, receiver.url)
    request = workshop.request(request_id)
    settle(deliverer)

    first, second = receiver.received
    payload = verify(first, secret_of(workshop))
    assert payload == {
        "type": "forget_request.accepted",
        "timestamp": payload["timestamp"],
        "data": {
            "request": request_id,
            "state": "accepted",
            "received_at": request.received_at.astimezone(UTC).isoformat(),
            "due_at": request.due_at.astimezone(UTC).isoformat(),
            "sequence": 1,
            "links": {
                "request": f"https://expunge.example/v1/forget-requests/{request_id}",
                "certificates": (
                    f"https://expunge.example/v1/forget-requests/{request_id}/certificates"
                ),
            },
        },
    }
    age = datetime.now(UTC) - datetime.fromisoformat(payload["timestamp"])
    assert timedelta(0) <= age < timedelta(minutes=2)
    assert verify(second, secret_of(workshop))["type"] == "forget_request.certified"
    assert [e.id for e in events(workshop)] == [r.headers["webhook-id"] for r in receiver.received]
    for change in (lambda r: r.body + b" ", lambda r: r.body.replace(b"accepted", b"cancelled")):
        with pytest.raises(WebhookVerificationError):
            verify(Received(first.path, first.headers, change(first)), secret_of(workshop))


def test_a_trace_tells_of_each_attempt_to_deliver(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    receiver.answers = [status(500)]
    with handed_over() as spans:
        request_id = forget(workshop, receiver.url)
        settle(deliverer)
        make_due(workshop)
        settle(deliverer)
        until(lambda: len(spans) == 4)
    assert_connected(spans)
    attempts = [span for span in spans if span.name == "callback"]
    assert [(span.facts.state, span.facts.attempt, span.error) for span in attempts] == [
        ("failed", 1, "CallbackError"),
        ("delivered", 2, None),
        ("delivered", 1, None),
    ]
    assert {span.parent for span in attempts} == {place_of_request(request_id).span}
    assert "sesame" not in str(spans)


def test_nothing_of_the_records_is_told(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    workshop.forget(
        "record-7", subjects=["subject-3"], external_id="ticket-9",
        status_callback_urls=[receiver.url],
    )  # fmt: skip
    workshop.services.clean_up()
    settle(deliverer)
    sent = b"".join(received.body for received in receiver.received)
    assert told(receiver)[-1] == "forget_request.completed"
    assert not any(word in sent for word in (b"record-7", b"subject-3", b"ticket-9"))


def test_every_change_is_told_in_its_order(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    workshop.train()
    forget(workshop, receiver.url, record=workshop.split()[0][0])
    workshop.unlearn()
    workshop.services.clean_up()
    settle(deliverer)

    states = ["accepted", "unlearning", "certified", "completed"]
    assert told(receiver) == [f"forget_request.{state}" for state in states]
    assert [json.loads(r.body)["data"]["sequence"] for r in receiver.received] == [1, 2, 3, 4]
    assert {event.state for event in events(workshop)} == {"delivered"}


def test_a_failure_is_tried_again_under_the_same_id_with_a_new_signature(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    receiver.answers += [status(500), status(503)]
    forget(workshop, receiver.url)
    settle(deliverer)
    assert len(receiver.received) == 1
    make_due(workshop)
    settle(deliverer)
    (failed, _) = events(workshop)
    assert (failed.state, failed.attempts, failed.failure) == ("pending", 2, "it answered 503")
    make_due(workshop)
    settle(deliverer)

    assert told(receiver) == ["forget_request.accepted"] * 3 + ["forget_request.certified"]
    first, second, third, other = (r.headers["webhook-id"] for r in receiver.received)
    assert first == second == third != other
    for received in receiver.received:
        verify(received, secret_of(workshop))
    assert [(e.state, e.attempts) for e in events(workshop)] == [("delivered", 3), ("delivered", 1)]


def test_a_receiver_that_does_not_answer_is_tried_again(
    workshop: Workshop, receiver: Receiver, make_deliverer: Make
) -> None:
    receiver.answers.append(lambda _: receiver.stopping.wait(30) and None)
    impatient = make_deliverer(timeout_s=0.5)
    forget(workshop, receiver.url)
    settle(impatient)
    assert events(workshop)[0].failure == "it took longer than 0.5 s"
    make_due(workshop)
    settle(make_deliverer())
    assert {event.state for event in events(workshop)} == {"delivered"}


def test_the_pause_after_a_failure_is_the_schedules(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    receiver.answers += [status(500)] * len(DELAYS_S)
    forget(workshop, receiver.url)
    for planned in DELAYS_S:
        make_due(workshop)
        settle(deliverer)
        waits = events(workshop)[0].next_attempt_at - datetime.now(UTC)
        assert planned - 30 < waits.total_seconds() <= planned * 1.2


def test_a_clock_that_was_set_back_delays_no_new_event(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    receiver.answers += [status(500)]
    forget(workshop, receiver.url)
    later = "= now() + interval '5 h'"
    with workshop.transaction() as session:
        session.execute(
            text(f"UPDATE callback_events SET created_at {later}, next_attempt_at {later}")
        )
    settle(deliverer)
    assert len(receiver.received) == 1  # what failed waits
    make_due(workshop)
    settle(deliverer)
    assert {event.state for event in events(workshop)} == {"delivered"}


def test_later_events_wait_for_earlier_ones(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    receiver.answers += [status(500)]
    forget(workshop, receiver.url)
    settle(deliverer)
    workshop.services.clean_up()
    settle(deliverer)
    assert told(receiver) == ["forget_request.accepted"]
    make_due(workshop)
    settle(deliverer)
    assert told(receiver)[1:] == [
        f"forget_request.{state}" for state in ("accepted", "certified", "completed")
    ]


def test_one_receiver_does_not_wait_for_another(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    with Receiver() as broken:
        broken.answers += [status(500)]
        forget(workshop, broken.url, receiver.url)
        settle(deliverer)
    assert told(receiver) == ["forget_request.accepted", "forget_request.certified"]


def fail_for_good(workshop: Workshop, receiver: Receiver, deliverer: Deliverer) -> str:
    """Have the first event of a request given up; return its id."""
    receiver.answers += [status(500)] * (len(DELAYS_S) + 1)
    forget(workshop, receiver.url)
    for _ in range(len(DELAYS_S) + 1):
        make_due(workshop)
        deliver_one(workshop, deliverer)
    first = events(workshop)[0]
    assert (first.state, first.attempts) == ("dead", 10)
    return first.id


def deliver_one(workshop: Workshop, deliverer: Deliverer) -> None:
    with workshop.transaction() as session:
        delivery = repository.claim(session, claim_s=60)
    assert delivery is not None
    deliverer.deliver(delivery)


def test_after_the_last_attempt_an_event_is_dead_and_the_next_one_goes_on(
    workshop: Workshop,
    receiver: Receiver,
    deliverer: Deliverer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dead = fail_for_good(workshop, receiver, deliverer)
    assert f"callback {dead} is dead: it answered 500" in caplog.text

    settle(deliverer)
    make_due(workshop)
    settle(deliverer)

    assert len(receiver.received) == 11
    assert told(receiver)[-1] == "forget_request.certified"
    assert [event.state for event in events(workshop)] == ["dead", "delivered"]


def test_a_dead_event_can_be_delivered_after_all(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    dead = fail_for_good(workshop, receiver, deliverer)
    settle(deliverer)
    workshop.services.clean_up()
    settle(deliverer)
    deliverer.close_served()
    with workshop.transaction() as session:
        event, _ = repository.redeliver(session, dead)
        assert (event.state, event.attempts) == ("pending", 0)

    settle(deliverer)

    assert receiver.received[-1].headers["webhook-id"] == dead
    assert {event.state for event in events(workshop)} == {"delivered"}
    deliverer.close_served()
    with pytest.raises(GoneError), workshop.transaction() as session:
        repository.redeliver(session, dead)
    with pytest.raises(NotFoundError), workshop.transaction() as session:
        repository.redeliver(session, "evt_nobody")


def test_410_ends_everything_for_this_address_of_this_caller(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    with Receiver() as other:
        forget(workshop, receiver.url, other.url)
        forget(workshop, receiver.url, record="record-2")
        owner = workshop.key_id
        with workshop.transaction() as session:
            workshop.key_id = create_key(session, name="other", scopes=[Scope.ADMIN])[0].id
        forget(workshop, receiver.url, record="record-3")
        receiver.answers.append(status(410))
        with workshop.transaction() as session:
            session.execute(
                text(
                    "UPDATE callback_events SET next_attempt_at = next_attempt_at + '1 hour'"
                    " FROM callback_endpoints e WHERE e.id = endpoint_id AND api_key_id <> :owner"
                ),
                {"owner": owner},
            )
        while not receiver.received:
            deliver_one(workshop, deliverer)
        make_due(workshop)
        settle(deliverer)
        workshop.services.clean_up()
        settle(deliverer)

        assert [e.api_key_id for e in endpoints(workshop) if e.state == "disabled"] == [owner] * 2
        assert all(e.url is None for e in endpoints(workshop) if e.state == "disabled")
        assert len(told(other)) == 3
        assert told(receiver)[1:] == [
            f"forget_request.{state}" for state in ("accepted", "certified", "completed")
        ]
    dead = [event for event in events(workshop) if event.state == "dead"]
    assert len(dead) == 4
    assert {event.failure for event in dead} == {"it answered 410: it wants no more callbacks"}


def test_what_arrived_while_the_address_was_disabled_has_arrived(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    forget(workshop, receiver.url)
    forget(workshop, receiver.url, record="record-2")
    with workshop.transaction() as session:
        slow = repository.claim(session, claim_s=60)
    receiver.answers.append(status(410))
    deliver_one(workshop, deliverer)
    assert {event.state for event in events(workshop)} == {"dead"}
    assert deliverer.deliver(slow) == "delivered"
    assert sorted(event.state for event in events(workshop)) == ["dead"] * 3 + ["delivered"]


# Processes that die, and several at once


def test_what_a_dead_process_had_taken_up_is_taken_up_again(
    workshop: Workshop, receiver: Receiver, make_deliverer: Make
) -> None:
    forget(workshop, receiver.url)
    with workshop.transaction() as session:
        assert repository.claim(session, claim_s=0.0) is not None
        # The same moment is not later yet: another transaction comes.
    settle(make_deliverer())

    assert told(receiver) == ["forget_request.accepted", "forget_request.certified"]
    assert events(workshop)[0].attempts == 2


def test_while_one_process_posts_no_other_does(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    forget(workshop, receiver.url)
    with workshop.transaction() as session:
        taken = repository.claim(session, claim_s=60)
    assert deliverer.tick() == 0
    deliverer.deliver(taken)
    settle(deliverer)
    assert told(receiver) == ["forget_request.accepted", "forget_request.certified"]


def test_an_outcome_that_comes_too_late_changes_nothing(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    forget(workshop, receiver.url)
    with workshop.transaction() as session:
        late = repository.claim(session, claim_s=0.0)
    settle(deliverer)
    receiver.answers.append(status(500))
    deliverer.deliver(late)
    assert {event.state for event in events(workshop)} == {"delivered"}


def test_a_failure_that_comes_too_late_leaves_the_next_attempt_alone(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    forget(workshop, receiver.url)
    with workshop.transaction() as session:
        late = repository.claim(session, claim_s=0.0)
    with workshop.transaction() as session:
        repository.claim(session, claim_s=60)
    before = events(workshop)[0]
    receiver.answers.append(status(500))
    deliverer.deliver(late)
    after = events(workshop)[0]
    assert (after.attempts, after.failure) == (2, None)
    assert after.next_attempt_at == before.next_attempt_at


def test_a_request_that_is_changing_does_not_hold_up_a_410(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    forget(workshop, receiver.url)
    forget(workshop, receiver.url, record="record-2")
    with workshop.transaction() as session:
        taken = repository.claim(session, claim_s=60)
    receiver.answers.append(status(410))
    with workshop.transaction() as session:
        query = select(CallbackEndpointRow).where(CallbackEndpointRow.id != taken.endpoint_id)
        changing = session.scalars(query.with_for_update()).one()
        deliverer.deliver(taken)
        assert changing.state == "active"
    assert sorted(e.state for e in endpoints(workshop)) == ["active", "disabled"]


def test_two_410s_of_one_address_do_not_wait_for_each_other(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    forget(workshop, receiver.url)
    forget(workshop, receiver.url, record="record-2")
    with workshop.transaction() as session:
        first, second = (repository.claim(session, claim_s=60) for _ in range(2))
    receiver.answers += [status(410)] * 2
    locked, ended = threading.Event(), threading.Event()

    def pause(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "FOR UPDATE" in statement and threading.current_thread() is slow and not locked.is_set():
            locked.set()
            ended.wait(0.5)

    slow = threading.Thread(target=deliverer.deliver, args=(second,))
    event.listen(workshop.services.database.engine, "after_cursor_execute", pause)
    slow.start()
    assert locked.wait(PATIENCE_S)
    deliverer.deliver(first)
    ended.set()
    slow.join(PATIENCE_S)

    assert {e.state for e in endpoints(workshop)} == {"disabled"}
    assert {e.state for e in events(workshop)} == {"dead"}


def test_many_processes_deliver_each_event_once_and_in_order(
    workshop: Workshop, make_deliverer: Make
) -> None:
    with Receiver() as receiver:
        for number in range(12):
            url = f"http://{receiver.host}:{receiver.port}/{number}"
            forget(workshop, url, record=f"record-{number}")
        workshop.services.clean_up()
        deliverers = [make_deliverer() for _ in range(3)]
        threads = [threading.Thread(target=settle, args=(d,)) for d in deliverers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        settle(deliverers[0])
        for number in range(12):
            mine = [json.loads(r.body) for r in receiver.received if r.path == f"/{number}"]
            assert [m["data"]["sequence"] for m in mine] == [1, 2, 3]


def test_a_caller_with_slow_receivers_leaves_room_for_others(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    with Receiver() as slow:
        slow.answers += [lambda _: slow.stopping.wait(30) and None] * 20
        for number in range(20):
            forget(workshop, slow.url, record=f"record-{number}")
        with workshop.transaction() as session:
            workshop.key_id = create_key(session, name="other", scopes=[Scope.ADMIN])[0].id
        forget(workshop, receiver.url, record="record-30")

        # Eight of the slow one's, and the other's first; its second too, if that was quick.
        assert deliverer.tick() in (9, 10)

        for thread in list(deliverer._going):
            if deliverer._going.get(thread) == workshop.key_id:
                thread.join(PATIENCE_S)
        assert told(receiver)[0] == "forget_request.accepted"


def test_in_the_background_it_delivers_until_it_is_stopped(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    deliverer.start()
    forget(workshop, receiver.url)
    until(lambda: len(receiver.received) == 2)
    deliverer.stop()
    assert len(receiver.received) == 2
    forget(workshop, receiver.url, record="record-2")
    assert deliverer.tick() == 0


def test_a_delivery_for_which_no_thread_can_be_started_takes_no_place_of_others(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliverer_module, "_CAPACITY", 1)
    forget(workshop, receiver.url)
    with none_can_be_started(), pytest.raises(RuntimeError, match="new thread"):
        deliverer.tick()
    forget(workshop, receiver.url, record="record-2")
    until(lambda: deliverer.tick() and receiver.received)
    deliverer.stop()


# Secrets and addresses


def test_after_a_rotation_both_secrets_verify_for_a_while(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    old = secret_of(workshop)
    with workshop.transaction() as session:
        keys = workshop.services.callbacks.keys
        new = callback_keys.rotate(session, keys, workshop.key_id).secret
    assert new != old
    forget(workshop, receiver.url)
    settle(deliverer)
    for secret in (old, new):
        verify(receiver.received[0], secret)

    workshop.forged = True
    with workshop.transaction() as session:
        session.execute(
            text("UPDATE callback_secrets SET rotated_at = rotated_at - interval '25 hours'")
        )
    forget(workshop, receiver.url, record="record-2")
    settle(deliverer)
    verify(receiver.received[-1], new)
    with pytest.raises(WebhookVerificationError):
        verify(receiver.received[-1], old)


def test_an_address_is_stored_encrypted_and_removed_when_it_has_served(
    workshop: Workshop,
    receiver: Receiver,
    deliverer: Deliverer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    receiver.answers += [status(500)]
    forget(workshop, receiver.url)
    settle(deliverer)
    dump = everything_in_postgres(workshop.services.database.engine)
    for word in ("sesame-4711", b"sesame-4711".hex(), str(receiver.port) + "/"):
        assert word not in dump

    make_due(workshop)
    settle(deliverer)
    deliverer.close_served()
    assert [e.state for e in endpoints(workshop)] == ["active"]
    workshop.services.clean_up()
    deliverer.close_served()
    assert [e.state for e in endpoints(workshop)] == ["active"]
    settle(deliverer)
    deliverer.close_served()

    (endpoint,) = endpoints(workshop)
    assert (endpoint.state, endpoint.url, endpoint.url_digest) == ("closed", None, None)
    assert "sesame" not in caplog.text


def test_the_address_of_a_dead_event_is_kept_for_a_while(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    fail_for_good(workshop, receiver, deliverer)
    settle(deliverer)
    workshop.services.clean_up()
    settle(deliverer)
    deliverer.close_served()
    assert endpoints(workshop)[0].state == "active"

    with workshop.transaction() as session:
        endpoint = session.scalars(select(CallbackEndpointRow)).one()
        endpoint.ended_at -= timedelta(days=31)
    deliverer.close_served()
    assert endpoints(workshop)[0].state == "closed"


def test_an_address_under_a_lost_key_fails_in_words(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    forget(workshop, receiver.url)
    with workshop.transaction() as session:
        endpoint = session.scalars(select(CallbackEndpointRow)).one()
        endpoint.url = bytes(40)
    settle(deliverer)
    assert events(workshop)[0].failure == "its address cannot be decrypted under this key"
    assert receiver.received == []


def test_the_message_is_as_the_api_describes_it(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    forget(workshop, receiver.url)
    settle(deliverer)
    (received, _) = receiver.received
    Message.model_validate_json(received.body)
    names = {name.replace("_", "-") for name in MessageHeaders.model_fields}
    assert names <= set(received.headers)
    described = create_app(workshop.services).openapi()["webhooks"]
    assert set(described) == {"forget_request"}


def age(workshop: Workshop, days: float) -> None:
    """Let so many days pass for everything that was delivered or given up."""
    with workshop.transaction() as session:
        session.execute(
            text(
                "UPDATE callback_events SET created_at = created_at - make_interval(days => :days),"
                " delivered_at = delivered_at - make_interval(days => :days)"
            ),
            {"days": days},
        )


def test_delivered_events_are_removed_in_time_and_others_stay(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    dead = fail_for_good(workshop, receiver, deliverer)
    settle(deliverer)
    forget(workshop, receiver.url, record="record-2")
    assert {event.state for event in events(workshop)} == {"dead", "delivered", "pending"}

    age(workshop, 29)
    assert deliverer.remove_delivered() == 0
    age(workshop, 2)
    assert deliverer.remove_delivered() > 0

    left = events(workshop)
    assert {event.state for event in left} == {"dead", "pending"}
    assert dead in {event.id for event in left}
    settle(deliverer)
    workshop.services.clean_up()
    settle(deliverer)
    with workshop.transaction() as session:
        assert repository.redeliver(session, dead)[0].state == "pending"


def test_the_retention_is_set_and_events_are_removed_in_the_background(
    workshop: Workshop, receiver: Receiver, make_deliverer: Callable[..., Deliverer]
) -> None:
    forget(workshop, receiver.url)
    deliverer = make_deliverer(delivered_retention_s=86400.0)
    settle(deliverer)
    old = {event.id for event in events(workshop)}
    age(workshop, 2)
    forget(workshop, receiver.url, record="record-2")
    deliverer.start()
    try:
        until(lambda: old.isdisjoint(event.id for event in events(workshop)))
    finally:
        deliverer.stop()
    assert events(workshop)


def test_the_oldest_are_removed_first_and_not_all_at_once(
    workshop: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    for number in range(3):
        forget(workshop, receiver.url, record=f"record-{number + 1}")
    settle(deliverer)
    ids = [event.id for event in sorted(events(workshop), key=lambda event: event.delivered_at)]
    assert len(ids) >= 3
    with workshop.transaction() as session:
        assert repository.remove_delivered(session, retention_s=0.0, limit=2) == 2
    assert {event.id for event in events(workshop)} == set(ids[2:])


def test_the_services_deliverer_keeps_what_the_settings_say(workshop: Workshop) -> None:
    settings = workshop.services.settings.model_copy(update={"callback_retention_s": 5.0})
    services = replace(workshop.services, settings=settings)
    assert services.deliverer()._terms.delivered_retention_s == 5.0
