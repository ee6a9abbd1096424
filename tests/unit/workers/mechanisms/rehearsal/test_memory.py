"""What a network computes shows whether it remembers other records."""

import random

import numpy as np
import pytest
import torch

from workers.mechanisms.rehearsal import evaluated, remembers
from workers.training.forms import fainter
from workers.training.tasks.built_in import CLASSIFICATION

BATCH = {"inputs": torch.linspace(-2, 2, 30).reshape(5, 6), "target": torch.arange(5)}
SEEN: list[torch.Tensor] = []


def with_a_global(batch):
    SEEN.append(batch["inputs"].mean())
    return batch["inputs"] - sum(SEEN)


def with_chance(batch):
    return batch["inputs"] * torch.rand(1) * random.random() * np.random.rand()  # noqa: NPY002


def not_a_number(batch):
    return batch["inputs"] / torch.zeros(())


@pytest.mark.parametrize(
    ("compute", "expected"),
    [(with_a_global, True), (with_chance, False), (not_a_number, False)],
)
def test_records_are_remembered_where_they_change_what_others_give(compute, expected):
    SEEN.clear()
    batch = BATCH | {"inputs": BATCH["inputs"] + 1}
    assert remembers(compute, batch) is expected


def test_the_processs_generators_go_on_as_if_nothing_had_been_drawn():
    before = random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        remembers(with_chance, BATCH)
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


def test_fainter_records_are_records():
    assert torch.equal(fainter(torch.tensor([-4.0, 8.0])), torch.tensor([-1.0, 2.0]))
    tokens = fainter(torch.tensor([0, 1, 7]))
    assert tokens.dtype == torch.int64
    assert tokens.tolist() == [0, 0, 3]


def test_losses_are_those_of_evaluation():
    dropped = torch.nn.Dropout(0.5).train()
    expected = CLASSIFICATION.loss(lambda inputs: inputs, BATCH)
    assert torch.equal(evaluated(dropped, CLASSIFICATION)(BATCH), expected)
    assert dropped.training
