"""Fixed batches stay what they are: records leave, their places and the divisor do not."""

from itertools import islice

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from workers.training.examples import classified
from workers.training.feeds import FixedBatches

CPU = torch.device("cpu")
BATCHES, BATCH_SIZE = 4, 3
BATCH_OF = np.array([2, 0, 1, 0, 3, 2, 1, 0, 2, 1])


def numbered(numbers):
    """Records of one feature, their own number, with two classes."""
    numbers = np.asarray(numbers)
    return classified(numbers.astype(np.float32)[:, None], numbers % 2)


def feed_without(forgotten=(), **options):
    kept = np.array([n for n in range(len(BATCH_OF)) if n not in forgotten])
    return FixedBatches(
        numbered(kept), BATCH_OF[kept], batches=BATCHES, batch_size=BATCH_SIZE, **options
    )


def numbers_of(batches, count):
    return [
        sorted(int(x) for x in features) for features, _ in map(dict.values, islice(batches, count))
    ]


def gradient_of(feed, features, labels, weight):
    weight = weight.clone().requires_grad_()
    losses = cross_entropy(features @ weight, labels, reduction="none")
    feed.objective(losses).backward()
    return weight.grad


def test_batches_come_in_their_cycle_and_hold_their_records():
    assert numbers_of(feed_without().forever(CPU), 6) == [
        [1, 3, 7],
        [2, 6, 9],
        [0, 5, 8],
        [4],
        [1, 3, 7],
        [2, 6, 9],
    ]


def test_labels_go_with_their_records():
    for features, labels in map(dict.values, feed_without().once(CPU)):
        assert (features[:, 0].long() % 2 == labels).all()


def test_records_that_are_forgotten_leave_every_other_in_its_batch():
    left = numbers_of(feed_without({3, 4, 9}).forever(CPU), BATCHES)
    assert left == [[1, 7], [2, 6], [0, 5, 8], []]


def test_a_forgotten_record_counts_as_a_gradient_of_zero():
    weight = torch.tensor([[0.3, -0.2]])
    whole, left = feed_without(), feed_without({3})
    features, labels = next(whole.forever(CPU)).values()
    present = features[:, 0] != 3
    assert int(present.sum()) == 2
    losses = cross_entropy(features @ weight, labels, reduction="none")
    remaining = gradient_of(left, *next(left.forever(CPU)).values(), weight)
    alone = gradient_of(whole, features[~present], labels[~present], weight)
    assert torch.allclose(remaining + alone, gradient_of(whole, features, labels, weight))
    loss = left.objective(losses[present])
    assert float(loss) == pytest.approx(float(losses[present].sum()) / BATCH_SIZE)


def test_a_batch_without_records_keeps_its_turn_and_moves_nothing():
    feed = feed_without({4})
    features, labels = next(islice(feed.forever(CPU), 3, None)).values()
    assert len(labels) == 0
    assert (gradient_of(feed, features, labels, torch.ones(1, 2)) == 0).all()
    assert numbers_of(feed.once(CPU), 9) == [[1, 3, 7], [2, 6, 9], [0, 5, 8]]


@pytest.mark.parametrize("position", [0, 2, BATCHES - 1, BATCHES, 5 * BATCHES + 3])
def test_the_cycle_goes_on_where_the_lineage_stopped(position):
    cycle = numbers_of(feed_without().forever(CPU), BATCHES)
    (first,) = numbers_of(feed_without(position=position).forever(CPU), 1)
    assert first == cycle[position % BATCHES]


def test_a_second_phase_goes_on_where_the_first_stopped_and_a_look_changes_nothing():
    cycle = numbers_of(feed_without().forever(CPU), BATCHES)
    feed = feed_without()
    assert numbers_of(feed.forever(CPU), 3) == cycle[:3]
    list(feed.once(CPU))
    assert numbers_of(feed.forever(CPU), 2) == [cycle[3], cycle[0]]


def test_a_loss_bound_caps_each_record_and_leaves_small_losses_alone():
    bounded, plain = feed_without(loss_bound=2.0), feed_without()
    large, small = torch.tensor([50.0]), torch.tensor([0.007])
    assert float(plain.objective(large)) == pytest.approx(50 / BATCH_SIZE)
    assert float(bounded.objective(large)) == pytest.approx(2 / BATCH_SIZE)
    assert float(bounded.objective(small)) == pytest.approx(float(plain.objective(small)), rel=1e-4)
    both = bounded.objective(large.expand(2))
    assert float(both) == pytest.approx(4 / BATCH_SIZE)
