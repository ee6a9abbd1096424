"""Batches: every example once per epoch, in an unrepeatable order, never a lone one."""

import numpy as np
import pytest
import torch

from app.domain.errors import RunFailedError
from workers.training.examples import classified

CPU = torch.device("cpu")


def numbered(count, dtype=np.float32):
    features = np.arange(count, dtype=dtype).reshape(-1, 1)
    return classified(features, np.arange(count))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 127, 128, 129, 257])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 128])
def test_an_epoch_holds_every_example_once_in_even_batches(count, batch_size):
    examples = numbered(count)
    batches = list(examples.epoch(batch_size, device=CPU))
    seen = torch.cat([batch["target"] for batch in batches])
    assert sorted(seen.tolist()) == list(range(count))
    assert all(torch.equal(batch["inputs"][:, 0].long(), batch["target"]) for batch in batches)
    sizes = [len(batch["target"]) for batch in batches]
    assert len(sizes) == examples.steps_per_epoch(batch_size)
    assert max(sizes) - min(sizes) <= 1
    if batch_size > 1 and count > 1:
        assert min(sizes) >= 2
        assert max(sizes) <= batch_size + 1


def test_the_order_is_fresh_each_time_whatever_the_seeds():
    orders = set()
    for _ in range(3):
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)
        batches = numbered(50).epoch(50, device=CPU)
        orders.add(tuple(next(batches)["target"].tolist()))
    assert len(orders) == 3


def test_forever_goes_on_with_a_new_order():
    stream = numbered(20).forever(20, device=CPU)
    first, second = (next(stream)["target"] for _ in range(2))
    assert sorted(first.tolist()) == sorted(second.tolist())
    assert not torch.equal(first, second)


def test_raw_bytes_are_converted_per_batch_as_the_schema_says():
    features = np.array([[0, 255], [128, 1]], dtype=np.uint8)
    examples = classified(features, np.array([0, 1]), offset=128.0, scale=1 / 128)
    assert examples.inputs.dtype == torch.uint8
    inputs, labels = next(examples.in_order(2, device=CPU)).values()
    torch.testing.assert_close(
        inputs, torch.tensor([[-1.0, 127 / 128], [0.0, -127 / 128]]), rtol=0, atol=0
    )
    assert labels.tolist() == [0, 1]


def test_selection_keeps_pairs_together_and_copies():
    examples = numbered(10)
    chosen = examples.select(np.array([7, 2]))
    assert chosen.tensors["target"].tolist() == [7, 2]
    assert chosen.inputs[:, 0].tolist() == [7.0, 2.0]
    chosen.inputs.zero_()
    assert examples.inputs[7, 0] == 7


def test_no_examples_is_an_error_that_says_so():
    with pytest.raises(RunFailedError, match="no records"):
        next(numbered(3).select(np.array([], dtype=np.int64)).forever(4, device=CPU))


def test_printing_shows_no_record():
    text = repr(classified(np.full((2, 1), 31337.0), np.array([0, 42])))
    assert "31337" not in text
    assert "42" not in text


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (torch.zeros(3), torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(3, 1), torch.zeros(2, dtype=torch.int64)),
    ],
)
def test_tensors_that_do_not_fit_are_refused(features, labels):
    with pytest.raises(RunFailedError):
        classified(features, labels)
