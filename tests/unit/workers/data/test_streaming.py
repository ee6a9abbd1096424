"""Streamed records: every one once an epoch, the same batches as in memory, and nothing else."""

import threading
import time
import weakref
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch

from app.domain.errors import GoneError, LeaseLostError, ObjectStoreError, RunFailedError
from workers.data.shards import Selected
from workers.data.streaming import Streamed, Survey
from workers.training.forms import InputForm
from workers.training.noisy_phase import FixedBatches, RandomBatches
from workers.training.part import Part
from workers.training.tasks.task import INPUTS, TARGET

CPU = torch.device("cpu")
FORM = InputForm(shape=(3,), scale=0.5)
RETAINED = np.array([seq for seq in range(1, 400) if seq % 5], dtype=np.int64)
FORGOTTEN = frozenset(range(0, 400, 5))


class Dataset:
    """Shards of unequal sizes, in an order of their own, with records that nobody may see."""

    def __init__(self):
        seqs = np.random.default_rng(0).permutation(400)
        self.shards = {
            f"shard-{number}": _part(np.sort(some))
            for number, some in enumerate(np.split(seqs, [1, 90, 97, 200, 380]))
        }
        self.read_count = Counter()
        self.most_at_once = 0

    def read(self, shard_id, wanted):
        self.read_count[shard_id] += 1
        return self.shards[shard_id].only(wanted)

    def streamed(self, *, window, seqs=RETAINED, check=lambda: None, **options):
        found = Survey([seqs])
        for shard_id, part in self.shards.items():
            found.take(shard_id, part)
        (holdings,) = found.holdings()
        return Streamed(seqs, FORM, holdings, self.read, window=window, check=check, **options)

    def in_memory(self, seqs=RETAINED):
        chosen = Selected(seqs, FORM)
        for part in self.shards.values():
            chosen.take(part)
        return chosen.examples()


def _part(seqs):
    inputs = np.stack([seqs, seqs * 2.0, seqs + 0.25], axis=1).astype(np.float32)
    return Part(seqs, {INPUTS: inputs, TARGET: seqs % 7})


@pytest.fixture
def dataset():
    yield Dataset()
    assert [each for each in threading.enumerate() if each.name.startswith("read-ahead")] == []


def seqs_in(batch):
    assert (batch[INPUTS][:, 1] == batch[INPUTS][:, 0] * 2).all()
    assert (batch[INPUTS][:, 0] * 2 % 7 == batch[TARGET]).all()
    return (batch[INPUTS][:, 0] * 2).int().tolist()


@pytest.mark.parametrize("window", [1, 7, 60, 319, 1000])
@pytest.mark.parametrize("batch_size", [1, 32, 100])
def test_an_epoch_has_every_retained_record_once_and_no_other(dataset, window, batch_size):
    streamed = dataset.streamed(window=window)
    batches = [seqs_in(each) for each in streamed.epoch(batch_size, device=CPU)]
    assert Counter(seq for batch in batches for seq in batch) == Counter(RETAINED.tolist())
    whole = dataset.in_memory()
    expected = [len(each[INPUTS]) for each in whole.epoch(batch_size, device=CPU)]
    assert [len(batch) for batch in batches] == expected
    assert streamed.steps_per_epoch(batch_size) == whole.steps_per_epoch(batch_size) == len(batches)


def test_epochs_without_end_are_whole_epochs_in_orders_of_their_own(dataset):
    streamed = dataset.streamed(window=60)
    steps = streamed.steps_per_epoch(32)
    batches = streamed.forever(32, device=CPU)
    epochs = [[seqs_in(each) for each in islice(batches, steps)] for _ in range(3)]
    batches.close()
    flat = [[seq for batch in epoch for seq in batch] for epoch in epochs]
    assert all(sorted(epoch) == RETAINED.tolist() for epoch in flat)
    assert flat[0] != flat[1] != flat[2]


def test_a_window_mixes_records_of_distant_places(dataset):
    """Eight blocks of a few records each, from all over the dataset, in each window."""
    first = next(iter(dataset.streamed(window=64).epoch(64, device=CPU)))
    found = np.sort(np.searchsorted(RETAINED, seqs_in(first)))
    blocks = np.unique(found // 8)
    assert len(blocks) == 8
    assert blocks.max() - blocks.min() > 8


def test_the_order_does_not_depend_on_how_records_are_spread_over_shards(dataset, monkeypatch):
    """What else a shard held, such as a forgotten record, must not show in the batches."""
    original = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda: original(5))
    one = [seqs_in(each) for each in dataset.streamed(window=60).epoch(32, device=CPU)]
    dataset.shards = {"all": _part(RETAINED)}
    other = [seqs_in(each) for each in dataset.streamed(window=60).epoch(32, device=CPU)]
    assert one == other


def test_in_order_is_the_order_of_sequence_numbers(dataset):
    streamed, whole = dataset.streamed(window=50), dataset.in_memory()
    for mine, theirs in zip(
        streamed.in_order(24, device=CPU), whole.in_order(24, device=CPU), strict=True
    ):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("window", [1, 40, 1000])
