"""A head that is trained anew to forget is what a training without the forgotten records makes."""

from collections import Counter

import pytest

from app.evidence.certificates.weights_file import tensors_sha256
from app.ledger.models.policies import change_policy
from app.planning.tracking import Tracking
from app.registry.training_set import TrainingSet
from tests.support.exact_heads import carry_out, released
from tests.support.logbook import faults
from tests.support.workshop import RECORDS, batches_of

RECIPE = {"epochs": 3, "held_out_fraction": 0.25}
BATCH_SIZE = 4
KEPT = 9


def trained_anew(workshop, batch_size):
    """Have most records of a head forgotten by a retraining; return those that are left."""
    recipe = RECIPE | {"batch_size": batch_size}
    workshop.define(architecture="linear_head", recipe=recipe, mechanism="retraining")
    carry_out(workshop)
    train, _ = workshop.split()
    train.sort(key=lambda name: int(name.removeprefix("record-")) % 3)  # not half of each class
    workshop.forget(*train[KEPT:])
    workshop.dispatch()
    carry_out(workshop)
    return train[:KEPT]


@pytest.mark.parametrize("batch_size", [RECORDS, BATCH_SIZE])
def test_no_weight_tells_how_many_were_forgotten_or_in_which_batches(
    workshop, monkeypatch, batch_size
):
    trained_anew(workshop, batch_size)
    # The same records are held out, in the same order.
    monkeypatch.setattr(workshop, "_split_salt", lambda *_: workshop.model().split_salt)
    recipe = RECIPE | {"batch_size": batch_size}
    workshop.define("never", architecture="linear_head", recipe=recipe, mechanism="retraining")
    carry_out(workshop, "never")

    assert tensors_sha256(released(workshop)) == tensors_sha256(released(workshop, "never"))


def test_later_requests_count_by_the_batches_of_the_training_anew(workshop):
    first, second, third, *_ = trained_anew(workshop, BATCH_SIZE)
    changes = {"mechanism": "tracked_release", "parameters": {"noise_std": 20.0}, "epsilon": 8.0}
    change_policy(workshop.services.database, "model", changes)
    workshop.forget(first)
    workshop.dispatch()
    carry_out(workshop)
    request = workshop.forget(second, third)
    assert workshop.request(request).state == "certified"  # by the present version

    history = Tracking.from_json(workshop.model().tracking).history
    assert (history.recipe.batch_size, history.recipe.batches) == (BATCH_SIZE, 3)
    with workshop.transaction() as session:
        model = workshop.model()
        begun = Tracking.from_json(model.tracking).begun_at_epoch
        batch_of = batches_of(TrainingSet(session, model), BATCH_SIZE, begun_at_epoch=begun)
    assert len(batch_of) == KEPT
    assert sorted(Counter(batch_of.values()).values()) == [1, BATCH_SIZE, BATCH_SIZE]
    forgotten = workshop.seqs(first, second, third)
    assert history.by_batch() == Counter(batch_of[seq] for seq in forgotten)
    assert faults(workshop.services) == []
