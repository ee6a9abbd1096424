"""A record's features are the same bytes whichever other records there are."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.networks import Computing
from workers.data.backbone import Extraction
from workers.training.examples import classified

CPU = torch.device("cpu")


def of_the_place(_, inputs):
    """Round differently in each place of a batch, as some kernels do."""
    return inputs * (1 + torch.arange(len(inputs)).view(-1, 1, 1) * 1e-6)


def of_the_batch(_, inputs):
    """Round differently for another batch."""
    return inputs * (1 + inputs.sum() * 1e-6)


def convolving():
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Unflatten(1, (3, 8)), nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 50)
    )


def linear():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 300), nn.Tanh(), nn.Linear(300, 41))


def records(count=100):
    raw = np.random.default_rng(6).standard_normal((count, 24, 8)).astype(np.float32)
    return classified(raw, np.zeros(count, np.int64))


def extracted(network, examples):
    return torch.cat(list(Extraction(network.eval(), device=CPU).batches(examples)))


@pytest.mark.parametrize(
    "network", [linear(), convolving(), Computing(of_the_place), Computing(of_the_batch)]
)
def test_features_do_not_depend_on_the_other_records_or_their_order(network):
    every = records()
    whole = extracted(network, every)
    order = np.random.default_rng(0).permutation(100)
    for chosen in (order, order[:1], order[:7], np.arange(31, 33), np.arange(64)):
        assert torch.equal(extracted(network, every.select(chosen)), whole[chosen])


def test_batches_are_of_one_size_but_for_what_is_left(monkeypatch):
    seen = []
    network = linear()
    network.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    sizes = [len(batch) for batch in Extraction(network, device=CPU).batches(records(70))]
    assert (sizes, set(seen)) == ([32, 32, 6], {32})


def test_settings_are_as_before_while_the_caller_has_a_batch():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        inside = []
        network = linear()
        network.register_forward_hook(
            lambda *_: inside.append(
                (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())
            )
        )
        for _ in Extraction(network, device=CPU).batches(records(40)):
            assert (torch.get_num_threads(), torch.is_grad_enabled()) == (2, True)
            assert not torch.are_deterministic_algorithms_enabled()
        assert set(inside) == {(1, True)}
    finally:
        torch.set_num_threads(threads)


def test_no_records_have_no_features():
    assert list(Extraction(linear(), device=CPU).batches(records(0))) == []
