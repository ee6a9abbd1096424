"""What an attempt has written goes with it, and a request is completed only when it is gone."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.domain.errors import ConflictError, KeyStoreError, LeaseLostError
from app.ledger import runs
from app.ledger.new_requests import NewForgetRequest
from app.registry.datasets.service import define_dataset
from app.services import Services
from app.storage import file_keys
from app.storage.tables import BlobRow
from tests.support.arrays import array_schema
from tests.support.scenes import in_the_past
from tests.support.workshop import Held, Workshop, records_parquet


def _states(workshop: Workshop, kind: str) -> list[str]:
    with workshop.transaction() as session:
        query = select(BlobRow.state).where(BlobRow.kind == kind).order_by(BlobRow.created_at)
        return list(session.scalars(query))


def _hand_back(workshop: Workshop, held: Held) -> None:
    with workshop.transaction() as session:
        runs.hand_back(session, runs.holder(session, held.run_id, held.token))


def _cancel(workshop: Workshop, held: Held) -> None:
    with workshop.transaction() as session:
        runs.cancel_run(session, held.run_id)


ENDINGS: dict[str, Callable[[Workshop, Held], None]] = {
    "taken over": lambda workshop, held: workshop.give_up(held, permanent=False),
    "failed": lambda workshop, held: workshop.give_up(held),
    "told to stop": _hand_back,
    "cancelled": _cancel,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_weights_of_an_attempt_go_with_it(workshop: Workshop, ending: str) -> None:
    workshop.define()
    held = workshop.begun()
    workshop.write(held, b"weights")
    workshop.services.blobs.sweep()
    assert _states(workshop, "weights") == ["pending"]

    ENDINGS[ending](workshop, held)
    workshop.services.blobs.sweep()

    assert _states(workshop, "weights") == ["shredded"]
    with pytest.raises(LeaseLostError):
        workshop.write(held, b"weights")
    assert _states(workshop, "weights") == ["shredded"]


def test_weights_that_were_reserved_twice_are_kept_once(workshop: Workshop) -> None:
    workshop.define()
    held = workshop.begun()
    workshop.write(held, b"without an answer")
    workshop.publish(held)
    workshop.services.clean_up()
    assert _states(workshop, "weights") == ["shredded", "live"]


def test_refused_weights_are_not_kept(workshop: Workshop) -> None:
    workshop.define("imported", upload=True, first_release="none")
    workshop.upload("imported")
    with pytest.raises(ConflictError, match="is being certified"):
        workshop.upload("imported")
    workshop.services.blobs.sweep()
    assert "pending" not in _states(workshop, "imported-weights")


def test_a_refused_push_is_not_kept(workshop: Workshop, services: Services) -> None:
    with workshop.transaction() as session:
        services.blobs.put(session, "shard", b"records")
        session.rollback()
    services.blobs.sweep()
    assert _states(workshop, "shard") == ["live", "shredded"]


def test_completed_waits_for_objects_of_its_own_dataset_alone(
    workshop: Workshop, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = array_schema(2)
    with workshop.transaction() as session:
        define_dataset(session, name="others", schema=schema)
    services.records.push("others", records_parquet())
    here = workshop.forget("record-1")
    with workshop.transaction() as session:
        asked = NewForgetRequest("others", record_ids=["record-1"])
        there = services.acceptance.submit(session, asked, api_key_id=workshop.key_id)[0].id
    dataset_id = workshop.request(here).dataset_id
    with workshop.transaction() as session:
        query = select(BlobRow.id).where(BlobRow.dataset_id == dataset_id)
        stuck = session.scalars(query).all()
    erase = file_keys.erase

    def failing(path: Path) -> None:
        if path.name in stuck:
            raise OSError(5, "Input/output error")
        erase(path)

    with monkeypatch.context() as patched:
        patched.setattr(file_keys, "erase", failing)
        with pytest.raises(KeyStoreError):
            services.clean_up()
        assert workshop.request(here).state == "certified"
        assert workshop.request(there).state == "completed"
    services.clean_up()
    assert workshop.request(here).state == "completed"


def test_completed_waits_for_what_was_being_written_before(
    workshop: Workshop, services: Services
) -> None:
    """As a push that is frozen: it may hold the records, which a second push has brought."""
    dataset_id = workshop.model(workshop.define()).dataset_id
    with workshop.transaction() as session:
        services.blobs.put(session, "shard", b"records", dataset_id=dataset_id)
        request = workshop.forget("record-1")
        services.clean_up()
        assert workshop.request(request).state == "certified"
    services.clean_up()
    assert workshop.request(request).state == "completed"


def test_completed_waits_for_what_began_while_the_request_waited(
    workshop: Workshop, services: Services
) -> None:
    """It waited for its dataset's lock."""
    dataset_id = workshop.model(workshop.define()).dataset_id
    with workshop.transaction() as writing:
        services.blobs.put(writing, "shard", b"records", dataset_id=dataset_id)
        with in_the_past(timedelta(minutes=1)):
            request = workshop.forget("record-1")
        services.clean_up()
        assert workshop.request(request).state == "certified"
    services.clean_up()
    assert workshop.request(request).state == "completed"


def test_a_settled_request_does_not_wait_for_others(
    workshop: Workshop, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier, own = workshop.forget("record-1"), workshop.forget("record-2")
    tried = []
    erase = services.records.erase

    def counting(session: Session, seqs: Sequence[int]) -> int:
        tried.extend(seqs)
        return erase(session, seqs)

    monkeypatch.setattr(services.records, "erase", counting)
    services.complete_at_once(lambda _: [own])
    assert set(tried) == workshop.seqs("record-2")
    assert (workshop.request(earlier).state, workshop.request(own).state) == (
        "certified",
        "completed",
    )
