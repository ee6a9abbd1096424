"""Ensembles average what their members say, and have their base in memory once."""

import pickle
import weakref

import pytest
import torch
from torch import nn

from app.domain.errors import RunFailedError
from app.domain.tasks import catalogue
from tests.support.arrays import array_task
from tests.support.own_tasks import OWN
from tests.support.specs import classification
from workers.training.networks import base
from workers.training.networks.ensemble import Ensemble

_ROOMS = [{"name": "area", "kind": "number", "low": 0, "high": 50}]
_NUMBERS = {"name": "regression", "inputs": _ROOMS, "target": {"columns": ["rent", "deposit"]}}
_LABELS = {"name": "multi_label", "inputs": _ROOMS, "target": {"columns": ["open", "cheap"]}}
_NOTES = {"name": "language_model", "inputs": [{"name": "note", "kind": "text", "length": 9}]}
CLASSES = array_task(2)


class Says(nn.Module):
    """Says the same of every record."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs = nn.Parameter(torch.tensor(outputs))

    def forward(self, records):
        return self.outputs.expand(len(records), *self.outputs.shape)


class OnBase(nn.Module):
    """A frozen layer and a constant buffer, drawn anew by each, below a layer that learns."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(3, 4).requires_grad_(requires_grad=False)
        self.register_buffer("shift", torch.randn(4))
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, records):
        return self.head(self.norm(self.frozen(records) + self.shift))


def said(task, *outputs):
    ensemble = Ensemble([Says(each) for each in outputs], catalogue.from_json(task))
    return ensemble(torch.zeros(5, 1))


@pytest.mark.parametrize("loss", ["squared", "huber", "quantile"])
def test_numbers_are_averaged(loss):
    task = _NUMBERS | {"loss": loss}
    assert torch.equal(said(task, [1.0, 6.0], [3.0, -2.0]), torch.tensor([[2.0, 2.0]] * 5))


def test_the_outputs_of_an_operators_own_task_are_averaged():
    assert torch.equal(said(OWN, [1.0], [2.0]), torch.tensor([[1.5]] * 5))


@pytest.mark.parametrize(
    ("task", "outputs"),
    [
        (CLASSES, ([0.0, 4.0], [9.0, -3.0], [1e4, -1e4])),
        (_NOTES, ([[0.0, 4.0], [2.0, 1.0]], [[9.0, -3.0], [0.0, 0.0]])),
    ],
    ids=["classes", "tokens"],
)
def test_the_probabilities_of_classes_and_tokens_are_averaged(task, outputs):
    found = said(task, *outputs)
    expected = torch.stack([torch.tensor(each).softmax(-1) for each in outputs]).mean(0)
    assert torch.allclose(found.softmax(-1), expected.expand_as(found))
    assert torch.allclose(found.logsumexp(-1), torch.zeros(()), atol=1e-5)


def test_each_labels_probability_is_averaged():
    found = said(_LABELS, [3.0, -200.0], [-1.0, -300.0])
    expected = torch.tensor([3.0, -1.0]).sigmoid().mean()
    assert torch.allclose(found[:, 0].sigmoid(), expected)
    assert torch.allclose(found[:, 1], torch.tensor(-200.0).sub(torch.tensor(2.0).log()))


def on_base(members=3):
    task = classification(2)
    return Ensemble((OnBase() for _ in range(members)), task).eval()


def places(ensemble):
    """Return how many places in memory the members' tensors of each name are at."""
    found = {}
    for member in ensemble.members.values():
        for name, tensor in member.state_dict(keep_vars=True).items():
            found.setdefault(name, set()).add(tensor.data_ptr())
    return {name: len(pointers) for name, pointers in found.items()}


@pytest.mark.parametrize(
    "after",
    [
        lambda ensemble: ensemble,
        lambda ensemble: ensemble.requires_grad_(requires_grad=False).to(torch.float64),
        lambda ensemble: pickle.loads(pickle.dumps(ensemble)),
    ],
    ids=["built", "converted", "pickled"],
)
def test_the_base_is_in_memory_once_and_nothing_else_is_shared(after):
    ensemble = on_base()
    names = list(ensemble.state_dict())
    ensemble = after(ensemble)
    shared = {"frozen.weight", "frozen.bias", "shift"}
    assert {name for name, count in places(ensemble).items() if count == 1} == shared
    assert set(places(ensemble).values()) == {1, 3}
    assert list(ensemble.state_dict()) == names
    assert {name.split(".")[1] for name in names} == {"0", "1", "2"}


def test_every_member_computes_with_the_first_ones_base():
    ensemble = on_base()
    first, *others = ensemble.members.values()
    records = torch.randn(6, 3)
    for other in others:
        seen = other.head(other.norm(first.frozen(records) + first.shift))
        assert torch.equal(other(records), seen)


def test_the_base_is_digested_once(monkeypatch):
    ensemble, read = on_base(), []
    monkeypatch.setattr(base, "digest_of", lambda tensor: read.append(tensor) or "d")
    assert base.digests_of(ensemble).keys() == base.public_tensors(ensemble).keys()
    assert (len(read), len(base.public_tensors(ensemble))) == (3, 9)


def test_no_two_bases_are_in_memory_before_a_member_is_built():
    built = []

    def alive():
        return sum(each() is not None for each in built)

    def members():
        for _ in range(4):
            assert alive() <= 1
            member = OnBase()
            built.append(weakref.ref(member.frozen.weight))
            yield member

    ensemble = Ensemble(members(), classification(2))
    assert (len(ensemble.members), len(built)) == (4, 4)
    for number in ("1", "2", "3"):
        del ensemble.members[number]
    assert alive() == 1


def test_members_that_differ_in_what_is_frozen_are_refused():
    free = OnBase()
    free.frozen.requires_grad_()
    assert base.public_tensors(free).keys() == {"shift"}
    with pytest.raises(RunFailedError, match="differ in what they have frozen"):
        Ensemble([OnBase(), free], classification(2))


def test_without_a_member_it_averages_the_others_under_their_own_names():
    whole = on_base()
    rest = Ensemble([OnBase(), OnBase()], classification(2), (0, 2)).eval()
    assert {name.split(".")[1] for name in rest.state_dict()} == {"0", "2"}
    rest.load_state_dict(
        {name: tensor for name, tensor in whole.state_dict().items() if "members.1." not in name}
    )
    records = torch.randn(6, 3)
    expected = torch.stack([whole.members[k](records).softmax(dim=-1) for k in "02"]).mean(dim=0)
    assert torch.allclose(rest(records).softmax(dim=-1), expected)
