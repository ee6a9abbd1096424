"""Networks on random records: fine, or refused by name before a record is read."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from app.domain.errors import PlanError, RunFailedError
from app.domain.schema import InputSchema
from tests.support.networks import Computing, Tied
from workers.mechanisms.rehearsal import rehearse
from workers.training.forms import InputForm
from workers.training.tasks.built_in import CLASSIFICATION

CPU = torch.device("cpu")
NUMBERS = InputSchema(shape=(6,), dtype="float32", offset=0.0, scale=1.0, classes=2)
TOKENS = InputSchema(shape=(6,), dtype="int64", offset=0.0, scale=1.0, classes=2, vocabulary=500)


def text(vocabulary):
    return Computing(
        lambda own, x: own.head(own.words(x).mean(dim=1)),
        words=nn.Embedding(vocabulary, 4),
        head=nn.Linear(4, 2),
    )


class Constant(nn.Linear):
    """Has a tensor that is no buffer, and never changes."""

    def __init__(self):
        super().__init__(6, 2)
        self.factor = torch.tensor(2.0)

    def forward(self, features):
        return self.factor * super().forward(features)


class Clamping(nn.Linear):
    def forward(self, features):
        with torch.no_grad():
            self.weight.clamp_(-0.01, 0.01)
        return super().forward(features)


class Keeping(nn.Linear):
    seen = None

    def forward(self, features):
        self.seen = features.detach()
        return super().forward(features)


class Scaling(nn.Linear):
    """Divides by the largest number that it ever saw, which it keeps as no tensor."""

    largest = 0.0

    def forward(self, features):
        self.largest = max(self.largest, float(features.abs().max()))
        return super().forward(features / (self.largest + 1))


class Averaging(nn.Linear):
    """Subtracts the mean of all batches so far, in evaluation mode too."""

    def __init__(self, *, training):
        super().__init__(6, 2)
        self.seen, self.when = [], training

    def forward(self, features):
        if self.training == self.when:
            self.seen.append(features.detach().mean(dim=0))
            features = features - torch.stack(self.seen).mean(dim=0)
        return super().forward(features)


class Filling(nn.Linear):
    """Writes into its base, but only where nothing is trained."""

    def __init__(self):
        super().__init__(6, 2)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, features):
        if not self.training:
            self.mean.copy_(features.mean(dim=0))
        return super().forward(features)


class Drawing(nn.Linear):
    """Draws from the process's generators, and keeps what changes nothing."""

    def __init__(self):
        super().__init__(6, 2)
        self.calls = 0

    def forward(self, features):
        self.calls += 1
        noise = random.random() + np.random.rand()  # noqa: NPY002
        return super().forward(features * noise)


class Masked(nn.Linear):
    def __init__(self):
        super().__init__(6, 2)
        self.register_buffer("mask", torch.ones(6), persistent=False)


class Counting(nn.Linear):
    def __init__(self):
        super().__init__(6, 2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, features):
        self.calls += 1
        return super().forward(features)


class Detached(nn.Linear):
    def forward(self, features):
        return super().forward(features).detach()


def in_place(own, features):
    hidden = own.one(features).sigmoid()
    hidden += 1
    hidden.mul_(2)
    return own.head(hidden.sigmoid_().exp().mul_(2))


def with_batch_norm():
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))


def frozen():
    module = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    return module


def frozen_ones():
    module = frozen()
    for tensor in module[0].parameters():
        nn.init.ones_(tensor)
    return module


def normalised_spectrally():
    return nn.utils.parametrizations.spectral_norm(nn.Linear(6, 2))


def lazy():
    module = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    module(torch.zeros(2, 6))  # as the builder does
    return module


@pytest.mark.parametrize(
    ("factory", "schema", "private"),
    [
        (with_batch_norm, NUMBERS, False),
        (Tied, NUMBERS, True),
        (Constant, NUMBERS, False),
        (Masked, NUMBERS, False),
        (Drawing, NUMBERS, False),
        (frozen_ones, NUMBERS, True),
        (lazy, NUMBERS, True),
        (lambda: text(500), TOKENS, True),
    ],
)
def test_these_are_fine(factory, schema, private):
    network = rehearse(factory, CLASSIFICATION, InputForm.of(schema), device=CPU, private=private)
    assert network.flat.size > 0
    assert network.flat.gradients.numel() == 0


@pytest.mark.parametrize(
    ("factory", "schema", "private", "error", "words"),
    [
        (with_batch_norm, NUMBERS, True, PlanError, r"layer '1' \(BatchNorm1d\)"),
        (lambda: Clamping(6, 2), NUMBERS, False, PlanError, "'weight' in"),
        (lambda: Keeping(6, 2), NUMBERS, False, PlanError, "keeps the tensor 'seen'"),
        (lambda: Scaling(6, 2), NUMBERS, False, PlanError, "after it saw others"),
        (lambda: Scaling(6, 2), NUMBERS, True, PlanError, "after it saw others"),
        (lambda: Averaging(training=True), NUMBERS, False, PlanError, "after it saw others"),
        (lambda: Averaging(training=False), NUMBERS, False, PlanError, "after it saw others"),
        (Filling, NUMBERS, False, PlanError, "public tensor 'mean' changed"),
        (Counting, NUMBERS, False, PlanError, "public tensor 'calls' changed"),
        (frozen, NUMBERS, False, PlanError, r"'0\.bias' is another one in each network"),
        (normalised_spectrally, NUMBERS, False, PlanError, "parametrizations"),
        (nn.Identity, NUMBERS, False, PlanError, "no parameters"),
        (lambda: Detached(6, 2), NUMBERS, False, RunFailedError, "does not require grad"),
        (
            lambda: Computing(in_place, one=nn.Linear(6, 6), head=nn.Linear(6, 2)),
            NUMBERS,
            False,
            RunFailedError,
            "modified by an inplace operation",
        ),
        (lambda: text(10), TOKENS, False, RunFailedError, "tokens from 0 to 499"),
    ],
)
def test_these_are_refused_by_name(factory, schema, private, error, words):
    with pytest.raises(error, match=words):
        rehearse(factory, CLASSIFICATION, InputForm.of(schema), device=CPU, private=private)


def judging(own, features):
    """Let a value decide what is computed."""
    return own.linear(features * 2 if features.max() > 1e9 else features)


def test_the_reason_why_there_is_no_gradient_of_each_record_is_told_in_full():
    module = Computing(judging, linear=nn.Linear(6, 2))
    with pytest.raises(RunFailedError, match=r"looks at values(.|\n)*DataDependent"):
        rehearse(lambda: module, CLASSIFICATION, InputForm.of(NUMBERS), device=CPU, private=True)


def test_torchs_generator_is_left_alone():
    before = torch.get_rng_state()
    rehearse(with_batch_norm, CLASSIFICATION, InputForm.of(NUMBERS), device=CPU)
    assert torch.equal(before, torch.get_rng_state())
