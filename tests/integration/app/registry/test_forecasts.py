"""What planning is told of a tracked lineage: read from the ledger, equal for the model's life."""

from collections import Counter

import pytest

from app.accounting.histories import history
from app.accounting.histories.history_account import drift
from app.ledger.models import policies
from app.registry.forecasts import Occasion
from app.registry.training_set import TrainingSet
from app.services import Services
from tests.support.specs import classification
from tests.support.workshop import RECORDS, Workshop, batches_of

BATCH_SIZE = 4
HEAD = {"epochs": 3, "batch_size": BATCH_SIZE, "held_out_fraction": 0.25}


@pytest.fixture
def workshop(workshop: Workshop) -> Workshop:
    workshop.define(architecture="linear_head", recipe=HEAD, mechanism="tracked_release")
    return workshop


@pytest.fixture
def trained(workshop: Workshop) -> Workshop:
    workshop.work()
    return workshop


def shape(workshop: Workshop):
    with workshop.transaction() as session:
        return Occasion.of(session, workshop.model()).shape


def batches(workshop: Workshop) -> dict[int, int]:
    with workshop.transaction() as session:
        return batches_of(TrainingSet(session, workshop.model()), BATCH_SIZE, begun_at_epoch=0)


def forget_and_publish(workshop: Workshop, *records: str) -> str:
    request = workshop.forget(*records)
    workshop.unlearn()
    workshop.services.clean_up()
    assert workshop.request(request).state == "completed"
    return request


def test_a_lineage_whose_training_is_ahead_has_constants_and_no_history(workshop: Workshop) -> None:
    found = shape(workshop)
    assert found.is_new
    assert found.tracking is None
    assert found.convex.lipschitz == classification(2).bounds.lipschitz
    assert found.convex.smoothness == classification(2).bounds.smoothness
    assert found.retained == round(RECORDS * 0.75)


def test_other_architectures_are_not_convex(workshop: Workshop) -> None:
    workshop.define("network")
    with workshop.transaction() as session:
        assert Occasion.of(session, workshop.model("network")).shape.convex is None
    workshop.work("network")
    with workshop.transaction() as session:
        found = Occasion.of(session, workshop.model("network")).shape
    assert (found.convex, found.tracking) == (None, None)


def test_records_that_a_lineage_never_learned_from_change_no_run(services: Services) -> None:
    """They may be forgotten later, as records that had no influence at all."""
    workshop = Workshop(services)
    workshop.train(mechanism="gradient_clipping")
    train, _ = workshop.split()
    workshop.forget(train[0])
    workshop.dispatch()
    workshop.push(800, first=RECORDS)
    with workshop.transaction() as session:
        model = workshop.model()
        assert Occasion.of(session, model).shape.retained == len(train) - 1
    assert workshop.begin(workshop.lease()).plan.parameters["steps"] == 1


def test_every_training_record_has_a_batch_and_held_out_ones_have_none(trained: Workshop) -> None:
    train, _ = trained.split()
    found = batches(trained)
    assert set(found) == trained.seqs(*train)
    sizes = [size for _, size in sorted(Counter(found.values()).items())]
    full, rest = divmod(len(train), BATCH_SIZE)
    assert sizes == [BATCH_SIZE] * full + [rest] * bool(rest)


def test_a_request_enters_the_history_batch_by_batch(trained: Workshop) -> None:
    train, _ = trained.split()
    before, batch_of = shape(trained), batches(trained)
    assert (before.forgotten, before.newly_forgotten) == (0, 0)
    assert before.tracking.history.forgotten() == 0
    trained.forget(*train[:5])

    after = shape(trained)

    expected = Counter(batch_of[seq] for seq in trained.seqs(*train[:5]))
    history = after.tracking.history
    assert history.events == (*before.tracking.history.events, history.events[-1])
    assert dict(history.events[-1].records) == history.by_batch() == expected
    assert (after.forgotten, after.newly_forgotten) == (5, 5)
    assert (after.records, after.retained) == (len(train), len(train) - 5)
    assert drift(before.tracking.history) == 0
    assert drift(history) > 0


def test_what_a_certificate_covers_is_counted_once_and_never_forgotten(trained: Workshop) -> None:
    train, _ = trained.split()
    forget_and_publish(trained, *train[:3])
    published = shape(trained)
    assert (published.forgotten, published.newly_forgotten) == (3, 0)
    trained.forget(*train[3:5])

    found = shape(trained)

    assert (found.forgotten, found.newly_forgotten) == (5, 2)
    assert found.tracking.history.forgotten() == 5
    assert found.records == len(train)


def test_batches_survive_requests_erasure_and_later_uploads(trained: Workshop) -> None:
    train, _ = trained.split()
    before = batches(trained)
    forget_and_publish(trained, *train[:7])
    trained.push(20, first=RECORDS)
    assert batches(trained) == before


def test_a_run_gets_the_old_batches_of_the_records_that_are_left(trained: Workshop) -> None:
    train, _ = trained.split()
    before = batches(trained)
    trained.forget(*train[:7])
    trained.dispatch()

    selection = trained.begin(trained.lease())

    left = trained.seqs(*train[7:])
    assert selection.retain == left
    assert {seq: selection.batch_of[seq] for seq in left} == {seq: before[seq] for seq in left}


def test_what_left_before_a_training_anew_is_no_part_of_it(workshop: Workshop) -> None:
    database = workshop.services.database
    policies.change_policy(database, "model", {"mechanism": "retraining"})
    workshop.work()
    train, _ = workshop.split()
    forget_and_publish(workshop, *train[:5])
    workshop.forget(train[5])
    found = shape(workshop)
    assert (found.records, found.retained) == (len(train) - 5, len(train) - 6)
    assert (found.forgotten, found.newly_forgotten) == (1, 1)
    assert found.tracking.history.recipe.batches == -(-(len(train) - 5) // BATCH_SIZE)


def test_records_that_never_moved_the_weights_change_no_history(trained: Workshop) -> None:
    _, held_out = trained.split()
    trained.push(4, first=RECORDS)
    before = shape(trained).tracking.history
    trained.forget(held_out[0], f"record-{RECORDS}")
    found = shape(trained)
    assert found.tracking.history == before
    assert (found.forgotten, found.newly_forgotten) == (0, 0)


def test_records_forgotten_before_training_are_no_part_of_it(workshop: Workshop) -> None:
    workshop.forget("record-0", "record-1", "record-2", "record-3")
    gone = workshop.seqs("record-0", "record-1", "record-2", "record-3")
    workshop.work()
    assert not gone & set(batches(workshop))
    found = shape(workshop)
    assert (found.forgotten, found.tracking.history.forgotten()) == (0, 0)


def test_a_history_that_is_full_keeps_no_other_model_waiting_and_can_begin_anew(
    trained: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained.train("other", architecture="linear_head", recipe=HEAD)
    learned = set(trained.split("model")[0]) & set(trained.split("other")[0])
    monkeypatch.setattr(history, "MOST_EVENTS", 2)  # the training and its release
    request_id = trained.forget(min(learned))
    trained.dispatch()
    assert trained.request(request_id).state == "failed"

    for name in ("model", "other"):
        policies.change_policy(trained.services.database, name, {"mechanism": "retraining"})
    with trained.transaction() as session:
        trained.services.forget_requests.retry(session, request_id)
    trained.dispatch()
    for name in ("model", "other"):
        trained.work(name)
    trained.services.clean_up()
    assert trained.request(request_id).state == "completed"