@pytest.mark.parametrize("position", [0, 3, 25])
def test_fixed_batches_are_the_same_bits_streamed_and_in_memory(dataset, window, position):
    batch_of = np.random.default_rng(1).integers(0, 10, len(RETAINED))
    batch_of[batch_of == 4] = 5  # a batch whose records were all forgotten
    feeds = [
        FixedBatches(records, batch_of, batches=11, batch_size=30, position=position)
        for records in (dataset.streamed(window=window), dataset.in_memory())
    ]
    for _ in range(2):  # a later call goes on where the first one stopped
        cycles = [feed.forever(CPU) for feed in feeds]
        for mine, theirs in islice(zip(*cycles, strict=True), 17):
            assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
            assert all(mine[name].dtype == theirs[name].dtype for name in theirs)
        cycles[0].close()
    once = [list(feed.once(CPU)) for feed in feeds]
    assert len(once[0]) == len(once[1]) == 9
    assert all(torch.equal(a[INPUTS], b[INPUTS]) for a, b in zip(*once, strict=True))


def test_fixed_batches_of_no_record_are_empty(dataset):
    none = np.empty(0, dtype=np.int64)
    feed = FixedBatches(dataset.streamed(window=5, seqs=none), none, batches=3, batch_size=4)
    batches = feed.forever(CPU)
    assert [len(next(batches)[INPUTS]) for _ in range(5)] == [0] * 5
    batches.close()


def test_without_records_nothing_is_trained(dataset):
    none = dataset.streamed(window=5, seqs=np.empty(0, dtype=np.int64))
    with pytest.raises(RunFailedError, match="no records are left"):
        next(iter(RandomBatches(none, 4).forever(CPU)))


def test_a_shard_is_read_again_as_it_is_by_then(dataset):
    streamed = dataset.streamed(window=1000)
    for shard_id, part in dataset.shards.items():  # an erasure takes the forgotten ones away
        dataset.shards[shard_id] = part.only(RETAINED)
    found = [seq for batch in streamed.epoch(50, device=CPU) for seq in seqs_in(batch)]
    assert sorted(found) == RETAINED.tolist()


def test_a_record_that_vanished_is_an_error_and_not_a_smaller_epoch(dataset):
    streamed = dataset.streamed(window=60)
    for shard_id, part in dataset.shards.items():
        dataset.shards[shard_id] = part.only(RETAINED[1:])
    with pytest.raises(GoneError, match="not in its shard any more"):
        list(streamed.epoch(50, device=CPU))


def test_records_to_evaluate_on_may_be_erased_meanwhile(dataset):
    streamed = dataset.streamed(window=60, all_there=False)
    for shard_id, part in dataset.shards.items():
        dataset.shards[shard_id] = part.only(RETAINED[50:])
    found = [seq for batch in streamed.in_order(32, device=CPU) for seq in seqs_in(batch)]
    assert found == RETAINED[50:].tolist()


def test_a_record_in_no_shard_or_in_two_is_an_error(dataset):
    with pytest.raises(GoneError, match="in no shard"):
        dataset.streamed(window=5, seqs=np.array([1, 400]))
    dataset.shards["again"] = _part(np.array([7]))
    with pytest.raises(RunFailedError, match="stored twice"):
        dataset.streamed(window=5)


def test_a_lost_lease_ends_the_reading(dataset):
    lost = threading.Event()

    def check():
        if lost.is_set():
            raise LeaseLostError("the run is held by another worker or is over")

    batches = dataset.streamed(window=40, check=check).forever(16, device=CPU)
    next(batches)
    lost.set()
    with pytest.raises(LeaseLostError):
        list(islice(batches, 1000))


def test_an_outage_is_waited_out(dataset, monkeypatch):
    monkeypatch.setattr("workers.leases.outages._DELAY_S", 0.01)
    read, failures = dataset.read, iter([True, False, True, True])

    def failing(*wanted):
        if next(failures, False):
            raise ObjectStoreError("the object store does not answer")
        return read(*wanted)

    dataset.read = failing
    found = [
        seq for each in dataset.streamed(window=60).epoch(32, device=CPU) for seq in seqs_in(each)
    ]
    assert sorted(found) == RETAINED.tolist()


def test_a_run_that_ends_early_ends_its_threads(dataset):
    streamed = dataset.streamed(window=20)
    kept = [streamed.forever(16, device=CPU), streamed.in_order(16, device=CPU)]
    for each in kept:
        next(each)
    assert len([each for each in threading.enumerate() if each.name.startswith("read-ahead")]) == 2
    streamed.close()


def test_two_windows_are_in_memory_and_no_more(dataset, monkeypatch):
    alive, most = weakref.WeakSet(), [0]
    original = Selected.examples

    def counted(self):
        made = original(self)
        alive.add(made)
        most[0] = max(most[0], len(alive))
        return made

    monkeypatch.setattr(Selected, "examples", counted)
    for batch in dataset.streamed(window=30).epoch(16, device=CPU):
        del batch
        time.sleep(0.002)  # longer than the thread needs for a window
    assert most[0] <= 2
