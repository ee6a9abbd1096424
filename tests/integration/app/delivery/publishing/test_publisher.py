"""Targets hold what is served, and nothing that is not."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text

from app.delivery.publishing import repository
from app.delivery.publishing.folder import Folder
from app.delivery.publishing.publisher import Publisher, Terms, alone
from app.delivery.publishing.tables import CopyRow, PlacementRow
from app.delivery.publishing.target import Subject, targets_of
from app.domain.release import CARD, CERTIFICATE, CONFIG, WEIGHTS
from app.evidence.certificates.verification import verify
from app.ledger.models.releases import Releases, answered_by, served
from app.operations.monitoring.collector import publishing_metrics
from app.registry import repository as registry
from app.runtime.spans import place_of_request
from app.services import Services
from tests.support.collector import assert_connected, handed_over
from tests.support.patience import until
from tests.support.targets import release
from tests.support.threads import none_can_be_started
from tests.support.trust import trust_in
from tests.support.workshop import Workshop


@pytest.fixture
def publisher(services: Services) -> Iterator[Publisher]:
    publisher = services.publisher()
    yield publisher
    publisher.stop()


def _settle(workshop: Workshop, publisher: Publisher) -> None:
    """Work at what is due, whenever its next attempt would be."""
    with workshop.transaction() as session:
        due = session.scalars(select(PlacementRow.id).where(PlacementRow.due_at.is_not(None))).all()
    for placement_id in due:
        assert publisher.settle(placement_id)


def _want(workshop: Workshop, target: str = "shelf") -> str:
    with workshop.transaction() as session:
        model = registry.model_named(session, "model", lock=True)
        return repository.want(session, model, target).id


def _unwant(workshop: Workshop) -> None:
    with workshop.transaction() as session:
        repository.unwant(session, registry.model_named(session, "model", lock=True), "shelf")


def _placement(workshop: Workshop) -> PlacementRow:
    with workshop.transaction() as session:
        return session.scalars(select(PlacementRow)).one()


def _present(workshop: Workshop) -> list[int]:
    with workshop.transaction() as session:
        row = session.scalars(select(PlacementRow)).one()
        return list(repository.numbers_present(session, row.id))


def _measured(workshop: Workshop) -> dict[str, list[dict[str, str]]]:
    with workshop.transaction() as session:
        return {
            family.name: [sample.labels for sample in family.samples]
            for family in publishing_metrics(session)
        }


def _stored(workshop: Workshop) -> bytes:
    """Return the weights of the version that is served."""
    with workshop.transaction() as session:
        head = registry.head_version(session, registry.model_named(session, "model"))
        assert head is not None
        return workshop.services.blobs.read(head.blob_id)


def test_three_versions_in_turn_leave_the_last_alone(
    workshop: Workshop, publisher: Publisher, folder: Path
) -> None:
    workshop.define()
    _want(workshop)
    for number in (1, 2, 3):
        if number > 1:
            workshop.retrain()
        workshop.work()
        _settle(workshop, publisher)
        there = folder / "model"
        assert (there / WEIGHTS).read_bytes() == _stored(workshop)
        assert json.loads((there / CONFIG).read_text())["version"] == number
        assert _present(workshop) == [number]
    assert len(list(folder.rglob(WEIGHTS))) == 1
    with workshop.transaction() as session:
        copies = session.scalars(select(CopyRow)).all()
    assert [copy.removed_at is None for copy in sorted(copies, key=lambda c: c.sent_at)] == [
        False,
        False,
        True,
    ]


def test_a_trace_tells_where_what_a_request_led_to_was_published(
    workshop: Workshop, publisher: Publisher, folder: Path
) -> None:
    workshop.train()
    _want(workshop)
    _settle(workshop, publisher)
    with handed_over() as spans:
        request_id = workshop.forget(workshop.split()[0][0])
        workshop.unlearn()
        (folder / "model").unlink()
        (folder / "model").write_bytes(b"in the way")
        _settle(workshop, publisher)
        (folder / "model").unlink()
        for _ in range(2):  # the second one finds all in its place
            _want(workshop)
            _settle(workshop, publisher)
        until(lambda: len(spans) == 4)
    assert_connected(spans)
    tries = [span for span in spans if span.name == "publish"]
    assert [span.error for span in tries] == ["PlaceTakenError", None]
    assert {span.parent for span in tries} == {place_of_request(request_id).span}
    assert {(span.facts.model, span.facts.target) for span in tries} == {("model", "shelf")}


def test_what_is_there_verifies_and_says_what_it_is(
    workshop: Workshop, publisher: Publisher, folder: Path
) -> None:
    workshop.train(epsilon=0.5)
    _want(workshop)
    _settle(workshop, publisher)
    there = folder / "model"
    report = verify(
        bundle=(there / CERTIFICATE).read_bytes(),
        weights=(there / WEIGHTS).read_bytes(),
        trusted=trust_in(workshop.services),
    )
    assert report
    _, front, card = (there / CARD).read_text().split("---\n", 2)
    facts = {
        key: json.loads(value)
        for key, _, value in (line.partition(": ") for line in front.splitlines())
    }
    assert facts["library_name"] == "expunge"
    assert facts["expunge"]["version"] == 1
    assert 0 < facts["expunge"]["epsilon"] <= 0.5
    assert f"expunge verify {CERTIFICATE} --weights {WEIGHTS}" in card


def test_an_archived_model_leaves(workshop: Workshop, publisher: Publisher, folder: Path) -> None:
    workshop.train()
    _want(workshop)
    _settle(workshop, publisher)
    workshop.archive()
    assert _measured(workshop)["expunge_publishing_not_withdrawn_seconds"]
    _settle(workshop, publisher)
    assert list(folder.iterdir()) == []
    assert _present(workshop) == []
    assert not any(_measured(workshop).values())


def test_what_is_withdrawn_by_policy_leaves_until_the_request_is_met(
    workshop: Workshop, publisher: Publisher, folder: Path
) -> None:
    workshop.train(serving="withdraw_on_request")
    _want(workshop)
    _settle(workshop, publisher)
    workshop.forget(workshop.split()[0][0])
    publisher.sweep()
    _settle(workshop, publisher)
    assert list(folder.iterdir()) == []
    workshop.unlearn()
    _settle(workshop, publisher)
    assert json.loads((folder / "model" / CONFIG).read_text())["version"] == 2


def test_a_target_that_fails_keeps_the_name_of_what_it_may_still_hold(
    workshop: Workshop, publisher: Publisher, folder: Path
) -> None:
    workshop.train()
    _want(workshop)
    _settle(workshop, publisher)
    moved = folder.with_name("moved")
    folder.rename(moved)
    workshop.retrain()
    workshop.work()
    for attempts in (1, 2):
        _settle(workshop, publisher)
        row = _placement(workshop)
        assert row.failure == "the folder does not exist"
        assert row.attempts == attempts
        assert _present(workshop) == [1]  # nothing of the second was sent
    labels = {"model": "model", "target": "shelf", "version": "1"}
    assert _measured(workshop)["expunge_publishing_not_withdrawn_seconds"] == [labels]
    moved.rename(folder)
    _settle(workshop, publisher)
    row = _placement(workshop)
    assert (row.failure, row.attempts, row.due_at) == (None, 0, None)
    assert _present(workshop) == [2]
    assert not any(_measured(workshop).values())


OTHERS = {
    "foreign files": lambda folder: (folder / "model").mkdir(),
    "a foreign link": lambda folder: (folder / "model").symlink_to("elsewhere"),
    "another service": lambda folder: Folder(folder).hold(
        Subject("model_other", "model"), release(1), lambda _: None
    ),
    "no owner": lambda folder: (folder / ".model.expunge" / "v1").mkdir(parents=True),
}


@pytest.mark.parametrize("others", OTHERS)
def test_a_place_that_is_taken_holds_no_version_and_raises_no_alarm_for_one(
    workshop: Workshop, publisher: Publisher, folder: Path, others: str
) -> None:
    workshop.train()
    OTHERS[others](folder)
    before = sorted(folder.rglob("*"))
    _want(workshop)
    for _ in range(2):
        _settle(workshop, publisher)
        row = _placement(workshop)
        assert row.failure is not None
        assert row.version_id is not None
        assert _present(workshop) == []
    workshop.retrain()
    workshop.work()
    _settle(workshop, publisher)
    assert _measured(workshop)["expunge_publishing_not_withdrawn_seconds"] == []
    _unwant(workshop)
    _settle(workshop, publisher)
    assert not any(_measured(workshop).values())
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("others", ["foreign files", "another service"])
def test_what_was_placed_is_gone_when_others_have_taken_its_place(
    workshop: Workshop, publisher: Publisher, folder: Path, others: str
) -> None:
    workshop.train()
    _want(workshop)
    _settle(workshop, publisher)
    (folder / "model").unlink()
    if others == "another service":
        shutil.rmtree(folder / ".model.expunge")
    OTHERS[others](folder)
    workshop.retrain()
    workshop.work()
    _settle(workshop, publisher)
    assert _present(workshop) == []
    assert _measured(workshop)["expunge_publishing_not_withdrawn_seconds"] == []
    unsettled = _measured(workshop)["expunge_publishing_unsettled_seconds"]
    assert [str(labels["target"]) for labels in unsettled] == ["shelf"]


def test_a_failed_attempt_is_due_later_each_time(
    workshop: Workshop, publisher: Publisher, folder: Path
) -> None:
    workshop.train()
    _want(workshop)
    shutil.rmtree(folder)
    waits = []
    for _ in range(4):
        _settle(workshop, publisher)
        with workshop.transaction() as session:
            waits.append(
                session.execute(
                    text("SELECT extract(epoch FROM due_at - clock_timestamp()) FROM placements")
                ).scalar_one()
            )
            assert repository.due(session, limit=1) == [] or waits[-1] <= 0
    # The bounds leave time for a slow machine: 1, 2, 4 and 8 seconds, and up to a fifth.
    assert all(wait <= 1.2 * 2**n for n, wait in enumerate(waits))
    with workshop.transaction() as session:
        session.execute(text("UPDATE placements SET attempts = 40"))
    _settle(workshop, publisher)
    with workshop.transaction() as session:
        wait = session.execute(
            text("SELECT extract(epoch FROM due_at - clock_timestamp()) FROM placements")
        ).scalar_one()
    assert 100 < wait <= 1.2 * repository.LONGEST_DELAY_S


def test_what_changes_while_it_is_sent_is_sent_again(
    workshop: Workshop, services: Services, folder: Path
) -> None:
    """The version that was being sent never stays: the work goes on with the next one."""
    workshop.train()
    placement = _want(workshop)
    overtaken: list[int] = []

    class Slow:
        kind = "folder"

        def hold(self, subject: Any, release: Any, step: Any) -> None:
            def stepping(name: str) -> None:
                if name == "written" and not overtaken:
                    overtaken.append(release.number)
                    workshop.retrain()
                    workshop.work()
                step(name)

            real["shelf"].hold(subject, release, stepping)

    real = targets_of(services.settings.publishers)
    releases = Releases(services.blobs, services.signer, ())
    targets = {"shelf": Slow()}
    publisher = Publisher(services.database, targets, releases.of, served, answered_by, Terms())
    publisher._settle_and_leave(placement)
    assert overtaken == [1]
    assert _placement(workshop).due_at is not None
    _settle(workshop, publisher)
    assert json.loads((folder / "model" / CONFIG).read_text())["version"] == 2
    assert len(list(folder.rglob(WEIGHTS))) == 1
    assert _present(workshop) == [2]


def test_one_process_works_at_a_time_until_its_connection_ends(
    workshop: Workshop, publisher: Publisher
) -> None:
    workshop.train()
    placement = _want(workshop)
    database = workshop.services.database
    with alone(database, placement) as connection:
        assert connection is not None
        assert not publisher.settle(placement)
        connection.invalidate()
        until(lambda: publisher.settle(placement))
    assert _present(workshop) == [1]


def test_a_certificate_without_a_run_is_published_too(
    workshop: Workshop, publisher: Publisher, folder: Path
) -> None:
    recipe = {"epochs": 4, "batch_size": 4, "held_out_fraction": 0.25, "weight_decay": 0.05}
    workshop.train(
        architecture="linear_head",
        mechanism="tracked_release",
        parameters={"noise_std": 40.0},
        recipe=recipe,
    )
    _want(workshop)
    _settle(workshop, publisher)
    before = (folder / "model" / CERTIFICATE).read_bytes()
    workshop.forget(workshop.split()[0][0])
    publisher.sweep()
    _settle(workshop, publisher)
    assert (folder / "model" / CERTIFICATE).read_bytes() != before
    assert _present(workshop) == [1]


def test_what_was_changed_there_is_found(
    workshop: Workshop, services: Services, folder: Path
) -> None:
    workshop.train()
    _want(workshop)
    releases = Releases(services.blobs, services.signer, ())
    publisher = Publisher(
        services.database,
        targets_of(services.settings.publishers),
        releases.of,
        served,
        answered_by,
        Terms(check_s=0),
    )
    _settle(workshop, publisher)
    shutil.rmtree(folder / ".model.expunge")
    publisher.sweep()
    _settle(workshop, publisher)
    assert (folder / "model" / WEIGHTS).read_bytes() == _stored(workshop)


def test_the_background_publishes_and_stops(
    workshop: Workshop, publisher: Publisher, folder: Path
) -> None:
    workshop.train()
    publisher.start()
    _want(workshop)
    until((folder / "model" / WEIGHTS).exists)
    until(lambda: _placement(workshop).due_at is None)
    publisher.stop()
    assert not [each for each in threading.enumerate() if each.name in ("publishing", "place")]


def test_what_no_thread_could_be_started_for_is_published_later(
    workshop: Workshop, publisher: Publisher, folder: Path
) -> None:
    workshop.train()
    _want(workshop)
    with none_can_be_started(), pytest.raises(RuntimeError, match="new thread"):
        publisher.tick()
    assert publisher.tick() == 1
    until(lambda: _placement(workshop).due_at is None)
    assert (folder / "model" / WEIGHTS).exists()


def test_a_target_that_settings_no_longer_name_is_an_error(
    workshop: Workshop, services: Services
) -> None:
    workshop.train()
    _want(workshop, "removed")
    publisher = services.publisher()
    _settle(workshop, publisher)
    assert "EXPUNGE_PUBLISHERS" in str(_placement(workshop).failure)
